//! The status of a source, and the state that it shares with its handle and its comparisons.

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

/// The status of one source at one moment, see [`Fetcher::status`](crate::Fetcher::status).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SourceStatus {
    /// The endpoint of its node.
    pub endpoint: Endpoint,
    /// What it is doing.
    pub state: SourceState,
    /// The client version and chain id of the node, once it was reached.
    pub node: Option<NodeInfo>,
    /// What the node announces: [`Hashes`](Announcements::Hashes), or [`Full`](Announcements::Full)
    /// transactions; until it is reached, what is configured.
    pub announcements: Announcements,
    /// Whether the node's pool can be compared with ours, as far as is known. If not, the source is
    /// still live, but transactions that the node does not announce stay unknown. It is false if
    /// the node has no `txpool_content`, or if listing its pool failed three times in a row, over ten seconds or more; the
    /// next attempt is the next audit.
    pub audited: bool,
    /// How many connections were lost after they had worked.
    pub reconnects: u64,
    /// Why the latest connection was lost, or the latest attempt or comparison failed.
    pub last_error: Option<Arc<SourceError>>,
    /// The latest 32 gaps in its announcements, oldest first. An open one is kept however old it is.
    pub gaps: Vec<Gap>,
    /// How many comparisons with the node's pool were started, for any reason.
    pub audits: u64,
    /// Hashes that running comparisons found missing and have not fetched yet: the rest of a
    /// backfill. Those of the last few fetch slots may still be in flight when it is 0.
    pub to_recover: u64,
    /// How many hashes the node announced.
    pub announced: u64,
    /// How many of these no other source had announced before.
    pub first_seen: u64,
    /// Announcements read from the socket that the announcement reader has not processed yet.
    pub backlog: u64,
    /// The limit of requests in flight at this node: its share of [`FetcherConfig::fetch_slots`], or
    /// less while it is overloaded.
    ///
    /// [`FetcherConfig::fetch_slots`]: crate::FetcherConfig::fetch_slots
    pub fetch_limit: usize,
    /// The number of the latest head that the node announced or returned.
    pub head: Option<u64>,
}

/// Requests for audits that may wait for one source while one runs; further callers get an error.
pub(crate) const AUDITS_WAITING: usize = 4;

/// What a source's announcements and heads report may wait for its shell, which reads it at once.
const REPORTS_WAITING: usize = 256;

/// Where a source receives from the other parts, and its name in the metrics.
pub(crate) struct Inbox {
    pub(super) audits: mpsc::Receiver<AuditRequest>,
    pub(super) reports: mpsc::Receiver<Report>,
    /// Until the source ends: the handle may outlive it.
    pub(super) name: SourceName,
}

/// The state that a source shares with its handle.
pub(crate) struct SourceShared {
    /// To its [`Inbox`].
    pub(crate) audit_requests: mpsc::Sender<AuditRequest>,
    pub(super) status: Mutex<SourceStatus>,
    pub(crate) backlog: Arc<Backlog>,
    pub(crate) audits: Arc<AuditState>,
    pub(crate) limit: Arc<NodeLimit>,
    pub(super) metrics: SourceMetrics,
    changes: Changes,
}

/// Notified of each change of a source's state, whether it is audited, or its latest error.
pub(crate) type Changes = Arc<watch::Sender<()>>;

impl SourceShared {
    /// With where the source receives.
    pub(crate) fn new(
        endpoint: Endpoint,
        settings: &Settings,
        changes: &Changes,
    ) -> (Arc<Self>, Inbox) {
        let (audit_requests, audits) = mpsc::channel(AUDITS_WAITING);
        let (reports, reported) = mpsc::channel(REPORTS_WAITING);
        let (name, metrics) = SourceName::claim(&endpoint);
        // Until the first failure to list it.
        metrics.audited.set(1.0);
        // One of several that does not respond holds an equal share of the slots: the others have the rest.
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

    pub(super) fn fail(&self, error: SourceError) {
        lock(&self.status).last_error = Some(Arc::new(error));
        self.changed();
    }

    pub(super) fn announces(&self, announcements: Announcements) {
        lock(&self.status).announcements = announcements;
        self.changed();
    }

    /// The source has ended: it is not live any more, and its gauges are those of no work.
    pub(super) fn end(&self) {
        lock(&self.status).state = SourceState::Ended;
        self.changed();
        self.metrics.state.set(f64::from(SourceState::Ended as u8));
        self.metrics.unlistable.set(0.0);
        self.metrics.listed_not_held.iter().for_each(|gauge| gauge.set(0.0));
        self.metrics.backlog.set(0.0);
        self.metrics.fetch_limit.set(0.0);
    }

    /// Notifies those who wait that the status has changed.
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
