//! The values that the live view and the status lines show, sampled once a second.

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
    watcher::PoolContent,
};

/// The number of seconds in a curve, more than a terminal has columns.
const HISTORY_SECONDS: usize = 300;

/// What is shown at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) uptime: Duration,
    /// The client version of the first connected node.
    pub(crate) client: Option<String>,
    /// The number and the age of the head.
    pub(crate) head: Option<(u64, Duration)>,
    pub(crate) sources: Vec<Source>,
    pub(crate) counts: Counts,
    pub(crate) announced_per_s: f64,
    pub(crate) pooled_per_s: f64,
    /// The number of transactions pooled in each second, the latest last.
    pub(crate) pooled: VecDeque<u64>,
    /// The 99th percentile of the latency in microseconds, for each second in which a transaction
    /// was pooled, the latest last.
    pub(crate) p99_us: VecDeque<u64>,
    /// The latency of the last second, `None` if no transaction arrived.
    pub(crate) latency: Option<Latency>,
    /// The latency since the start, `None` if no transaction arrived.
    pub(crate) total_latency: Option<Latency>,
    pub(crate) pool: PoolStats,
    pub(crate) max_txs: u64,
    pub(crate) content: PoolContent,
    pub(crate) load: LoadState,
    pub(crate) deferred: DeferredStats,
    pub(crate) gate: GateStats,
    pub(crate) rpc: Option<RpcCounts>,
    /// The latest lines of the log, the oldest first. Only the live view sets them.
    pub(crate) events: Vec<String>,
    /// Whether the meaning of the keys is shown. Only the live view sets it.
    pub(crate) are_keys_shown: bool,
}

/// The status of a source. Status lines in JSON contain the fields that serde does not skip.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Source {
    #[serde(skip)]
    pub(crate) state: SourceState,
    /// The name of the state, or `other_chain` for a node that is not used because of its chain.
    #[serde(rename = "state")]
    pub(crate) state_name: &'static str,
    pub(crate) endpoint: String,
    /// The chain of the node, `None` until it is reached.
    pub(crate) chain_id: Option<u64>,
    #[serde(skip)]
    pub(crate) announcements: Announcements,
    pub(crate) audited: bool,
    #[serde(skip)]
    pub(crate) backlog: u64,
    #[serde(skip)]
    pub(crate) gaps: usize,
    /// Why announcements may be missing now, and for how long.
    #[serde(skip)]
    pub(crate) open_gap: Option<(&'static str, Duration)>,
    #[serde(skip)]
    pub(crate) reconnects: u64,
    #[serde(skip)]
    pub(crate) audits: u64,
    /// The progress of a backfill.
    #[serde(skip)]
    pub(crate) backfill: Option<BackfillProgress>,
    /// Why the source is not live.
    pub(crate) error: Option<String>,
}

/// The number of hashes that a backfill has fetched, and has to fetch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BackfillProgress {
    pub(crate) fetched: u64,
    pub(crate) total: u64,
}

/// Takes a snapshot once a second. It keeps the values that rates are computed from.
pub(crate) struct Sampler {
    start: Instant,
    sampled_at: Instant,
    /// The counts and latencies of the last sample.
    counts: Counts,
    latency: Histogram<u64>,
    pooled: VecDeque<u64>,
    p99_us: VecDeque<u64>,
    /// For each source, the largest number of hashes that its running backfill had left to fetch.
    backfill_totals: Vec<u64>,
}

impl Sampler {
    pub(crate) fn new(latency: Histogram<u64>) -> Self {
        let now = Instant::now();
        Self {
            start: now,
            sampled_at: now,
            counts: Counts::default(),
            latency,
            pooled: VecDeque::new(),
            p99_us: VecDeque::new(),
            backfill_totals: Vec::new(),
        }
    }

    /// Takes a snapshot. Call it about once a second: the curves have one value per call.
    pub(crate) fn sample(&mut self, running: &Running) -> Snapshot {
        let ingest = &running.ingest;
        let stats = running.parts.watcher.stats();
        let mut counts = ingest.fetcher().counts();
        let status = ingest.fetcher().status();
        counts.pooled += running.replayed();
        let seconds = self.sampled_at.elapsed().as_secs_f64().max(1e-3);
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        let announced_per_s = rate(counts.announced, self.counts.announced);
        let pooled_per_s = rate(counts.pooled, self.counts.pooled);
        push(&mut self.pooled, pooled_per_s.round() as u64);
        let mut recent = stats.latency.clone();
        // `self.latency` is an earlier copy of the same histogram, so none of its counts is higher.
        recent.subtract(&self.latency).expect("counts only rise");
        if !recent.is_empty() {
            push(&mut self.p99_us, Latency::new(&recent).p99 as u64);
        }
        self.sampled_at = Instant::now();
        self.counts = counts;
        self.latency = stats.latency.clone();
        self.backfill_totals.resize(status.len(), 0);
        let sources = status.iter().zip(&mut self.backfill_totals).map(|(status, total)| {
            let is_running = status.to_recover > 0 || status.state == SourceState::Backfilling;
            *total = if is_running { (*total).max(status.to_recover) } else { 0 };
            source(status, *total)
        });
        Snapshot {
            uptime: self.start.elapsed(),
            sources: sources.collect(),
            client: status.into_iter().find_map(|source| source.node).map(|node| node.client),
            head: ingest.head().map(|head| (head.number, age(head.timestamp))),
            counts,
            announced_per_s,
            pooled_per_s,
            pooled: self.pooled.clone(),
            p99_us: self.p99_us.clone(),
            latency: (!recent.is_empty()).then(|| Latency::new(&recent)),
            total_latency: (!stats.latency.is_empty()).then(|| Latency::new(&stats.latency)),
            pool: ingest.pool().stats(),
            max_txs: running.max_txs as u64,
            content: stats.content,
            load: ingest.monitor().state(),
            deferred: ingest.fetcher().deferred(),
            gate: ingest.gate().stats(),
            rpc: RpcCounts::new(ingest, &stats),
            events: Vec::new(),
            are_keys_shown: false,
        }
    }
}

/// Returns the time since a block's timestamp, in seconds since the Unix epoch.
fn age(timestamp: u64) -> Duration {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(timestamp);
    time.elapsed().unwrap_or_default()
}

/// `backfill_total` is the number of hashes that a running backfill has to fetch, or 0.
fn source(status: &SourceStatus, backfill_total: u64) -> Source {
    let open_gap = status.gaps.iter().rfind(|gap| gap.closed_at.is_none());
    let other_chain = match status.last_error.as_deref() {
        Some(SourceError::Connect(ConnectError::OtherChain { found, .. })) => Some(*found),
        _ => None,
    };
    let other_chain = other_chain.filter(|_| status.state == SourceState::Connecting);
    let error = status.last_error.as_ref().map(ToString::to_string);
    Source {
        state: status.state,
        state_name: if other_chain.is_some() { "other_chain" } else { status.state.as_str() },
        endpoint: status.endpoint.to_string(),
        chain_id: other_chain.or(status.node.as_ref().map(|node| node.chain_id)),
        announcements: status.announcements,
        audited: status.audited,
        backlog: status.backlog,
        gaps: status.gaps.len(),
        open_gap: open_gap.map(|gap| (gap.reason.as_str(), gap.opened_at.elapsed())),
        reconnects: status.reconnects,
        audits: status.audits,
        backfill: (backfill_total > 0).then_some(BackfillProgress {
            fetched: backfill_total - status.to_recover,
            total: backfill_total,
        }),
        // Earlier errors of a live source are in the log.
        error: error.filter(|_| status.state != SourceState::Live),
    }
}

fn push(history: &mut VecDeque<u64>, value: u64) {
    if history.len() == HISTORY_SECONDS {
        history.pop_front();
    }
    history.push_back(value);
}
