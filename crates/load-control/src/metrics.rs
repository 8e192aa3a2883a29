//! Counters, for the process itself and through the `metrics` facade. Handles are made once.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use metrics::{Counter, Gauge, Unit, counter, describe_counter, describe_gauge, gauge};

use crate::state::LoadState;

/// The name, the unit and the meaning of every metric of this crate. Names that end in `_total` are counters, the
/// others are gauges.
pub const METRICS: &[(&str, Unit, &str)] = &[
    ("load_control_state", Unit::Count, "state of the load: 0 normal, 1 elevated, 2 critical"),
    ("load_control_transitions_total", Unit::Count, "changes of the state, by `from` and `to`"),
    ("load_control_gate_admitted_total", Unit::Count, "external callers admitted, by `gate`"),
    (
        "load_control_gate_refused_total",
        Unit::Count,
        "external callers refused, by `gate` and `reason` (`RefusalReason::as_str`)",
    ),
    ("load_control_gate_in_use", Unit::Count, "permits of a gate that are held, by `gate`"),
    (
        "load_control_external_waited_total",
        Unit::Count,
        "external callers that found no work permit free, and waited or were refused",
    ),
    ("load_control_internal_admitted_total", Unit::Count, "internal work that got a work permit"),
    ("load_control_internal_waited_total", Unit::Count, "internal work that had to wait for one"),
    ("load_control_deferred_total", Unit::Count, "work deferred because of the load, by `queue`"),
    (
        "load_control_deferred_run_total",
        Unit::Count,
        "deferred work that ran or was taken back, by `queue` and `reason`: calm, age, drained, withdrawn",
    ),
    (
        "load_control_deferred_handed_back_total",
        Unit::Count,
        "work that a full deferral queue had no room for, by `queue`",
    ),
    ("load_control_deferred_depth", Unit::Count, "deferred work that waits, by `queue`"),
];

/// Describes each metric to the recorder. Must be called wherever handles are made, because a
/// program may use one part of this crate without the others.
pub(crate) fn describe() {
    for (name, unit, text) in METRICS {
        if name.ends_with("_total") {
            describe_counter!(*name, *unit, *text);
        } else {
            describe_gauge!(*name, *unit, *text);
        }
    }
}

/// One count, kept for `stats()` and for the metrics exporter.
pub(crate) struct Count {
    value: AtomicU64,
    exported: Counter,
}

impl Count {
    pub(crate) const fn new(exported: Counter) -> Self {
        Self { value: AtomicU64::new(0), exported }
    }

    pub(crate) fn add(&self, more: u64) {
        // Relaxed: no other memory is published through it.
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

/// A gauge that many threads change by increments, so that its final value does not depend on their
/// order.
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
        describe();
        let count = |from: LoadState, to: LoadState| {
            let (from, to) = (from.as_str(), to.as_str());
            // No time series for the three transitions that cannot happen.
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
