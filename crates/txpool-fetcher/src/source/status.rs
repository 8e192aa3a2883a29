//! The status of a source, and the state that it shares with the fetcher's handle and its
//! comparisons.

use std::sync::{Arc, Mutex, atomic::Ordering::Relaxed};

use tokio::sync::{mpsc, watch};

use super::{AuditRequest, machine::SourceState};
use crate::{
    announce::Backlog,
    audit::AuditState,
    config::{Announcements, Endpoint, Settings},
    error::SourceError,
    fetch::{AnnouncementCounts, NodeLimit},
    gap::{Gap, Report},
    metrics::{SourceMetrics, SourceName},
    node::NodeInfo,
    sync::lock,
};

/// The status of one source at one moment: an element of the result of
/// [`FetcherHandle::status`](crate::FetcherHandle::status).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SourceStatus {
    /// The endpoint of the source.
    pub endpoint: Endpoint,
    /// What the source is doing.
    pub state: SourceState,
    /// The client version and chain id of the node. `None` until it is reached for the first time.
    pub node: Option<NodeInfo>,
    /// What the node announces: [`Hashes`](Announcements::Hashes), or [`Full`](Announcements::Full)
    /// transactions. Until the node is reached, the configured value.
    pub announcements: Announcements,
    /// Whether the node's pool can be compared with the fetcher's, as far as is known. If not, the
    /// source may still be live, but transactions that the node does not announce stay unknown. It
    /// is false if the node has no `txpool_content`, or if listing its pool failed three times in a
    /// row, over ten seconds or more. The next attempt is the next audit.
    pub audited: bool,
    /// The number of connections that were lost after they had worked.
    pub reconnects: u64,
    /// The latest failure: why a connection was lost, or an attempt to connect or a comparison
    /// failed.
    pub last_error: Option<Arc<SourceError>>,
    /// The latest 32 gaps in the announcements, oldest first. An open gap is kept however old it
    /// is.
    pub gaps: Vec<Gap>,
    /// The number of comparisons with the node's pool that were started, for any reason.
    pub audits: u64,
    /// The number of hashes that running comparisons found missing and have not begun to fetch: the
    /// rest of a backfill. The last few fetches may still be in flight when it is 0.
    pub to_recover: u64,
    /// The number of hashes that the node announced.
    pub announced: u64,
    /// The number of these that no other source had announced before.
    pub first_seen: u64,
    /// The number of announcements that were read from the socket and are not processed yet.
    pub backlog: u64,
    /// The limit of requests in flight at this node: its share of [`FetcherConfig::fetch_slots`],
    /// or less while it is overloaded.
    ///
    /// [`FetcherConfig::fetch_slots`]: crate::FetcherConfig::fetch_slots
    pub fetch_limit: usize,
    /// The number of the latest head that the node announced or returned.
    pub head: Option<u64>,
}

/// The number of requests for audits that may wait for one source while one runs. Further callers
/// get `SnapshotError::Busy`.
pub(crate) const AUDITS_WAITING: usize = 4;

/// Capacity of the queue of reports to the shell of a source, which reads them at once.
const REPORTS_WAITING: usize = 256;

/// The receiving ends of a source's queues, and its name in the metrics.
pub(crate) struct Inbox {
    pub(super) audits: mpsc::Receiver<AuditRequest>,
    pub(super) reports: mpsc::Receiver<Report>,
    /// Held until the source ends, because the handle may outlive the source.
    pub(super) name: SourceName,
}

/// The state that a source shares with its handle.
pub(crate) struct SourceShared {
    /// Sends requests for audits to its [`Inbox`].
    pub(crate) audit_requests: mpsc::Sender<AuditRequest>,
    pub(super) status: Mutex<SourceStatus>,
    pub(crate) backlog: Arc<Backlog>,
    pub(crate) audits: Arc<AuditState>,
    pub(crate) limit: Arc<NodeLimit>,
    pub(super) metrics: SourceMetrics,
    changes: Changes,
}

/// Notifies of each change of a source's state, of its latest error, and of whether it is audited.
pub(crate) type Changes = Arc<watch::Sender<()>>;

impl SourceShared {
    /// Makes the shared state of a source, and the ends of its queues.
    pub(crate) fn new(
        endpoint: Endpoint,
        settings: &Settings,
        changes: &Changes,
    ) -> (Arc<Self>, Inbox) {
        let (audit_requests, audits) = mpsc::channel(AUDITS_WAITING);
        let (reports, reported) = mpsc::channel(REPORTS_WAITING);
        let (name, metrics) = SourceName::claim(&endpoint);
        // The pool counts as comparable until a comparison shows otherwise.
        metrics.audited.set(1.0);
        // With several sources each has an equal share, so that one that does not respond leaves
        // slots to the others: see `FetcherConfig::fetch_slots`.
        let slots = settings.config.fetch_slots.div_ceil(settings.config.sources.len());
        let shared = Self {
            audit_requests,
            limit: NodeLimit::new(slots).into(),
            status: Mutex::new(SourceStatus {
                endpoint,
                state: SourceState::Connecting,
                node: None,
                announcements: settings.config.announcements,
                audited: true,
                reconnects: 0,
                last_error: None,
                gaps: Vec::new(),
                audits: 0,
                to_recover: 0,
                announced: 0,
                first_seen: 0,
                backlog: 0,
                fetch_limit: slots,
                head: None,
            }),
            backlog: Backlog::new(reports).into(),
            audits: Arc::default(),
            metrics,
            changes: Arc::clone(changes),
        };
        (Arc::new(shared), Inbox { audits, reports: reported, name })
    }

    pub(crate) fn status(&self, announcements: &AnnouncementCounts) -> SourceStatus {
        SourceStatus {
            backlog: self.backlog.len(),
            fetch_limit: self.limit.limit(),
            audits: self.audits.audits.load(Relaxed),
            to_recover: self.audits.to_recover.load(Relaxed),
            announced: announcements.announced.load(Relaxed),
            first_seen: announcements.first_seen.load(Relaxed),
            ..lock(&self.status).clone()
        }
    }

    /// Sets the latest failure.
    pub(super) fn fail(&self, error: SourceError) {
        lock(&self.status).last_error = Some(Arc::new(error));
        self.changed();
    }

    /// Sets what the node announces.
    pub(super) fn announces(&self, announcements: Announcements) {
        lock(&self.status).announcements = announcements;
        self.changed();
    }

    /// Notes that the source has ended, and sets its gauges to 0.
    pub(super) fn end(&self) {
        lock(&self.status).state = SourceState::Ended;
        self.changed();
        self.metrics.state.set(f64::from(SourceState::Ended as u8));
        self.metrics.unlistable.set(0.0);
        self.metrics.listed_not_held.iter().for_each(|gauge| gauge.set(0.0));
        self.metrics.backlog.set(0.0);
        self.metrics.fetch_limit.set(0.0);
    }

    /// Notifies waiters that the status has changed.
    pub(super) fn changed(&self) {
        self.changes.send_replace(());
    }

    pub(crate) fn is_audited(&self) -> bool {
        lock(&self.status).audited
    }

    pub(crate) fn state(&self) -> SourceState {
        lock(&self.status).state
    }
}
