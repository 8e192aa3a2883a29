use alloy_primitives::B256;
use order_pool::{
    Bundle, BundleParts, Clock, Event, Holder, InsertOutcome, OrderPool, PoolConfig, RejectReason,
    RemoveReason,
};

use super::common::{Spec, address, bundle, head, nth, tx};
use crate::core::{Caps, Division, Limits};

#[test]
fn what_one_holder_may_have_is_a_part_of_the_whole() {
    let limits = Limits::from(PoolConfig::default());
    let caps = |count, mib: usize| Caps { count, bytes: mib << 20 };
    let Division { half, per_signer, per_caller } = limits.bundles;
    assert_eq!((half, per_caller), (caps(10_000, 128), caps(625, 8)));
    assert_eq!((per_signer.count, per_signer.bytes), (2_000, (256 << 20) / 10));
    let Division { half, per_caller, .. } = limits.private_txs;
    assert_eq!((half, per_caller), (caps(9_000, 32), caps(562, 2)));
    assert_eq!((limits.keys.half.count, limits.keys.per_caller.count), (32_768, 2_048));
    assert_eq!((limits.dedupe_window, limits.expired_pause.as_secs()), (1 << 20, 600));
    let small = PoolConfig { max_bundles: 1, max_cancellations: 1, ..PoolConfig::default() };
    let limits = Limits::from(small);
    assert_eq!((limits.bundles.per_caller.count, limits.keys.per_caller.count), (1, 1));
}

/// A bundle of one signer of a caller for a block; `n` tells its content.
fn signed(n: u64, (caller, signer): (u8, u64), block: u64) -> Bundle {
    bundle(BundleParts {
        txs: vec![nth(n)],
        block: Some(block),
        signer: Some(address(signer)),
        holder: Holder::caller([10, 0, 0, caller].into()),
        ..Default::default()
    })
}

#[test]
fn at_the_cap_of_all_the_largest_holder_loses_the_one_for_the_latest_block_but_for_no_later_one() {
    let caps = Caps { count: 6, bytes: usize::MAX };
    let division = Division { half: caps, per_signer: caps, per_caller: caps };
    let limits = Limits { bundles: division, ..PoolConfig::default().into() };
    let pool = OrderPool::with_limits(limits, Clock::manual());
    pool.on_head(head(10, 0, 0, &[]));
    let hash = |n| Some(alloy_primitives::keccak256(nth(n).hash()));
    // The first caller has two signers, of whom the first has more.
    let all = [
        (1, (1, 1), 12),
        (2, (1, 1), 14),
        (3, (1, 2), 15),
        (4, (2, 3), 13),
        (5, (2, 4), 11),
        (6, (3, 5), 12),
    ];
    for (n, by, block) in all {
        assert_eq!(pool.insert_bundle(signed(n, by, block)), InsertOutcome::Added);
    }
    let mut orders = pool.subscribe_all();
    while orders.try_next().is_some() {}
    let mut evicts = |bundle: Bundle| -> Option<B256> {
        let outcome = pool.insert_bundle(bundle);
        let Some(Ok(Event::Removed { order, reason })) = orders.try_next() else {
            assert!(matches!(outcome, InsertOutcome::Rejected(RejectReason::Full { .. })));
            return None;
        };
        assert_eq!(reason, RemoveReason::Evicted);
        orders.try_next();
        order.as_bundle().map(|bundle| *bundle.hash())
    };
    assert_eq!(evicts(signed(7, (4, 6), 16)), None, "all are for earlier blocks");
    assert_eq!(evicts(signed(7, (4, 6), 12)), hash(2), "of the signer with the most");
    // Two callers have two now.
    assert_eq!(evicts(signed(8, (5, 7), 11)), hash(4));
    assert_eq!(evicts(signed(9, (6, 8), 11)), hash(3));
    // One each: the newcomer goes.
    assert_eq!(evicts(signed(10, (7, 9), 11)), None);
    // Its own for a later block goes.
    assert_eq!(evicts(signed(11, (4, 10), 11)), hash(7));
    // What was evicted may come again, once there is room.
    pool.on_head(head(11, 0, 0, &[]));
    assert_eq!(pool.insert_bundle(signed(3, (1, 2), 15)), InsertOutcome::Added);
}

/// With one hold of the lock for a whole head, bundles that shared transactions stopped the pool for
/// 14 s.
#[test]
fn no_hold_of_the_lock_touches_more_than_a_step_whatever_orders_share() {
    let pool = OrderPool::new(PoolConfig::default()).expect("valid");
    pool.on_head(head(10, 0, 0, &[]));
    let by = |caller: u64| Holder::caller([10, 0, 0, (caller % 16) as u8].into());
    let shared: Vec<_> = (0..16).map(nth).collect();
    for n in 0..10_000_u64 {
        // 8,000 around 16 transactions, of which half are for the next block; 2,000 of one sender.
        let txs = match n % 5 {
            4 => vec![tx(Spec { sender: 99, nonce: n, ..Spec::default() })],
            _ => shared.clone(),
        };
        let parts = BundleParts {
            txs,
            block: Some(11 + n % 2),
            uuid: Some(uuid::Uuid::from_u128(n.into())),
            signer: Some(address(n)),
            holder: by(n),
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
    // Each removal may have a second effect: its key is forgotten.
    let most = pool.shared().most_effects.load(std::sync::atomic::Ordering::Relaxed);
    assert!(most <= 256, "{most}");
}
