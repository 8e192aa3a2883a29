//! The lists of a node's pool: decides how long the node may be silent while it lists its pool, and
//! whether its lists are complete.
//!
//! # Locks
//! | lock | taken by | for how long |
//! |---|---|---|
//! | time of a list | a comparison at the end of its list, the ping of a silent connection | to copy a time |
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

/// The factor by which a list may take longer than the one before: the pool may have grown
/// meanwhile.
const GROWTH: u32 = 4;

/// The listings of a node's pool.
#[derive(Debug, Default)]
pub(crate) struct Listings {
    /// The number of lists in progress: for the source's own comparison, and for one that a caller
    /// of [`FetcherHandle::audit`](crate::FetcherHandle::audit) requested.
    pub(crate) running: AtomicU64,
    /// Whether the latest list contained all transactions that the node counts, except for blob
    /// transactions: then the next list will contain what is pending there. Relaxed, like
    /// `has_blobs`: no other memory is published with it.
    is_complete: AtomicBool,
    /// Whether the latest list contained the blob transactions too.
    has_blobs: AtomicBool,
    /// The latest list, if it was complete.
    latest: Mutex<Option<Arc<Listing>>>,
    /// How long the latest list took, or a later one that failed, if that took longer.
    took: Mutex<Option<Duration>>,
}

/// One complete list of a node's pool.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) hashes: HashSet<B256>,
    /// The epoch of its comparison. Transactions delivered in this epoch or later may be newer than
    /// the list.
    pub(crate) epoch: u32,
    /// Whether the node lists blob transactions: geth lists none.
    pub(crate) has_blobs: bool,
}

impl Listing {
    /// Returns whether the list shows that the node no longer has this transaction.
    pub(crate) fn has_lost(&self, held: &HeldHash) -> bool {
        held.epoch < self.epoch
            && (self.has_blobs || !held.is_blob)
            && !self.hashes.contains(&held.hash)
    }
}

impl Listings {
    /// Returns whether the lists of this node contain its pending transactions, or its blob
    /// transactions.
    pub(crate) fn has(&self, is_blob: bool) -> bool {
        self.is_complete.load(Relaxed) && (!is_blob || self.has_blobs.load(Relaxed))
    }

    /// Returns the latest list, if it was complete.
    pub(crate) fn latest(&self) -> Option<Arc<Listing>> {
        lock(&self.latest).clone()
    }

    /// Sets the latest list, `None` for one that failed or was not complete. Returns the previous
    /// one.
    pub(crate) fn set_latest(&self, listing: Option<Arc<Listing>>) -> Option<Arc<Listing>> {
        self.is_complete.store(listing.is_some(), Relaxed);
        let has_blobs = listing.as_ref().is_some_and(|listing| listing.has_blobs);
        self.has_blobs.store(has_blobs, Relaxed);
        std::mem::replace(&mut lock(&self.latest), listing)
    }

    /// Records the end of a list. A list that failed may have failed at once, which does not make
    /// the next one faster.
    pub(crate) fn record(&self, time: Duration, is_complete: bool) {
        let mut took = lock(&self.took);
        *took = if is_complete { Some(time) } else { took.map(|known| known.max(time)) };
    }

    /// Returns the extra time for which a node may be silent. While it lists its pool, a node may
    /// not respond to anything: anvil with 60,000 transactions is silent for 12 s. But it may also
    /// have become silent for good. So it gets no more time than its recent lists make plausible,
    /// and at least the time of one more ping.
    pub(super) fn patience(&self, limits: &Limits) -> Duration {
        if self.running.load(Relaxed) == 0 {
            return Duration::ZERO;
        }
        let took = *lock(&self.took);
        let expected = took.map_or(limits.snapshot_timeout, |time| time.saturating_mul(GROWTH));
        expected.max(limits.ping_timeout).min(limits.snapshot_timeout)
    }
}
