//! What a run came to.

use hdrhistogram::Histogram;
use mempool_ingest::{
    Ingest,
    txpool_fetcher::{AuditReport, Counts},
};
use serde::Serialize;
use serde_json::Value;

use crate::{say::say, watcher::Seen};

/// The output of `--json`. Times are in the unit of their name.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Summary {
    #[serde(flatten)]
    pub(crate) counts: Counts,
    /// Hashes that entered, less those that left and those unfinished: 0 when every hash is
    /// accounted for. An unfinished hash has no outcome.
    pub(crate) balance: i64,
    reconnects: u64,
    audits: u64,
    /// Pending in the node and never in the pool, by the final audit; here and below `null` if there
    /// was none.
    missing: Option<u64>,
    /// Pending in the node, and evicted or expired by the pool.
    removed: Option<u64>,
    /// Pending transactions the node counts and cannot list (blobs on geth).
    unlistable: Option<u64>,
    pool_txs: u64,
    pool_bytes: u64,
    expired: u64,
    evicted: u64,
    /// Fetches and audits that waited because the load was high.
    deferred: u64,
    /// `null` without `--rpc`.
    rpc: Option<RpcCounts>,
    /// One for each flow that is published.
    pub(crate) published: Vec<Value>,
    /// `null` without `--record`.
    pub(crate) recorded: Option<Value>,
    /// `null` without `--replay`.
    pub(crate) replayed: Option<Value>,
    /// Here and below `null` if no transaction came.
    latency_us: Option<Latency>,
    /// From the start of the ingestion until the end was requested, subscriber included.
    pub(crate) cpu_us_per_tx: Option<f64>,
    pub(crate) max_rss_bytes: u64,
    pub(crate) elapsed_s: f64,
    /// Lines of the log that were dropped because nobody read stderr.
    pub(crate) log_dropped: u64,
    /// `null` without `--orders`.
    pub(crate) orders_missed: Option<u64>,
    pub(crate) end: String,
}

/// From the read of the announcement to the order visible to a subscriber, in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Latency {
    pub(crate) p50: f64,
    pub(crate) p95: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

impl Latency {
    /// Of nanoseconds.
    pub(crate) fn of(histogram: &Histogram<u64>) -> Self {
        let us = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        Self { p50: us(0.5), p95: us(0.95), p99: us(0.99), max: histogram.max() as f64 / 1e3 }
    }
}

/// The counts of the RPC server.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct RpcCounts {
    /// Requests admitted; each element of a batch counts.
    pub(crate) requests: u64,
    /// Requests refused because too many were in flight.
    pub(crate) requests_refused: u64,
    /// Orders refused because all work permits were held.
    pub(crate) work_refused: u64,
    /// Raw transactions that waited because the load was high.
    pub(crate) deferred: u64,
    /// Orders from the RPC server that a subscriber saw.
    pub(crate) orders: u64,
    /// Cancellations that a subscriber saw.
    pub(crate) cancelled: u64,
}

impl RpcCounts {
    #[cfg(feature = "rpc")]
    pub(crate) fn of(ingest: &Ingest, seen: &Seen) -> Option<Self> {
        let gate = ingest.gate().stats();
        Some(Self {
            deferred: ingest.rpc()?.deferral_stats().deferred,
            requests: gate.requests_admitted,
            requests_refused: gate.requests_refused,
            work_refused: gate.work_refused,
            orders: seen.orders,
            cancelled: seen.cancelled,
        })
    }

    #[cfg(not(feature = "rpc"))]
    pub(crate) fn of(_: &Ingest, _: &Seen) -> Option<Self> {
        None
    }
}

impl Summary {
    /// At the end of the ingestion; what is known only after its shutdown is left at its default.
    pub(crate) fn of(ingest: &Ingest, seen: &Seen, audit: Option<&AuditReport>) -> Self {
        let (fetcher, stats) = (ingest.fetcher(), ingest.pool().stats());
        let (status, counts) = (fetcher.status(), fetcher.counts());
        Self {
            counts,
            balance: counts.balance(),
            reconnects: status.iter().map(|source| source.reconnects).sum(),
            audits: status.iter().map(|source| source.audits).sum(),
            missing: audit.map(|report| report.missing),
            removed: audit.map(|report| report.removed),
            unlistable: audit.map(|report| report.unlistable),
            pool_txs: stats.txs,
            pool_bytes: stats.bytes,
            expired: stats.expired,
            evicted: stats.evicted,
            deferred: fetcher.deferred().deferred,
            rpc: RpcCounts::of(ingest, seen),
            latency_us: Some(&seen.latency).filter(|all| !all.is_empty()).map(Latency::of),
            ..Self::default()
        }
    }

    /// Transactions that came into the pool: from the nodes, or from a replay.
    pub(crate) fn pooled(&self) -> u64 {
        let replayed = self.replayed.as_ref().and_then(|replayed| replayed["pooled"].as_u64());
        self.counts.pooled + replayed.unwrap_or(0)
    }

    /// Writes one line for the operator.
    pub(crate) fn say(&self) {
        let Self { counts, latency_us, .. } = self;
        let missing = self.missing.map_or("unknown".into(), |count| count.to_string());
        let costs = latency_us.zip(self.cpu_us_per_tx).map(|(latency, cpu)| {
            let Latency { p50, p99, .. } = latency;
            format!("p50 {p50:.0} us, p99 {p99:.0} us; {cpu:.0} us of CPU per transaction; ")
        });
        let (costs, megabytes) = (costs.unwrap_or_default(), self.max_rss_bytes as f64 / 1e6);
        if self.replayed.is_some() {
            // What became of the recording has been said, and there was no node.
            return say!("{costs}{megabytes:.0} MB");
        }
        say!(
            "{} announced, {} backfilled, {} by audit; {} pooled; {missing} missing; lagged {}, failed {}; \
             {costs}{megabytes:.0} MB",
            counts.announced,
            counts.backfilled,
            counts.audit_recovered,
            counts.pooled,
            counts.lagged,
            counts.failed,
        );
    }
}
