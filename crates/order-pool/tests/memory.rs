//! Compares the pool's resident memory at the default caps with its documented bound. It is alone
//! in its program: see `common::memory`.
#![cfg(target_os = "linux")]

mod common;

use common::memory::{insert, read_late, resident_bytes, rising};
use order_pool::{ORDER_OVERHEAD_BYTES, OrderPool, PoolConfig};

#[test]
fn a_million_inserts_with_an_idle_subscriber_stay_within_the_memory_bound() {
    let config = PoolConfig::default();
    let bound = config.memory_bound_bytes();
    let before = resident_bytes();
    let pool = OrderPool::new(config).expect("the default is valid");
    let mut late = pool.subscribe_all();
    // The replay of the empty pool has nothing.
    assert!(late.try_next().is_none());
    let empty = resident_bytes();
    insert(&pool, 0..100_000, 200);
    let contents = rising(0, 200).size_bytes();
    let overhead = (resident_bytes() - empty) / 100_000 - contents;
    println!("an order of {contents} bytes takes {overhead} more");
    assert!(
        (ORDER_OVERHEAD_BYTES / 2..=ORDER_OVERHEAD_BYTES).contains(&overhead),
        "ORDER_OVERHEAD_BYTES is {ORDER_OVERHEAD_BYTES}, an order takes {overhead}"
    );
    let most = insert(&pool, 100_000..1_000_000, 200) - before;
    println!("1,000,000 orders: at most {most} bytes resident, the bound is {bound}");
    assert_eq!((pool.len(), pool.stats().evicted), (200_000, 800_000));
    assert!(most < bound, "{most} bytes are above the bound of {bound}");
    read_late(late, &pool);
}
