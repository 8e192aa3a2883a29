//! Tests of the monitor, against the table of its documentation.

use LoadState::{Critical, Elevated, Normal};
use proptest::prelude::*;

use super::*;

fn monitor() -> (LoadMonitor, QueueLoad) {
    let monitor = LoadMonitor::new(MonitorConfig::default()).unwrap();
    let queue = monitor.watch("test", 100).unwrap();
    (monitor, queue)
}

#[test]
fn the_worst_queue_counts_and_a_dropped_one_does_not() {
    let (monitor, one) = monitor();
    let other = monitor.watch("other", 10).unwrap();
    one.observe(80);
    other.observe(9);
    assert_eq!((one.state(), other.state(), monitor.state()), (Elevated, Critical, Critical));
    drop(other);
    assert_eq!(monitor.state(), Elevated);
    one.observe(0);
    assert!(!monitor.is_pressed());
}

#[test]
fn the_slot_of_a_dropped_queue_is_reused_and_starts_normal() {
    let monitor = LoadMonitor::new(MonitorConfig::default()).unwrap();
    let none = ConfigError::ZeroCapacity { queue: "empty" };
    assert_eq!(monitor.watch("empty", 0).unwrap_err(), none);
    let mut queues: Vec<_> = (0..MAX_QUEUES).map(|_| monitor.watch("many", 1).unwrap()).collect();
    let full = ConfigError::TooManyQueues { queue: "late", limit: MAX_QUEUES };
    assert_eq!(monitor.watch("late", 1).unwrap_err(), full);
    queues.last().unwrap().observe(1);
    assert_eq!(monitor.state(), Critical);
    drop(queues.pop());
    let late = monitor.watch("late", 1).unwrap();
    assert_eq!((late.state(), monitor.state()), (Normal, Normal));
}

#[test]
fn the_kill_switch_hides_the_load_and_shows_it_again() {
    let (monitor, queue) = monitor();
    queue.observe(95);
    monitor.set_enabled(false);
    assert_eq!((monitor.state(), monitor.is_pressed()), (Normal, false));
    assert_eq!(monitor.transitions(Critical, Normal), 1);
    queue.observe(60);
    assert_eq!((monitor.state(), queue.state()), (Normal, Elevated));
    monitor.set_enabled(true);
    monitor.set_enabled(true);
    assert_eq!((monitor.state(), monitor.transitions(Normal, Elevated)), (Elevated, 1));
    let off = MonitorConfig { enabled: false, ..MonitorConfig::default() };
    let off = LoadMonitor::new(off).unwrap();
    let queue = off.watch("off", 1).unwrap();
    queue.added(1);
    assert!(!off.is_pressed());
}

#[test]
fn removing_more_than_was_added_leaves_an_empty_queue() {
    let (monitor, queue) = monitor();
    queue.added(3);
    queue.removed(5);
    queue.added(1);
    assert_eq!((queue.depth(), monitor.state()), (1, Normal));
}

/// The table of the documentation, computed in the simplest way.
fn naive(state: LoadState, depth: usize, capacity: usize) -> LoadState {
    let percent = depth as f64 * 100.0 / capacity as f64;
    match state {
        _ if percent >= 90.0 => Critical,
        Normal if percent >= 75.0 => Elevated,
        Normal => Normal,
        _ if percent < 50.0 => Normal,
        Critical if percent >= 70.0 => Critical,
        _ => Elevated,
    }
}

proptest! {
    #[test]
    fn the_state_of_any_queue_follows_the_table(
        capacity in 1..300_usize,
        // Some depths exceed the capacity, as those of a broadcast buffer can.
        depths in prop::collection::vec(
            prop_oneof![20 => 0..400_usize, 1 => Just(usize::MAX)],
            0..100,
        ),
    ) {
        let monitor = LoadMonitor::new(MonitorConfig::default()).unwrap();
        let queue = monitor.watch("any", capacity).unwrap();
        let (mut expected, mut changes) = (Normal, [[0; 3]; 3]);
        for depth in depths {
            let next = naive(expected, depth, capacity);
            changes[expected as usize][next as usize] += u64::from(next != expected);
            expected = next;
            queue.observe(depth);
            prop_assert_eq!(monitor.state(), expected, "{} of {}", depth, capacity);
            prop_assert_eq!(monitor.is_pressed(), expected != Normal);
        }
        let counted = LoadState::ALL.map(|previous| {
            LoadState::ALL.map(|next| monitor.transitions(previous, next))
        });
        prop_assert_eq!(counted, changes);
    }
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn a_wait_ends_when_the_load_is_normal_or_at_its_deadline() {
    use std::time::{Duration, Instant};
    let (monitor, queue) = monitor();
    assert!(monitor.wait_until_normal(None).await);
    queue.observe(75);
    let deadline = Instant::now() + Duration::from_millis(12);
    assert!(!monitor.wait_until_normal(Some(deadline)).await);
    assert!(Instant::now() >= deadline);
    let ends_at = Instant::now() + Duration::from_millis(12);
    let end = async {
        tokio::time::sleep_until(ends_at.into()).await;
        queue.observe(0);
    };
    let (is_normal, ()) = tokio::join!(monitor.wait_until_normal(None), end);
    assert!(is_normal && Instant::now() >= ends_at);
}
