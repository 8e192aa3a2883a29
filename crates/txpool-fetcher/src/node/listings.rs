//! How long a node takes to list its pool, and how much patience it has earned meanwhile.
//!
//! A comparison takes the lock when its list ends, and the ping of a silent connection, to copy a time.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::{limits::Limits, sync::lock};

/// How many times as long as the list before one may take: the pool may have grown meanwhile.
const GROWTH: u32 = 4;

/// The listings of a node's pool.
#[derive(Debug, Default)]
pub(crate) struct Listings {
    /// In progress: for the source's own comparison, and for those that a caller of
    /// [`Fetcher::audit`](crate::Fetcher::audit) requested.
    pub(crate) running: AtomicU64,
    /// Whether the latest one was complete and had all that the node counts: then what is pending there
    /// stands in the next one too. Relaxed, as a fact of its own.
    pub(crate) are_complete: AtomicBool,
    /// How long the latest one took, or one that failed since, if that took longer.
    took: Mutex<Option<Duration>>,
}

impl Listings {
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
