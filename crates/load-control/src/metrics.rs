//! Counters, for the process itself and through the `metrics` facade. Handles are made once.

use metric_set::metric_set;
use metrics::{Gauge, gauge};

use crate::state::LoadState;

metric_set! {
    /// The name, the unit and the meaning of every metric of this crate. Names that end in `_total` are
    /// counters, the others are gauges.
    pub const METRICS, late {
        gauge "load_control_state", Count, "state of the load: 0 normal, 1 elevated, 2 critical";
        counter "load_control_gate_admitted_total", Count, "external callers admitted, by `gate`";
        counter "load_control_gate_refused_total", Count,
            "external callers refused, by `gate` and `reason` (`RefusalReason::as_str`)";
        gauge "load_control_gate_in_use", Count, "permits of a gate that are held, by `gate`";
        counter "load_control_external_waited_total", Count,
            "external callers that found no work permit free, and waited or were refused";
        counter "load_control_internal_admitted_total", Count,
            "internal work that got a work permit";
        counter "load_control_internal_waited_total", Count,
            "internal work that had to wait for one";
    };
}

/// Describes each metric to the recorder. Must be called wherever handles are made, because a
/// program may use one part of this crate without the others.
pub(crate) fn describe() {
    describe_late();
}

#[derive(Debug)]
pub(crate) struct MonitorMetrics(Gauge);

impl Default for MonitorMetrics {
    fn default() -> Self {
        describe();
        Self(gauge!("load_control_state"))
    }
}

impl MonitorMetrics {
    pub(crate) fn changed(&self, from: LoadState, to: LoadState) {
        // Relative, so that the final value does not depend on the order of two threads.
        self.0.increment(f64::from(to as u8) - f64::from(from as u8));
    }
}
