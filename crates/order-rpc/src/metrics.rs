//! The RPC server's counters.

use load_control::metric_set;
use metrics::Gauge;

use crate::{
    methods::{Ended, IGNORED_FIELDS, Method},
    reply::Reason,
};

metric_set! {
    /// The name, the unit and the meaning of every metric of this crate.
    pub const METRICS;

    #[derive(Debug)]
    pub(crate) struct Metrics {
        counter accepted[Method::ALL.len()] = "order_rpc_accepted_total", Count,
            "requests that were accepted, by `method`", "method": Method::ALL.map(Method::as_str);
        counter failed[Reason::ALL.len() - Reason::REFUSED] = "order_rpc_failed_total", Count,
            "requests answered with an error that a repetition does not change, by `reason` (`Reason::as_str`)",
            "reason": reasons(Reason::REFUSED);
        counter refused[Reason::REFUSED] = "order_rpc_refused_total", Count,
            "requests that were refused, and connections that were closed for newer ones (`connections`), \
             by `reason` (`Reason::as_str`)",
            "reason": reasons(0);
        counter admissions[Ended::ALL.len()] = "order_rpc_admissions_total", Count,
            "orders that the host was asked about, by `verdict`: accepted, prioritized, refused, retry_later, \
             unknown, timed_out, panicked", "verdict": Ended::ALL.map(Ended::as_str);
        counter ignored_fields[IGNORED_FIELDS.len()] = "order_rpc_ignored_fields_total", Count,
            "fields of parameters that were accepted and have no effect, by `field`; `other`: one of a front \
             that is not known here", "field": IGNORED_FIELDS;
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

/// The texts of so many reasons from this one on.
fn reasons<const N: usize>(first: usize) -> [&'static str; N] {
    std::array::from_fn(|number| Reason::ALL[first + number].as_str())
}

impl Metrics {
    pub(crate) fn count(&self, reason: Reason) {
        let number = reason as usize;
        match number.checked_sub(Reason::REFUSED) {
            None => self.refused[number].increment(1),
            Some(number) => self.failed[number].increment(1),
        }
    }
}

/// Counts what is there until it is dropped, also by a panic.
pub(crate) struct Present(Gauge);

impl Present {
    pub(crate) fn new(of: &Gauge) -> Self {
        of.increment(1);
        Self(of.clone())
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
}
