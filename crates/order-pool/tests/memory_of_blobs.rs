//! Compares the pool's resident memory where the caps in bytes decide with its documented bound. It
//! is alone in its program: see `common::memory`.
#![cfg(target_os = "linux")]

mod common;

use common::memory::{insert, read_late, resident_bytes};
use order_pool::{OrderPool, PoolConfig};
use testkit::configured;

#[test]
fn large_orders_with_an_idle_subscriber_stay_within_the_memory_bound() {
    let config = configured(PoolConfig::default(), |config| {
        config.max_tx_bytes = 64 << 20;
        config.max_bundle_bytes = 1 << 20;
        config.log_bytes = 32 << 20;
    });
    let before = resident_bytes();
    // There is no head, so no mined orders and no blocks are held, and few orders are remembered.
    let unused = (64 << 20) + 64 * 2_857 * 256 + 6 * 8 * (1 << 20);
    let bound = config.memory_bound_bytes() - unused;
    let pool = OrderPool::new(config).expect("a valid configuration");
    let mut late = pool.subscribe_all();
    // The replay of the empty pool has nothing.
    assert!(late.try_next().is_none());
    let most = insert(&pool, 0..5_000, 100_000) - before;
    println!("5,000 orders of 100 kB: at most {most} bytes resident, the bound is {bound}");
    assert!(pool.stats().evicted > 4_000 && pool.bytes() > 60 << 20);
    assert!(most < bound, "{most} bytes are above the bound of {bound}");
    read_late(late, &pool);
}
