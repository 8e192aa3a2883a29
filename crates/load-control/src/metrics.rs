//! The metrics. Each handle is made once; the counts can also be read in the process.

use metrics::{Counter, Gauge, counter, gauge};

use crate::{metric_set, metric_set::Count, refusal::RefusalReason, state::LoadState};

metric_set! {
    /// The name, the unit and the meaning of every metric. Names in `_total` are counters, the others gauges.
    pub const METRICS, late {
        gauge "load_control_state", Count, "state of the load: 0 normal, 1 elevated, 2 critical";
        counter "load_control_transitions_total", Count, "changes of the state, by `from` and `to`";
    };

    /// The metrics of one gate, with the label `gate`.
    #[derive(Debug)]
    pub(crate) struct GateMetrics {
        count admitted = "load_control_gate_admitted_total", Count, "external callers admitted, by `gate`";
        count refused[RefusalReason::ALL.len()] = "load_control_gate_refused_total", Count,
            "external callers refused, by `gate` and `reason` (`RefusalReason::as_str`)",
            "reason": RefusalReason::ALL.map(RefusalReason::as_str);
        gauge in_use = "load_control_gate_in_use", Count, "permits of a gate that are held, by `gate`";
    }

    #[derive(Debug)]
    pub(crate) struct WorkMetrics {
        count external_waited = "load_control_external_waited_total", Count,
            "external callers that found no work permit free, and waited or were refused";
        count internal_admitted = "load_control_internal_admitted_total", Count,
            "internal work that got a work permit";
        count internal_waited = "load_control_internal_waited_total", Count,
            "internal work that had to wait for one";
    }
}

#[derive(Debug)]
pub(crate) struct MonitorMetrics {
    pub(crate) state: Gauge,
    /// Indexed by the state before, then by the state after.
    pub(crate) transitions: [[Count; 3]; 3],
}

impl MonitorMetrics {
    pub(crate) fn new() -> Self {
        describe_late();
        let count = |from: LoadState, to: LoadState| {
            let (from, to) = (from.as_str(), to.as_str());
            // No time series for the three transitions that cannot happen.
            Count::new(if from == to {
                Counter::noop()
            } else {
                counter!("load_control_transitions_total", "from" => from, "to" => to)
            })
        };
        let state = gauge!("load_control_state");
        let transitions = LoadState::ALL.map(|from| LoadState::ALL.map(|to| count(from, to)));
        Self { state, transitions }
    }
}
