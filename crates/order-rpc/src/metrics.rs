//! The intake's counters. Handles are made once.

use metrics::{Counter, Gauge, counter, gauge};

/// Every metric of this crate.
///
/// | metric | kind | labels |
/// |---|---|---|
/// | `order_rpc_accepted_total` | counter | `method` |
/// | `order_rpc_failed_total` | counter | `reason`: see [`Reason`](crate::Reason) |
/// | `order_rpc_refused_total` | counter | `reason`: see [`Reason`](crate::Reason) |
/// | `order_rpc_connections` | gauge | |
/// | `order_rpc_websockets` | gauge | |
pub const METRICS: &[&str] = &[
    "order_rpc_accepted_total",
    "order_rpc_failed_total",
    "order_rpc_refused_total",
    "order_rpc_connections",
    "order_rpc_websockets",
];

use crate::reply::{Kind, Reason};

pub(crate) struct Metrics {
    pub(crate) raw_transactions: Counter,
    pub(crate) bundles: Counter,
    pub(crate) cancellations: Counter,
    reasons: [Counter; Reason::ALL.len()],
    pub(crate) connections: Gauge,
    pub(crate) websockets: Gauge,
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let accepted =
            |method: &'static str| counter!("order_rpc_accepted_total", "method" => method);
        let reasons = Reason::ALL.map(|reason| match reason.kind() {
            Kind::Refused => counter!("order_rpc_refused_total", "reason" => reason.as_str()),
            Kind::Failed => counter!("order_rpc_failed_total", "reason" => reason.as_str()),
        });
        Self {
            raw_transactions: accepted("eth_sendRawTransaction"),
            bundles: accepted("eth_sendBundle"),
            cancellations: accepted("eth_cancelBundle"),
            reasons,
            connections: gauge!("order_rpc_connections"),
            websockets: gauge!("order_rpc_websockets"),
        }
    }

    pub(crate) fn count(&self, reason: Reason) {
        self.reasons[reason as usize].increment(1);
    }
}
