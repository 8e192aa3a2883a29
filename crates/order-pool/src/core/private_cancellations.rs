//! Cancellations of private transactions. They are remembered as long as those of bundles, because the
//! transaction may be in the pool of another machine, or on its way from there.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use alloy_primitives::{Address, B256};

use super::{
    keys::{max_unknown, publisher},
    limits::Division,
    usage::Waiting,
};
use crate::{
    holder::Holder,
    order::{PrivateCancellation, Transaction},
};

/// The signer and the transaction.
type Key = (Address, B256);

#[derive(Clone, Copy, Debug)]
struct Remembered {
    at: SystemTime,
    seq: u64,
    forget_at: Duration,
    holder: Holder,
    /// Whether the transaction was not here.
    is_unknown: bool,
}

#[derive(Debug)]
pub(crate) struct PrivateCancellations {
    all: BTreeMap<Key, Remembered>,
    /// By the sequence numbers of their events.
    waiting: Waiting<(u64, Key)>,
    /// How many of them are of transactions that were not here, by who sent them.
    unknown: BTreeMap<Holder, usize>,
}

impl PrivateCancellations {
    pub(crate) fn new(division: Division) -> Self {
        Self { all: BTreeMap::new(), waiting: Waiting::new(division), unknown: BTreeMap::new() }
    }

    /// When its signer cancelled a transaction, if not before it arrived.
    pub(crate) fn of(&self, tx: &Transaction) -> Option<SystemTime> {
        let signer = tx.private_terms().filter(|_| !tx.is_public())?.signer?;
        let at = self.all.get(&(signer, *tx.hash()))?.at;
        (tx.first_seen() <= at).then_some(at)
    }

    /// Whether a cancellation is to be remembered: not one that a later one covers, and of transactions
    /// that are not here only so many of one caller, or of one signer that the host knows.
    pub(crate) fn admits(&self, cancellation: &PrivateCancellation, is_here: bool) -> bool {
        let PrivateCancellation { hash, signer, at, holder } = *cancellation;
        if let Some(before) = self.all.get(&(signer, hash)) {
            return before.at < at;
        }
        let unknown = self.unknown.get(&publisher(&holder, signer)).copied().unwrap_or(0);
        is_here || unknown < max_unknown(&holder)
    }

    /// Remembers a cancellation whose event has this sequence number. Returns the events of the one that it
    /// replaces, and of the one that is forgotten for it.
    pub(crate) fn add(
        &mut self,
        PrivateCancellation { hash, signer, at, holder }: PrivateCancellation,
        seq: u64,
        forget_at: Duration,
        is_here: bool,
    ) -> (Option<u64>, Option<u64>) {
        let key = (signer, hash);
        let replaced = self.forget(&key);
        let is_unknown = !is_here;
        if is_unknown {
            *self.unknown.entry(publisher(&holder, signer)).or_default() += 1;
        }
        self.all.insert(key, Remembered { at, seq, forget_at, holder, is_unknown });
        self.waiting.insert(holder, signer, (forget_at, (seq, key)));
        let excess = self.waiting.excess(&holder);
        (replaced, excess.and_then(|(_, key)| self.forget(&key)))
    }

    /// Forgets one if it is due. Returns the sequence number of its event.
    pub(crate) fn forget_due(&mut self, now: Duration) -> Option<u64> {
        let (_, key) = self.waiting.due(now)?;
        self.forget(&key)
    }

    fn forget(&mut self, key: &Key) -> Option<u64> {
        let Remembered { seq, forget_at, holder, is_unknown, .. } = self.all.remove(key)?;
        let publisher = publisher(&holder, key.0);
        if is_unknown && let Some(count) = self.unknown.get_mut(&publisher) {
            *count -= 1;
            if *count == 0 {
                self.unknown.remove(&publisher);
            }
        }
        self.waiting.remove(holder, key.0, (forget_at, (seq, *key)));
        Some(seq)
    }
}
