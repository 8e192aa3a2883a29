//! The fetcher's metrics, through the [`metrics`] facade; an exporter is the host's choice.
//!
//! The handles are made once, when the fetcher starts: install the recorder before.

use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram,
    gauge, histogram,
};

use crate::{
    deferral::DeferrableWork,
    outcome::{Entry, Outcome},
};

/// Names, units and meanings of all metrics of this crate.
pub const METRICS: &[(&str, Unit, &str)] = &[
    ("mempool_fetcher_hashes_total", Unit::Count, "hashes that entered, by `entry`"),
    ("mempool_fetcher_outcomes_total", Unit::Count, "hashes that left, by `outcome`"),
    ("mempool_fetcher_unfinished", Unit::Count, "hashes that entered and have not left"),
    (
        "mempool_fetcher_lagged_total",
        Unit::Count,
        "announcements lost by our own buffer; reconciliation brings them in",
    ),
    (
        "mempool_fetcher_deferred_total",
        Unit::Count,
        "fetches and audits that waited because the load was high, by `work`",
    ),
    (
        "mempool_fetcher_oldest_deferred_seconds",
        Unit::Seconds,
        "how long the oldest of what waits because of the load has waited",
    ),
    ("mempool_fetcher_retries_total", Unit::Count, "fetches asked again, by `reason`"),
    (
        "mempool_fetcher_reconnects_total",
        Unit::Count,
        "connections lost after they worked, by `reason`",
    ),
    ("mempool_fetcher_connect_failures_total", Unit::Count, "attempts to connect that failed"),
    ("mempool_fetcher_audits_total", Unit::Count, "comparisons with the node's pool, by `result`"),
    (
        "mempool_fetcher_malformed_notifications_total",
        Unit::Count,
        "notifications that are neither a hash nor a head",
    ),
    (
        "mempool_fetcher_skipped_full_blocks_total",
        Unit::Count,
        "blocks not read for nonces, because heads came faster than that",
    ),
    (
        "mempool_fetcher_unlistable",
        Unit::Count,
        "pending transactions the node counts and does not list (blobs on geth)",
    ),
    (
        "mempool_fetcher_source_state",
        Unit::Count,
        "0 connecting, 1 backfilling, 2 live, 3 stale, 4 ended; by `source`",
    ),
    (
        "mempool_fetcher_backlog",
        Unit::Count,
        "announcements read from the socket and not yet taken in, by `source`",
    ),
    (
        "mempool_fetcher_fetch_limit",
        Unit::Count,
        "fetches that the node of `source` is asked at once, at most",
    ),
    (
        "mempool_fetcher_retry_after_pauses_total",
        Unit::Count,
        "retry-after pauses of the node of `source`: it named a time in an error response, and no request is sent until then",
    ),
    (
        "mempool_fetcher_in_flight_bytes",
        Unit::Bytes,
        "bytes of answers in flight, reserved or held",
    ),
    (
        "mempool_fetcher_fetch_seconds",
        Unit::Seconds,
        "from the question to the answer of one fetch",
    ),
    (
        "mempool_fetcher_deliver_seconds",
        Unit::Seconds,
        "from the announcement on the socket to the sink having it",
    ),
    (
        "mempool_fetcher_missing_seconds",
        Unit::Seconds,
        "how long, at most, what an audit found had been missing",
    ),
];

/// Handles of everything that is counted.
#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) entered: [Counter; 3],
    pub(crate) left: [Counter; 7],
    pub(crate) unfinished: Gauge,
    pub(crate) lagged: Counter,
    pub(crate) deferred: [Counter; 3],
    pub(crate) oldest_deferred: Gauge,
    pub(crate) retries_timeout: Counter,
    pub(crate) retries_connection_lost: Counter,
    pub(crate) retries_rpc: Counter,
    pub(crate) retries_other_source: Counter,
    pub(crate) connect_failures: Counter,
    pub(crate) audits_equal: Counter,
    pub(crate) audits_recovered: Counter,
    pub(crate) audits_failed: Counter,
    pub(crate) malformed_notifications: Counter,
    pub(crate) unlistable: Gauge,
    pub(crate) in_flight_bytes: Gauge,
    pub(crate) fetch_seconds: Histogram,
    pub(crate) deliver_seconds: Histogram,
    pub(crate) missing_seconds: Histogram,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        for (name, unit, text) in METRICS {
            if name.ends_with("_total") {
                describe_counter!(*name, *unit, *text);
            } else if name.ends_with("_seconds") && !name.contains("_oldest_") {
                describe_histogram!(*name, *unit, *text);
            } else {
                describe_gauge!(*name, *unit, *text);
            }
        }
        let retries =
            |reason: &'static str| counter!("mempool_fetcher_retries_total", "reason" => reason);
        let audits =
            |result: &'static str| counter!("mempool_fetcher_audits_total", "result" => result);
        Self {
            entered: Entry::ALL
                .map(|entry| counter!("mempool_fetcher_hashes_total", "entry" => entry.as_str())),
            left: Outcome::ALL.map(
                |outcome| counter!("mempool_fetcher_outcomes_total", "outcome" => outcome.as_str()),
            ),
            unfinished: gauge!("mempool_fetcher_unfinished"),
            lagged: counter!("mempool_fetcher_lagged_total"),
            deferred: DeferrableWork::ALL
                .map(|work| counter!("mempool_fetcher_deferred_total", "work" => work.as_str())),
            oldest_deferred: gauge!("mempool_fetcher_oldest_deferred_seconds"),
            retries_timeout: retries("timeout"),
            retries_connection_lost: retries("connection_lost"),
            retries_rpc: retries("rpc_error"),
            retries_other_source: retries("other_source"),
            connect_failures: counter!("mempool_fetcher_connect_failures_total"),
            audits_equal: audits("equal"),
            audits_recovered: audits("recovered"),
            audits_failed: audits("failed"),
            malformed_notifications: counter!("mempool_fetcher_malformed_notifications_total"),
            unlistable: gauge!("mempool_fetcher_unlistable"),
            in_flight_bytes: gauge!("mempool_fetcher_in_flight_bytes"),
            fetch_seconds: histogram!("mempool_fetcher_fetch_seconds"),
            deliver_seconds: histogram!("mempool_fetcher_deliver_seconds"),
            missing_seconds: histogram!("mempool_fetcher_missing_seconds"),
        }
    }
}

/// Handles of one source.
#[derive(Debug)]
pub(crate) struct SourceMetrics {
    pub(crate) state: Gauge,
    pub(crate) backlog: Gauge,
}

impl SourceMetrics {
    pub(crate) fn new(endpoint: &str) -> Self {
        let source = endpoint.to_owned();
        Self {
            state: gauge!("mempool_fetcher_source_state", "source" => source.clone()),
            backlog: gauge!("mempool_fetcher_backlog", "source" => source),
        }
    }

    pub(crate) fn fetch_limit(endpoint: &str) -> Gauge {
        gauge!("mempool_fetcher_fetch_limit", "source" => endpoint.to_owned())
    }

    pub(crate) fn retry_after_pauses(endpoint: &str) -> Counter {
        counter!("mempool_fetcher_retry_after_pauses_total", "source" => endpoint.to_owned())
    }

    /// Losses are rare: the handle is looked up, so that only reasons that happened are shown.
    pub(crate) fn reconnected(reason: &'static str) {
        counter!("mempool_fetcher_reconnects_total", "reason" => reason).increment(1);
    }
}
