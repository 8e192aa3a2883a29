//! What the pool takes where the caps in bytes decide, against what its documentation says. Alone in its
//! program: see `common::memory`.
#![cfg(target_os = "linux")]

mod common;

use common::memory::{insert, read_late, resident_bytes};
use order_pool::{OrderPool, PoolConfig};

#[test]
fn orders_as_large_as_blobs_beside_a_subscriber_that_never_reads_stay_within_the_bound() {
    let config = PoolConfig::default()
        .with_max_tx_bytes(64 << 20)
        .with_max_bundle_bytes(1 << 20)
        .with_log_bytes(32 << 20)
        .with_dedupe_window(1 << 16)
        .with_max_unmine_bytes(0)
        .with_recent_blocks(1);
    let before = resident_bytes();
    let bound = config.memory_bound_bytes();
    let pool = OrderPool::new(config).expect("a valid configuration");
    let late = pool.subscribe_all();
    let most = insert(&pool, 0..5_000, 100_000) - before;
    println!("5,000 orders of 100 kB: at most {most} bytes resident, the bound is {bound}");
    assert!(pool.stats().evicted > 4_000 && pool.bytes() > 60 << 20);
    assert!(most < bound, "{most} bytes are above the bound of {bound}");
    read_late(late, &pool);
}
