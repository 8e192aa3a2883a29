//! What the comparisons of one source count and share.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

/// The comparisons of one source. All figures but the listings are for display.
#[derive(Debug, Default)]
pub(crate) struct AuditState {
    /// How many were started.
    pub(crate) audits: AtomicU64,
    /// How many hashes they recovered.
    pub(crate) recovered: AtomicU64,
    /// How many they still have to fetch.
    pub(crate) to_recover: AtomicU64,
    /// How many listings of the node's pool are in progress: for the source's own comparison, and
    /// for those that a caller of [`Fetcher::audit`](crate::Fetcher::audit) requested. Meanwhile pings
    /// allow the node a longer silence.
    pub(crate) listings: Arc<AtomicU64>,
    /// When the latest full comparison began.
    pub(super) compared: Mutex<Option<Instant>>,
}

impl AuditState {
    pub(crate) fn is_listing(&self) -> bool {
        self.listings.load(Relaxed) > 0
    }
}
