//! Upkeep from a thread of its own.

use std::{
    io::ErrorKind,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use order_pool::{Clock, ConfigError, Order, OrderPool, PoolConfig, Upkeep, UpkeepConfig};

use crate::common::nth;

const LONG: Duration = Duration::from_secs(30);

fn pool(clock: &Clock) -> OrderPool {
    let config = PoolConfig::default().with_dedupe_window(1 << 12);
    OrderPool::with_clock(config, clock.clone()).expect("a valid configuration")
}

/// Waits for something that another thread brings about.
fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::yield_now();
    }
}

#[test]
fn what_was_kept_long_enough_goes_in_steps_without_anyone_asking() {
    let clock = Clock::manual();
    let pool = pool(&clock);
    for n in 0..1_000 {
        pool.insert_transaction(nth(n));
    }
    let config = UpkeepConfig::default().with_interval(Duration::from_millis(1));
    let upkeep = Upkeep::start(&pool, config).expect("a thread");
    wait_for("a first step", || pool.stats().upkeep_steps > 0);
    assert_eq!(pool.stats().expired, 0);
    clock.advance(Duration::from_secs(60));
    let before = pool.stats().upkeep_steps;
    wait_for("the expiry", || pool.is_empty());
    // At most 256 orders a step, so others pass at least three times.
    wait_for("four steps", || pool.stats().upkeep_steps >= before + 4);
    assert_eq!(pool.stats().expired, 1_000);
    assert!(upkeep.stop(LONG));
}

#[test]
fn after_its_stop_no_step_is_done() {
    let pool = pool(&Clock::manual());
    let config = UpkeepConfig::default().with_interval(Duration::from_nanos(1));
    let upkeep = Upkeep::start(&pool, config).expect("a thread");
    wait_for("steps", || pool.stats().upkeep_steps > 10);
    // `true` says that the thread was joined, so nothing can be done after it.
    assert!(upkeep.stop(LONG));
    let steps = pool.stats().upkeep_steps;
    pool.insert_transaction(nth(1));
    assert_eq!(pool.stats().upkeep_steps, steps);
}

#[test]
fn a_stop_does_not_wait_for_the_interval_or_the_pause() {
    let clock = Clock::manual();
    let pool = pool(&clock);
    for n in 0..1_000 {
        pool.insert_transaction(nth(n));
    }
    clock.advance(Duration::from_secs(60));
    let hour = Duration::from_secs(3_600);
    let config = UpkeepConfig::default().with_interval(hour).with_pause(hour);
    let upkeep = Upkeep::start(&pool, config).expect("a thread");
    wait_for("the first step", || pool.stats().upkeep_steps == 1);
    let began = Instant::now();
    assert!(upkeep.stop(LONG));
    assert!(began.elapsed() < LONG);
    // It was in its pause: the first step alone was done.
    assert_eq!((pool.stats().upkeep_steps, pool.stats().expired), (1, 256));
}

/// Dead once nobody holds the pool's memory: its handles, its subscriptions and its upkeep.
fn pulse(pool: &OrderPool) -> Weak<Order> {
    pool.insert_transaction(nth(1));
    Arc::downgrade(&pool.get(nth(1).hash()).expect("it was inserted"))
}

#[test]
fn it_neither_keeps_the_pool_nor_outlives_it() {
    let pool = pool(&Clock::manual());
    let config = UpkeepConfig::default().with_interval(Duration::from_millis(1));
    let upkeep = Upkeep::start(&pool, config).expect("a thread");
    let pulse = pulse(&pool);
    drop(pool);
    wait_for("the end of its thread", || pulse.upgrade().is_none());
    assert!(upkeep.stop(LONG));
}

#[test]
fn dropping_it_ends_its_thread_at_once() {
    let pool = pool(&Clock::manual());
    let config = UpkeepConfig::default().with_interval(Duration::from_secs(3_600));
    let upkeep = Upkeep::start(&pool, config).expect("a thread");
    wait_for("the first step", || pool.stats().upkeep_steps == 1);
    let pulse = pulse(&pool);
    drop(upkeep);
    drop(pool);
    wait_for("the end of its thread", || pulse.upgrade().is_none());
}

#[test]
fn a_configuration_out_of_bounds_is_refused_by_field() {
    let error = |config: UpkeepConfig| config.validate().expect_err("out of bounds");
    let zero = UpkeepConfig::default().with_interval(Duration::ZERO);
    assert_eq!(error(zero.clone()), ConfigError::ZeroDuration { field: "interval" });
    let most = UpkeepConfig::default().with_jitter_percent(101);
    let expected = ConfigError::TooLarge { field: "jitter_percent", value: 101, most: 100 };
    assert_eq!(error(most), expected);
    let refused = Upkeep::start(&pool(&Clock::manual()), zero).expect_err("no thread");
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    assert!(refused.to_string().contains("interval"));
}
