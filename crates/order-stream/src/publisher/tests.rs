//! What a publisher queues, publishes and counts, without a connection.

use chain_view::Block;
use order_pool::{
    Bundle, BundleParts, CANCELLATION_RETENTION, Cancellation, Clock, Holder, OrderPool, Origin,
    PoolConfig,
};
use testkit::configured;

use super::*;
use crate::{
    config::{Flow, PublisherConfig, ServerConfig},
    tests::{self, KEY, caller, head, keyed_parts, pool},
    wire::Record,
};

fn txs(count: usize) -> Vec<Transaction> {
    let received = |tx| Transaction::new(tx, Origin::Rpc, SystemTime::now());
    tests::txs(count).into_iter().map(received).collect()
}

/// A publisher that has just connected.
fn connected_task(pool: &OrderPool, flow: Flow) -> PublisherTask {
    let config = PublisherConfig { flow, ..PublisherConfig::new(ServerConfig::default(), 1, "a") };
    let mut task = PublisherTask::new(pool, &config, WallClock::default());
    if task.events.is_none() {
        task.begin_comparison();
    }
    task
}

/// A bundle of an unknown caller with the replacement key that all tests share.
fn bundle(tx: &Transaction, nonce: u64) -> Bundle {
    let parts = BundleParts { holder: caller(1), ..keyed_parts(tx, 5, nonce) };
    Bundle::new(parts).expect("a bundle")
}

fn next_item(task: &mut PublisherTask, is_stopping: bool) -> Option<Item> {
    task.next_item(Instant::now(), SystemTime::now(), is_stopping)
}

/// The records that are published now, after the events that were read.
fn publish_all(task: &mut PublisherTask) -> Vec<Record> {
    std::iter::from_fn(|| next_item(task, true)).map(|item| item.record).collect()
}

fn read_events(task: &mut PublisherTask) {
    while task.read_event() {}
    task.end_comparison_if_replayed();
}

/// The bundle reached all builders, because its removal was read after it or had left the log.
#[test]
fn a_bundle_that_was_cancelled_while_it_waited_is_not_published() {
    let txs = txs(700);
    for is_log_lost in [false, true] {
        let clock = Clock::manual();
        let config = configured(PoolConfig::default(), |config| config.log_events = 1);
        let pool = OrderPool::with_clock(config, clock.clone()).expect("a pool");
        let mut task = connected_task(&pool, Flow::Private);
        pool.insert_bundle(bundle(&txs[0], 1));
        read_events(&mut task);
        assert_eq!(task.fair_queue.len(), 1);
        let holder = Holder::Host;
        let cancellation = Cancellation { key: KEY, nonce: None, holder, sent_at: None };
        pool.cancel_bundle(cancellation);
        if is_log_lost {
            clock.advance(CANCELLATION_RETENTION);
            while pool.upkeep() {}
            for tx in &txs {
                pool.insert_transaction(tx.clone());
            }
        }
        assert!(publish_all(&mut task).is_empty(), "the cancellation is not read yet");
        read_events(&mut task);
        let published = publish_all(&mut task);
        let is_bundle =
            |record: &Record| matches!(record, Record::Order(order) if order.as_bundle().is_some());
        assert!(!published.iter().any(is_bundle), "{published:?}");
        assert_eq!(published.len(), if is_log_lost { 700 } else { 1 });
    }
}

/// The counter rose with each replacement, so nobody could use it.
#[test]
fn replaced_and_cancelled_bundles_are_not_counted_as_lost() {
    let (pool, txs) = (pool(), txs(4));
    let mut task = connected_task(&pool, Flow::Private);
    let waiting_and_unsent = |task: &mut PublisherTask| {
        read_events(task);
        (task.fair_queue.len(), task.counters.stats().unsent)
    };
    pool.on_head(Block::new(head(1, 0, 0), []));
    for (nonce, tx) in (1..).zip(&txs[..3]) {
        pool.insert_bundle(bundle(tx, nonce));
        assert_eq!(waiting_and_unsent(&mut task), (1, 0));
    }
    let holder = Holder::Host;
    pool.cancel_bundle(Cancellation { key: KEY, nonce: Some(4), holder, sent_at: None });
    assert_eq!(waiting_and_unsent(&mut task), (0, 0));
    pool.insert_bundle(bundle(&txs[3], 5));
    assert_eq!(waiting_and_unsent(&mut task), (1, 0));
    pool.on_head(Block::new(head(2, 0, 0), [*txs[3].hash()]));
    assert_eq!(waiting_and_unsent(&mut task), (0, 1));
}

/// The pool keeps removed orders until all subscribers have read of them.
#[test]
fn only_the_private_flow_keeps_its_subscription_in_an_outage() {
    for (flow, is_read, subscribers) in
        [(Flow::Public, true, 0), (Flow::Private, false, 1), (Flow::Private, true, 1)]
    {
        let pool = pool();
        pool.insert_transaction(txs(1).remove(0));
        let mut task = connected_task(&pool, flow);
        assert_eq!(pool.stats().subscribers, 1);
        if is_read {
            read_events(&mut task);
        }
        task.on_disconnected();
        assert_eq!(pool.stats().subscribers, subscribers, "{flow:?}, read: {is_read}");
    }
}

/// A replay shows no cancellation of a key that has another bundle, nor one of a minute ago. The
/// publisher forgot the events that it had not read: after each failed connection while it
/// compared, and when the stream had lost messages.
#[test]
fn what_was_cancelled_in_an_outage_is_published_whatever_happens_then() {
    let txs = txs(2);
    let bundle = |tx, block, nonce| {
        let parts = BundleParts { holder: Holder::Host, ..keyed_parts(tx, block, nonce) };
        Bundle::new(parts).expect("a bundle")
    };
    for (is_read, is_reset) in [(false, false), (false, true), (true, false), (true, true)] {
        let pool = pool();
        pool.insert_bundle(bundle(&txs[0], 5, 1));
        let mut task = connected_task(&pool, Flow::Private);
        if is_read {
            read_events(&mut task);
            assert_eq!(publish_all(&mut task).len(), 1);
        }
        task.on_disconnected();
        let holder = Holder::Host;
        pool.cancel_bundle(Cancellation { key: KEY, nonce: Some(2), holder, sent_at: None });
        pool.insert_bundle(bundle(&txs[1], 6, 3));
        task.on_disconnected();
        if is_reset {
            task.on_stream_reset();
        }
        read_events(&mut task);
        let published = publish_all(&mut task);
        let is_cancellation = |record: &&Record| matches!(record, Record::Cancellation(_));
        let cancellations = published.iter().filter(is_cancellation).count();
        let case = format!("read: {is_read}, reset: {is_reset}: {published:?}");
        assert_eq!(cancellations, 1, "{case}");
        let Some(Record::Order(order)) = published.last() else { panic!("{case}") };
        assert_eq!(order.as_bundle().and_then(Bundle::nonce), Some(3), "{case}");
    }
}

/// The comparison replaced the subscription, and with it what the log still had.
#[test]
fn what_was_cancelled_after_the_log_overflowed_is_published() {
    let txs = txs(700);
    let bundle = |tx, block, nonce| {
        let parts = BundleParts { holder: Holder::Host, ..keyed_parts(tx, block, nonce) };
        Bundle::new(parts).expect("a bundle")
    };
    let config = configured(PoolConfig::default(), |config| config.log_events = 1);
    let pool = OrderPool::new(config).expect("a pool");
    pool.insert_bundle(bundle(&txs[0], 5, 1));
    let mut task = connected_task(&pool, Flow::Private);
    read_events(&mut task);
    task.on_disconnected();
    for tx in &txs {
        pool.insert_transaction(tx.clone());
    }
    let holder = Holder::Host;
    pool.cancel_bundle(Cancellation { key: KEY, nonce: Some(2), holder, sent_at: None });
    pool.insert_bundle(bundle(&txs[1], 6, 3));
    read_events(&mut task);
    assert!(task.counters.stats().lost_events > 0);
    let published = publish_all(&mut task);
    let is_cancellation = |record: &&Record| matches!(record, Record::Cancellation(_));
    assert_eq!(published.iter().filter(is_cancellation).count(), 1);
}

/// The public flow publishes it, and no event ended its wait in the private flow.
#[test]
fn a_waiting_transaction_that_a_node_announces_leaves_the_queue_uncounted() {
    let txs = txs(700);
    for is_log_lost in [false, true] {
        let config = configured(PoolConfig::default(), |config| config.log_events = 1);
        let pool = OrderPool::new(config).expect("a pool");
        let mut task = connected_task(&pool, Flow::Private);
        pool.insert_transaction(txs[0].clone().held_by(caller(1)));
        read_events(&mut task);
        assert_eq!(task.fair_queue.len(), 1);
        let (tx, now) = (txs[0].recovered().clone(), SystemTime::now());
        pool.insert_transaction(Transaction::new(tx, Origin::Mempool, now));
        if is_log_lost {
            for tx in &txs[1..] {
                pool.insert_transaction(tx.clone());
            }
        }
        read_events(&mut task);
        assert_eq!(task.fair_queue.len(), 0, "log lost: {is_log_lost}");
        pool.on_head(Block::new(head(1, 0, 0), [*txs[0].hash()]));
        read_events(&mut task);
        assert_eq!(task.counters.stats().unsent, 0);
    }
}

/// The count was 0 while a refused login kept all orders in the pool.
#[test]
fn orders_that_wait_for_a_connection_are_counted_as_unfinished() {
    let (pool, txs) = (pool(), txs(3));
    for tx in &txs {
        pool.insert_transaction(tx.clone());
    }
    let config = PublisherConfig {
        flow: Flow::Private,
        ..PublisherConfig::new(ServerConfig::default(), 1, "a")
    };
    let mut task = PublisherTask::new(&pool, &config, WallClock::default());
    task.report_without_connection();
    let stats = task.counters.stats();
    assert_eq!((stats.published, stats.unpublished, stats.unfinished), (0, 3, 3));
    // Two messages are queued and one order is lost when the next connection ends.
    read_events(&mut task);
    let sent = next_item(&mut task, false).expect("an item");
    task.follower.forget(&sent);
    task.on_disconnected();
    assert_eq!(task.counters.stats().unpublished, 3);
    // The public flow has none of them.
    let config = PublisherConfig { flow: Flow::Public, ..config };
    let mut public = PublisherTask::new(&pool, &config, WallClock::default());
    public.report_without_connection();
    assert_eq!(public.counters.stats().unfinished, 0);
}

#[test]
fn the_log_repeats_every_15_seconds_that_nothing_is_stored() {
    let pool = pool();
    let mut task = connected_task(&pool, Flow::Private);
    let log = tests::capture_log(|| {
        for seconds in [0, 14, 15, 20] {
            task.status.unstored.restart(Instant::now() - Duration::from_secs(seconds));
            task.log_if_unstored();
        }
    });
    let [line] = log.as_slice() else { panic!("{log:?}") };
    assert!(line.contains("nothing is stored: the stream has no leader"), "{line}");
    assert!(line.contains("has disabled JetStream"), "{line}");
    assert!(line.contains("stream=MEMPOOL_1_PRIVATE"), "{line}");
    task.unstored_logged_at = task.unstored_logged_at.map(|then| then - UNSTORED_LOG_INTERVAL);
    assert_eq!(tests::capture_log(|| task.log_if_unstored()).len(), 1, "it repeats the line");
    task.status.unstored.end();
    assert_eq!(tests::capture_log(|| task.log_if_unstored()).len(), 0, "everything is stored");
}
