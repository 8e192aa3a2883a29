//! Asks the node whether the sender of an order can pay, before the order is pooled.

mod accounts;
mod link;

use std::{sync::Arc, time::Duration};

use alloy_primitives::{Address, U256};
use futures::future::join_all;
use order_pool::{Bundle, Order, OrderPool, Transaction};
use order_rpc::{Admission, AdmissionFuture, Candidate, Verdict};
use txpool_fetcher::Endpoint;

pub(crate) use self::accounts::AccountsThread;
use self::accounts::{Account, Accounts};

/// A balance that is older than this refuses no order: the node and the sender may already know a
/// block that funds the sender, which the pool does not know yet.
const MAX_REFUSAL_AGE: Duration = Duration::from_millis(250);

/// Whether, and how, the node is asked about the senders of external callers' orders: for their
/// balance and their nonce at its latest block.
///
/// A transaction is refused if its sender cannot pay for it (gas limit times fee cap, value, and
/// blobs), or if its nonce is below the account's: a node refuses it for the same reasons. A bundle
/// is refused if one of its transactions that may not be omitted has such a nonce. It is refused
/// for a balance only if it is for the next block, and only for that of its first sender, because
/// the bundle or earlier transactions may fund the others.
///
/// It costs two calls for each sender that is new since the last head. The calls of all waiting
/// orders go in one batch, over a connection and a thread of their own (`mempool-admission`), so
/// announcements never wait behind them. While the node does not answer, or answers from an older
/// block than the pool knows, there is no verdict.
#[derive(Clone, Debug)]
pub struct NodeAdmissionConfig {
    /// The node. Default `None`: the first source of the fetcher that is not a pool in this
    /// process.
    pub endpoint: Option<Endpoint>,
    /// Whether an order is pooled if the node does not answer about its sender in time. Default
    /// true, so that no valid order is lost while the node is slow.
    pub fails_open: bool,
}

impl Default for NodeAdmissionConfig {
    fn default() -> Self {
        Self { endpoint: None, fails_open: true }
    }
}

/// The [`Admission`] of [`NodeAdmissionConfig`].
#[derive(Debug)]
pub(crate) struct NodeAdmission {
    accounts: Arc<Accounts>,
    pool: OrderPool,
    fails_open: bool,
}

impl NodeAdmission {
    /// Starts the thread that asks the node.
    pub(crate) fn start(
        config: &NodeAdmissionConfig,
        endpoint: Endpoint,
        pool: OrderPool,
    ) -> std::io::Result<(Self, AccountsThread)> {
        let (accounts, thread) = Accounts::start(endpoint, pool.clone())?;
        Ok((Self { accounts: Arc::new(accounts), pool, fails_open: config.fails_open }, thread))
    }

    async fn decide(&self, order: &Order) -> Verdict {
        let needs = match order {
            Order::Tx(tx) => vec![Need::of(tx, true)],
            Order::Bundle(bundle) => self.of_bundle(bundle),
            _ => return Verdict::Unknown,
        };
        let mut senders: Vec<Address> = needs.iter().map(|need| need.sender).collect();
        senders.sort_unstable();
        senders.dedup();
        let requested = senders.iter().map(|sender| {
            let of_sender = needs.iter().filter(|need| need.sender == *sender);
            self.verdict_on(*sender, of_sender)
        });
        // A definite refusal for one sender decides, even if another one's account is unknown.
        let verdicts = join_all(requested).await;
        let refused = verdicts.iter().find(|verdict| matches!(verdict, Verdict::Refuse { .. }));
        let unknown = verdicts.iter().find(|verdict| **verdict == Verdict::Unknown);
        refused.or(unknown).cloned().unwrap_or(Verdict::Accept)
    }

    fn of_bundle(&self, bundle: &Bundle) -> Vec<Need> {
        let next = self.pool.head().map(|head| head.number.saturating_add(1));
        let is_next = bundle.block().is_none() || bundle.block() == next;
        let needs = bundle.txs().iter().enumerate();
        let needed = needs.filter(|(_, tx)| !bundle.is_optional(tx.hash()));
        needed.map(|(index, tx)| Need::of(tx, is_next && index == 0)).collect()
    }

    async fn verdict_on(
        &self,
        sender: Address,
        needs: impl Iterator<Item = &Need> + Clone,
    ) -> Verdict {
        let reason = |account: &Account| needs.clone().find_map(|need| need.unmet_by(account));
        if let Some((account, age)) = self.accounts.cached(&sender) {
            match reason(&account) {
                None => return Verdict::Accept,
                Some(Unmet::Nonce(reason)) => return Verdict::Refuse { reason: reason.into() },
                Some(Unmet::Balance(reason)) if age <= MAX_REFUSAL_AGE => {
                    return Verdict::Refuse { reason: reason.into() };
                }
                Some(Unmet::Balance(_)) => {}
            }
        }
        let Some(account) = self.accounts.request(sender).await else { return Verdict::Unknown };
        match reason(&account) {
            None => Verdict::Accept,
            Some(Unmet::Nonce(reason) | Unmet::Balance(reason)) => {
                Verdict::Refuse { reason: reason.into() }
            }
        }
    }
}

impl Admission for NodeAdmission {
    fn admit<'a>(&'a self, candidate: Candidate<'a>) -> AdmissionFuture<'a> {
        Box::pin(self.decide(candidate.order))
    }

    fn fails_open(&self) -> bool {
        self.fails_open
    }
}

/// The requirements of a transaction on its sender's account.
#[derive(Clone, Copy, Debug)]
struct Need {
    sender: Address,
    nonce: u64,
    /// `None`: any balance.
    cost_wei: Option<U256>,
}

/// The reason of a refusal, as text for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Unmet {
    Nonce(String),
    Balance(String),
}

impl Need {
    fn of(tx: &Transaction, with_balance: bool) -> Self {
        let cost_wei = with_balance.then(|| tx.max_cost_wei());
        Self { sender: tx.sender(), nonce: tx.nonce(), cost_wei }
    }

    fn unmet_by(&self, account: &Account) -> Option<Unmet> {
        let Self { sender, nonce, cost_wei } = *self;
        let Account { balance_wei, next_nonce } = *account;
        if nonce < next_nonce {
            let reason = format!(
                "nonce too low: sender {sender}, next nonce {next_nonce}, tx nonce {nonce}"
            );
            return Some(Unmet::Nonce(reason));
        }
        let cost_wei = cost_wei.filter(|cost| *cost > balance_wei)?;
        Some(Unmet::Balance(format!(
            "insufficient funds: sender {sender}, balance {balance_wei} wei, tx cost {cost_wei} wei"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_pays_all_of_the_cost_from_a_nonce_that_is_not_used() {
        let account = Account { balance_wei: U256::from(100), next_nonce: 5 };
        let need = |nonce, cost_wei: Option<u64>| Need {
            sender: Address::ZERO,
            nonce,
            cost_wei: cost_wei.map(U256::from),
        };
        for (nonce, cost_wei) in [(5, Some(100)), (6, Some(0)), (9, None)] {
            assert_eq!(need(nonce, cost_wei).unmet_by(&account), None);
        }
        assert!(matches!(need(5, Some(101)).unmet_by(&account), Some(Unmet::Balance(_))));
        let unmet = need(4, Some(101)).unmet_by(&account);
        assert!(matches!(unmet, Some(Unmet::Nonce(_))), "what never changes is said first");
    }
}
