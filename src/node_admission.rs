//! Asks the node whether the sender of an order can pay, before the order is pooled.

mod accounts;
mod link;

use std::{sync::Arc, time::Duration};

use alloy_primitives::Address;
use futures::future::join_all;
use order_pool::{Bundle, Funds, Order, OrderPool, Transaction};
use order_rpc::{Admission, AdmissionFuture, Candidate, Verdict};
use txpool_fetcher::Endpoint;

pub(crate) use self::accounts::AccountsThread;
use self::accounts::{Account, Accounts};

/// An account that is older than this refuses no order but for a used nonce: the node and the sender
/// may already know a block that funds the sender, which the pool does not know yet.
const MAX_REFUSAL_AGE: Duration = Duration::from_millis(250);

/// Whether, and how, the node is asked about the senders of external callers' orders: for their
/// balance and their nonce at its latest block.
///
/// A transaction is refused if its sender cannot pay for it (gas limit times fee cap, value, and
/// blobs) together with all orders of the same caller that begin with one of its transactions
/// ([`OrderPool::check_funds`]), or if its nonce is below the account's, or more than
/// [`Self::max_nonces_ahead`] above it. A bundle, for whatever block, is refused if one of its
/// transactions that may not be omitted has such a nonce. It is refused for a balance only if it is
/// for the next block, and only for that of its first sender, because the bundle or earlier
/// transactions may fund the others.
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
    /// How far above the account's next nonce that of a transaction may be. Default
    /// [`DEFAULT_MAX_NONCES_AHEAD`]. Raise it, to at most 255, for
    /// senders that have more pending at once.
    pub max_nonces_ahead: u8,
}

/// The default of [`NodeAdmissionConfig::max_nonces_ahead`]: as many as geth keeps of an account
/// before it drops some (`txpool.accountslots`).
pub const DEFAULT_MAX_NONCES_AHEAD: u8 = 16;

impl Default for NodeAdmissionConfig {
    fn default() -> Self {
        let max_nonces_ahead = DEFAULT_MAX_NONCES_AHEAD;
        Self { endpoint: None, fails_open: true, max_nonces_ahead }
    }
}

/// The [`Admission`] of [`NodeAdmissionConfig`].
#[derive(Debug)]
pub(crate) struct NodeAdmission {
    accounts: Arc<Accounts>,
    pool: OrderPool,
    config: NodeAdmissionConfig,
}

impl NodeAdmission {
    /// Starts the thread that asks the node.
    pub(crate) fn start(
        config: &NodeAdmissionConfig,
        endpoint: Endpoint,
        pool: OrderPool,
    ) -> std::io::Result<(Self, AccountsThread)> {
        let (accounts, thread) = Accounts::start(endpoint, pool.clone())?;
        Ok((Self { accounts: Arc::new(accounts), pool, config: config.clone() }, thread))
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
            self.verdict_on(*sender, order, of_sender)
        });
        // A definite refusal for one sender decides, even if another one's account is unknown.
        let verdicts = join_all(requested).await;
        let find = |is: fn(&Verdict) -> bool| verdicts.iter().find(|verdict| is(verdict)).cloned();
        let refused = find(|verdict| matches!(verdict, Verdict::Refuse { .. }));
        let unknown = || find(|verdict| *verdict == Verdict::Unknown);
        let within = || find(|verdict| matches!(verdict, Verdict::AcceptWithin(_)));
        refused.or_else(unknown).or_else(within).unwrap_or(Verdict::Accept)
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
        order: &Order,
        needs: impl Iterator<Item = &Need> + Clone + Send + Sync,
    ) -> Verdict {
        let pays = needs.clone().any(|need| need.pays);
        let unmet = |funds: &Funds| {
            let of_nonce = needs.clone().find_map(|need| need.unmet_by(funds));
            let of_balance = || self.pool.check_funds(order, funds).err().filter(|_| pays);
            of_nonce.or_else(|| of_balance().map(|reason| Unmet::Yet(reason.to_string())))
        };
        let verdict = |funds, unmet| match unmet {
            Some(Unmet::Ever(reason) | Unmet::Yet(reason)) => {
                Verdict::Refuse { reason: reason.into() }
            }
            None if pays => Verdict::AcceptWithin(funds),
            None => Verdict::Accept,
        };
        if let Some((account, age)) = self.accounts.cached(&sender) {
            let funds = self.funds(account);
            let unmet = unmet(&funds);
            if !matches!(unmet, Some(Unmet::Yet(_))) || age <= MAX_REFUSAL_AGE {
                return verdict(funds, unmet);
            }
        }
        let Some(account) = self.accounts.request(sender).await else { return Verdict::Unknown };
        let funds = self.funds(account);
        verdict(funds, unmet(&funds))
    }

    fn funds(&self, Account { balance_wei, next_nonce }: Account) -> Funds {
        Funds { balance_wei, next_nonce, max_nonces_ahead: self.config.max_nonces_ahead }
    }
}

impl Admission for NodeAdmission {
    fn admit<'a>(&'a self, candidate: Candidate<'a>) -> AdmissionFuture<'a> {
        Box::pin(self.decide(candidate.order))
    }

    fn fails_open(&self) -> bool {
        self.config.fails_open
    }
}

/// The requirements of a transaction on its sender's account.
#[derive(Clone, Copy, Debug)]
struct Need {
    sender: Address,
    nonce: u64,
    /// Whether its sender must be able to pay for the order.
    pays: bool,
}

/// The reason of a refusal, as text for the caller.
#[derive(Debug)]
enum Unmet {
    Ever(String),
    /// A later block may change it.
    Yet(String),
}

impl Need {
    fn of(tx: &Transaction, pays: bool) -> Self {
        Self { sender: tx.sender(), nonce: tx.nonce(), pays }
    }

    /// Why its nonce is refused.
    fn unmet_by(&self, funds: &Funds) -> Option<Unmet> {
        let Self { sender, nonce, .. } = *self;
        let &Funds { next_nonce: next, max_nonces_ahead: limit, .. } = funds;
        if nonce < next {
            return Some(Unmet::Ever(format!(
                "nonce too low: sender {sender}, next nonce {next}, tx nonce {nonce}"
            )));
        }
        let is_far = nonce - next > u64::from(limit);
        is_far.then(|| {
            Unmet::Yet(format!(
                "nonce too high: sender {sender}, next nonce {next}, tx nonce {nonce}, at most {limit} ahead"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use alloy_primitives::U256;

    use super::*;

    #[test]
    fn a_nonce_is_not_used_and_not_far_ahead() {
        let funds = Funds { balance_wei: U256::ZERO, next_nonce: 5, max_nonces_ahead: 16 };
        let unmet = |nonce| Need { sender: Address::ZERO, nonce, pays: true }.unmet_by(&funds);
        assert!([5, 6, 21].map(unmet).iter().all(Option::is_none));
        assert!(
            matches!(unmet(4), Some(Unmet::Ever(reason)) if reason.starts_with("nonce too low"))
        );
        for nonce in [22, u64::MAX] {
            let Some(Unmet::Yet(reason)) = unmet(nonce) else { panic!("{nonce} is refused") };
            let end = format!("next nonce 5, tx nonce {nonce}, at most 16 ahead");
            assert!(reason.starts_with("nonce too high") && reason.ends_with(&end), "{reason}");
        }
    }
}
