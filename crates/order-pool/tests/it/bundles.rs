//! Bundles: their blocks, and the limits on keys and cancellations. Replacements and cancellations
//! are compared with a model, in `src/tests/model/`.

use std::{
    net::Ipv6Addr,
    time::{Duration, SystemTime},
};

use order_pool::{
    Bundle, BundleParts, CancelOutcome, Holder, InsertOutcome, MAX_UNKNOWN_CANCELLATIONS, Order,
    OrderPool, PrivateTerms, RejectReason, ReplacementKey,
};
use uuid::Uuid;

use crate::common::{
    Spec, address, bundle, bundle_for, caller, cancellation, head, journal, nth, pool,
    private_from, variant,
};

const SEARCHER: u64 = 1;

/// Returns a pool with head 10, which contains the first transaction.
fn pool_at_10() -> OrderPool {
    let pool = pool();
    pool.on_head(head(10, 0, 0, &[*nth(1).hash()]));
    pool
}

/// Returns a bundle of the key with this nonce and the `n`th transaction.
fn keyed(n: u64, signer: u64, nonce: Option<u64>) -> Bundle {
    bundle(BundleParts {
        txs: vec![nth(n)],
        uuid: Some(Uuid::from_u128(7)),
        signer: Some(address(signer)),
        replacement_nonce: nonce,
        // The pool assigns a nonce by this time.
        first_seen: Some(SystemTime::UNIX_EPOCH),
        ..Default::default()
    })
}

/// Returns the same bundle for a block.
fn keyed_for(n: u64, block: u64, nonce: Option<u64>) -> Bundle {
    bundle(BundleParts { block: Some(block), ..keyed(n, SEARCHER, nonce).parts().clone() })
}

#[test]
fn orders_for_an_impossible_block_are_refused_with_value_and_limit() {
    let bundle_with = |txs: &[u64], block| {
        Order::Bundle(bundle_for(block, txs.iter().map(|n| nth(*n)).collect(), Holder::Host))
    };
    let private = |max_block| {
        Order::Tx(private_from(Spec::default(), PrivateTerms { signer: None, max_block }))
    };
    let passed = RejectReason::BlockPassed { value: 10, limit: 11 };
    let too_far = RejectReason::BlockTooFar { value: 75, limit: 74 };
    let many: Vec<u64> = (2..103).collect();
    for (order, reason) in [
        (bundle_with(&[2], 10), passed),
        (bundle_with(&[2], 75), too_far),
        (private(10), passed),
        (private(75), too_far),
        (bundle_with(&[2, 1], 11), RejectReason::TxMined { index: 1, hash: *nth(1).hash() }),
        (bundle_with(&many, 11), RejectReason::TooMany { field: "txs", value: 101, limit: 100 }),
    ] {
        assert_eq!(pool_at_10().insert(order, None), InsertOutcome::Rejected(reason));
    }
    assert_eq!(passed.to_string(), "blockNumber is 10, the lowest that is not built yet is 11");
}

/// A bundle that a reorg puts back keeps the time at which it was sent.
#[test]
fn a_later_message_supersedes_one_without_a_nonce_after_a_reorg_too() {
    const MICROS: u64 = 1_000_000;
    let sent = |n, micros| {
        let first_seen = Some(SystemTime::UNIX_EPOCH + Duration::from_micros(MICROS + micros));
        bundle(BundleParts { first_seen, ..keyed_for(n, 13, None).parts().clone() })
    };
    let superseded = InsertOutcome::Superseded { nonce: MICROS + 4, current: MICROS + 5 };
    let pool = pool_at_10();
    assert_eq!(pool.insert_bundle(sent(2, 5)), InsertOutcome::Added);
    assert_eq!(pool.insert_bundle(sent(3, 4)), superseded);
    pool.on_head(head(11, 0, 0, &[*nth(2).hash()]));
    pool.on_head(head(11, 1, 0, &[]));
    assert_eq!((pool.len(), pool.stats().put_back), (1, 1));
    assert_eq!(pool.insert_bundle(sent(3, 4)), superseded);
}

#[test]
fn supersede_removes_a_bundle_whose_successor_is_refused() {
    let pool = pool_at_10();
    let holder = caller(1);
    let (key, refused) =
        (keyed(2, SEARCHER, None).key().expect("it has one"), keyed_for(1, 12, Some(2)));
    for block in [12, 13] {
        assert_eq!(pool.insert_bundle(keyed_for(block, block, Some(1))), InsertOutcome::Added);
    }
    assert_eq!(variant(pool.insert_bundle(refused)), "Rejected");
    pool.supersede(key, 12, 1, holder);
    assert_eq!(pool.len(), 2, "the nonce is not higher");
    pool.supersede(key, 12, 2, holder);
    assert_eq!(pool.len(), 1, "the other block's bundle stays");
    let late = InsertOutcome::Superseded { nonce: 1, current: 2 };
    assert_eq!(pool.insert_bundle(keyed_for(3, 12, Some(1))), late);
    // After a reorg another machine sends it again.
    pool.on_head(head(10, 1, 0, &[]));
    assert_eq!(pool.insert_bundle(keyed_for(1, 12, Some(2))), InsertOutcome::Added);
    assert_eq!(variant(pool.insert_bundle(keyed_for(3, 12, Some(2)))), "Superseded");
}

/// 70,000 cancellations of one signer were published to every subscriber and, like those of 66,000
/// fresh keys, made the pool forget the cancellations of others.
#[test]
fn cancellations_of_unknown_keys_neither_fill_the_log_nor_displace_others() {
    let pool = pool();
    let key = |signer, n| ReplacementKey { uuid: Uuid::from_u128(n), signer: address(signer) };
    for signer in 0..100 {
        pool.cancel_bundle(cancellation(key(signer, 1), None, caller(200 + signer % 50)));
    }
    let mut subscription = pool.subscribe_all();
    assert_eq!(journal(&mut subscription).len(), 100);
    for n in 0..70_000 {
        let cancelled = pool.cancel_bundle(cancellation(key(666, n), None, caller(1)));
        assert_eq!(cancelled, CancelOutcome::Cancelled { removed: 0 });
    }
    // One key is cancelled again and again.
    for nonce in 0..10_000 {
        pool.cancel_bundle(cancellation(key(667, 1), Some(nonce), caller(2)));
    }
    // The first ones are published, and are published as forgotten when later ones displace them.
    let events = journal(&mut subscription);
    assert_eq!(events.len(), 3 * MAX_UNKNOWN_CANCELLATIONS, "{:?}", events.last());
    // Cancellations that were not published take effect too.
    let uuid = Some(Uuid::from_u128(69_999));
    let late = BundleParts { uuid, ..keyed(1, 666, None).parts().clone() };
    let late = pool.insert_bundle(bundle(late));
    assert_eq!(late, InsertOutcome::CancelledPermanently);
    // The cancellation of a pooled bundle is published, however many there were before.
    let parts = keyed(1, 668, Some(1)).parts().clone();
    pool.insert_bundle(bundle(BundleParts { holder: caller(1), ..parts }));
    pool.cancel_bundle(cancellation(key(668, 7), None, caller(1)));
    assert_eq!(journal(&mut subscription).len(), 3, "added, removed, cancelled");
    for signer in 10_000..76_000 {
        pool.cancel_bundle(cancellation(key(signer, 1), None, caller(3)));
    }
    let events = journal(&mut subscription).len();
    assert_eq!(events, 2 * MAX_UNKNOWN_CANCELLATIONS, "fresh keys of a caller count together");
    for signer in 0..100 {
        let again = pool.cancel_bundle(cancellation(key(signer, 1), None, caller(4)));
        assert_eq!(again, CancelOutcome::CancelledPermanently, "those of others are remembered");
    }
}

/// Two addresses that took each other's keys over, and fresh keys behind a front or of a /48, could
/// publish without a limit.
#[test]
fn the_published_cancellations_of_a_caller_and_of_a_network_are_bounded() {
    let pool = pool();
    let key = |n| ReplacementKey { uuid: Uuid::from_u128(n), signer: address(7) };
    let published = |cancel: &dyn Fn()| {
        let mut subscription = pool.subscribe_all();
        journal(&mut subscription);
        cancel();
        journal(&mut subscription).len()
    };
    let alternating = published(&|| {
        for nonce in 0..200 {
            for n in 0..64 {
                let holder = caller(1 + nonce % 2);
                pool.cancel_bundle(cancellation(key(n), Some(nonce), holder));
            }
        }
    });
    assert_eq!(alternating, 2 * MAX_UNKNOWN_CANCELLATIONS);
    let behind_front = published(&|| {
        for n in 0..2_000 {
            let signer = Some(address(1_000 + n));
            let holder = Holder::Forwarded { front: [10, 9, 9, 9].into(), signer };
            pool.cancel_bundle(cancellation(key(1_000 + u128::from(n)), None, holder));
        }
    });
    assert_eq!(behind_front, 8 * MAX_UNKNOWN_CANCELLATIONS);
    let of_site = published(&|| {
        for n in 0..2_000_u16 {
            let address = Ipv6Addr::new(0x2001, 0xdb8, 1, n << 8, 0, 0, 0, 1);
            let holder = Holder::caller(address.into());
            pool.cancel_bundle(cancellation(key(10_000 + u128::from(n)), None, holder));
        }
    });
    assert_eq!(of_site, 4 * MAX_UNKNOWN_CANCELLATIONS);
}

/// A cancellation removes the bundles of all blocks in one hold of the lock.
#[test]
fn without_a_head_a_key_has_a_bounded_number_of_blocks() {
    let pool = pool();
    for block in 1..=64 {
        assert_eq!(pool.insert_bundle(keyed_for(1, block, Some(1))), InsertOutcome::Added);
    }
    let reason = RejectReason::TooMany { field: "replacementUuid", value: 64, limit: 64 };
    assert_eq!(pool.insert_bundle(keyed_for(1, 65, Some(1))), InsertOutcome::Rejected(reason));
    assert_eq!(variant(pool.insert_bundle(keyed_for(1, 64, Some(2)))), "Replaced");
}
