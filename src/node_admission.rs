//! Asks the node whether the sender of an order can pay, before the order is pooled.

mod accounts;
mod client;
mod turns;

use std::{collections::BTreeMap, time::Duration};

use alloy_primitives::Address;
use futures::future::join_all;
use order_pool::{Funds, Order, OrderPool, Transaction};
use order_rpc::{Admission, AdmissionFuture, Candidate, Verdict};
use txpool_fetcher::Endpoint;

pub(crate) use self::accounts::Ended;
use self::accounts::{Account, Accounts};

/// An account that is older than this refuses no order but for a used nonce: the node and the
/// sender may already know a block that funds the sender, which the pool does not know yet.
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
/// orders are made together, over a connection and a thread of their own (`mempool-admission`), so
/// announcements never wait behind them; those of known signers' orders come first, and those of
/// one caller's take at most a quarter of a batch. While the node does not answer, or answers from
/// an older block than the pool knows, there is no verdict.
///
/// Make one with [`Self::default`] and then set its fields: the struct gets more fields in
/// later versions.
#[derive(Clone, Debug)]
#[non_exhaustive]
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
    accounts: Accounts,
    pool: OrderPool,
    fails_open: bool,
}

impl NodeAdmission {
    /// Starts the thread that asks the node.
    pub(crate) fn start(
        config: &NodeAdmissionConfig,
        endpoint: Endpoint,
        pool: OrderPool,
    ) -> std::io::Result<(Self, Ended)> {
        let NodeAdmissionConfig { fails_open, max_nonces_ahead, .. } = *config;
        let (accounts, ended) = Accounts::start(endpoint, pool.clone(), max_nonces_ahead)?;
        Ok((Self { accounts, pool, fails_open }, ended))
    }

    async fn decide(&self, order: &Order) -> Verdict {
        let mut needs = BTreeMap::<Address, Need>::new();
        let mut add = |tx: &Transaction, pays| {
            let need = needs.entry(tx.sender()).or_default();
            need.nonces.push(tx.nonce());
            need.pays |= pays;
        };
        match order {
            Order::Tx(tx) => add(tx, true),
            Order::Bundle(bundle) => {
                let next = self.pool.head().map(|head| head.number.saturating_add(1));
                let is_next = bundle.block().is_none() || bundle.block() == next;
                let txs = bundle.txs().iter().enumerate();
                let needed = txs.filter(|(_, tx)| !bundle.is_optional(tx.hash()));
                needed.for_each(|(index, tx)| add(tx, is_next && index == 0));
            }
            _ => return Verdict::Unknown,
        }
        let requested = needs.iter().map(|(sender, need)| self.verdict_on(*sender, order, need));
        // A definite refusal for one sender decides, even if another one's account is unknown.
        let verdicts = join_all(requested).await;
        let find = |is: fn(&Verdict) -> bool| verdicts.iter().find(|verdict| is(verdict)).cloned();
        let refused = find(|verdict| matches!(verdict, Verdict::Refuse { .. }));
        let busy = || find(|verdict| *verdict == Verdict::RetryLater);
        let unknown = || find(|verdict| *verdict == Verdict::Unknown);
        let within = || find(|verdict| matches!(verdict, Verdict::AcceptWithin(_)));
        refused.or_else(busy).or_else(unknown).or_else(within).unwrap_or(Verdict::Accept)
    }

    async fn verdict_on(&self, sender: Address, order: &Order, need: &Need) -> Verdict {
        let unmet = |funds: &Funds| {
            let of_nonce = || need.nonces.iter().find_map(|nonce| unmet_by(funds, sender, *nonce));
            let of_balance = || self.pool.check_funds(order, funds).err().filter(|_| need.pays);
            of_nonce().or_else(|| of_balance().map(|reason| Unmet::Yet(reason.to_string())))
        };
        let verdict = |funds, unmet| match unmet {
            Some(Unmet::Ever(reason) | Unmet::Yet(reason)) => {
                Verdict::Refuse { reason: reason.into() }
            }
            None if need.pays => Verdict::AcceptWithin(funds),
            None => Verdict::Accept,
        };
        if let Some((funds, age)) = self.accounts.cached(&sender) {
            let unmet = unmet(&funds);
            if !matches!(unmet, Some(Unmet::Yet(_))) || age <= MAX_REFUSAL_AGE {
                return verdict(funds, unmet);
            }
        }
        match self.accounts.request(sender, order.holder()).await {
            Account::Known(funds) => verdict(funds, unmet(&funds)),
            Account::HolderBusy => Verdict::RetryLater,
            Account::Unknown => Verdict::Unknown,
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

/// The requirements of an order on the account of a sender.
#[derive(Debug, Default)]
struct Need {
    /// Of the sender's transactions, in their order.
    nonces: Vec<u64>,
    /// Whether the sender must be able to pay for the order.
    pays: bool,
}

/// The reason of a refusal, as text for the caller.
#[derive(Debug)]
enum Unmet {
    Ever(String),
    /// A later block may change it.
    Yet(String),
}

/// Why the nonce of a transaction is refused.
fn unmet_by(funds: &Funds, sender: Address, nonce: u64) -> Option<Unmet> {
    let &Funds { next_nonce: next, max_nonces_ahead: limit, .. } = funds;
    let what = format_args!("sender {sender}, next nonce {next}, tx nonce {nonce}");
    if nonce < next {
        return Some(Unmet::Ever(format!("nonce too low: {what}")));
    }
    let is_far = nonce - next > u64::from(limit);
    is_far.then(|| Unmet::Yet(format!("nonce too high: {what}, at most {limit} ahead")))
}

#[cfg(test)]
mod tests {
    use alloy_primitives::U256;

    use super::*;

    #[test]
    fn a_nonce_is_not_used_and_not_far_ahead() {
        let funds = Funds { balance_wei: U256::ZERO, next_nonce: 5, max_nonces_ahead: 16 };
        let unmet = |nonce| unmet_by(&funds, Address::ZERO, nonce);
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
