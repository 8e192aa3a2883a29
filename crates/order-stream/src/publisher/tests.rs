use chain_view::Block;
use order_pool::{
    Bundle, BundleParts, CANCELLATION_RETENTION, Cancellation, Clock, Holder, OrderPool, Origin,
    PoolConfig,
};

use super::*;
use crate::{
    config::{Flow, PublisherConfig, ServerConfig},
    tests::{self, KEY, caller, head, keyed_parts, pool},
    wire::Record,
};

fn txs(count: usize) -> Vec<Transaction> {
    let sent = |tx| Transaction::new(tx, Origin::Rpc, SystemTime::now());
    tests::txs(count).into_iter().map(sent).collect()
}

/// Of a flow, with a connection.
fn connected(pool: &OrderPool, flow: Flow) -> Run {
    let config = PublisherConfig::new(ServerConfig::default(), 1, "a");
    let mut run = Run::new(pool, &PublisherConfig { flow, ..config }, WallClock::default());
    run.compare();
    run
}

/// A stranger's, for a block, in a place that others take.
fn bundle(tx: &Transaction, nonce: u64) -> Bundle {
    let parts = BundleParts { holder: caller(1), ..keyed_parts(tx, 5, nonce) };
    Bundle::new(parts).expect("a bundle")
}

/// What is published of what was read until now.
fn published(run: &mut Run) -> Vec<Record> {
    let items = std::iter::from_fn(|| run.next_item(true));
    items.map(|item| item.record).collect()
}

/// Reads the events of now.
fn read(run: &mut Run) {
    while run.read_one() {}
    run.end_comparison();
}

/// It came to all builders: its removal was read after it, or had left the log.
#[test]
fn a_bundle_that_is_cancelled_before_its_turn_is_not_published_though_nothing_was_read() {
    let txs = txs(700);
    for is_log_lost in [false, true] {
        let clock = Clock::manual();
        let config = PoolConfig { log_events: 1, ..PoolConfig::default() };
        let pool = OrderPool::with_clock(config, clock.clone()).expect("a pool");
        let mut run = connected(&pool, Flow::Private);
        pool.insert_bundle(bundle(&txs[0], 1));
        read(&mut run);
        assert_eq!(run.turns.len(), 1);
        let holder = Holder::Host;
        let cancellation = Cancellation { key: KEY, nonce: None, holder, sent_at: None };
        pool.cancel_bundle(cancellation);
        if is_log_lost {
            clock.advance(CANCELLATION_RETENTION);
            while pool.upkeep() {}
            txs.iter().for_each(|tx| _ = pool.insert_transaction(tx.clone()));
        }
        assert!(published(&mut run).is_empty());
        read(&mut run);
        let all = published(&mut run);
        let is_bundle =
            |record: &Record| matches!(record, Record::Order(order) if order.as_bundle().is_some());
        assert!(!all.iter().any(is_bundle), "{all:?}");
        assert_eq!(all.len(), if is_log_lost { 700 } else { 1 });
    }
}

/// The counter rose with each replacement, so nobody could watch it.
#[test]
fn what_is_replaced_or_cancelled_before_its_turn_is_not_counted_as_lost() {
    let (pool, txs) = (pool(), txs(4));
    let mut run = connected(&pool, Flow::Private);
    let unsent = |run: &mut Run| {
        read(run);
        let stats = run.counters.stats();
        (run.turns.len(), stats.unsent)
    };
    pool.on_head(Block::new(head(1, 0, 0), []));
    for (nonce, tx) in (1..).zip(&txs[..3]) {
        pool.insert_bundle(bundle(tx, nonce));
        assert_eq!(unsent(&mut run), (1, 0));
    }
    let holder = Holder::Host;
    pool.cancel_bundle(Cancellation { key: KEY, nonce: Some(4), holder, sent_at: None });
    assert_eq!(unsent(&mut run), (0, 0));
    pool.insert_bundle(bundle(&txs[3], 5));
    assert_eq!(unsent(&mut run), (1, 0));
    pool.on_head(Block::new(head(2, 0, 0), [*txs[3].hash()]));
    assert_eq!(unsent(&mut run), (0, 1));
}

/// The pool keeps what was removed until all have read of it.
#[test]
fn an_outage_keeps_nothing_in_the_pools_log_but_what_the_private_flow_goes_on_with() {
    for (flow, is_read, subscribers) in
        [(Flow::Public, true, 0), (Flow::Private, false, 0), (Flow::Private, true, 1)]
    {
        let pool = pool();
        pool.insert_transaction(txs(1).remove(0));
        let mut run = connected(&pool, flow);
        assert_eq!(pool.stats().subscribers, 1);
        if is_read {
            read(&mut run);
        }
        run.disconnected();
        assert_eq!(pool.stats().subscribers, subscribers, "{flow:?}, read: {is_read}");
    }
}

/// The public flow publishes it, and no event told that the turn was over.
#[test]
fn what_the_node_announces_before_its_turn_waits_no_longer_and_is_not_counted_as_lost() {
    let txs = txs(700);
    for is_log_lost in [false, true] {
        let config = PoolConfig { log_events: 1, ..PoolConfig::default() };
        let pool = OrderPool::new(config).expect("a pool");
        let mut run = connected(&pool, Flow::Private);
        let of_caller = txs[0].clone().held_by(caller(1));
        pool.insert_transaction(of_caller);
        read(&mut run);
        assert_eq!(run.turns.len(), 1);
        let (tx, now) = (txs[0].recovered().clone(), SystemTime::now());
        pool.insert_transaction(Transaction::new(tx, Origin::Mempool, now));
        if is_log_lost {
            txs[1..].iter().for_each(|tx| _ = pool.insert_transaction(tx.clone()));
        }
        read(&mut run);
        assert_eq!(run.turns.len(), 0, "log lost: {is_log_lost}");
        pool.on_head(Block::new(head(1, 0, 0), [*txs[0].hash()]));
        read(&mut run);
        assert_eq!(run.counters.stats().unsent, 0);
    }
}
