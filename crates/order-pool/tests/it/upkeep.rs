//! The upkeep thread.

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use order_pool::{
    Clock, Holder, InsertOutcome, OrderPool, PoolConfig, Upkeep, UpkeepConfig, UpkeepEnd,
    UpkeepEndReason,
};
use testkit::configured;

use crate::common::{bundle_for, head, insert_all, nth, pool_with, pool_with_clock};

const LONG: Duration = Duration::from_secs(30);

fn pool() -> (OrderPool, Clock) {
    pool_with_clock(PoolConfig::default())
}

fn start(pool: &OrderPool, pause: Duration) -> Upkeep {
    let config = configured(UpkeepConfig::default(), |config| config.pause = pause);
    Upkeep::start(pool, config, || false).expect("a thread")
}

fn is_ended_by(end: UpkeepEnd, reason: UpkeepEndReason) -> bool {
    end.ended && end.reason == reason
}

/// Waits until a condition holds that another thread brings about.
fn wait_for(event: &str, has_happened: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !has_happened() {
        assert!(Instant::now() < deadline, "{event} did not happen");
        std::thread::yield_now();
    }
}

#[test]
fn the_upkeep_thread_expires_orders_in_steps() {
    let (pool, clock) = pool();
    insert_all(&pool, 0..1_000);
    let upkeep = start(&pool, Duration::ZERO);
    wait_for("a first step", || pool.stats().upkeep_steps > 0);
    assert_eq!(pool.stats().expired, 0);
    clock.advance(Duration::from_secs(60));
    let before = pool.stats().upkeep_steps;
    wait_for("the expiry", || pool.is_empty());
    // A step expires at most 256 orders, so other operations come in between at least three times.
    wait_for("four steps", || pool.stats().upkeep_steps >= before + 4);
    assert_eq!(pool.stats().expired, 1_000);
    assert!(is_ended_by(upkeep.shutdown(LONG), UpkeepEndReason::Shutdown));
}

/// Nothing expired until the last bundle was removed, which takes seconds while the load is high.
#[test]
fn a_step_that_removes_expired_bundles_expires_transactions_too() {
    let (pool, clock) = pool();
    pool.on_head(head(10, 0, 0, &[]));
    for n in 0..1_000 {
        let bundle = bundle_for(11, vec![nth(n)], Holder::Host);
        assert_eq!(pool.insert_bundle(bundle), InsertOutcome::Added);
    }
    insert_all(&pool, 2_000..3_000);
    clock.advance(Duration::from_secs(60));
    pool.on_head(head(11, 0, 0, &[]));
    for n in 1..=3 {
        assert!(pool.upkeep());
        let stats = pool.stats();
        assert_eq!((stats.expired, stats.block_passed), (256 * n, 16 + 64 * n), "16 with the head");
    }
}

/// What strangers had sent for the same block went first, and until then its own counted.
#[test]
fn expired_bundles_make_room_for_a_bundle_before_upkeep() {
    let pool = pool_with(configured(PoolConfig::default(), |config| config.max_bundles = 320));
    let nth_for = |n: u64, block| {
        let holder = Holder::caller([10, 0, 0, (n / 10) as u8].into());
        pool.insert_bundle(bundle_for(block, vec![nth(n)], holder))
    };
    pool.on_head(head(10, 0, 0, &[]));
    for n in 0..160 {
        assert_eq!(nth_for(n, 11), InsertOutcome::Added, "ten of each of sixteen");
    }
    pool.on_head(head(11, 0, 0, &[]));
    assert_eq!(nth_for(159, 12), InsertOutcome::Added);
    assert_eq!(pool.len(), 160 - 16 - 1 - 1 + 1, "with the head, of all, of its own");
}

#[test]
fn a_shutdown_interrupts_the_pause_with_and_without_a_pool() {
    for keeps_pool in [true, false] {
        let (pool, clock) = pool();
        insert_all(&pool, 0..1_000);
        clock.advance(Duration::from_secs(60));
        let upkeep = start(&pool, Duration::from_secs(3_600));
        // It has the pool during a step alone: it is in its pause.
        wait_for("the first step", || pool.stats().upkeep_steps == 1);
        let pool = keeps_pool.then_some(pool);
        let began = Instant::now();
        assert!(is_ended_by(upkeep.shutdown(LONG), UpkeepEndReason::Shutdown));
        assert!(began.elapsed() < LONG);
        // The first step alone was done.
        if let Some(stats) = pool.map(|pool| pool.stats()) {
            assert_eq!((stats.upkeep_steps, stats.expired), (1, 256));
        }
    }
}

/// Upkeep, and what is dead once its thread has ended.
fn start_with_pulse(pool: &OrderPool) -> (Upkeep, Weak<()>) {
    let of_thread = Arc::new(());
    let pulse = Arc::downgrade(&of_thread);
    let pressed = move || Arc::strong_count(&of_thread) == 0;
    (Upkeep::start(pool, UpkeepConfig::default(), pressed).expect("a thread"), pulse)
}

#[test]
fn upkeep_neither_keeps_the_pool_nor_outlives_it() {
    let (pool, _) = pool();
    let (upkeep, pulse) = start_with_pulse(&pool);
    drop(pool);
    wait_for("the end of its thread", || pulse.upgrade().is_none());
    assert!(is_ended_by(upkeep.shutdown(LONG), UpkeepEndReason::PoolDropped));
}

#[test]
fn dropping_upkeep_ends_its_thread_at_once() {
    let (pool, _) = pool();
    let (upkeep, pulse) = start_with_pulse(&pool);
    wait_for("the first step", || pool.stats().upkeep_steps == 1);
    drop(upkeep);
    wait_for("the end of its thread", || pulse.upgrade().is_none());
}
