//! Heads: their place among the events, and reorgs.

use std::collections::HashSet;

use order_pool::{Event, Holder, InsertOutcome, OrderPool, OrderStatus, PoolConfig, PrivateTerms};
use testkit::configured;

use crate::common::{
    Spec, address, bundle_for, caller, head, insert_all, nth, pool_with, private_from, tx, upkeep,
};

fn pool() -> OrderPool {
    pool_with(configured(PoolConfig::default(), |config| config.log_events = 512))
}

/// A transaction that lost its nonce to a block and was too large to be kept must not stay known
/// once the block is undone, or nobody could insert it again.
#[test]
fn an_order_too_large_to_keep_for_a_reorg_may_return() {
    let pool = pool();
    // One byte more than the 64 MiB that are kept.
    let large = || tx(Spec { sender: 1, input_bytes: 64 << 20, ..Default::default() });
    pool.insert_transaction(large());
    pool.on_head(head(1, 0, 0, &[]));
    let old = head(2, 0, 0, &[]);
    pool.on_head(old.clone());
    pool.on_nonces(old.head.hash, [(address(1), 1)]);
    assert!(pool.is_empty());
    pool.on_head(head(2, 1, 0, &[]));
    assert_eq!(pool.stats().rejected, 1, "the loss is counted");
    assert_eq!(pool.status(large().hash()), OrderStatus::Unknown, "an audit must offer it");
    assert_eq!(pool.insert_transaction(large()), InsertOutcome::Added);
}

/// Transactions of older blocks would fill the store, and be noted as dropped each time that a
/// caller sends them.
#[test]
fn a_late_transaction_is_kept_for_the_newest_eight_blocks() {
    for (latest, is_kept) in [(9, true), (10, false)] {
        let (pool, late) = (pool(), nth(1));
        pool.on_head(head(1, 0, 0, &[]));
        pool.on_head(head(2, 0, 0, &[*late.hash()]));
        (3..=latest).for_each(|number| _ = pool.on_head(head(number, 0, 0, &[])));
        assert_eq!(pool.insert_transaction(late.clone()), InsertOutcome::Mined);
        pool.on_head(head(2, 1, 0, &[]));
        assert_eq!(pool.contains(late.hash()), is_kept, "{latest}");
    }
}

/// Nine addresses send large bundles around one transaction, which one of them then has mined.
#[test]
fn a_reorg_puts_a_transaction_back_beside_many_invalidated_bundles() {
    let pool = pool();
    let private = private_from(Spec::default(), PrivateTerms { signer: None, max_block: 5 });
    pool.on_head(head(1, 0, 0, &[]));
    assert_eq!(pool.insert_transaction(private.clone()), InsertOutcome::Added);
    for n in 0..9 * 15 {
        let large = Spec { sender: 2, salt: n, input_bytes: 512 << 10, ..Spec::default() };
        let bundle = bundle_for(5, vec![nth(1), tx(large)], caller(n / 15));
        assert_eq!(pool.insert_bundle(bundle), InsertOutcome::Added);
    }
    pool.on_head(head(2, 0, 0, &[*private.hash(), *nth(1).hash()]));
    upkeep(&pool);
    assert!(pool.is_empty());
    pool.on_head(head(2, 1, 0, &[]));
    assert!(pool.contains(private.hash()), "nobody else can send it");
}

/// Upkeep inspected the first bundle for ever, and removed no other one.
#[test]
fn a_returned_block_invalidates_bundles_once_its_nonces_are_applied_again() {
    let (txs, nonces) = (|| (0..500).map(nth), || (0..500).map(|n| (address(n), 1)));
    let mined: Vec<_> = txs().map(|tx| *tx.hash()).collect();
    // Also with a node that reports a block first with transactions and then without.
    for mined in [&[], &mined[..]] {
        let (pool, block) = (pool(), |mined| head(11, 0, 0, mined));
        pool.on_head(head(10, 0, 0, &[]));
        for tx in txs() {
            let bundle = bundle_for(14, vec![tx], Holder::Host);
            assert_eq!(pool.insert_bundle(bundle), InsertOutcome::Added);
        }
        pool.on_head(block(mined));
        if mined.is_empty() {
            pool.on_nonces(block(&[]).head.hash, nonces());
        }
        pool.on_head(head(11, 1, 0, &[]));
        pool.on_head(block(&[]));
        assert!((0..100).any(|_| !pool.upkeep()), "it does not end");
        assert_eq!(pool.len(), 500);
        pool.on_nonces(block(&[]).head.hash, nonces());
        upkeep(&pool);
        assert!(pool.is_empty());
    }
}

/// Readers begin at any moment while heads arrive. A reader that has read head N holds no
/// transaction of the blocks up to N.
#[test]
fn a_reader_that_saw_a_head_holds_none_of_its_transactions() {
    const BLOCKS: u64 = 60;
    let pool = pool();
    let txs = |block: u64| (block * 4..block * 4 + 4).map(|n| *nth(n).hash()).collect::<Vec<_>>();
    let check = |subscription: &mut order_pool::Subscription| {
        let (mut held, mut number) = (HashSet::new(), 0);
        while let Some(event) = subscription.try_next() {
            match event {
                Ok(Event::Added(order)) => drop(held.insert(*order.id().hash())),
                Ok(Event::Removed { order, .. }) => drop(held.remove(order.id().hash())),
                Ok(Event::Head(head)) => {
                    assert!(head.number > number, "heads ascend");
                    number = head.number;
                }
                Ok(_) => {}
                Err(_) => return number,
            }
            let late = (1..=number).flat_map(txs).any(|hash| held.contains(&hash));
            assert!(!late, "held after head {number}");
        }
        number
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| while check(&mut pool.subscribe_all()) < BLOCKS {});
        }
        for block in 1..=BLOCKS {
            insert_all(&pool, block * 4..block * 4 + 4);
            pool.on_head(head(block, 0, 0, &txs(block)));
        }
    });
}
