//! Cancellations of private transactions. They are remembered as long as those of bundles, because the
//! transaction may be in the pool of another machine, or on its way from there.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    time::{Duration, SystemTime},
};

use alloy_primitives::{Address, B256};

use super::{keys::MAX_UNKNOWN_CANCELLATIONS, limits::Division, shares::Shares};
use crate::{
    holder::Holder,
    order::{PrivateCancellation, Transaction},
};

/// The signer and the transaction.
type Key = (Address, B256);

/// When one is forgotten, the sequence number of its event, and its key.
type Due = (Duration, u64, Key);

#[derive(Clone, Copy, Debug)]
struct Remembered {
    at: SystemTime,
    seq: u64,
    forget_at: Duration,
    holder: Holder,
}

#[derive(Debug)]
pub(crate) struct PrivateCancellations {
    all: BTreeMap<Key, Remembered>,
    due: BTreeSet<Due>,
    /// Of callers, and of the host and of signers that it knows: who sends too many loses its own.
    shares: [Shares<Address, Reverse<Due>>; 2],
    division: Division,
}

impl PrivateCancellations {
    pub(crate) fn new(division: Division) -> Self {
        let (all, due) = (BTreeMap::new(), BTreeSet::new());
        Self { all, due, shares: Default::default(), division }
    }

    /// When its signer cancelled a transaction, if not before it arrived.
    pub(crate) fn of(&self, tx: &Transaction) -> Option<SystemTime> {
        let signer = tx.private_terms().filter(|_| !tx.is_public())?.signer?;
        let at = self.all.get(&(signer, *tx.hash()))?.at;
        (tx.first_seen() <= at).then_some(at)
    }

    /// Whether a cancellation is to be remembered: not one that a later one covers, and of a transaction
    /// that is not here only so many of one caller, or of one signer that the host knows.
    pub(crate) fn admits(&self, cancellation: &PrivateCancellation, is_here: bool) -> bool {
        let PrivateCancellation { hash, signer, at, holder } = *cancellation;
        if let Some(before) = self.all.get(&(signer, hash)) {
            return before.at < at;
        }
        let share = &self.shares[usize::from(holder.is_known())];
        let held = match holder {
            Holder::Caller(_) => share.of(&holder),
            Holder::Host | Holder::Signer(_) => share.of_signer(&holder, &signer),
        };
        is_here || held.count < MAX_UNKNOWN_CANCELLATIONS
    }

    /// Remembers a cancellation whose event has this sequence number. Returns the events of the one that it
    /// replaces, and of the one that is forgotten for it.
    pub(crate) fn add(
        &mut self,
        PrivateCancellation { hash, signer, at, holder }: PrivateCancellation,
        seq: u64,
        forget_at: Duration,
    ) -> (Option<u64>, Option<u64>) {
        let key = (signer, hash);
        let replaced = self.forget(&key);
        self.all.insert(key, Remembered { at, seq, forget_at, holder });
        let due = (forget_at, seq, key);
        self.due.insert(due);
        let share = &mut self.shares[usize::from(holder.is_known())];
        share.insert(holder, signer, Reverse(due), 0);
        let excess = share.excess(&holder, &self.division);
        (replaced, excess.and_then(|Reverse((_, _, key))| self.forget(&key)))
    }

    /// Forgets one if it is due. Returns the sequence number of its event.
    pub(crate) fn forget_due(&mut self, now: Duration) -> Option<u64> {
        let (_, _, key) = *self.due.first().filter(|(at, ..)| *at <= now)?;
        self.forget(&key)
    }

    fn forget(&mut self, key: &Key) -> Option<u64> {
        let Remembered { seq, forget_at, holder, .. } = self.all.remove(key)?;
        let due = (forget_at, seq, *key);
        self.due.remove(&due);
        self.shares[usize::from(holder.is_known())].remove(holder, key.0, Reverse(due), 0);
        Some(seq)
    }

    pub(crate) fn is_due(&self, now: Duration) -> bool {
        self.due.first().is_some_and(|(at, ..)| *at <= now)
    }
}
