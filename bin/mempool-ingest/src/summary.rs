//! The summary of a run: the line that is printed at its end, and the output of `--json`.

use hdrhistogram::Histogram;
use mempool_ingest::{
    Ingest,
    txpool_fetcher::{AuditReport, Counts},
};
use serde::Serialize;
use serde_json::Value;

use crate::{print::print_line, watcher::WatcherStats};

/// The output of `--json`. Units are in the names of the fields.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Summary {
    #[serde(flatten)]
    pub(crate) counts: Counts,
    /// The number of hashes that entered, minus those with an outcome and those unfinished: 0 when
    /// every hash is accounted for.
    pub(crate) balance: i64,
    reconnects: u64,
    audits: u64,
    /// Transactions that are pending in the node and were never in the pool. This and the next two
    /// are counted by the final audit, and `null` without one.
    missing: Option<u64>,
    /// Transactions that are pending in the node, and were evicted or expired.
    removed: Option<u64>,
    /// Pending transactions that the node counts and cannot list (blobs on geth).
    unlistable: Option<u64>,
    pool_txs: u64,
    pool_bytes: u64,
    expired: u64,
    evicted: u64,
    /// Fetches and audits that waited for the load to fall.
    deferred: u64,
    /// `null` without `--rpc`.
    rpc: Option<RpcCounts>,
    /// The counts of each published flow.
    pub(crate) published: Vec<Value>,
    /// `null` without `--record`.
    pub(crate) recorded: Option<Value>,
    /// `null` without `--replay`.
    pub(crate) replayed: Option<Value>,
    /// This and the next field are `null` if no transaction arrived.
    latency_us: Option<Latency>,
    /// The CPU time of the process, its subscriber included, from the start of the ingestion until
    /// the stop was requested.
    pub(crate) cpu_us_per_tx: Option<f64>,
    pub(crate) max_rss_bytes: u64,
    pub(crate) elapsed_s: f64,
    /// Log lines that were dropped because nobody read stderr.
    pub(crate) log_dropped: u64,
    /// `null` without `--orders`.
    pub(crate) orders_missed: Option<u64>,
    pub(crate) end: String,
}

/// The time from reading an announcement until a subscriber sees the order, in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Latency {
    pub(crate) p50: f64,
    pub(crate) p95: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

impl Latency {
    /// The histogram is in nanoseconds.
    pub(crate) fn new(histogram: &Histogram<u64>) -> Self {
        let us = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        Self { p50: us(0.5), p95: us(0.95), p99: us(0.99), max: histogram.max() as f64 / 1e3 }
    }
}

/// The counts of the RPC server.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct RpcCounts {
    /// Admitted requests; each element of a batch counts.
    pub(crate) requests: u64,
    /// Requests that were refused because too many were in flight.
    pub(crate) requests_refused: u64,
    /// Orders that were refused because all work permits were in use.
    pub(crate) work_refused: u64,
    /// Raw transactions that waited for the load to fall.
    pub(crate) deferred: u64,
    /// Orders from the RPC server that the subscriber saw.
    pub(crate) orders: u64,
    /// Cancellations that the subscriber saw.
    pub(crate) cancelled: u64,
}

impl RpcCounts {
    #[cfg(feature = "rpc")]
    pub(crate) fn new(ingest: &Ingest, stats: &WatcherStats) -> Option<Self> {
        let gate = ingest.gate().stats();
        Some(Self {
            deferred: ingest.rpc()?.deferral_stats().deferred,
            requests: gate.requests_admitted,
            requests_refused: gate.requests_refused,
            work_refused: gate.work_refused,
            orders: stats.orders,
            cancelled: stats.cancelled,
        })
    }

    #[cfg(not(feature = "rpc"))]
    pub(crate) fn new(_: &Ingest, _: &WatcherStats) -> Option<Self> {
        None
    }
}

impl Summary {
    /// Reads the values before the shutdown. Those that are known only afterwards have their
    /// defaults.
    pub(crate) fn new(ingest: &Ingest, stats: &WatcherStats, audit: Option<&AuditReport>) -> Self {
        let fetcher = ingest.fetcher();
        let pool = ingest.pool().stats();
        let status = fetcher.status();
        let counts = fetcher.counts();
        Self {
            counts,
            balance: counts.balance(),
            reconnects: status.iter().map(|source| source.reconnects).sum(),
            audits: status.iter().map(|source| source.audits).sum(),
            missing: audit.map(|report| report.missing),
            removed: audit.map(|report| report.removed),
            unlistable: audit.map(|report| report.unlistable),
            pool_txs: pool.txs,
            pool_bytes: pool.bytes,
            expired: pool.expired,
            evicted: pool.evicted,
            deferred: fetcher.deferred().deferred,
            rpc: RpcCounts::new(ingest, stats),
            latency_us: (!stats.latency.is_empty()).then(|| Latency::new(&stats.latency)),
            ..Self::default()
        }
    }

    /// The number of transactions that entered the pool, from the nodes or from a replay.
    pub(crate) fn pooled(&self) -> u64 {
        let replayed = self.replayed.as_ref().and_then(|replayed| replayed["pooled"].as_u64());
        self.counts.pooled + replayed.unwrap_or(0)
    }

    /// Prints one line for the operator.
    pub(crate) fn print(&self) {
        let Self { counts, latency_us, .. } = self;
        let missing = self.missing.map_or("unknown".into(), |count| count.to_string());
        let costs = latency_us.zip(self.cpu_us_per_tx).map(|(latency, cpu)| {
            let Latency { p50, p99, .. } = latency;
            format!("p50 {p50:.0} us, p99 {p99:.0} us; {cpu:.0} us of CPU per transaction; ")
        });
        let (costs, megabytes) = (costs.unwrap_or_default(), self.max_rss_bytes as f64 / 1e6);
        if self.replayed.is_some() {
            // There was no node, and the counts of the replay have been printed.
            return print_line!("{costs}{megabytes:.0} MB");
        }
        print_line!(
            "{} announced, {} backfilled, {} by audit; {} pooled; {missing} missing; lagged {}, \
             failed {}; {costs}{megabytes:.0} MB",
            counts.announced,
            counts.backfilled,
            counts.audit_recovered,
            counts.pooled,
            counts.lagged,
            counts.failed,
        );
    }
}
