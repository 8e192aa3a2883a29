//! Counters, for the process itself and through the `metrics` facade. Handles are made once.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use metrics::{Counter, Gauge, counter, gauge};

use crate::monitor::LoadState;

/// Every metric of this crate, with its kind and labels.
///
/// | metric | kind | labels |
/// |---|---|---|
/// | `load_control_state` | gauge: 0 normal, 1 elevated, 2 critical | |
/// | `load_control_transitions_total` | counter | `from`, `to`: `normal`, `elevated`, `critical` |
/// | `load_control_gate_admitted_total` | counter | `gate`: `requests`, `work` |
/// | `load_control_gate_refused_total` | counter | `gate`, `reason`: see `RefusalReason::as_str` |
/// | `load_control_gate_in_use` | gauge | `gate` |
/// | `load_control_external_waited_total` | counter | |
/// | `load_control_internal_admitted_total` | counter | |
/// | `load_control_internal_waited_total` | counter | |
/// | `load_control_deferred_total` | counter | `queue` |
/// | `load_control_deferred_run_total` | counter | `queue`, `reason`: `calm`, `age`, `drained`, `withdrawn` |
/// | `load_control_deferred_handed_back_total` | counter | `queue` |
/// | `load_control_deferred_depth` | gauge | `queue` |
pub const METRICS: &[&str] = &[
    "load_control_state",
    "load_control_transitions_total",
    "load_control_gate_admitted_total",
    "load_control_gate_refused_total",
    "load_control_gate_in_use",
    "load_control_external_waited_total",
    "load_control_internal_admitted_total",
    "load_control_internal_waited_total",
    "load_control_deferred_total",
    "load_control_deferred_run_total",
    "load_control_deferred_handed_back_total",
    "load_control_deferred_depth",
];

/// One count, kept for us and for whoever exports metrics.
pub(crate) struct Count {
    value: AtomicU64,
    exported: Counter,
}

impl Count {
    pub(crate) const fn new(exported: Counter) -> Self {
        Self { value: AtomicU64::new(0), exported }
    }

    pub(crate) fn add(&self, more: u64) {
        // Relaxed: a count orders nothing.
        self.value.fetch_add(more, Relaxed);
        self.exported.increment(more);
    }

    pub(crate) fn get(&self) -> u64 {
        self.value.load(Relaxed)
    }
}

impl fmt::Debug for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

/// A level that many threads change: by steps, which commute, so that it is right in the end
/// whatever the order in which they arrive.
pub(crate) struct Level(Gauge);

impl Level {
    pub(crate) const fn new(exported: Gauge) -> Self {
        Self(exported)
    }

    pub(crate) fn change(&self, before: usize, after: usize) {
        if after >= before {
            self.0.increment((after - before) as f64);
        } else {
            self.0.decrement((before - after) as f64);
        }
    }
}

impl fmt::Debug for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Level")
    }
}

#[derive(Debug)]
pub(crate) struct MonitorMetrics {
    state: Level,
    transitions: [[Count; 3]; 3],
}

impl MonitorMetrics {
    pub(crate) fn new() -> Self {
        let count = |from: LoadState, to: LoadState| {
            let (from, to) = (from.as_str(), to.as_str());
            // The three that cannot happen get no series.
            Count::new(if from == to {
                Counter::noop()
            } else {
                counter!("load_control_transitions_total", "from" => from, "to" => to)
            })
        };
        let state = Level::new(gauge!("load_control_state"));
        let transitions = LoadState::ALL.map(|from| LoadState::ALL.map(|to| count(from, to)));
        Self { state, transitions }
    }

    pub(crate) fn transition(&self, from: LoadState, to: LoadState) {
        self.transitions[from as usize][to as usize].add(1);
        self.state.change(from as usize, to as usize);
    }

    pub(crate) fn transitions(&self, from: LoadState, to: LoadState) -> u64 {
        self.transitions[from as usize][to as usize].get()
    }
}
