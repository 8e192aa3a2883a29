//! Compares a node's pool with ours, and fetches what is missing. Entry: [`Comparison::run`].
//!
//! **Subscribe first, then list**, for start-up, reconnect, lag, reorg and audit alike. Every comparison
//! lists the pool instead of comparing counts: with one hash too many and one missing, these are equal.
//!
//! # Locks
//! | lock | who takes it | for how long |
//! |---|---|---|
//! | last comparison | a comparison at its end | one field |

mod compare;
mod list;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

pub(crate) use self::compare::Comparison;
pub use self::compare::{AuditMode, AuditReport};
use crate::limits::Limits;

/// How many times as long as the list before one may take: the pool may have grown meanwhile.
const GROWTH: u32 = 4;

/// The comparisons of one source. All figures but the listings are for display.
#[derive(Debug, Default)]
pub(crate) struct AuditState {
    /// How many were started.
    pub(crate) audits: AtomicU64,
    /// How many they still have to fetch.
    pub(crate) to_recover: AtomicU64,
    pub(crate) listings: Arc<Listings>,
    /// When the latest full comparison began.
    compared: Mutex<Option<Instant>>,
}

/// The listings of a node's pool.
#[derive(Debug, Default)]
pub(crate) struct Listings {
    /// In progress: for the source's own comparison, and for those that a caller of
    /// [`Fetcher::audit`](crate::Fetcher::audit) requested.
    running: AtomicU64,
    /// How long the latest one took in nanoseconds; 0 before the first, and after one that failed.
    took_ns: AtomicU64,
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
