//! How long a node may be silent while it lists its pool.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use crate::limits::Limits;

/// How many times as long as the list before one may take: the pool may have grown meanwhile.
const GROWTH: u32 = 4;

/// The listings of a node's pool.
#[derive(Debug, Default)]
pub(crate) struct Listings {
    /// In progress: for the source's own comparison, and for those that a caller of
    /// [`Fetcher::audit`](crate::Fetcher::audit) requested.
    pub(crate) running: AtomicU64,
    /// How long the latest one took in nanoseconds; 0 before the first, and after one that failed.
    pub(crate) took_ns: AtomicU64,
}

impl Listings {
    /// How much longer than else the node may be silent. While it lists its pool, a node may be slow with everything:
    /// anvil answers no request for 12 s with 60,000 transactions. But it may as well have gone silent for good: it has no
    /// more time than its lists lead to expect, and the time of a ping more at the least.
    pub(crate) fn patience(&self, limits: &Limits) -> Duration {
        if self.running.load(Relaxed) == 0 {
            return Duration::ZERO;
        }
        let expected = match self.took_ns.load(Relaxed) {
            0 => limits.snapshot_timeout,
            took => Duration::from_nanos(took).saturating_mul(GROWTH),
        };
        expected.max(limits.ping_timeout).min(limits.snapshot_timeout)
    }
}
