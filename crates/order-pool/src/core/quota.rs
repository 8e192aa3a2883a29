//! Decides which cancellations of unknown orders are published.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use alloy_primitives::Address;

use super::limits::callers_per_network;
use crate::holder::{Holder, Network};

/// The number of cancellations of unknown orders that are published for each caller of whom only
/// the address is known, within [`CANCELLATION_RETENTION`](crate::CANCELLATION_RETENTION) after the
/// first one: of replacement keys, and as many of private transactions. All callers of an IPv6 /48
/// have four times as many together, and all signers behind a front eight times as many. For a
/// signer that the host knows it is [`MAX_UNKNOWN_CANCELLATIONS_OF_SIGNER`].
///
/// Further cancellations of a key still take effect: the pool refuses the bundle when it arrives.
/// No subscriber has a bundle of such a key, so none misses anything, and a caller that invents
/// replacement keys or signers cannot fill the log. The limit is above zero because a cancellation
/// can arrive before its bundle.
pub const MAX_UNKNOWN_CANCELLATIONS: usize = 64;

/// As [`MAX_UNKNOWN_CANCELLATIONS`], for each signer that the host knows: 17 a second. In a fleet a
/// searcher cancels at one machine what it has sent to another, so all of its cancellations may be
/// of unknown orders.
pub const MAX_UNKNOWN_CANCELLATIONS_OF_SIGNER: usize = 1_024;

/// The most accounts, at about 200 bytes each: 3 MB. Above it the account whose time ends first is
/// forgotten, which helps only who has as many addresses.
const MAX_ACCOUNTS: usize = 1 << 14;

/// A party whose published cancellations are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Account {
    Holder(Holder),
    Network(Network),
}

/// Counts the published cancellations of unknown orders, for the retention after the first one of
/// each account.
#[derive(Debug)]
pub(super) struct CancellationQuota {
    accounts: BTreeMap<Account, (usize, Duration)>,
    /// The accounts by the time when they are forgotten.
    due: BTreeSet<(Duration, Account)>,
    retention: Duration,
}

impl CancellationQuota {
    pub(super) const fn new(retention: Duration) -> Self {
        Self { accounts: BTreeMap::new(), due: BTreeSet::new(), retention }
    }

    /// Returns whether a cancellation of an unknown order may be published, and counts it if so.
    /// What the host sends counts for its signer.
    pub(super) fn admit(&mut self, holder: &Holder, signer: Address, now: Duration) -> bool {
        while self.due.first().is_some_and(|(until, _)| *until <= now) {
            self.forget_first();
        }
        let (own, limit) = if holder.is_known() {
            (Holder::Signer(signer), MAX_UNKNOWN_CANCELLATIONS_OF_SIGNER)
        } else {
            (*holder, MAX_UNKNOWN_CANCELLATIONS)
        };
        let network = holder.network().map(|network| {
            let limit = limit.saturating_mul(callers_per_network(network));
            (Account::Network(network), limit)
        });
        let accounts = [Some((Account::Holder(own), limit)), network];
        let has_quota = |(account, limit): &(Account, usize)| {
            self.accounts.get(account).is_none_or(|(count, _)| count < limit)
        };
        if !accounts.iter().flatten().all(has_quota) {
            return false;
        }
        for (account, _) in accounts.into_iter().flatten() {
            let until = now.saturating_add(self.retention);
            let (count, until) = self.accounts.entry(account).or_insert((0, until));
            *count += 1;
            self.due.insert((*until, account));
        }
        while self.accounts.len() > MAX_ACCOUNTS {
            self.forget_first();
        }
        true
    }

    fn forget_first(&mut self) {
        if let Some((_, account)) = self.due.pop_first() {
            self.accounts.remove(&account);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_accounts_are_bounded_and_are_forgotten_after_the_retention() {
        let (retention, now) = (Duration::from_secs(60), Duration::ZERO);
        let mut quota = CancellationQuota::new(retention);
        let caller = |n: u32| Holder::caller(n.to_be_bytes().into());
        for n in 0..2 * MAX_ACCOUNTS as u32 {
            assert!(quota.admit(&caller(n), Address::ZERO, now));
        }
        assert_eq!((quota.accounts.len(), quota.due.len()), (MAX_ACCOUNTS, MAX_ACCOUNTS));
        assert!(quota.admit(&caller(0), Address::ZERO, retention));
        assert_eq!((quota.accounts.len(), quota.due.len()), (1, 1));
    }
}
