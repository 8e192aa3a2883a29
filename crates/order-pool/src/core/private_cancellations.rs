//! Cancellations of private transactions. They are remembered as long as those of bundles, because the
//! transaction may be in the pool of another machine, or on its way from there.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, SystemTime},
};

use alloy_primitives::{Address, B256};

use super::keys::MAX_UNKNOWN_CANCELLATIONS;
use crate::order::{PrivateCancellation, Transaction};

/// How many are remembered; then the oldest is forgotten. At about 300 bytes each 5 MB.
pub(crate) const MAX_PRIVATE_CANCELLATIONS: usize = 1 << 14;

type Key = (Address, B256);

#[derive(Clone, Copy, Debug)]
struct Remembered {
    at: SystemTime,
    /// The sequence number of its event.
    seq: u64,
    forget_at: Duration,
}

#[derive(Debug, Default)]
pub(crate) struct PrivateCancellations {
    all: BTreeMap<Key, Remembered>,
    due: BTreeSet<(Duration, u64, Key)>,
}

impl PrivateCancellations {
    /// When its signer cancelled a transaction, if not before it arrived.
    pub(crate) fn of(&self, tx: &Transaction) -> Option<SystemTime> {
        let signer = tx.private_terms().filter(|_| !tx.is_public())?.signer?;
        let at = self.all.get(&(signer, *tx.hash()))?.at;
        (tx.first_seen() <= at).then_some(at)
    }

    /// Whether a cancellation is to be remembered: not one that a later one covers, and of a transaction
    /// that is not here only so many of one signer.
    pub(crate) fn admits(&self, cancellation: &PrivateCancellation, is_here: bool) -> bool {
        let PrivateCancellation { hash, signer, at } = *cancellation;
        if let Some(before) = self.all.get(&(signer, hash)) {
            return before.at < at;
        }
        let of_signer = self.all.range((signer, B256::ZERO)..=(signer, B256::repeat_byte(255)));
        is_here || of_signer.take(MAX_UNKNOWN_CANCELLATIONS).count() < MAX_UNKNOWN_CANCELLATIONS
    }

    /// Remembers a cancellation whose event has this sequence number. Returns the events of those that are
    /// forgotten for it.
    pub(crate) fn add(
        &mut self,
        PrivateCancellation { hash, signer, at }: PrivateCancellation,
        seq: u64,
        forget_at: Duration,
    ) -> Vec<u64> {
        let key = (signer, hash);
        let before = self.all.insert(key, Remembered { at, seq, forget_at });
        let mut ended = Vec::new();
        if let Some(before) = before {
            self.due.remove(&(before.forget_at, before.seq, key));
            ended.push(before.seq);
        }
        self.due.insert((forget_at, seq, key));
        if self.all.len() > MAX_PRIVATE_CANCELLATIONS {
            ended.extend(self.forget_due(Duration::MAX));
        }
        ended
    }

    /// Forgets one if it is due. Returns the sequence number of its event.
    pub(crate) fn forget_due(&mut self, now: Duration) -> Option<u64> {
        let due = *self.due.first().filter(|(at, ..)| *at <= now)?;
        self.due.remove(&due);
        let (_, seq, key) = due;
        self.all.remove(&key);
        Some(seq)
    }

    pub(crate) fn is_due(&self, now: Duration) -> bool {
        self.due.first().is_some_and(|(at, ..)| *at <= now)
    }
}
