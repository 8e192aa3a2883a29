use std::time::SystemTime;

use alloy_primitives::B256;
use order_pool::{
    Bundle, BundleParts, Clock, Event, InsertOutcome, OrderPool, PoolConfig, RejectReason,
    RemoveReason,
};

use super::common::{address, head, nth};
use crate::core::Limits;

#[test]
fn what_one_signer_may_hold_is_a_part_of_the_whole() {
    let limits = Limits::from(PoolConfig::default());
    assert_eq!((limits.max_bundles_per_signer, limits.max_unsigned_bundles), (2_000, 1_000));
    assert_eq!(limits.max_bundle_bytes_per_signer, 32 << 20);
    assert_eq!(limits.max_cancellations_per_signer, 4_096);
    assert_eq!((limits.dedupe_window, limits.expired_pause.as_secs()), (1 << 20, 600));
    let small = PoolConfig { max_bundles: 1, max_cancellations: 1, ..PoolConfig::default() };
    let limits = Limits::from(small);
    assert_eq!((limits.max_bundles_per_signer, limits.max_unsigned_bundles), (1, 1));
    assert_eq!(limits.max_cancellations_per_signer, 1);
}

/// A bundle of one signer, or of nobody, for a block; `n` tells its content.
fn signed(n: u64, signer: Option<u64>, block: u64) -> Bundle {
    Bundle::new(BundleParts {
        txs: vec![nth(n)],
        block: Some(block),
        signer: signer.map(address),
        first_seen: Some(SystemTime::UNIX_EPOCH),
        ..Default::default()
    })
    .expect("a valid bundle")
}

#[test]
fn at_the_cap_of_all_the_signer_with_the_most_loses_the_one_for_the_latest_block() {
    let options = PoolConfig { max_bundles: 6, ..PoolConfig::default() };
    let limits = Limits { max_bundles_per_signer: 6, ..options.into() };
    let pool = OrderPool::with_limits(limits, Clock::manual());
    pool.on_head(head(10, 0, 0, &[]));
    let hash = |bundle: &Bundle| alloy_primitives::keccak256(bundle.txs()[0].hash());
    for (n, signer, block) in
        [(1, 1, 11), (2, 1, 14), (3, 1, 12), (4, 2, 13), (5, 2, 11), (6, 3, 12)]
    {
        assert_eq!(pool.insert_bundle(signed(n, Some(signer), block)), InsertOutcome::Added);
    }
    let mut orders = pool.subscribe_all();
    while orders.try_next().is_some() {}
    let mut evicts = |bundle: Bundle| -> Option<B256> {
        let outcome = pool.insert_bundle(bundle);
        let Some(Ok(Event::Removed { order, reason })) = orders.try_next() else {
            assert!(matches!(outcome, InsertOutcome::Rejected(RejectReason::BundlesFull { .. })));
            return None;
        };
        assert_eq!(reason, RemoveReason::Evicted);
        orders.try_next();
        order.as_bundle().map(|bundle| *bundle.hash())
    };
    assert_eq!(evicts(signed(7, Some(4), 12)), Some(hash(&signed(2, None, 0))));
    // Two have two now: who is for the later block goes.
    assert_eq!(evicts(signed(8, Some(5), 11)), Some(hash(&signed(4, None, 0))));
    assert_eq!(evicts(signed(9, Some(6), 12)), Some(hash(&signed(3, None, 0))));
    // One each: the newcomer goes if nobody is farther.
    assert_eq!(evicts(signed(10, Some(7), 14)), None);
    assert_eq!(evicts(signed(11, Some(7), 11)), Some(hash(&signed(9, None, 0))));
    // What was evicted may come again, once there is room.
    pool.on_head(head(11, 0, 0, &[]));
    assert_eq!(pool.insert_bundle(signed(9, Some(6), 12)), InsertOutcome::Added);
}
