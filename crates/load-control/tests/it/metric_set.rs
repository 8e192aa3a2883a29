//! Tests of what a declared set of metrics records, as an exporter sees it.

use metrics::{Key, Label, Unit};
use metrics_util::{
    CompositeKey, MetricKind,
    debugging::{DebugValue, DebuggingRecorder},
};

load_control::metric_set! {
    /// The table.
    pub const METRICS, late {
        counter "parts_late_total", Count, "made elsewhere";
    };

    /// The first set.
    #[derive(Debug)]
    pub(crate) struct Parts {
        count seen = "parts_seen_total", Count, "parts seen";
        counter left[2] = "parts_left_total", Count, "parts that left, by `exit`",
            "exit": ["door", "window"];
        level held_bytes = "parts_held_bytes", Bytes, "bytes held";
        histogram wait_seconds = "parts_wait_seconds", Seconds, "wait";
    }

    /// The second set.
    pub(crate) struct Source {
        gauge state = "parts_source_state", Count, "state, by `source`";
    }
}

#[test]
fn every_handle_is_recorded_with_its_labels_unit_and_description() {
    let recorder = DebuggingRecorder::new();
    metrics::with_local_recorder(&recorder, || {
        describe_late();
        let parts = Parts::new();
        parts.seen.add(2);
        parts.seen.add(3);
        parts.left[1].increment(1);
        parts.held_bytes.set(7);
        parts.wait_seconds.record(0.5);
        Source::labelled(&[Label::new("source", "ipc")]).state.set(2.0);
        assert_eq!((parts.seen.get(), parts.held_bytes.get()), (5, 7));
    });
    let recorded = recorder.snapshotter().snapshot().into_hashmap();
    let metric = |kind, name: &'static str, labels: Vec<Label>| {
        let (unit, text, value) =
            &recorded[&CompositeKey::new(kind, Key::from_parts(name, labels))];
        (unit.expect("a unit"), text.as_ref().expect("a description").to_string(), value)
    };
    let (unit, text, value) = metric(MetricKind::Counter, "parts_seen_total", vec![]);
    assert_eq!((unit, text.as_str(), value), (Unit::Count, "parts seen", &DebugValue::Counter(5)));
    for (exit, expected) in [("door", 0), ("window", 1)] {
        let (_, _, value) =
            metric(MetricKind::Counter, "parts_left_total", vec![Label::new("exit", exit)]);
        assert_eq!(value, &DebugValue::Counter(expected), "{exit}");
    }
    let (unit, _, value) = metric(MetricKind::Gauge, "parts_held_bytes", vec![]);
    assert_eq!((unit, value), (Unit::Bytes, &DebugValue::Gauge(7.0.into())));
    let (unit, _, value) = metric(MetricKind::Histogram, "parts_wait_seconds", vec![]);
    assert_eq!((unit, value), (Unit::Seconds, &DebugValue::Histogram(vec![0.5.into()])));
    let source = vec![Label::new("source", "ipc")];
    let (_, _, value) = metric(MetricKind::Gauge, "parts_source_state", source);
    assert_eq!(value, &DebugValue::Gauge(2.0.into()));
    let names: Vec<_> = METRICS.iter().map(|(name, ..)| *name).collect();
    let listed =
        ["seen_total", "left_total", "held_bytes", "wait_seconds", "source_state", "late_total"];
    assert_eq!(names, listed.map(|name| format!("parts_{name}")));
}
