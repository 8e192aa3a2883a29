//! The metrics. Each handle is made once; the counts can also be read in the process.

use metrics::{Counter, Gauge, counter, gauge};

use crate::{metric_set, metric_set::Count, refusal::RefusalReason, state::LoadState};

metric_set! {
    /// The name, the unit and the meaning of every metric of this crate. Names that end in `_total`
    /// are counters, the others are gauges.
    pub const METRICS, late {
        gauge "load_control_state", Count, "state of the load: 0 normal, 1 elevated, 2 critical";
        counter "load_control_transitions_total", Count, "changes of the state, by `from` and `to`";
    };

    /// The metrics of one gate, with the label `gate`.
    #[derive(Debug)]
    pub(crate) struct GateMetrics {
        count admitted = "load_control_gate_admitted_total", Count,
            "external callers admitted, by `gate`";
        count refused[RefusalReason::ALL.len()] = "load_control_gate_refused_total", Count,
            "external callers refused, by `gate` and `reason` (`RefusalReason::as_str`)",
            "reason": RefusalReason::ALL.map(RefusalReason::as_str);
        gauge in_use = "load_control_gate_in_use", Count,
            "permits of a gate that are held, by `gate`";
    }

    /// The metrics of the work permits.
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

/// The metrics of one load monitor.
#[derive(Debug)]
pub(crate) struct MonitorMetrics {
    pub(crate) state: Gauge,
    /// Indexed by the state before, then by the state after.
    pub(crate) transitions: [[Count; 3]; 3],
}

impl MonitorMetrics {
    pub(crate) fn new() -> Self {
        describe_late();
        let transitions = LoadState::ALL
            .map(|previous| LoadState::ALL.map(|next| transition_count(previous, next)));
        Self { state: gauge!("load_control_state"), transitions }
    }
}

fn transition_count(previous: LoadState, next: LoadState) -> Count {
    // The three transitions that cannot happen get no time series.
    Count::new(if previous == next {
        Counter::noop()
    } else {
        let (previous, next) = (previous.as_str(), next.as_str());
        counter!("load_control_transitions_total", "from" => previous, "to" => next)
    })
}
