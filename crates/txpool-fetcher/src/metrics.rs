//! The fetcher's metrics, recorded through the [`metrics`] facade. The host chooses the exporter.
//!
//! The handles are made once, when the fetcher starts, so the host installs its recorder before
//! that. The lock of the source names is taken when a source starts or ends, and with no other
//! lock.

use std::{collections::BTreeSet, sync::Mutex};

use metrics::{Label, counter};

use crate::{
    config::Endpoint,
    outcome::{Entry, Outcome},
    sync::lock,
};

load_control::labels! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum DeferrableWork {
        Backfill = "backfill",
        Audit = "audit",
        Retry = "retry",
    }
}

load_control::labels! {
    #[derive(Clone, Copy, Debug)]
    pub(crate) enum Retry {
        Timeout = "timeout",
        ConnectionLost = "connection_lost",
        RpcError = "rpc_error",
        OtherSource = "other_source",
        /// All sources answered that they do not have the transaction.
        Absent = "absent",
        /// A blob transaction was returned without its sidecar.
        Sidecar = "sidecar",
    }
}

load_control::metric_set! {
    /// The name, unit and meaning of every metric of this crate.
    pub const METRICS, late {
        counter "mempool_fetcher_reconnects_total", Count,
            "connections lost after they had worked, by `reason`";
        counter "mempool_fetcher_audits_total", Count,
            "comparisons with the node's pool, by `reason` and `result`: equal, recovered, vanished, failed";
        counter "mempool_fetcher_unread_blocks_total", Count,
            "blocks that could not be read, by `part` and `reason`; a comparison follows";
    };

    /// The metrics that do not belong to a single source.
    pub(crate) struct Metrics {
        count entered[3] = "mempool_fetcher_hashes_total", Count,
            "hashes that entered, by `entry`", "entry": Entry::ALL.map(Entry::as_str);
        count left[9] = "mempool_fetcher_outcomes_total", Count,
            "hashes that left, by `outcome`", "outcome": Outcome::ALL.map(Outcome::as_str);
        gauge unfinished = "mempool_fetcher_unfinished", Count,
            "hashes that entered and have not left";
        count lagged = "mempool_fetcher_lagged_total", Count,
            "announcements lost by the fetcher's own buffer, which a comparison fetches, or left in it at the \
             end of their source";
        count objects_missed = "mempool_fetcher_objects_missed_total", Count,
            "announced hashes whose object had not come in time; they were requested";
        count deferred[3] = "mempool_fetcher_deferred_total", Count,
            "fetches and audits that waited because the load was high, by `work`",
            "work": DeferrableWork::ALL.map(DeferrableWork::as_str);
        counter retries[6] = "mempool_fetcher_retries_total", Count,
            "requests for a transaction that were repeated, by `reason`",
            "reason": Retry::ALL.map(Retry::as_str);
        counter harmful = "mempool_fetcher_harmful_total", Count,
            "hashes that are not requested for a while, because connections ended while they were";
        counter connect_failures = "mempool_fetcher_connect_failures_total", Count,
            "attempts to connect that failed";
        counter late_answers = "mempool_fetcher_late_answers_total", Count,
            "answers to requests that had timed out; a transaction among them is delivered";
        counter malformed_notifications = "mempool_fetcher_malformed_notifications_total", Count,
            "notifications that are neither a hash nor a head";
        gauge in_flight_bytes = "mempool_fetcher_in_flight_bytes", Bytes,
            "bytes of answers in flight, reserved or held";
        histogram fetch_seconds = "mempool_fetcher_fetch_seconds", Seconds,
            "from the request for a transaction to the response";
        histogram deliver_seconds = "mempool_fetcher_deliver_seconds", Seconds,
            "from the announcement read from the socket to the end of its delivery";
        histogram missing_seconds = "mempool_fetcher_missing_seconds", Seconds,
            "how long, at most, the hashes that an audit found missing had been missing";
    }

    pub(crate) struct SinkMetrics {
        gauge waiting = "mempool_fetcher_sink_waiting", Count,
            "heads, nonce updates and requests that wait for the sink";
        counter panics[8] = "mempool_fetcher_sink_panics_total", Count,
            "panics of the sink, by `call`: deliver, head, nonces, vanished, listed, unlisted, reset, \
             holding",
            "call": CALLS;
        counter dropped[7] = "mempool_fetcher_sink_dropped_total", Count,
            "events of the chain dropped because the sink did not take them, by `event`: head, nonces, \
             vanished, listed, unlisted, reset, mined (a hash of a dropped block)",
            "event": EVENTS;
    }

    pub(crate) struct SourceMetrics {
        gauge state = "mempool_fetcher_source_state", Count,
            "0 connecting, 1 backfilling, 2 live, 3 stale, 4 ended, 5 syncing, 6 failing; by `source`";
        gauge head = "mempool_fetcher_source_head", Count,
            "number of the latest head of the node, 0 before the first; by `source`";
        gauge head_age = "mempool_fetcher_source_head_age_seconds", Seconds,
            "wall clock minus the time of that head; by `source`";
        gauge chain_id = "mempool_fetcher_source_chain_id", Count,
            "chain of the node, 0 before it is reached; by `source`";
        gauge audited = "mempool_fetcher_source_audited", Count,
            "1 while the pool of the node can be compared with ours, else 0; by `source`";
        gauge unlistable = "mempool_fetcher_unlistable", Count,
            "pending transactions that the node counts and does not list (blobs on geth), by `source`";
        gauge listed_not_held[4] = "mempool_fetcher_listed_not_held", Count,
            "transactions that the latest list of the node has and the sink does not hold, by `source` and \
             `reason`: removed (mined, stale or expired), refused, postponed (no room), failed (not fetched)",
            "reason": ["removed", "refused", "postponed", "failed"];
        gauge backlog = "mempool_fetcher_backlog", Count,
            "announcements read from the socket and not yet processed, by `source`";
        gauge fetch_limit = "mempool_fetcher_fetch_limit", Count,
            "limit of requests in flight at the node of `source`";
    }
}

/// The functions of the sink whose panics are counted.
const CALLS: [&str; 8] =
    ["deliver", "head", "nonces", "vanished", "listed", "unlisted", "reset", "holding"];
/// The kinds of events that the sink's queue may drop, and `mined` for hashes of dropped blocks.
const EVENTS: [&str; 7] = ["head", "nonces", "vanished", "listed", "unlisted", "reset", "mined"];

/// Counts a comparison. The handle is looked up each time, so that only combinations of labels that
/// occurred are exported.
pub(crate) fn count_comparison(reason: &'static str, result: &'static str) {
    counter!("mempool_fetcher_audits_total", "reason" => reason, "result" => result).increment(1);
}

/// Counts a block that could not be read. The handle is looked up, see [`count_comparison`].
pub(crate) fn count_unread_block(part: &'static str, reason: &'static str) {
    counter!("mempool_fetcher_unread_blocks_total", "part" => part, "reason" => reason)
        .increment(1);
}

/// Counts a lost connection. The handle is looked up, see [`count_comparison`].
pub(crate) fn count_lost_connection(reason: &'static str) {
    counter!("mempool_fetcher_reconnects_total", "reason" => reason).increment(1);
}

impl Metrics {
    /// Makes the handles, and describes the metrics whose handles are looked up each time.
    pub(crate) fn new_described() -> Self {
        describe_late();
        Self::new()
    }
}

/// The value of the label `source`: the endpoint, with a number if another fetcher in this process
/// uses the same endpoint. The name is free again when this is dropped.
pub(crate) struct SourceName(String);

static SOURCES: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

impl SourceName {
    /// Takes the first free name for an endpoint, and makes the metrics with it.
    pub(crate) fn claim(endpoint: &Endpoint) -> (Self, SourceMetrics) {
        let mut names = lock(&SOURCES);
        let mut number = 1;
        let mut name = endpoint.to_string();
        while !names.insert(name.clone()) {
            number += 1;
            name = format!("{endpoint}#{number}");
        }
        drop(names);
        let metrics = SourceMetrics::labelled(&[Label::new("source", name.clone())]);
        (Self(name), metrics)
    }
}

impl Drop for SourceName {
    fn drop(&mut self) {
        lock(&SOURCES).remove(&self.0);
    }
}

impl SinkMetrics {
    /// Counts a panic of the sink in `call`, one of [`CALLS`].
    pub(crate) fn count_panic(&self, call: &'static str) {
        let index = CALLS.iter().position(|label| *label == call);
        self.panics[index.expect("`call` is one of CALLS")].increment(1);
    }

    /// Counts events that the sink did not take; `event` is one of [`EVENTS`].
    pub(crate) fn count_dropped(&self, event: &'static str, count: u64) {
        let index = EVENTS.iter().position(|label| *label == event);
        self.dropped[index.expect("`event` is one of EVENTS")].increment(count);
    }
}
