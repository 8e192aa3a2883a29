//! The retention of a transaction, and that copies do not shorten it.

use std::time::Duration;

use order_pool::{
    Clock, InsertOutcome, OrderPool, OrderStatus, Origin, PoolConfig, PrivateTerms, Transaction,
};

use crate::common::{Spec, caller, head, nth, pool_with_clock, private_from, tx, tx_from, upkeep};

fn pool() -> (OrderPool, Clock) {
    let (pool, clock) = pool_with_clock(PoolConfig::default());
    pool.on_head(head(10, 0, 0, &[]));
    (pool, clock)
}

/// Returns a stranger's copies: one for the next block only, and two raw transactions.
fn copies() -> Vec<Transaction> {
    let terms = PrivateTerms { signer: None, max_block: 11 };
    let raw = |n| tx_from(Spec::default(), Origin::Rpc).held_by(caller(n));
    vec![private_from(Spec::default(), terms).held_by(caller(1)), raw(1), raw(2)]
}

/// Copies replaced the retention by a bound of five blocks, for ten retentions.
#[test]
fn a_strangers_copy_never_shortens_the_retention() {
    for are_first in [true, false] {
        for is_listed in [true, false] {
            let (pool, clock) = pool();
            let announce = || {
                let announced = tx(Spec::default());
                pool.insert_transaction(if is_listed { announced.listed() } else { announced });
            };
            if !are_first {
                announce();
            }
            for copy in copies() {
                pool.insert_transaction(copy);
            }
            if are_first {
                announce();
            }
            let hash = *nth(0).hash();
            for number in 11..=30 {
                pool.on_head(head(number, 0, 0, &[]));
            }
            clock.advance(Duration::from_secs(59));
            upkeep(&pool);
            assert!(pool.contains(&hash), "{are_first} {is_listed}");
            clock.advance(Duration::from_secs(3_600));
            upkeep(&pool);
            assert_eq!(pool.contains(&hash), is_listed, "{are_first}");
        }
    }
}

#[test]
fn an_unlisted_transaction_is_kept_for_another_retention() {
    let (pool, clock) = pool();
    let hash = *nth(0).hash();
    pool.insert_transaction(nth(0));
    pool.on_listed(&[hash]);
    clock.advance(Duration::from_secs(3_600));
    upkeep(&pool);
    assert!(pool.contains(&hash));
    pool.on_unlisted(&[hash]);
    clock.advance(Duration::from_secs(59));
    upkeep(&pool);
    assert!(pool.contains(&hash));
    clock.advance(Duration::from_secs(1));
    upkeep(&pool);
    assert!(!pool.contains(&hash));
    assert_eq!(pool.status(&hash), OrderStatus::MayReturn, "an audit that lists it offers it");
    assert_eq!(pool.insert_transaction(nth(0).listed()), InsertOutcome::Added);
}

#[test]
fn a_callers_transaction_cannot_be_listed() {
    let (pool, clock) = pool();
    pool.insert_transaction(tx_from(Spec::default(), Origin::Rpc).listed());
    pool.on_listed(&[*nth(0).hash()]);
    clock.advance(Duration::from_secs(60));
    upkeep(&pool);
    assert!(pool.is_empty());
}

#[test]
fn a_listed_transaction_that_the_node_replaced_expires_after_a_retention() {
    let (pool, clock) = pool();
    let with_fees = |max_fee, max_tip| tx(Spec { max_fee, max_tip, ..Spec::default() }).listed();
    let (cheap, dear, late) = (with_fees(100, 1), with_fees(110, 2), with_fees(90, 1));
    for tx in [&cheap, &dear, &late] {
        assert_eq!(pool.insert_transaction(tx.clone()), InsertOutcome::Added);
    }
    clock.advance(Duration::from_secs(60));
    upkeep(&pool);
    let is_pooled = [cheap, dear, late].map(|tx| pool.contains(tx.hash()));
    assert_eq!(is_pooled, [false, true, false]);
}

/// Its signer may rely on block 20.
#[test]
fn a_private_transaction_that_becomes_public_is_kept_until_its_block() {
    let (pool, clock) = pool();
    let terms = PrivateTerms { signer: None, max_block: 20 };
    pool.insert_transaction(private_from(Spec::default(), terms).held_by(caller(1)));
    pool.insert_transaction(tx(Spec::default()));
    clock.advance(Duration::from_secs(61));
    upkeep(&pool);
    (11..20).for_each(|number| _ = pool.on_head(head(number, 0, 0, &[])));
    assert_eq!(pool.len(), 1);
    pool.on_head(head(20, 0, 0, &[]));
    assert!(pool.is_empty());
}

#[test]
fn a_raw_transaction_sent_again_is_kept_for_another_retention() {
    let (pool, clock) = pool();
    let raw = || tx_from(Spec::default(), Origin::Rpc).held_by(caller(1));
    pool.insert_transaction(raw());
    for _ in 0..5 {
        clock.advance(Duration::from_secs(50));
        upkeep(&pool);
        assert_eq!(pool.insert_transaction(raw()), InsertOutcome::Known);
    }
    clock.advance(Duration::from_secs(60));
    upkeep(&pool);
    assert!(pool.is_empty());
}
