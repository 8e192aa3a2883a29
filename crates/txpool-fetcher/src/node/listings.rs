//! The lists of a node's pool: what the latest one had, how long a list takes, and how much patience
//! the node has earned meanwhile.
//!
//! # Locks
//! | lock | who takes it | for how long |
//! |---|---|---|
//! | time of a list | a comparison when its list ends, the ping of a silent connection | to copy a time |
//! | latest list | comparisons of all sources | to copy a pointer |

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use alloy_primitives::B256;

use crate::{fetch::HeldHash, limits::Limits, sync::lock};

/// How many times as long as the list before one may take: the pool may have grown meanwhile.
const GROWTH: u32 = 4;

/// The listings of a node's pool.
#[derive(Debug, Default)]
pub(crate) struct Listings {
    /// In progress: for the source's own comparison, and for those that a caller of
    /// [`Fetcher::audit`](crate::Fetcher::audit) requested.
    pub(crate) running: AtomicU64,
    /// Whether the latest one had all that the node counts, but for blob transactions, and whether it had
    /// these too: then what is pending there is in the next one too. Relaxed, as facts of their own.
    is_complete: AtomicBool,
    has_blobs: AtomicBool,
    /// The latest one, if it was complete.
    latest: Mutex<Option<Arc<Listing>>>,
    /// How long the latest one took, or one that failed since, if that took longer.
    took: Mutex<Option<Duration>>,
}

/// One complete list of a node's pool.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) hashes: HashSet<B256>,
    /// What was delivered in this audit epoch or later may be newer than the list.
    pub(crate) epoch: u32,
    /// Whether blob transactions are listed: geth lists none.
    pub(crate) has_blobs: bool,
}

impl Listing {
    /// Whether the node did not have this transaction any more.
    pub(crate) fn has_lost(&self, held: &HeldHash) -> bool {
        held.epoch < self.epoch
            && (self.has_blobs || !held.is_blob)
            && !self.hashes.contains(&held.hash)
    }
}

impl Listings {
    /// Whether the list of this node has what is pending there, or its blob transactions.
    pub(crate) fn has(&self, is_blob: bool) -> bool {
        self.is_complete.load(Relaxed) && (!is_blob || self.has_blobs.load(Relaxed))
    }

    /// The latest list, if it was complete.
    pub(crate) fn latest(&self) -> Option<Arc<Listing>> {
        lock(&self.latest).clone()
    }

    /// Sets the latest list; `None` for one that failed or was not complete. Returns the one before.
    pub(crate) fn set_latest(&self, listing: Option<Arc<Listing>>) -> Option<Arc<Listing>> {
        self.is_complete.store(listing.is_some(), Relaxed);
        let has_blobs = listing.as_ref().is_some_and(|listing| listing.has_blobs);
        self.has_blobs.store(has_blobs, Relaxed);
        std::mem::replace(&mut lock(&self.latest), listing)
    }

    /// Notes that a listing has ended. One that failed may have failed at once, which says nothing of
    /// the next.
    pub(crate) fn took(&self, time: Duration, is_complete: bool) {
        let mut took = lock(&self.took);
        *took = if is_complete { Some(time) } else { took.map(|known| known.max(time)) };
    }

    /// The extra time that a node may be silent. While it lists its pool, a node may be slow with
    /// everything: anvil answers no request for 12 s with 60,000 transactions. But it may as well have
    /// gone silent for good: it gets no more time than its lists lead to expect, and at least the time
    /// of one more ping.
    pub(super) fn patience(&self, limits: &Limits) -> Duration {
        if self.running.load(Relaxed) == 0 {
            return Duration::ZERO;
        }
        let took = *lock(&self.took);
        let expected = took.map_or(limits.snapshot_timeout, |took| took.saturating_mul(GROWTH));
        expected.max(limits.ping_timeout).min(limits.snapshot_timeout)
    }
}
