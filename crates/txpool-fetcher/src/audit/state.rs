//! What the comparisons of one source count and share.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
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
    /// for those that a caller of [`Fetcher::audit`](crate::Fetcher::audit) requested.
    listing: AtomicUsize,
    /// When the latest full comparison began.
    pub(super) compared: Mutex<Option<Instant>>,
}

impl AuditState {
    /// Until the guard is dropped, pings allow the node a longer silence.
    pub(super) fn start_listing(&self) -> impl Drop + '_ {
        struct Listing<'a>(&'a AtomicUsize);
        impl Drop for Listing<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Relaxed);
            }
        }
        self.listing.fetch_add(1, Relaxed);
        Listing(&self.listing)
    }

    pub(crate) fn is_listing(&self) -> bool {
        self.listing.load(Relaxed) > 0
    }

    /// Adds `count` hashes to those to be recovered; dropping the guard subtracts the rest.
    pub(super) fn start_recovery(&self, count: usize) -> Recovery<'_> {
        self.to_recover.fetch_add(count as u64, Relaxed);
        Recovery { state: self, left: count as u64 }
    }
}

/// The hashes that one comparison still has to fetch.
#[derive(Debug)]
pub(super) struct Recovery<'a> {
    state: &'a AuditState,
    left: u64,
}

impl Recovery<'_> {
    /// One hash is done. Must be called at most once for each hash.
    pub(super) fn one_done(&mut self) {
        self.left -= 1;
        self.state.to_recover.fetch_sub(1, Relaxed);
    }
}

impl Drop for Recovery<'_> {
    fn drop(&mut self) {
        self.state.to_recover.fetch_sub(self.left, Relaxed);
    }
}
