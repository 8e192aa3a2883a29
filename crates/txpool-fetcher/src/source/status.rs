//! What a source shows of itself, and shares with its comparisons.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Instant, SystemTime},
};

use crate::{
    config::{Endpoint, FetcherConfig},
    connection::{NodeInfo, ReadTimes},
    fetch::AnnouncementCounts,
    limit::NodeLimit,
    machine::{Gap, SourceState},
    metrics::SourceMetrics,
    reconcile::AuditReport,
    sync::lock,
};

/// What can be read off a source at any time.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SourceStatus {
    /// Where it is.
    pub endpoint: Endpoint,
    /// What it is doing.
    pub state: SourceState,
    /// Since when.
    pub since: SystemTime,
    /// What the node said of itself, once it was reached.
    pub node: Option<NodeInfo>,
    /// Connections lost after they worked.
    pub reconnects: u64,
    /// The latest reason for a loss or a failed attempt.
    pub last_error: Option<String>,
    /// The latest 32 gaps, oldest first.
    pub gaps: Vec<Gap>,
    /// Comparisons with the node's pool, of any reason.
    pub audits: u64,
    /// Hashes they brought in.
    pub recovered: u64,
    /// The latest comparison.
    pub last_audit: Option<AuditReport>,
    /// Hashes it announced.
    pub announced: u64,
    /// Hashes it announced before any other source.
    pub first_seen: u64,
    /// Announcements read from the socket and not yet taken in.
    pub backlog: u64,
    /// Fetches that it is asked at once, at most: [`FetcherConfig::fetch_slots`], or less while it
    /// is overloaded.
    ///
    /// [`FetcherConfig::fetch_slots`]: crate::FetcherConfig::fetch_slots
    pub fetch_limit: usize,
    /// The latest head it announced.
    pub head: Option<u64>,
}

/// What a source shares with its handle and its comparisons.
#[derive(Debug)]
pub(crate) struct SourceShared {
    pub(super) status: Mutex<SourceStatus>,
    pub(super) progress: Mutex<Option<Arc<Progress>>>,
    /// Lists of the pool under way: the source's own comparison, and those asked for from outside.
    listing: AtomicUsize,
    pub(crate) audits: AtomicU64,
    pub(crate) recovered: AtomicU64,
    pub(crate) announcement_counts: Arc<AnnouncementCounts>,
    pub(crate) limit: Arc<NodeLimit>,
    /// When the latest full comparison began.
    pub(crate) compared: Mutex<Option<Instant>>,
}

/// How far the intake is behind one subscription connection.
#[derive(Debug)]
pub(super) struct Progress {
    pub(super) read_times: Arc<ReadTimes>,
    pub(super) taken: AtomicU64,
}

impl SourceShared {
    pub(crate) fn new(endpoint: Endpoint, config: &FetcherConfig) -> Arc<Self> {
        let name = endpoint.to_string();
        Arc::new(Self {
            limit: Arc::new(NodeLimit::new(
                config.adaptive_limit,
                config.fetch_slots,
                config.deferrable_slots,
                SourceMetrics::fetch_limit(&name),
                SourceMetrics::retry_after_pauses(&name),
            )),
            status: Mutex::new(SourceStatus {
                endpoint,
                state: SourceState::Connecting,
                since: SystemTime::now(),
                node: None,
                reconnects: 0,
                last_error: None,
                gaps: Vec::new(),
                audits: 0,
                recovered: 0,
                last_audit: None,
                announced: 0,
                first_seen: 0,
                backlog: 0,
                fetch_limit: config.fetch_slots,
                head: None,
            }),
            progress: Mutex::new(None),
            listing: AtomicUsize::new(0),
            audits: AtomicU64::new(0),
            recovered: AtomicU64::new(0),
            announcement_counts: Arc::default(),
            compared: Mutex::new(None),
        })
    }

    /// Until the guard is dropped, the pings give the node time.
    pub(crate) fn list(&self) -> impl Drop + '_ {
        struct Listing<'a>(&'a AtomicUsize);
        impl Drop for Listing<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Relaxed);
            }
        }
        self.listing.fetch_add(1, Relaxed);
        Listing(&self.listing)
    }

    pub(super) fn is_listing(&self) -> bool {
        self.listing.load(Relaxed) > 0
    }

    pub(crate) fn backlog(&self) -> u64 {
        lock(&self.progress).as_ref().map_or(0, |progress| {
            progress.read_times.read().saturating_sub(progress.taken.load(Relaxed))
        })
    }

    pub(crate) fn status(&self) -> SourceStatus {
        SourceStatus {
            backlog: self.backlog(),
            fetch_limit: self.limit.limit(),
            audits: self.audits.load(Relaxed),
            recovered: self.recovered.load(Relaxed),
            announced: self.announcement_counts.announced.load(Relaxed),
            first_seen: self.announcement_counts.first_seen.load(Relaxed),
            ..lock(&self.status).clone()
        }
    }

    pub(crate) fn state(&self) -> SourceState {
        lock(&self.status).state
    }
}
