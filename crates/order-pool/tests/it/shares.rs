//! The table of rules at the top of `core/claims.rs`, case by case: who loses an order when a share
//! is full.

use std::{fs, net::Ipv6Addr, ops::Range, path::Path, time::Duration};

use alloy_primitives::B256;
use order_pool::{
    Bundle, BundleParts, Holder, InsertOutcome, OrderPool, Origin, PoolConfig, Transaction,
};
use testkit::configured;

use crate::common::{
    Spec, address, bundle, bundle_for, caller, head, nth, pool_with, pool_with_clock, tx, tx_from,
    upkeep, variant,
};

/// Returns a pool in which a half has room for 160 bundles, a known signer for 32, a caller for
/// ten, a /48 for 40, and a front for 80.
fn pool() -> OrderPool {
    let pool = pool_with(configured(PoolConfig::default(), |config| {
        config.max_bundles = 320;
        config.max_txs = 2;
    }));
    pool.on_head(head(10, 0, 0, &[]));
    pool
}

/// Returns the `n`th /56 of a /48.
fn neighbour(n: u16) -> Holder {
    Holder::caller(Ipv6Addr::new(0x2001, 0xdb8, 1, n << 8, 0, 0, 0, 1).into())
}

fn forwarded(n: u64) -> Holder {
    Holder::Forwarded { front: [10, 9, 9, 9].into(), signer: Some(address(n)) }
}

fn known(n: u64) -> Holder {
    Holder::Signer(address(n))
}

/// Returns the `n`th bundle, of a signer.
fn signed(n: u64, block: u64, holder: Holder, signer: u64) -> Bundle {
    let (txs, signer) = (vec![nth(n)], Some(address(signer)));
    bundle(BundleParts { txs, block: Some(block), holder, signer, ..Default::default() })
}

fn plain(n: u64, block: u64, holder: Holder) -> Bundle {
    bundle_for(block, vec![nth(n)], holder)
}

fn insert(pool: &OrderPool, bundle: Bundle) -> (B256, String) {
    // The block is set, so the pool does not change the id.
    (*bundle.id(), variant(pool.insert_bundle(bundle)))
}

/// Inserts `count` bundles from the `first` on, all of which find room.
fn fill(pool: &OrderPool, first: u64, count: u64, block: u64, holder: Holder) {
    for n in first..first + count {
        assert_eq!(insert(pool, plain(n, block, holder)).1, "Added", "{n}");
    }
}

/// Returns how many of the bundles are pooled.
fn held(pool: &OrderPool, first: u64, count: u64, block: u64, holder: Holder) -> usize {
    let is_held = |n: &u64| is_pooled(pool, &plain(*n, block, holder));
    (first..first + count).filter(is_held).count()
}

fn is_pooled(pool: &OrderPool, bundle: &Bundle) -> bool {
    let txs = bundle.txs().iter().map(|tx| *tx.hash()).collect::<Vec<_>>();
    let mut all = pool.subscribe_all();
    std::iter::from_fn(|| all.try_next()).any(|event| match event {
        Ok(order_pool::Event::Added(order)) => order.as_bundle().is_some_and(|other| {
            other.block() == bundle.block()
                && other.parts().signer == bundle.parts().signer
                && other.txs().iter().map(|tx| *tx.hash()).eq(txs.iter().copied())
        }),
        _ => false,
    })
}

#[test]
fn case_1_the_node_share_loses_its_lowest_tip() {
    let pool = pool();
    let with_tip = |max_tip| tx(Spec { sender: max_tip as u64, max_tip, ..Spec::default() });
    for tip in [5, 3, 4] {
        assert_eq!(pool.insert_transaction(with_tip(tip)), InsertOutcome::Added);
    }
    assert_eq!([3, 4, 5].map(|tip| pool.contains(with_tip(tip).hash())), [false, true, true]);
}

#[test]
fn case_2_the_node_share_refuses_the_lowest_tip() {
    let pool = pool();
    let with_tip = |max_tip| tx(Spec { sender: max_tip as u64, max_tip, ..Spec::default() });
    [5, 4].into_iter().for_each(|tip| _ = pool.insert_transaction(with_tip(tip)));
    assert_eq!(variant(pool.insert_transaction(with_tip(3))), "Rejected");
    // A stranger's raw transaction evicts nothing there, whatever its tip.
    let raw = tx_from(Spec { sender: 9, max_tip: 90, ..Spec::default() }, Origin::Rpc);
    assert_eq!(pool.insert_transaction(raw), InsertOutcome::Added);
    assert_eq!(pool.len(), 3);
}

#[test]
fn case_3_a_full_caller_share_evicts_its_largest_signers_latest_block() {
    let pool = pool();
    for n in 0..9 {
        assert_eq!(insert(&pool, signed(n, 12 + n % 3, caller(1), 1)).1, "Added");
    }
    insert(&pool, signed(9, 14, caller(1), 2));
    assert_eq!(insert(&pool, signed(10, 11, caller(1), 2)).1, "Added");
    // It was the last one that was accepted for block 14 of the first signer.
    assert!(!is_pooled(&pool, &signed(8, 14, caller(1), 1)));
    assert_eq!(pool.len(), 10);
}

#[test]
fn case_4_a_full_share_refuses_a_bundle_for_its_latest_block() {
    let pool = pool();
    fill(&pool, 0, 10, 11, caller(1));
    assert_eq!(insert(&pool, plain(10, 12, caller(1))).1, "Rejected");
    assert_eq!(held(&pool, 0, 10, 11, caller(1)), 10);
}

#[test]
fn case_5_a_full_half_evicts_from_its_largest_holder() {
    let pool = pool();
    (0..16).for_each(|n| fill(&pool, n * 10, 10, 11, caller(n)));
    fill(&pool, 200, 5, 11, caller(17));
    assert_eq!(held(&pool, 200, 5, 11, caller(17)), 5);
    assert_eq!(pool.len(), 160);
}

#[test]
fn case_6_an_order_that_a_small_holder_sent_too_stays() {
    let pool = pool();
    (0..16).for_each(|n| fill(&pool, n * 10, 10, 11, caller(n)));
    // Of equal holders the one with the highest address loses first.
    assert_eq!(insert(&pool, plain(159, 11, caller(20))).1, "Known");
    fill(&pool, 200, 5, 11, caller(17));
    assert_eq!(held(&pool, 159, 1, 11, caller(20)), 1);
    assert_eq!(pool.len(), 160);
}

#[test]
fn case_7_a_full_ipv6_48_evicts_from_its_largest_holder() {
    let pool = pool();
    (0..4).for_each(|n| fill(&pool, u64::from(n) * 10, 10, 11, neighbour(n)));
    fill(&pool, 100, 5, 11, neighbour(5));
    assert_eq!((pool.len(), held(&pool, 100, 5, 11, neighbour(5))), (40, 5));
}

#[test]
fn case_8_a_full_front_evicts_from_its_largest_signer() {
    let pool = pool();
    fill(&pool, 1_000, 32, 11, known(1));
    fill(&pool, 2_000, 10, 11, caller(1));
    (0..8).for_each(|n| fill(&pool, n * 10, 10, 11, forwarded(n)));
    (0..400).for_each(|n| _ = insert(&pool, plain(100 + n, 11, forwarded(100 + n))));
    fill(&pool, 1_100, 32, 11, known(2));
    assert_eq!(held(&pool, 1_000, 32, 11, known(1)), 32);
    assert_eq!(held(&pool, 2_000, 10, 11, caller(1)), 10);
    assert_eq!(pool.len(), 64 + 10 + 80);
}

#[test]
fn case_9_an_expired_bundle_is_evicted_first() {
    let pool = pool();
    (0..16).for_each(|n| fill(&pool, n * 10, 10, 11, caller(n)));
    pool.on_head(head(11, 0, 0, &[]));
    (0..16).for_each(|n| fill(&pool, 200 + n * 10, 10, 12, caller(50 + n)));
    let left: usize = (0..16).map(|n| held(&pool, 200 + n * 10, 10, 12, caller(50 + n))).sum();
    assert_eq!((left, pool.stats().evicted), (160, 0));
}

#[test]
fn case_10_a_full_half_evicts_no_bundle_for_a_later_block() {
    let pool = pool();
    (0..16).for_each(|n| fill(&pool, n * 10, 10, 11, caller(n)));
    assert_eq!(insert(&pool, plain(200, 12, caller(17))).1, "Rejected");
    assert_eq!(insert(&pool, plain(201, 11, caller(17))).1, "Added");
}

/// Claims on removed orders are released in steps. An insert that met one of them panicked.
#[test]
fn claims_on_removed_orders_take_no_room() {
    let (pool, clock) = pool_with_clock(configured(PoolConfig::default(), |config| {
        config.max_external_txs = 3_200
    }));
    // A caller may hold 100 of each kind, a /48 may hold 400.
    let raw =
        |n, holder| tx_from(Spec { sender: n, ..Spec::default() }, Origin::Rpc).held_by(holder);
    let insert = |n, holder| variant(pool.insert_transaction(raw(n, holder)));
    for n in 0..100 {
        let neighbours = (0..20).map(neighbour).filter(|_| n < 20);
        for (index, holder) in neighbours.chain((0..50).map(caller)).enumerate() {
            assert_eq!(insert(n, holder), if index == 0 { "Added" } else { "Known" });
        }
    }
    clock.advance(Duration::from_secs(60));
    pool.upkeep();
    assert!(pool.is_empty(), "all expire in one hold of the lock");
    for n in 0..100 {
        assert_eq!(insert(1_000 + n, caller(0)), "Added");
        assert_eq!(insert(2_000 + n, neighbour(30)), "Added");
    }
    assert_eq!((pool.len(), pool.stats().evicted), (200, 0));
}

/// Two small holders sent what the largest one had, which then lost nothing, and neither did
/// others.
#[test]
fn case_11_the_next_largest_holder_loses_if_the_largest_can_lose_nothing() {
    let pool = pool();
    (0..16).for_each(|n| fill(&pool, n * 10, 9, 11, caller(n)));
    fill(&pool, 500, 10, 11, caller(30));
    for n in 500..510 {
        let small = caller(if n < 505 { 31 } else { 32 });
        assert_eq!(insert(&pool, plain(n, 11, small)).1, "Known");
    }
    // The half is full with the sixth; the shields have five each, and others nine.
    fill(&pool, 600, 8, 11, caller(17));
    assert_eq!(insert(&pool, plain(608, 11, caller(17))).1, "Rejected");
    assert_eq!((pool.len(), held(&pool, 500, 10, 11, caller(30))), (160, 10));
}

/// Only the first 256 holders were searched for a bundle whose block has passed.
#[test]
fn case_12_an_expired_bundle_is_evicted_first_however_many_holders_there_are() {
    let pool = pool_with(configured(PoolConfig::default(), |config| config.max_bundles = 2_000));
    pool.on_head(head(10, 0, 0, &[]));
    // Invalid bundles of the host, which upkeep and inserts remove first.
    for n in 0..1_000 {
        let bundle = bundle_for(14, vec![nth(0), nth(10_000 + n)], Holder::Host);
        assert_eq!(insert(&pool, bundle).1, "Added");
    }
    let holder = |network: u8, n: u64| Holder::caller([network, 0, (n >> 8) as u8, n as u8].into());
    (0..300).for_each(|n| fill(&pool, 20_000 + n, 1, 13, holder(10, n)));
    (0..14).for_each(|n| fill(&pool, 30_000 + n * 50, 50, 11, holder(11, n)));
    pool.on_head(head(11, 0, 0, &[*nth(0).hash()]));
    assert_eq!(insert(&pool, plain(40_000, 12, holder(12, 0))).1, "Added");
    assert_eq!(pool.stats().evicted, 0);
}

/// SECURITY.md shows the table of the code.
#[test]
fn the_security_document_has_the_same_table_of_rules() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let rows = |path: &Path, prefix: &str| {
        let text = fs::read_to_string(path).expect("the file is there");
        let lines = text.lines().filter_map(|line| line.strip_prefix(prefix));
        let from_header = lines.skip_while(|line| !line.starts_with("| order | holder |"));
        let rows = from_header.take_while(|line| line.starts_with('|')).map(str::to_owned);
        rows.collect::<Vec<_>>()
    };
    let code = rows(&root.join("src/core/claims.rs"), "//! ");
    let document = rows(&root.join("../../SECURITY.md"), "");
    assert!(code.len() > 4, "{code:?}");
    assert_eq!(code, document);
}

/// 60 bundles from 256 addresses counted as 15,360, and an honest caller kept 17 of its 300.
#[test]
fn copies_from_many_addresses_take_nothing_from_an_honest_caller() {
    let pool = pool_with(PoolConfig::default());
    pool.on_head(head(10, 0, 0, &[]));
    let honest = Holder::caller([10, 7, 7, 7].into());
    fill(&pool, 1_000, 150, 11, honest);
    for n in 0..256 {
        (0..60).for_each(|i| _ = insert(&pool, plain(i, 11, caller(n))));
    }
    fill(&pool, 1_150, 150, 11, honest);
    let stats = pool.stats();
    assert_eq!((pool.len(), stats.evicted, stats.rejected), (360, 0, 0));
}

/// Whoever had the address of a front could fill the known signers' half with fresh keys.
#[test]
fn ten_thousand_keys_behind_a_front_evict_nobody_elses_bundles() {
    let pool = pool_with(configured(PoolConfig::default(), |config| config.max_bundles = 2_000));
    pool.on_head(head(10, 0, 0, &[]));
    fill(&pool, 20_000, 50, 11, known(1));
    fill(&pool, 30_000, 50, 11, caller(1));
    (0..10_000).for_each(|n| _ = insert(&pool, plain(n, 11, forwarded(n))));
    fill(&pool, 20_050, 50, 11, known(1));
    // The front has eight times 62.
    assert_eq!(pool.len(), 150 + 496);
}

/// Its holder's own bundles were expired, but of other signers, and upkeep had not reached them.
#[test]
fn a_large_bundle_finds_room_where_smaller_ones_have_expired() {
    let pool =
        pool_with(configured(PoolConfig::default(), |config| config.max_bundle_bytes = 1 << 20));
    pool.on_head(head(10, 0, 0, &[]));
    fill(&pool, 0, 100, 11, known(1));
    let sized = |n, input_bytes, block, signer| {
        let tx = tx(Spec { sender: n, input_bytes, ..Spec::default() });
        let (txs, signer) = (vec![tx], Some(address(signer)));
        let holder = caller(1);
        bundle(BundleParts { txs, block: Some(block), holder, signer, ..Default::default() })
    };
    for n in 0..8 {
        assert_eq!(insert(&pool, sized(1_000 + n, 120_000, 11, n)).1, "Added");
    }
    pool.on_head(head(11, 0, 0, &[]));
    assert!(pool.stats().bundles > 20, "upkeep has not reached all");
    assert_eq!(insert(&pool, sized(2_000, 900_000, 12, 99)).1, "Added");
    assert_eq!(pool.stats().evicted, 0);
}

/// Returns a pool in which a half has 16 MiB for bundles, a front 8 MiB, and a caller 1 MiB: 66
/// bundles of 15.8 kB.
fn pool_of_bytes() -> OrderPool {
    let pool =
        pool_with(configured(PoolConfig::default(), |config| config.max_bundle_bytes = 32 << 20));
    pool.on_head(head(10, 0, 0, &[]));
    pool
}

/// Inserts bundles of 15.8 kB, all of which find room.
fn fill_bytes(pool: &OrderPool, range: Range<u64>, block: u64, holder: Holder) {
    for n in range {
        assert_eq!(insert(pool, sized(n, 13_500, block, holder)).1, "Added", "{n}");
    }
}

fn held_of_bytes(pool: &OrderPool, range: Range<u64>, block: u64, holder: Holder) -> usize {
    range.filter(|n| is_pooled(pool, &sized(*n, 13_500, block, holder))).count()
}

/// Once a holder had more than the new bundle's, it lost as many bundles as the new one needed, and
/// was left with far less.
#[test]
fn a_large_bundle_leaves_no_holder_less_than_its_own() {
    let pool = pool_of_bytes();
    // Eight signers fill the front. Only one of them has bundles for the new bundle's block.
    (0..7).for_each(|n| fill_bytes(&pool, n * 100..n * 100 + 66, 11, forwarded(n)));
    fill_bytes(&pool, 700..754, 12, forwarded(7));
    fill_bytes(&pool, 800..814, 11, forwarded(8));
    assert_eq!(insert(&pool, sized(9_000, 820_000, 12, forwarded(99))).1, "Rejected");
    assert_eq!(held_of_bytes(&pool, 700..754, 12, forwarded(7)), 54);

    let pool = pool_of_bytes();
    (0..8).for_each(|n| fill_bytes(&pool, n * 100..n * 100 + 66, 12, forwarded(n)));
    assert_eq!(insert(&pool, sized(9_000, 820_000, 12, forwarded(99))).1, "Added");
    for n in 0..8 {
        let left = held_of_bytes(&pool, n * 100..n * 100 + 66, 12, forwarded(n));
        // As many bytes as the new one, less the last that was evicted.
        assert!(left >= 52, "{left}");
    }
}

#[test]
fn a_large_bundle_leaves_no_other_holder_of_an_evicted_one_less_than_its_own() {
    let pool = pool_of_bytes();
    (0..15).for_each(|n| fill_bytes(&pool, n * 100..n * 100 + 66, 11, caller(n)));
    fill_bytes(&pool, 2_000..2_066, 12, caller(20));
    // Another caller has the newer of these.
    for n in 2_012..2_066 {
        assert_eq!(insert(&pool, sized(n, 13_500, 12, caller(21))).1, "Known");
    }
    assert_eq!(insert(&pool, sized(9_000, 820_000, 12, caller(22))).1, "Rejected");
    assert_eq!(held_of_bytes(&pool, 2_012..2_066, 12, caller(21)), 54);
}

/// Returns a pool at block 11, which has mined the first transaction of 300 small bundles of the
/// signers behind a front. After these, the front is full of large ones. All are for block 11, and
/// upkeep has reached none: it is busy with bundles of another caller.
fn pool_with_invalid_and_expired() -> OrderPool {
    let pool =
        pool_with(configured(PoolConfig::default(), |config| config.max_bundle_bytes = 32 << 20));
    pool.on_head(head(9, 0, 0, &[]));
    pool.on_head(head(10, 0, 0, &[]));
    let with_mined = |n, block, holder| bundle_for(block, vec![nth(0), nth(n)], holder);
    for n in 0..200 {
        assert_eq!(insert(&pool, with_mined(1_000 + n, 14, caller(1))).1, "Added");
    }
    for n in 0..300 {
        assert_eq!(insert(&pool, with_mined(2_000 + n, 11, forwarded(n % 8))).1, "Added");
    }
    for n in 0.. {
        if pool.stats().rejected > 7 {
            break;
        }
        insert(&pool, sized(3_000 + n, 13_900, 11, forwarded(n % 8)));
    }
    pool.on_head(head(11, 0, 0, &[*nth(0).hash()]));
    assert_eq!(pool.stats().block_passed, 0);
    pool
}

/// Returns a bundle around the `n`th transaction, with this much input.
fn sized(n: u64, input_bytes: usize, block: u64, holder: Holder) -> Bundle {
    let tx = tx(Spec { sender: n, input_bytes, ..Spec::default() });
    bundle_for(block, vec![tx], holder)
}

/// Only the first 256 of them were inspected, and those that the block had made invalid stayed. So
/// eight keys kept a bundle of six blobs out.
#[test]
fn invalid_bundles_of_a_past_block_keep_out_no_large_one() {
    let pool = pool_with_invalid_and_expired();
    assert_eq!(insert(&pool, sized(9_000, 820_000, 12, forwarded(99))).1, "Added");
    let stats = pool.stats();
    assert_eq!(stats.evicted, 0);
    assert!((30..=64).contains(&stats.block_passed), "{}", stats.block_passed);
}

/// Each insert inspected them again for each bundle that it removed, and removed none of them.
#[test]
fn an_insert_removes_invalid_bundles_of_a_past_block() {
    let pool = pool_with_invalid_and_expired();
    let before = pool.stats().mined;
    // Some of them make enough room. Each insert also removes four others.
    assert_eq!(insert(&pool, sized(9_000, 80_000, 12, forwarded(99))).1, "Added");
    let stats = pool.stats();
    assert!((4 + 1..=4 + 64).contains(&(stats.mined - before)), "{}", stats.mined - before);
    assert_eq!((stats.block_passed, stats.evicted), (0, 0));
    let has_first = || is_pooled(&pool, &bundle_for(11, vec![nth(0), nth(2_000)], forwarded(0)));
    assert!(!has_first());
    // A reorg lowers the head, so it is not too late for any of them, and all are valid.
    pool.on_head(head(10, 1, 0, &[]));
    assert!(has_first());
}

/// The smallest, lowest-paying transactions would not make room for six blobs, and the next ones
/// were not inspected.
#[test]
fn small_transactions_that_pay_little_keep_out_no_large_one() {
    let sized =
        |n, input_bytes, max_tip| Spec { sender: n, input_bytes, max_tip, ..Spec::default() };
    // In the node's share, and in that of a caller.
    for origin in [Origin::Mempool, Origin::Rpc] {
        let config = configured(PoolConfig::default(), |config| {
            config.max_tx_bytes = 8 << 20;
            config.max_external_tx_bytes = 256 << 20;
        });
        let pool = pool_with(config);
        pool.on_head(head(10, 0, 0, &[]));
        let send = |spec| tx_from(spec, origin).held_by(caller(1));
        let insert = |tx: Transaction| variant(pool.insert_transaction(tx));
        for n in 0..500 {
            assert_eq!(insert(send(sized(n, 0, 1))), "Added");
        }
        let mut filling = 1_000..;
        while pool.stats().evicted + pool.stats().rejected == 0 {
            insert(send(sized(filling.next().expect("no end"), 20_000, 10)));
        }
        for n in 0..3 {
            assert_eq!(insert(send(sized(n, 820_000, 90))), "Added", "{origin:?}");
        }
        let is_held = |n: &u64| pool.contains(send(sized(*n, 820_000, 90)).hash());
        assert_eq!((0..3).filter(is_held).count(), 3);
    }
}

#[test]
fn small_transactions_of_the_largest_callers_keep_out_no_large_one() {
    let pool = pool_with(configured(PoolConfig::default(), |config| {
        config.max_external_tx_bytes = 64 << 20;
    }));
    pool.on_head(head(10, 0, 0, &[]));
    let sized = |sender, input_bytes, max_tip, holder| {
        let spec = Spec { sender, input_bytes, max_tip, ..Spec::default() };
        tx_from(spec, Origin::Rpc).held_by(caller(holder))
    };
    let insert = |tx: Transaction| variant(pool.insert_transaction(tx));
    // Sixteen callers fill their own shares, and with them the callers' half.
    for attacker in 0..16 {
        let own = attacker * 10_000;
        for n in own..own + 320 {
            assert_eq!(insert(sized(n, 0, 1, attacker)), "Added");
        }
        let displaced = || pool.stats().evicted + pool.stats().rejected;
        let before = displaced();
        let mut filling = own + 1_000..own + 2_000;
        while displaced() == before {
            let n = filling.next().expect("a share is full before");
            insert(sized(n, 20_000, 10, attacker));
        }
    }
    let honest = |n: u64| sized(1_000_000 + n, 820_000, 90, 100 + n);
    let before = pool.stats().evicted;
    for n in 0..8 {
        assert_eq!(insert(honest(n)), "Added", "{n}");
    }
    assert!(pool.stats().evicted > before + 8 * 30, "the half was full");
    assert!((0..8).all(|n| pool.contains(honest(n).hash())));
}

/// The bundles of three addresses that a block invalidated displaced those of a known signer.
#[test]
fn a_reorg_restores_known_signers_bundles_beside_many_of_callers() {
    let pool = pool_with(PoolConfig::default());
    pool.on_head(head(10, 0, 0, &[]));
    let with_shared = |n, input_bytes, holder| {
        let own = tx(Spec { sender: 1_000 + n, input_bytes, ..Spec::default() });
        bundle_for(15, vec![nth(0), own], holder)
    };
    // A stranger sends one of them first, and is one of its holders.
    assert_eq!(insert(&pool, with_shared(0, 0, caller(1))).1, "Added");
    assert_eq!(insert(&pool, with_shared(0, 0, known(1))).1, "Known");
    for n in 1..20 {
        assert_eq!(insert(&pool, with_shared(n, 0, known(1))).1, "Added");
    }
    for n in 0..3 * 15 {
        let holder = caller(1 + n / 15);
        assert_eq!(insert(&pool, with_shared(100 + n, 512 << 10, holder)).1, "Added");
    }
    pool.on_head(head(11, 0, 0, &[*nth(0).hash()]));
    upkeep(&pool);
    assert!(pool.is_empty());
    pool.on_head(head(11, 1, 0, &[]));
    let kept = |n: &u64| is_pooled(&pool, &with_shared(*n, 0, known(1)));
    assert_eq!((0..20).filter(kept).count(), 20);
    // The stranger's share overflows, but the known signer holds its bundles too.
    for n in 0..700 {
        insert(&pool, plain(10_000 + n, 11, caller(1)));
        insert(&pool, plain(20_000 + n, 12, caller(1)));
    }
    assert_eq!((0..20).filter(kept).count(), 20);
}
