//! Declares the metrics of the RPC server.

use load_control::metric_set;
use metrics::Gauge;

use crate::{
    methods::{AdmissionOutcome, IGNORED_FIELDS, Method},
    reply::Reason,
};

metric_set! {
    /// The name, the unit and the meaning of every metric of this crate.
    pub const METRICS;

    #[derive(Debug)]
    pub(crate) struct Metrics {
        counter accepted[Method::ALL.len()] = "order_rpc_accepted_total", Count,
            "requests that were accepted, by `method`",
            "method": Method::ALL.map(Method::as_str);
        counter failed[Reason::ALL.len() - Reason::RETRYABLE] = "order_rpc_failed_total", Count,
            "requests answered with an error that a retry does not change, by `reason` \
             (`Reason::as_str`)",
            "reason": reasons_from(Reason::RETRYABLE);
        counter refused[Reason::RETRYABLE] = "order_rpc_refused_total", Count,
            "requests that were refused, and connections that were closed for newer ones \
             (`connections`), by `reason` (`Reason::as_str`)",
            "reason": reasons_from(0);
        counter admissions[AdmissionOutcome::ALL.len()] = "order_rpc_admissions_total", Count,
            "orders that the host was asked about, by `verdict`: accepted, prioritized, refused, \
             retry_later, unknown, timed_out, panicked",
            "verdict": AdmissionOutcome::ALL.map(AdmissionOutcome::as_str);
        counter ignored_fields[IGNORED_FIELDS.len()] = "order_rpc_ignored_fields_total", Count,
            "fields of parameters that were accepted without effect, by `field`; `other`: an \
             unknown field of what a front forwarded",
            "field": IGNORED_FIELDS;
        gauge connections = "order_rpc_connections", Count, "connections that are open";
    }

    #[derive(Debug)]
    pub(crate) struct DeferralMetrics {
        count deferred = "order_rpc_deferred_total", Count,
            "requests with raw transactions that were deferred because of the load";
        count aged = "order_rpc_deferred_aged_total", Count,
            "deferred requests that ran because of their age while the load was high";
        gauge waiting = "order_rpc_deferred", Count, "deferred requests that wait";
    }
}

/// Returns the labels of `N` reasons, beginning with the reason at index `first`.
fn reasons_from<const N: usize>(first: usize) -> [&'static str; N] {
    std::array::from_fn(|index| Reason::ALL[first + index].as_str())
}

impl Metrics {
    /// Counts an error response, as refused or as failed.
    pub(crate) fn count(&self, reason: Reason) {
        let index = reason as usize;
        match index.checked_sub(Reason::RETRYABLE) {
            None => self.refused[index].increment(1),
            Some(index) => self.failed[index].increment(1),
        }
    }
}

/// Adds one to a gauge until it is dropped, also if a panic drops it.
pub(crate) struct GaugeGuard(Gauge);

impl GaugeGuard {
    pub(crate) fn new(gauge: &Gauge) -> Self {
        gauge.increment(1);
        Self(gauge.clone())
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
}
