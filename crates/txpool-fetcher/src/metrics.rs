//! The fetcher's metrics, recorded through the [`metrics`] facade. The host chooses the exporter.
//!
//! The handles are made once, when the fetcher starts: install the recorder before that.

use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram,
    gauge, histogram,
};

use crate::{
    fetch::deferral::DeferrableWork,
    outcome::{Entry, Outcome},
};

/// The name, the unit and the meaning of every metric of this crate.
pub const METRICS: &[(&str, Unit, &str)] = &[
    ("mempool_fetcher_hashes_total", Unit::Count, "hashes that entered, by `entry`"),
    ("mempool_fetcher_outcomes_total", Unit::Count, "hashes that left, by `outcome`"),
    ("mempool_fetcher_unfinished", Unit::Count, "hashes that entered and have not left"),
    (
        "mempool_fetcher_lagged_total",
        Unit::Count,
        "announcements lost by the fetcher's own buffer; a comparison fetches them",
    ),
    (
        "mempool_fetcher_deferred_total",
        Unit::Count,
        "fetches and audits that waited because the load was high, by `work`",
    ),
    (
        "mempool_fetcher_oldest_deferred_seconds",
        Unit::Seconds,
        "how long the oldest fetch or audit that waits because of the load has waited",
    ),
    (
        "mempool_fetcher_retries_total",
        Unit::Count,
        "requests for a transaction that were repeated, by `reason`",
    ),
    (
        "mempool_fetcher_reconnects_total",
        Unit::Count,
        "connections lost after they had worked, by `reason`",
    ),
    ("mempool_fetcher_connect_failures_total", Unit::Count, "attempts to connect that failed"),
    (
        "mempool_fetcher_late_answers_total",
        Unit::Count,
        "answers to requests that had timed out; they are dropped",
    ),
    (
        "mempool_fetcher_oversized_answers_total",
        Unit::Count,
        "transactions above `max_frame_bytes`; they are dropped and count as malformed",
    ),
    (
        "mempool_fetcher_audits_total",
        Unit::Count,
        "comparisons with the node's pool, by `reason` and `result`",
    ),
    (
        "mempool_fetcher_malformed_notifications_total",
        Unit::Count,
        "notifications that are neither a hash nor a head",
    ),
    (
        "mempool_fetcher_unread_blocks_total",
        Unit::Count,
        "blocks that could not be read, by `part` and `reason`; a comparison follows",
    ),
    (
        "mempool_fetcher_sink_waiting",
        Unit::Count,
        "heads, nonce updates and requests that wait for the sink",
    ),
    (
        "mempool_fetcher_sink_panics_total",
        Unit::Count,
        "panics of the sink, by `call`: deliver, head, nonces, vanished, holding",
    ),
    (
        "mempool_fetcher_sink_dropped_total",
        Unit::Count,
        "events of the chain dropped because the sink did not take them, by `event`: head, nonces, \
         vanished, mined (a hash of a dropped block)",
    ),
    (
        "mempool_fetcher_sink_timeouts_total",
        Unit::Count,
        "comparisons whose look-ups the sink did not answer in time",
    ),
    (
        "mempool_fetcher_unlistable",
        Unit::Count,
        "pending transactions that the node counts and does not list (blobs on geth)",
    ),
    (
        "mempool_fetcher_source_state",
        Unit::Count,
        "0 connecting, 1 backfilling, 2 live, 3 stale, 4 ended; by `source`",
    ),
    (
        "mempool_fetcher_source_audited",
        Unit::Count,
        "1 while the pool of the node can be compared with ours, else 0; by `source`",
    ),
    (
        "mempool_fetcher_backlog",
        Unit::Count,
        "announcements read from the socket and not yet processed, by `source`",
    ),
    (
        "mempool_fetcher_fetch_limit",
        Unit::Count,
        "limit of requests in flight at the node of `source`",
    ),
    (
        "mempool_fetcher_in_flight_bytes",
        Unit::Bytes,
        "bytes of answers in flight, reserved or held",
    ),
    (
        "mempool_fetcher_fetch_seconds",
        Unit::Seconds,
        "from the request for a transaction to the response",
    ),
    (
        "mempool_fetcher_deliver_seconds",
        Unit::Seconds,
        "from the announcement read from the socket to the end of its delivery",
    ),
    (
        "mempool_fetcher_missing_seconds",
        Unit::Seconds,
        "how long, at most, the hashes that an audit found missing had been missing",
    ),
];

/// The handles of the metrics that are not of a single source.
#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) entered: [Counter; 3],
    pub(crate) left: [Counter; 8],
    pub(crate) unfinished: Gauge,
    pub(crate) lagged: Counter,
    pub(crate) deferred: [Counter; 3],
    pub(crate) oldest_deferred: Gauge,
    pub(crate) retries_timeout: Counter,
    pub(crate) retries_connection_lost: Counter,
    pub(crate) retries_rpc: Counter,
    pub(crate) retries_other_source: Counter,
    pub(crate) connect_failures: Counter,
    pub(crate) malformed_notifications: Counter,
    pub(crate) sink: SinkMetrics,
    pub(crate) unlistable: Gauge,
    pub(crate) in_flight_bytes: Gauge,
    pub(crate) late_answers: Counter,
    pub(crate) oversized_answers: Counter,
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
            malformed_notifications: counter!("mempool_fetcher_malformed_notifications_total"),
            sink: SinkMetrics::new(),
            unlistable: gauge!("mempool_fetcher_unlistable"),
            in_flight_bytes: gauge!("mempool_fetcher_in_flight_bytes"),
            late_answers: counter!("mempool_fetcher_late_answers_total"),
            oversized_answers: counter!("mempool_fetcher_oversized_answers_total"),
            fetch_seconds: histogram!("mempool_fetcher_fetch_seconds"),
            deliver_seconds: histogram!("mempool_fetcher_deliver_seconds"),
            missing_seconds: histogram!("mempool_fetcher_missing_seconds"),
        }
    }

    /// Comparisons are rare, so the handle is looked up each time: only reasons and results that
    /// occurred are exported.
    pub(crate) fn compared(reason: &'static str, result: &'static str) {
        counter!("mempool_fetcher_audits_total", "reason" => reason, "result" => result)
            .increment(1);
    }

    /// Blocks that cannot be read are rare, so the handle is looked up each time: only parts and
    /// reasons that occurred are exported.
    pub(crate) fn unread_block(part: &'static str, reason: &'static str) {
        counter!("mempool_fetcher_unread_blocks_total", "part" => part, "reason" => reason)
            .increment(1);
    }
}

/// The handles of the sink's metrics.
#[derive(Clone, Debug)]
pub(crate) struct SinkMetrics {
    pub(crate) waiting: Gauge,
    pub(crate) timeouts: Counter,
    panics: [Counter; SinkMetrics::CALLS.len()],
    dropped: [Counter; SinkMetrics::EVENTS.len()],
}

impl SinkMetrics {
    const CALLS: [&str; 5] = ["deliver", "head", "nonces", "vanished", "holding"];
    const EVENTS: [&str; 4] = ["head", "nonces", "vanished", "mined"];

    fn new() -> Self {
        Self {
            waiting: gauge!("mempool_fetcher_sink_waiting"),
            timeouts: counter!("mempool_fetcher_sink_timeouts_total"),
            panics: Self::CALLS
                .map(|call| counter!("mempool_fetcher_sink_panics_total", "call" => call)),
            dropped: Self::EVENTS
                .map(|event| counter!("mempool_fetcher_sink_dropped_total", "event" => event)),
        }
    }

    pub(crate) fn panicked(&self, call: &'static str) {
        let index = Self::CALLS.iter().position(|label| *label == call);
        self.panics[index.expect("a label of the set")].increment(1);
    }

    pub(crate) fn dropped(&self, event: &'static str, count: u64) {
        let index = Self::EVENTS.iter().position(|label| *label == event);
        self.dropped[index.expect("a label of the set")].increment(count);
    }
}

/// The handles of one source's metrics.
#[derive(Debug)]
pub(crate) struct SourceMetrics {
    pub(crate) state: Gauge,
    pub(crate) audited: Gauge,
    pub(crate) backlog: Gauge,
}

impl SourceMetrics {
    pub(crate) fn new(endpoint: &str) -> Self {
        let source = endpoint.to_owned();
        let audited = gauge!("mempool_fetcher_source_audited", "source" => source.clone());
        // Until the first failure to list it.
        audited.set(1.0);
        Self {
            audited,
            state: gauge!("mempool_fetcher_source_state", "source" => source.clone()),
            backlog: gauge!("mempool_fetcher_backlog", "source" => source),
        }
    }

    pub(crate) fn fetch_limit(endpoint: &str) -> Gauge {
        gauge!("mempool_fetcher_fetch_limit", "source" => endpoint.to_owned())
    }

    /// Losses are rare, so the handle is looked up each time: only reasons that occurred are
    /// exported.
    pub(crate) fn reconnected(reason: &'static str) {
        counter!("mempool_fetcher_reconnects_total", "reason" => reason).increment(1);
    }
}
