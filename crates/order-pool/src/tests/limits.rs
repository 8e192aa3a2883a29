use order_pool::{BundleParts, InsertOutcome, OrderPool, PoolConfig};

use super::common::{Spec, address, bundle, bundle_for, caller, head, nth, tx};
use crate::core::{Limits, ShareCaps, Size};

#[test]
fn the_share_of_a_holder_is_a_part_of_the_cap() {
    let limits = Limits::from(PoolConfig::default());
    let caps = |count, mib: usize| Size { count, bytes: mib << 20 };
    let ShareCaps { half, per_signer, per_caller, per_site, per_front, claims } = limits.bundles;
    assert_eq!((half, per_caller), (caps(10_000, 128), caps(625, 8)));
    assert_eq!((per_site, per_front, claims), (caps(2_500, 32), caps(5_000, 64), 40_000));
    assert_eq!((per_signer.count, per_signer.bytes), (2_000, (256 << 20) / 10));
    let ShareCaps { half, per_caller, .. } = limits.external_txs;
    assert_eq!((half, per_caller), (caps(9_000, 32), caps(562, 2)));
    assert_eq!((limits.keys.half.count, limits.keys.per_caller.count), (32_768, 2_048));
    assert_eq!(limits.dedupe_window, 1 << 20);
    let small = PoolConfig { max_bundles: 1, max_cancellations: 1, ..PoolConfig::default() };
    let limits = Limits::from(small);
    assert_eq!((limits.bundles.per_caller.count, limits.keys.per_caller.count), (1, 1));
}

/// With one hold of the lock for a whole head, bundles that shared transactions stopped the pool
/// for 14 s.
#[test]
fn no_hold_of_the_lock_touches_more_than_one_step() {
    let pool = OrderPool::new(PoolConfig::default()).expect("valid");
    pool.on_head(head(10, 0, 0, &[]));
    let shared: Vec<_> = (0..16).map(nth).collect();
    for n in 0..10_000_u64 {
        // 8,000 bundles share 16 transactions, half of them for the next block; 2,000 have one
        // sender.
        let txs = match n % 5 {
            4 => vec![tx(Spec { sender: 99, nonce: n, ..Spec::default() })],
            _ => shared.clone(),
        };
        let parts = BundleParts {
            txs,
            block: Some(11 + n % 2),
            uuid: Some(uuid::Uuid::from_u128(n.into())),
            signer: Some(address(n)),
            holder: caller(n % 16),
            ..Default::default()
        };
        assert_eq!(pool.insert_bundle(bundle(parts)), InsertOutcome::Added, "{n}");
    }
    for nonce in 0..18_000 {
        let tx = tx(Spec { sender: 77, nonce, ..Spec::default() });
        assert_eq!(pool.insert_transaction(tx), InsertOutcome::Added);
    }
    let mined: Vec<_> = shared.iter().map(|tx| *tx.hash()).collect();
    let block = head(11, 0, 0, &mined);
    pool.on_head(block.clone());
    pool.on_nonces(block.head.hash, [(address(77), 18_000), (address(99), 10_000)]);
    while pool.upkeep() {}
    let stats = pool.stats();
    assert_eq!((pool.len(), stats.mined, stats.stale), (0, 8_000, 20_000));
    // Each removal may have a second effect, because its key is forgotten.
    let most = pool.shared.most_effects.load(std::sync::atomic::Ordering::Relaxed);
    assert!(most <= 256, "{most}");
}

/// Each order that a reorg puts back may evict another.
#[test]
fn a_reinsertion_step_counts_the_transactions_that_it_evicts() {
    let pool =
        OrderPool::new(PoolConfig { max_bundles: 320, ..PoolConfig::default() }).expect("valid");
    let insert = |n, first, holder| {
        let mut txs: Vec<_> = (0..15).map(|i| nth(1_000 + n * 15 + i)).collect();
        txs.push(nth(first));
        assert_eq!(pool.insert_bundle(bundle_for(14, txs, holder)), InsertOutcome::Added);
    };
    pool.on_head(head(10, 0, 0, &[]));
    (0..100).for_each(|n| insert(n, 0, caller(100 + n)));
    pool.on_head(head(11, 0, 0, &[*nth(0).hash()]));
    while pool.upkeep() {}
    (0..160).for_each(|n| insert(n, 1, caller(n % 16)));
    pool.on_head(head(11, 1, 0, &[]));
    let stats = pool.stats();
    assert_eq!((stats.mined, stats.put_back, stats.evicted), (100, 100, 100));
    // Each order has 16 transactions, and so has the one that it evicts: eight orders, with two
    // effects each.
    let most = pool.shared.most_effects.load(std::sync::atomic::Ordering::Relaxed);
    assert!(most <= 16, "{most}");
}

/// Each block with its sender inspected it once for each of its transactions, and meanwhile no
/// other expired order was removed.
#[test]
fn a_bundle_of_optional_transactions_is_inspected_once_for_each() {
    let pool = OrderPool::new(PoolConfig::default()).expect("valid");
    pool.on_head(head(10, 0, 0, &[]));
    let mut txs: Vec<_> =
        (0..49).map(|nonce| tx(Spec { sender: 99, nonce, ..Spec::default() })).collect();
    txs.push(nth(1));
    for n in 0..200 {
        let parts = BundleParts {
            dropping_tx_hashes: txs.iter().map(|tx| *tx.hash()).collect(),
            txs: txs.clone(),
            block: Some(30),
            uuid: Some(uuid::Uuid::from_u128(n)),
            signer: Some(address(n as u64)),
            ..Default::default()
        };
        assert_eq!(pool.insert_bundle(bundle(parts)), InsertOutcome::Added);
    }
    let steps_of = |number, next_nonce| {
        let block = head(number, 0, 0, &[]);
        pool.on_head(block.clone());
        pool.on_nonces(block.head.hash, [(address(99), next_nonce)]);
        (0..).take_while(|_| pool.upkeep()).count()
    };
    // With the first of these heads, all transactions but the last are stale.
    assert!(steps_of(11, 49) <= 60);
    assert!((12..20).all(|number| steps_of(number, 50 + number) <= 1));
    assert_eq!(pool.len(), 200, "the last transaction is left");
    let block = head(20, 0, 0, &[*nth(1).hash()]);
    pool.on_head(block);
    while pool.upkeep() {}
    assert_eq!((pool.len(), pool.stats().mined), (0, 200));
}
