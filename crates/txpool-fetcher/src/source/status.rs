//! The status of a source, and the state that it shares with its handle and its comparisons.

use std::{
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Instant, SystemTime},
};

use tokio::sync::watch;

use crate::{
    audit::AuditReport,
    config::{Endpoint, FetcherConfig},
    connection::{NodeInfo, ReadTimes},
    error::SourceError,
    fetch::AnnouncementCounts,
    fetch::limit::NodeLimit,
    metrics::SourceMetrics,
    source::machine::{Gap, SourceState},
    sync::lock,
};

/// The status of one source at one moment, see [`Fetcher::status`](crate::Fetcher::status).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SourceStatus {
    /// The endpoint of its node.
    pub endpoint: Endpoint,
    /// What it is doing.
    pub state: SourceState,
    /// When it entered this state.
    pub since: SystemTime,
    /// The client version and chain id of the node, once it was reached.
    pub node: Option<NodeInfo>,
    /// Whether the node's pool can be compared with ours, as far as is known. If not, the source is
    /// still live, but transactions that the node does not announce stay unknown. It is false if
    /// the node has no `txpool_content`, or if listing its pool failed three times in a row; the
    /// next attempt is the next audit.
    pub audited: bool,
    /// How many connections were lost after they had worked.
    pub reconnects: u64,
    /// Why the latest connection was lost, or the latest attempt or comparison failed.
    pub last_error: Option<Arc<SourceError>>,
    /// The latest 32 gaps in its announcements, oldest first.
    pub gaps: Vec<Gap>,
    /// How many comparisons with the node's pool were started, for any reason.
    pub audits: u64,
    /// How many hashes these comparisons recovered.
    pub recovered: u64,
    /// Hashes that running comparisons found missing and have not fetched yet: the rest of a
    /// backfill. Those of the last few fetch slots may still be in flight when it is 0.
    pub to_recover: u64,
    /// The result of the latest comparison.
    pub last_audit: Option<AuditReport>,
    /// How many hashes the node announced.
    pub announced: u64,
    /// How many of these no other source had announced before.
    pub first_seen: u64,
    /// Announcements read from the socket that the announcement reader has not processed yet.
    pub backlog: u64,
    /// The limit of requests in flight at this node: [`FetcherConfig::fetch_slots`], or less while
    /// it is overloaded.
    ///
    /// [`FetcherConfig::fetch_slots`]: crate::FetcherConfig::fetch_slots
    pub fetch_limit: usize,
    /// The number of the latest head that the node announced.
    pub head: Option<u64>,
}

/// The state that a source shares with its handle and its comparisons.
#[derive(Debug)]
pub(crate) struct SourceShared {
    pub(crate) status: Mutex<SourceStatus>,
    /// One for each live announcement reader: that of the connection that is up, and possibly one
    /// that still processes the announcements of a lost connection.
    progress: Mutex<Vec<Weak<Progress>>>,
    /// Held by the announcement reader that is processing, so that they run one after another.
    pub(crate) reading: Arc<tokio::sync::Mutex<()>>,
    /// How many listings of the node's pool are in progress: for the source's own comparison, and
    /// for those that a caller of [`Fetcher::audit`](crate::Fetcher::audit) requested.
    listing: AtomicUsize,
    pub(crate) audits: AtomicU64,
    pub(crate) recovered: AtomicU64,
    to_recover: AtomicU64,
    pub(crate) announcement_counts: Arc<AnnouncementCounts>,
    pub(crate) limit: Arc<NodeLimit>,
    /// When the latest full comparison began.
    pub(crate) compared: Mutex<Option<Instant>>,
    changes: Changes,
}

/// Notified of each change of a source's state, whether it is audited, its latest error or comparison.
pub(crate) type Changes = Arc<watch::Sender<()>>;

/// How far the announcement reader is behind one subscription connection.
#[derive(Debug)]
pub(crate) struct Progress {
    pub(crate) read_times: Arc<ReadTimes>,
    taken: AtomicU64,
}

impl Progress {
    pub(crate) fn new(read_times: Arc<ReadTimes>) -> Self {
        Self { read_times, taken: AtomicU64::new(0) }
    }

    /// Records that `count` announcements were processed, or are known to be lost.
    pub(crate) fn take(&self, count: u64) {
        self.taken.fetch_add(count, Relaxed);
    }

    /// Announcements read from the socket and not yet processed.
    pub(crate) fn backlog(&self) -> u64 {
        self.read_times.read().saturating_sub(self.taken.load(Relaxed))
    }
}

/// The hashes that one comparison still has to fetch.
#[derive(Debug)]
pub(crate) struct Recovery<'a> {
    shared: &'a SourceShared,
    left: u64,
}

impl Recovery<'_> {
    /// One hash is done. Must be called at most once for each hash.
    pub(crate) fn one_done(&mut self) {
        self.left -= 1;
        self.shared.to_recover.fetch_sub(1, Relaxed);
    }
}

impl Drop for Recovery<'_> {
    fn drop(&mut self) {
        self.shared.to_recover.fetch_sub(self.left, Relaxed);
    }
}

impl SourceShared {
    pub(crate) fn new(endpoint: Endpoint, config: &FetcherConfig, changes: &Changes) -> Arc<Self> {
        let name = endpoint.to_string();
        Arc::new(Self {
            limit: Arc::new(NodeLimit::new(
                config.adaptive_limit,
                config.fetch_slots,
                config.deferrable_slots,
                SourceMetrics::fetch_limit(&name),
            )),
            status: Mutex::new(SourceStatus {
                endpoint,
                state: SourceState::Connecting,
                since: SystemTime::now(),
                node: None,
                audited: true,
                reconnects: 0,
                last_error: None,
                gaps: Vec::new(),
                audits: 0,
                recovered: 0,
                to_recover: 0,
                last_audit: None,
                announced: 0,
                first_seen: 0,
                backlog: 0,
                fetch_limit: config.fetch_slots,
                head: None,
            }),
            progress: Mutex::default(),
            reading: Arc::default(),
            listing: AtomicUsize::new(0),
            audits: AtomicU64::new(0),
            recovered: AtomicU64::new(0),
            to_recover: AtomicU64::new(0),
            announcement_counts: Arc::default(),
            compared: Mutex::new(None),
            changes: Arc::clone(changes),
        })
    }

    /// Until the guard is dropped, pings allow the node a longer silence.
    pub(crate) fn start_listing(&self) -> impl Drop + '_ {
        struct Listing<'a>(&'a AtomicUsize);
        impl Drop for Listing<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Relaxed);
            }
        }
        self.listing.fetch_add(1, Relaxed);
        Listing(&self.listing)
    }

    /// Adds `count` hashes to those to be recovered; dropping the guard subtracts the rest.
    pub(crate) fn start_recovery(&self, count: usize) -> Recovery<'_> {
        // Relaxed: a figure for display.
        self.to_recover.fetch_add(count as u64, Relaxed);
        Recovery { shared: self, left: count as u64 }
    }

    pub(crate) fn is_listing(&self) -> bool {
        self.listing.load(Relaxed) > 0
    }

    /// Counts this reader's unprocessed announcements as backlog, until it is dropped.
    pub(crate) fn add_reader(&self, reader: &Arc<Progress>) {
        let mut readers = lock(&self.progress);
        readers.retain(|reader| reader.strong_count() > 0);
        readers.push(Arc::downgrade(reader));
    }

    /// How many announcements the latest connection has delivered.
    pub(crate) fn read(&self) -> u64 {
        let latest = lock(&self.progress).last().and_then(Weak::upgrade);
        latest.map_or(0, |progress| progress.read_times.read())
    }

    pub(crate) fn backlog(&self) -> u64 {
        let readers = lock(&self.progress);
        readers.iter().filter_map(Weak::upgrade).map(|progress| progress.backlog()).sum()
    }

    pub(crate) fn status(&self) -> SourceStatus {
        SourceStatus {
            backlog: self.backlog(),
            fetch_limit: self.limit.limit(),
            audits: self.audits.load(Relaxed),
            recovered: self.recovered.load(Relaxed),
            to_recover: self.to_recover.load(Relaxed),
            announced: self.announcement_counts.announced.load(Relaxed),
            first_seen: self.announcement_counts.first_seen.load(Relaxed),
            ..lock(&self.status).clone()
        }
    }

    pub(crate) fn fail(&self, error: SourceError) {
        lock(&self.status).last_error = Some(Arc::new(error));
        self.changed();
    }

    /// Notifies those who wait that the status has changed.
    pub(crate) fn changed(&self) {
        self.changes.send_replace(());
    }

    pub(crate) fn is_audited(&self) -> bool {
        lock(&self.status).audited
    }

    pub(crate) fn state(&self) -> SourceState {
        lock(&self.status).state
    }
}
