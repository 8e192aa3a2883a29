//! The messages that a follower publishes for the events of a pool.

mod forks;

use std::collections::HashSet;

use alloy_consensus::transaction::Recovered;
use alloy_eips::{
    eip4844::{Blob, BlobTransactionSidecar, Bytes48},
    eip7594::BlobTransactionSidecarEip7594,
};
use alloy_primitives::hex;
use chain_view::{Block, PooledTransaction};
use order_pool::{
    Bundle, BundleParts, Cancellation, Clock, Holder, OrderPool, Origin, PoolConfig, PrivateTerms,
    Subscription,
};
use testkit::configured;

use super::*;
use crate::{
    deliver::Deliverer,
    tests::{
        KEY, SIGNER, blob_transaction, block_hash, caller, deliverer, head, message, parts, pool,
        stored_now, time, txs,
    },
};

fn insert(pool: &OrderPool, tx: &Recovered<PooledTransaction>, origin: Origin) {
    pool.insert_transaction(Transaction::new(tx.clone(), origin, SystemTime::now()));
}

/// Inserts a private transaction with a signer, who may cancel it.
fn insert_private(pool: &OrderPool, tx: &Recovered<PooledTransaction>) {
    let terms = PrivateTerms { signer: Some(SIGNER), max_block: 100 };
    pool.insert_transaction(Transaction::private(tx.clone(), terms, SystemTime::now()));
}

/// A short description of a message.
fn describe(Item { record, additional_holder, .. }: &Item) -> String {
    match record {
        Record::Order(order) if additional_holder.is_some() => format!("held {}", order.id()),
        Record::Order(order) => order.id().to_string(),
        Record::Head(head) => format!("head {} {}", head.head.number, head.mined.len()),
        Record::CancelPrivate(cancellation) => format!("cancel {}", cancellation.hash),
        Record::Cancellation(cancellation) => format!("{cancellation:?}"),
    }
}

/// Descriptions of the messages that a comparison publishes.
fn compare(follower: &mut Follower, pool: &OrderPool) -> Vec<String> {
    follower.begin_comparison();
    let mut published = follow(follower, pool, &mut pool.subscribe_all());
    published.extend(follower.end_comparison().iter().map(describe));
    published
}

/// The messages for all events so far.
fn items(follower: &mut Follower, pool: &OrderPool, events: &mut Subscription) -> Vec<Item> {
    let events = std::iter::from_fn(|| events.try_next());
    events.flat_map(|event| follower.on_event(&event.expect("no lag"), pool)).collect()
}

fn follow(follower: &mut Follower, pool: &OrderPool, events: &mut Subscription) -> Vec<String> {
    items(follower, pool, events).iter().map(describe).collect()
}

#[test]
fn a_comparison_publishes_missing_orders_and_none_twice() {
    let pool = pool();
    let txs = txs(3);
    let mut follower = Follower::new(Flow::Public, true);
    insert(&pool, &txs[0], Origin::Mempool);
    assert_eq!(compare(&mut follower, &pool), [format!("tx {}", txs[0].hash())]);
    insert(&pool, &txs[1], Origin::Mempool);
    pool.on_head(Block::new(Head::new(1, B256::repeat_byte(1), B256::ZERO), [*txs[0].hash()]));
    let published = compare(&mut follower, &pool);
    assert_eq!(published, ["head 1 1".to_owned(), format!("tx {}", txs[1].hash())]);
    assert_eq!(follower.published.len(), 1, "the mined one is forgotten");
    assert!(compare(&mut follower, &pool).is_empty());
    follower.forget_all();
    assert_eq!(compare(&mut follower, &pool).len(), 2);
}

#[test]
fn a_head_lists_its_whole_block_and_heads_of_an_outage_follow() {
    let pool = pool();
    let txs = txs(2);
    insert(&pool, &txs[0], Origin::Mempool);
    // Half a gigagas of plain transfers.
    let others = (100..23_898).map(|number| block_hash(number, 0));
    let mine = |number: u64| {
        let head = head(number, 0, 0);
        // The pool has never held the second transaction.
        let mined = txs.iter().map(|tx| *tx.hash()).chain(others.clone());
        pool.on_head(Block::new(head, mined.collect::<Vec<_>>()));
    };
    let mut follower = Follower::new(Flow::Public, true);
    mine(1);
    assert_eq!(compare(&mut follower, &pool), ["head 1 23800"]);
    mine(2);
    let mut events = pool.subscribe_all();
    let item = events.try_next().expect("the head").expect("no lag");
    // The connection is lost before the head is sent.
    for item in follower.on_event(&item, &pool).iter().rev() {
        follower.forget(item);
    }
    (3..6).for_each(mine);
    let published = compare(&mut follower, &pool);
    assert_eq!(published, [2, 3, 4, 5].map(|number| format!("head {number} 23800")));
    // The stream is lost, and blocks come until it is recreated. Builders stand where it ended.
    follower.forget_all();
    (6..8).for_each(mine);
    let published = compare(&mut follower, &pool);
    assert_eq!(published, [1, 2, 3, 4, 5, 6, 7].map(|number| format!("head {number} 23800")));
}

/// Without the blocks before it the head would be a gap for builders, and so would the branch that
/// the pool is on.
#[test]
fn a_head_that_the_pool_has_already_left_is_not_published() {
    let pool = pool();
    let mut follower = Follower::new(Flow::Public, true);
    let mut events = pool.subscribe_all();
    let apply_heads = |heads: &[Head]| {
        for head in heads {
            pool.on_head(Block::new(*head, []));
        }
    };
    apply_heads(&[1, 2, 3, 4].map(|number| head(number, 0, 0)));
    assert_eq!(follow(&mut follower, &pool, &mut events).len(), 4);
    apply_heads(&[head(3, 1, 0), head(4, 1, 1), head(3, 0, 0), head(4, 0, 0), head(5, 0, 0)]);
    // A comparison began before the pool came back to the first branch.
    assert!(follower.on_event(&Event::Head(head(4, 1, 1).into()), &pool).is_empty());
    let published = follow(&mut follower, &pool, &mut pool.subscribe_all());
    assert_eq!(published, ["head 5 0".to_owned()]);
}

#[test]
fn a_private_transaction_that_left_unseen_is_cancelled() {
    let (before, after) = (pool(), pool());
    let txs = txs(3);
    for tx in &txs {
        insert_private(&before, tx);
    }
    let [sent, cancelled] = ["tx", "cancel"]
        .map(|kind| txs.iter().map(|tx| format!("{kind} {}", tx.hash())).collect::<Vec<_>>());
    let mut follower = Follower::new(Flow::Private, true);
    assert_eq!(compare(&mut follower, &before), sent);
    // One is still pooled, and one has become public, so it has not left.
    insert_private(&after, &txs[2]);
    insert(&after, &txs[1], Origin::Mempool);
    follower.begin_comparison();
    assert!(follow(&mut follower, &after, &mut after.subscribe_all()).is_empty());
    let items = follower.end_comparison();
    assert_eq!(items.iter().map(describe).collect::<Vec<_>>(), cancelled[..1]);
    let Record::CancelPrivate(cancellation) = items[0].record else { panic!("{items:?}") };
    let first = before.get(txs[0].hash()).expect("the first copy");
    let first = first.as_tx().expect("a transaction").first_seen();
    assert_eq!(cancellation.cancelled_at, first, "a later submission is not cancelled");
    // The connection is lost before the cancellation is published.
    follower.forget(&items[0]);
    assert_eq!(compare(&mut follower, &after), cancelled[..1]);
    assert!(compare(&mut follower, &after).is_empty());
    follower.forget(&items[0]);
    insert_private(&after, &txs[0]);
    assert_eq!(compare(&mut follower, &after), sent[..1], "it was sent again");
    // The stream was recreated, and the connection is lost before the order is published again.
    follower.forget_all();
    follower.begin_comparison();
    let event = after.subscribe_all().try_next().expect("an event").expect("no lag");
    let items = follower.on_event(&event, &after);
    follower.forget(items.first().expect("it is published again"));
    assert_eq!(compare(&mut follower, &pool()).len(), 3, "builders have them from before");
}

/// The order's entry had room for one cancellation, and that of the second signer took its place.
#[test]
fn a_cancellation_is_published_although_another_signer_has_sent_the_transaction() {
    let (before, after) = (pool(), pool());
    let tx = &txs(1)[0];
    let [sent, cancelled] = ["tx", "cancel"].map(|kind| format!("{kind} {}", tx.hash()));
    let insert_as = |pool: &OrderPool, signer| {
        let terms = PrivateTerms { signer: Some(signer), max_block: 100 };
        pool.insert_transaction(Transaction::private(tx.clone(), terms, SystemTime::now()));
    };
    let other_signer = Address::repeat_byte(7);
    let mut follower = Follower::new(Flow::Private, true);
    insert_as(&before, SIGNER);
    assert_eq!(compare(&mut follower, &before), std::slice::from_ref(&sent));
    // The first signer's left the pool unseen, and the second signer has sent it since.
    insert_as(&after, other_signer);
    follower.begin_comparison();
    let published = follow(&mut follower, &after, &mut after.subscribe_all());
    assert_eq!(published, [sent], "builders have it on the first signer's terms");
    let items = follower.end_comparison();
    let Some(Item { record: Record::CancelPrivate(cancellation), .. }) = items.first() else {
        panic!("{items:?}")
    };
    assert_eq!((items.len(), cancellation.signer), (1, SIGNER));
    // The connection is lost before it is sent, and the second signer's is still pooled.
    follower.forget(&items[0]);
    assert_eq!(compare(&mut follower, &after), [cancelled]);
    assert!(compare(&mut follower, &after).is_empty());
}

fn deliver(deliverer: &mut Deliverer, item: &Item) {
    let Encoded { id, payload } =
        item.encode(Instant::now(), &ServerClock::default()).expect("a known kind");
    deliverer.deliver(&message(&hex::encode(id), payload), stored_now(SystemTime::now()));
}

/// Builders lost everything that nodes had listed for longer than a minute, and builders that
/// started later never had it.
#[test]
fn what_a_pool_holds_for_long_stays_at_builders() {
    let (ingested, tx) = (pool(), txs(1).remove(0));
    insert(&ingested, &tx, Origin::Mempool);
    let (mut follower, mut events) = (Follower::new(Flow::Public, true), ingested.subscribe_all());
    let clock = Clock::manual();
    let mut builder = deliverer(true);
    builder.pool = OrderPool::with_clock(PoolConfig::default(), clock.clone()).expect("a pool");
    let start = Instant::now();
    let first = items(&mut follower, &ingested, &mut events).remove(0);
    follower.on_published(&first, start);
    deliver(&mut builder, &first);
    let next_repeat = |follower: &mut Follower, seconds| {
        follower.next_repeat(start + Duration::from_secs(seconds), time(seconds), &ingested)
    };
    assert!(next_repeat(&mut follower, 29).is_none());
    let mut suffixes = vec![None];
    for seconds in [30, 60, 90, 120] {
        clock.advance(REPEAT_INTERVAL);
        while builder.pool.upkeep() {}
        let again = next_repeat(&mut follower, seconds).expect("it is published again");
        suffixes.push(again.message_id_suffix("a"));
        assert_eq!(suffixes.last(), Some(&again.message_id_suffix("b")), "the stream has it once");
        follower.on_published(&again, start + Duration::from_secs(seconds));
        assert!(next_repeat(&mut follower, seconds).is_none());
        deliver(&mut builder, &again);
        let mut late_builder = deliverer(true);
        deliver(&mut late_builder, &again);
        for builder in [&builder, &late_builder] {
            assert!(builder.pool.contains(tx.hash()), "after {seconds} s");
        }
    }
    suffixes.dedup();
    assert_eq!(suffixes.len(), 5, "the stream takes each for another message: {suffixes:?}");
    ingested.on_head(Block::new(head(1, 0, 0), [*tx.hash()]));
    follow(&mut follower, &ingested, &mut events);
    assert!(next_repeat(&mut follower, 150).is_none(), "it is mined");
    assert_eq!(follower.next_repeat_at(start), None);
}

/// Without heads nothing takes them out.
#[test]
fn entries_of_orders_that_left_the_pool_are_bounded() {
    let ingested = pool();
    let mut follower = Follower::new(Flow::Public, true);
    let mut events = ingested.subscribe_all();
    ingested.on_head(Block::new(head(1, 0, 0), []));
    let start = Instant::now();
    for (n, few) in txs(3_000).chunks(100).enumerate() {
        few.iter().for_each(|tx| insert(&ingested, tx, Origin::Mempool));
        for item in items(&mut follower, &ingested, &mut events) {
            follower.on_published(&item, start);
        }
        let mined: Vec<_> = few.iter().map(|tx| *tx.hash()).collect();
        ingested.on_head(Block::new(head(2 + n as u64, 0, 0), mined));
    }
    follow(&mut follower, &ingested, &mut events);
    assert_eq!(follower.published.len(), 0);
    assert!(follower.repeats.due.len() <= MAX_OUTDATED_REPEATS + 200);
}

/// A node that stays behind lists for ever what blocks contain.
#[test]
fn nothing_is_published_again_without_heads() {
    let (ingested, start) = (pool(), Instant::now());
    let (mut follower, mut events) = (Follower::new(Flow::Public, true), ingested.subscribe_all());
    txs(2).iter().for_each(|tx| insert(&ingested, tx, Origin::Mempool));
    ingested.on_head(Block::new(head(1, 0, 0), []));
    for item in items(&mut follower, &ingested, &mut events) {
        follower.on_published(&item, start);
    }
    let after = |seconds| start + Duration::from_secs(seconds);
    let is_repeated = |follower: &mut Follower, seconds| {
        follower.next_repeat(after(seconds), time(seconds), &ingested).is_some()
    };
    assert!(is_repeated(&mut follower, 120));
    assert_eq!(follower.next_repeat_at(after(121)), None, "nobody waits for it");
    assert!(!is_repeated(&mut follower, 121));
    ingested.on_head(Block::new(head(2, 0, 0), []));
    for item in items(&mut follower, &ingested, &mut events) {
        follower.on_published(&item, after(122));
    }
    assert_eq!(follower.next_repeat_at(after(122)), Some(after(122)));
    assert!(is_repeated(&mut follower, 122));
}

#[test]
fn orders_are_published_again_with_pauses() {
    let (ingested, start) = (pool(), Instant::now());
    txs(100).iter().for_each(|tx| insert(&ingested, tx, Origin::Mempool));
    let mut follower = Follower::new(Flow::Public, true);
    for item in items(&mut follower, &ingested, &mut ingested.subscribe_all()) {
        follower.on_published(&item, start);
    }
    let mut counts = Vec::new();
    let mut now = start + REPEAT_INTERVAL;
    while let Some(repeat_at) = follower.next_repeat_at(now) {
        now = repeat_at;
        let repeats = std::iter::from_fn(|| follower.next_repeat(now, time(30), &ingested));
        counts.push(repeats.count());
    }
    assert_eq!((counts, now), (vec![32, 32, 32, 4], start + REPEAT_INTERVAL + 3 * REPEAT_PAUSE));
}

/// The second message had the id of the first, so the stream did not store it, and builders kept
/// proofs that no block can use any more.
#[test]
fn the_sidecar_that_a_node_announces_replaces_an_older_one_at_builders() {
    let (blobs, points) = (vec![Blob::ZERO], vec![Bytes48::ZERO]);
    let (commitments, proofs) = (points.clone(), points);
    let old = BlobTransactionSidecar { blobs: blobs.clone(), commitments, proofs };
    let hashes: Vec<_> = old.versioned_hashes().collect();
    let cell_proofs = vec![Bytes48::ZERO; 128];
    let new = BlobTransactionSidecarEip7594::new(blobs, old.commitments.clone(), cell_proofs);
    let [old, new] = [old.into(), new.into()]
        .map(|sidecar| Recovered::new_unchecked(blob_transaction(hashes.clone(), sidecar), SIGNER));
    let (ingested, mut follower) = (pool(), Follower::new(Flow::Public, true));
    let (mut events, mut builder) = (ingested.subscribe_all(), deliverer(true));
    let mut stored = HashSet::new();
    for (tx, origin) in [(&old, Origin::Rpc), (&new, Origin::Mempool)] {
        insert(&ingested, tx, origin);
        for item in items(&mut follower, &ingested, &mut events) {
            if stored.insert(item.message_id_suffix("a")) {
                deliver(&mut builder, &item);
            }
        }
    }
    let order = builder.pool.get(new.hash()).expect("the transaction");
    assert_eq!(order.as_tx().map(Transaction::recovered), Some(&new));
}

/// Only additions were published, and this one had belonged to the private flow.
#[test]
fn a_transaction_that_becomes_public_is_published_by_the_public_flow() {
    let pool = pool();
    let txs = txs(2);
    let mut flows =
        [Flow::Public, Flow::Private].map(|flow| (Follower::new(flow, true), pool.subscribe_all()));
    let mut published =
        || flows.each_mut().map(|(follower, events)| follow(follower, &pool, events));
    insert_private(&pool, &txs[0]);
    insert(&pool, &txs[1], Origin::Rpc);
    let both: Vec<_> = txs.iter().map(|tx| format!("tx {}", tx.hash())).collect();
    assert_eq!(published(), [vec![], both.clone()]);
    // Two nodes announce them.
    for tx in txs.iter().chain(&txs) {
        insert(&pool, tx, Origin::Mempool);
    }
    assert_eq!(published(), [both, vec![]]);
    // The private flow does not cancel it when it leaves the pool.
    pool.on_head(Block::new(head(1, 0, 0), [0, 1].map(|n| *txs[n].hash())));
    assert_eq!(compare(&mut flows[0].0, &pool), ["head 1 2"]);
}

/// A searcher may use and cancel a uuid again that pools have forgotten.
#[test]
fn each_cancellation_has_a_unique_message_id() {
    let (pool, mut follower) = (pool(), Follower::new(Flow::Private, true));
    let holder = Holder::Host;
    let private = PrivateCancellation {
        hash: block_hash(1, 0),
        signer: SIGNER,
        cancelled_at: SystemTime::now(),
        holder,
    };
    let bundle = Cancellation { key: KEY, nonce: None, holder, sent_at: None };
    for event in [Event::Cancelled(bundle), Event::CancelledPrivate(private)] {
        let mut suffix = || follower.on_event(&event, &pool)[0].message_id_suffix("a");
        assert_ne!(suffix(), suffix());
    }
}

/// A builder knew only the holder that had sent an order first. The order left with the share of
/// that holder, and at the last block of that holder's terms.
#[test]
fn builders_count_an_order_for_every_holder_that_sent_it() {
    // One caller may hold two private transactions and two bundles.
    let config = configured(PoolConfig::default(), |config| {
        config.max_external_txs = 64;
        config.max_bundles = 64;
    });
    let [ingested, built] = [(); 2].map(|()| OrderPool::new(config.clone()).expect("a pool"));
    for pool in [&ingested, &built] {
        pool.on_head(Block::new(head(10, 0, 0), []));
    }
    let (mut follower, mut events) = (Follower::new(Flow::Private, true), ingested.subscribe_all());
    let mut deliverer = deliverer(true);
    (deliverer.pool, deliverer.flow) = (built.clone(), Flow::Private);
    let unknown = caller(9);
    let submit = |tx: &Recovered<PooledTransaction>, holder, max_block| {
        let terms = PrivateTerms { signer: None, max_block };
        let tx = Transaction::private(tx.clone(), terms, SystemTime::now());
        ingested.insert_transaction(tx.held_by(holder));
    };
    let txs = txs(40);
    for holder in [unknown, Holder::Signer(SIGNER)] {
        submit(&txs[0], holder, 11 + u64::from(holder != unknown));
    }
    let submit_bundle = |n: usize, holder, block| {
        let tx = Transaction::new(txs[n].clone(), Origin::Rpc, SystemTime::now());
        let parts = BundleParts { holder, ..parts(&tx, block) };
        ingested.insert_bundle(Bundle::new(parts).expect("a bundle"));
    };
    for holder in [unknown, caller(8)] {
        submit_bundle(0, holder, 12);
    }
    for (n, tx) in txs.iter().enumerate().skip(1) {
        submit(tx, unknown, 12);
        submit_bundle(n, unknown, 11);
    }
    for item in items(&mut follower, &ingested, &mut events) {
        deliver(&mut deliverer, &item);
    }
    for pool in [&ingested, &built] {
        assert_eq!(
            pool.stats().bundles,
            3,
            "two of the unknown caller, and one of the other holder"
        );
        assert!(pool.contains(txs[0].hash()), "the share of the unknown caller is full");
        pool.on_head(Block::new(head(11, 0, 0), []));
        assert!(pool.contains(txs[0].hash()), "the unknown caller's terms have ended");
    }
    // The stream is lost, and a builder that starts afterwards knows all holders too.
    follower.forget_all();
    follower.begin_comparison();
    let published = follow(&mut follower, &ingested, &mut ingested.subscribe_all());
    assert!(published.contains(&format!("held tx {}", txs[0].hash())), "{published:?}");
}
