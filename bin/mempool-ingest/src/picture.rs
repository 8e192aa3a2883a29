//! The values that the live view shows at one moment.

use std::{
    collections::VecDeque,
    time::{Duration, Instant, SystemTime},
};

use hdrhistogram::Histogram;
use mempool_ingest::{
    load_control::{GateStats, LoadState},
    order_pool::PoolStats,
    txpool_fetcher::{
        Announcements, ConnectError, Counts, DeferredStats, SourceError, SourceState, SourceStatus,
    },
};
use serde::Serialize;

use crate::{
    Running,
    summary::{Latency, RpcCounts},
    watcher::Content,
};

/// Seconds of the curves, more than a terminal has columns.
const HISTORY: usize = 300;

#[derive(Clone, Debug)]
pub(crate) struct Picture {
    pub(crate) up: Duration,
    /// The client of the first connected node.
    pub(crate) node: Option<String>,
    /// The head's number and age.
    pub(crate) head: Option<(u64, Duration)>,
    pub(crate) sources: Vec<Source>,
    pub(crate) counts: Counts,
    pub(crate) announced_per_s: f64,
    pub(crate) pooled_per_s: f64,
    /// Transactions pooled in each second, the latest last.
    pub(crate) pooled: VecDeque<u64>,
    /// 99th percentile of the latency in microseconds, for each second in which something was
    /// pooled, the latest last.
    pub(crate) p99_us: VecDeque<u64>,
    /// Of the last second; here and below `None` if no transaction came.
    pub(crate) latency: Option<Latency>,
    /// Since the start.
    pub(crate) latency_in_all: Option<Latency>,
    pub(crate) pool: PoolStats,
    pub(crate) max_txs: u64,
    pub(crate) content: Content,
    pub(crate) load: LoadState,
    pub(crate) deferred: DeferredStats,
    pub(crate) gate: GateStats,
    pub(crate) rpc: Option<RpcCounts>,
    /// The latest lines of the log, oldest first: for the live view alone.
    pub(crate) events: Vec<String>,
    /// Whether the keys are shown: for the live view alone.
    pub(crate) keys: bool,
}

/// A source. What is not skipped stands in the lines of `--status-interval` too.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Source {
    #[serde(skip)]
    pub(crate) state: SourceState,
    /// Of the state, or of a node on another chain than the wanted one, so that it is not used.
    #[serde(rename = "state")]
    pub(crate) state_name: &'static str,
    pub(crate) endpoint: String,
    /// The chain of its node, also if it is not the wanted one; `None` until it is reached.
    pub(crate) chain_id: Option<u64>,
    #[serde(skip)]
    pub(crate) announcements: Announcements,
    pub(crate) audited: bool,
    #[serde(skip)]
    pub(crate) backlog: u64,
    #[serde(skip)]
    pub(crate) gaps: usize,
    /// Why announcements may be missing at present, and for how long.
    #[serde(skip)]
    pub(crate) open_gap: Option<(&'static str, Duration)>,
    #[serde(skip)]
    pub(crate) reconnects: u64,
    #[serde(skip)]
    pub(crate) audits: u64,
    /// How many hashes a backfill has fetched, and out of how many.
    #[serde(skip)]
    pub(crate) backfill: Option<(u64, u64)>,
    /// Why the source is not live.
    pub(crate) error: Option<String>,
}

/// The state that is kept from one picture to the next.
pub(crate) struct Painter {
    start: Instant,
    at: Instant,
    counts: Counts,
    latency: Histogram<u64>,
    pooled: VecDeque<u64>,
    p99_us: VecDeque<u64>,
    /// For each source, the most hashes that its running backfill had to fetch.
    backfill: Vec<u64>,
}

impl Painter {
    pub(crate) fn new(latency: Histogram<u64>) -> Self {
        let now = Instant::now();
        Self {
            start: now,
            at: now,
            counts: Counts::default(),
            latency,
            pooled: VecDeque::new(),
            p99_us: VecDeque::new(),
            backfill: Vec::new(),
        }
    }

    /// Must be called about once a second.
    pub(crate) fn paint(&mut self, running: &Running) -> Picture {
        let ingest = &running.ingest;
        let seen = running.parts.watcher.seen();
        let (mut counts, status) = (ingest.fetcher().counts(), ingest.fetcher().status());
        counts.pooled += running.replayed();
        let seconds = self.at.elapsed().as_secs_f64().max(1e-3);
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        let announced_per_s = rate(counts.announced, self.counts.announced);
        let pooled_per_s = rate(counts.pooled, self.counts.pooled);
        push(&mut self.pooled, pooled_per_s.round() as u64);
        let mut since = seen.latency.clone();
        // An earlier copy of the same histogram, so each of its counts is at most as high.
        since.subtract(&self.latency).expect("counts only rise");
        if !since.is_empty() {
            push(&mut self.p99_us, Latency::of(&since).p99 as u64);
        }
        (self.at, self.counts, self.latency) = (Instant::now(), counts, seen.latency.clone());
        self.backfill.resize(status.len(), 0);
        let sources = status.iter().zip(&mut self.backfill).map(|(status, most)| {
            let running = status.to_recover > 0 || status.state == SourceState::Backfilling;
            *most = if running { (*most).max(status.to_recover) } else { 0 };
            source(status, *most)
        });
        let age = |head: mempool_ingest::order_pool::Head| {
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(head.timestamp);
            (head.number, time.elapsed().unwrap_or_default())
        };
        Picture {
            up: self.start.elapsed(),
            sources: sources.collect(),
            node: status.into_iter().find_map(|source| source.node).map(|node| node.client),
            head: ingest.head().map(age),
            counts,
            announced_per_s,
            pooled_per_s,
            pooled: self.pooled.clone(),
            p99_us: self.p99_us.clone(),
            latency: (!since.is_empty()).then(|| Latency::of(&since)),
            latency_in_all: (!seen.latency.is_empty()).then(|| Latency::of(&seen.latency)),
            pool: ingest.pool().stats(),
            max_txs: running.max_txs as u64,
            content: seen.content,
            load: ingest.monitor().state(),
            deferred: ingest.fetcher().deferred(),
            gate: ingest.gate().stats(),
            rpc: RpcCounts::of(ingest, &seen),
            events: Vec::new(),
            keys: false,
        }
    }
}

fn source(status: &SourceStatus, most: u64) -> Source {
    let open = status.gaps.iter().rfind(|gap| gap.to.is_none());
    let other = match status.last_error.as_deref() {
        Some(SourceError::Connect(ConnectError::OtherChain { found, .. })) => Some(*found),
        _ => None,
    };
    let other = other.filter(|_| status.state == SourceState::Connecting);
    let error = status.last_error.as_ref().map(ToString::to_string);
    Source {
        state: status.state,
        state_name: if other.is_some() { "other_chain" } else { status.state.as_str() },
        endpoint: status.endpoint.to_string(),
        chain_id: other.or(status.node.as_ref().map(|node| node.chain_id)),
        announcements: status.announcements,
        audited: status.audited,
        backlog: status.backlog,
        gaps: status.gaps.len(),
        open_gap: open.map(|gap| (gap.reason.as_str(), gap.from.elapsed())),
        reconnects: status.reconnects,
        audits: status.audits,
        backfill: (most > 0).then_some((most - status.to_recover, most)),
        // Errors of the past are in the log.
        error: error.filter(|_| status.state != SourceState::Live),
    }
}

fn push(history: &mut VecDeque<u64>, value: u64) {
    if history.len() == HISTORY {
        history.pop_front();
    }
    history.push_back(value);
}
