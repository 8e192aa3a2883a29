//! Decides which cancellations of private transactions are remembered. They are remembered as long
//! as those of bundles, because the transaction may be in the pool of another machine, or on its
//! way from there.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use alloy_primitives::{Address, B256};

use super::{limits::ShareCaps, quota::CancellationQuota, usage::RetentionQueue};
use crate::{
    holder::Holder,
    order::{PrivateCancellation, Transaction},
};

/// The signer and the hash of the transaction.
type Key = (Address, B256);

#[derive(Clone, Copy, Debug)]
struct Remembered {
    cancelled_at: SystemTime,
    /// The sequence number of its event.
    seq: u64,
    forget_at: Duration,
    holder: Holder,
}

#[derive(Debug)]
pub(crate) struct PrivateCancellations {
    cancellations: BTreeMap<Key, Remembered>,
    /// By the sequence numbers of their events.
    retained: RetentionQueue<(u64, Key)>,
    /// For the cancellations of transactions that are not in the pool.
    quota: CancellationQuota,
}

impl PrivateCancellations {
    pub(crate) fn new(retention: Duration, caps: ShareCaps) -> Self {
        Self {
            cancellations: BTreeMap::new(),
            retained: RetentionQueue::new(caps),
            quota: CancellationQuota::new(retention),
        }
    }

    /// Returns when its signer cancelled a transaction, unless the transaction was sent later.
    pub(crate) fn cancelled_at(&self, tx: &Transaction) -> Option<SystemTime> {
        let signer = tx.private_terms().filter(|_| !tx.is_public())?.signer?;
        let cancelled_at = self.cancellations.get(&(signer, *tx.hash()))?.cancelled_at;
        (tx.first_seen() <= cancelled_at).then_some(cancelled_at)
    }

    /// Whether a cancellation is remembered and published: not if a later one covers it. The number
    /// of cancellations of transactions that are not in the pool is limited for each caller, and
    /// for each signer that the host knows.
    pub(crate) fn admits(
        &mut self,
        cancellation: &PrivateCancellation,
        is_pooled: bool,
        now: Duration,
    ) -> bool {
        let PrivateCancellation { hash, signer, cancelled_at, holder } = *cancellation;
        let before = self.cancellations.get(&(signer, hash));
        before.is_none_or(|before| before.cancelled_at < cancelled_at)
            && (is_pooled || self.quota.admit(&holder, signer, now))
    }

    /// Remembers a cancellation whose event has this sequence number. Returns the events of the
    /// cancellation that it replaces, and of the one that is forgotten to make room.
    pub(crate) fn add(
        &mut self,
        cancellation: PrivateCancellation,
        seq: u64,
        forget_at: Duration,
    ) -> (Option<u64>, Option<u64>) {
        let PrivateCancellation { hash, signer, cancelled_at, holder } = cancellation;
        let key = (signer, hash);
        let replaced = self.forget(&key);
        let remembered = Remembered { cancelled_at, seq, forget_at, holder };
        self.cancellations.insert(key, remembered);
        self.retained.insert(holder, signer, (forget_at, (seq, key)));
        let excess = self.retained.excess(&holder);
        (replaced, excess.and_then(|(_, key)| self.forget(&key)))
    }

    /// Forgets a cancellation whose time is over. Returns the sequence number of its event.
    pub(crate) fn forget_due(&mut self, now: Duration) -> Option<u64> {
        let (_, key) = self.retained.due(now)?;
        self.forget(&key)
    }

    fn forget(&mut self, key: &Key) -> Option<u64> {
        let Remembered { seq, forget_at, holder, .. } = self.cancellations.remove(key)?;
        self.retained.remove(holder, key.0, (forget_at, (seq, *key)));
        Some(seq)
    }
}
