//! The RPC server's counters. Handles are made once.

use metrics::{Counter, Gauge, Unit, counter, describe_counter, describe_gauge, gauge};

use crate::{
    limits::budget::Share,
    methods::Method,
    methods::admission::Ended,
    reply::{Kind, Reason},
};

/// The name, the unit and the meaning of every metric of this crate. Names that end in `_total` are counters, the
/// others are gauges.
pub const METRICS: &[(&str, Unit, &str)] = &[
    ("order_rpc_accepted_total", Unit::Count, "requests that were accepted, by `method`"),
    (
        "order_rpc_failed_total",
        Unit::Count,
        "requests answered with an error that a repetition does not change, by `reason` (`Reason::as_str`)",
    ),
    (
        "order_rpc_refused_total",
        Unit::Count,
        "requests that were refused, by `reason` (`Reason::as_str`)",
    ),
    (
        "order_rpc_admissions_total",
        Unit::Count,
        "orders that the host was asked about, by `verdict`: accepted, prioritized, refused, unknown, \
         timed_out, panicked",
    ),
    ("order_rpc_connections", Unit::Count, "connections that are open"),
];

pub(crate) struct Metrics {
    accepted: [Counter; Method::ALL.len()],
    reasons: [Counter; Reason::ALL.len()],
    admissions: [Counter; Ended::ALL.len()],
    pub(crate) connections: Gauge,
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}

impl Metrics {
    pub(crate) fn new() -> Self {
        for (name, unit, text) in METRICS {
            if name.ends_with("_total") {
                describe_counter!(*name, *unit, *text);
            } else {
                describe_gauge!(*name, *unit, *text);
            }
        }
        let accepted = Method::ALL
            .map(|method| counter!("order_rpc_accepted_total", "method" => method.name()));
        let reasons = Reason::ALL.map(|reason| match reason.kind() {
            Kind::Refused => counter!("order_rpc_refused_total", "reason" => reason.as_str()),
            Kind::Failed => counter!("order_rpc_failed_total", "reason" => reason.as_str()),
        });
        let admissions = Ended::ALL
            .map(|ended| counter!("order_rpc_admissions_total", "verdict" => ended.as_str()));
        Self { accepted, reasons, admissions, connections: gauge!("order_rpc_connections") }
    }

    pub(crate) fn accepted(&self, method: Method) {
        self.accepted[method as usize].increment(1);
    }

    pub(crate) fn admission(&self, ended: Ended) {
        self.admissions[ended as usize].increment(1);
    }

    pub(crate) fn count(&self, reason: Reason) {
        self.reasons[reason as usize].increment(1);
    }
}

/// Counts a connection until the task that serves it has ended.
#[derive(Debug)]
pub(crate) struct OpenConnection {
    pub(crate) _count: OpenCount,
    pub(crate) _of_all: Share,
    /// `None` for a trusted proxy.
    pub(crate) _of_peer: Option<Share>,
}

/// Adds one to a gauge until it is dropped, also by a panic.
pub(crate) struct OpenCount(Gauge);

impl std::fmt::Debug for OpenCount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OpenCount")
    }
}

impl OpenCount {
    pub(crate) fn new(gauge: &Gauge) -> Self {
        gauge.increment(1);
        Self(gauge.clone())
    }
}

impl Drop for OpenCount {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        panic::{AssertUnwindSafe, catch_unwind},
        sync::{
            Arc,
            atomic::{AtomicU64, Ordering::Relaxed},
        },
    };

    #[test]
    fn what_is_open_is_counted_until_it_ends_by_a_panic_too() {
        let value = Arc::new(AtomicU64::new(0));
        let gauge = Gauge::from_arc(Arc::clone(&value));
        let read = || f64::from_bits(value.load(Relaxed));
        let first = OpenCount::new(&gauge);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _second = OpenCount::new(&gauge);
            assert_eq!(read(), 2.0);
            panic!("as code does");
        }));
        assert!(panicked.is_err());
        assert_eq!(read(), 1.0);
        drop(first);
        assert_eq!(read(), 0.0);
    }
}
