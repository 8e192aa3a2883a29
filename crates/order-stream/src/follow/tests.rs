mod forks;

use alloy_consensus::transaction::Recovered;
use alloy_primitives::hex;
use chain_view::{Block, PooledTransaction};
use order_pool::{
    Bundle, BundleParts, Cancellation, Holder, OrderPool, Origin, PoolConfig, PrivateTerms,
    Subscription,
};
use std::time::SystemTime;

use super::*;
use crate::tests::{
    KEY, SIGNER, caller, deliverer, hash, head, message, parts, pool, stored_now, txs,
};

fn insert(pool: &OrderPool, tx: &Recovered<PooledTransaction>, origin: Origin) {
    pool.insert_transaction(Transaction::new(tx.clone(), origin, SystemTime::now()));
}

/// Inserts a private transaction, which its signer may cancel.
fn send(pool: &OrderPool, tx: &Recovered<PooledTransaction>) {
    let terms = PrivateTerms { signer: Some(SIGNER), max_block: 100 };
    pool.insert_transaction(Transaction::private(tx.clone(), terms, SystemTime::now()));
}

fn text(Item { record, hold, .. }: &Item) -> String {
    match record {
        Record::Order(order) if hold.is_some() => format!("held {}", order.id()),
        Record::Order(order) => order.id().to_string(),
        Record::Head(head) => format!("head {} {}", head.head.number, head.mined.len()),
        Record::CancelPrivate(cancellation) => format!("cancel {}", cancellation.hash),
        Record::Cancellation(cancellation) => format!("{cancellation:?}"),
    }
}

/// What a comparison publishes, in short.
fn compare(follower: &mut Follower, pool: &OrderPool) -> Vec<String> {
    follower.begin_comparison();
    let mut published = follow(follower, pool, &mut pool.subscribe_all());
    published.extend(follower.end_comparison().iter().map(text));
    published
}

/// Everything that is published for the events of now.
fn items(follower: &mut Follower, pool: &OrderPool, events: &mut Subscription) -> Vec<Item> {
    let events = std::iter::from_fn(|| events.try_next());
    events.flat_map(|event| follower.on(&event.expect("no lag"), pool)).collect()
}

fn follow(follower: &mut Follower, pool: &OrderPool, events: &mut Subscription) -> Vec<String> {
    items(follower, pool, events).iter().map(text).collect()
}

#[test]
fn a_comparison_publishes_what_is_missing_and_nothing_twice() {
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
fn a_head_names_all_that_its_block_contains_and_the_heads_of_an_outage_follow() {
    let pool = pool();
    let txs = txs(2);
    insert(&pool, &txs[0], Origin::Mempool);
    // Half a gigagas of plain transfers.
    let others = (100..23_898).map(|number| hash(number, 0));
    let mine = |number: u64| {
        let head = head(number, 0, 0);
        // The pool has never held the second.
        let mined = txs.iter().map(|tx| *tx.hash()).chain(others.clone());
        pool.on_head(Block::new(head, mined.collect::<Vec<_>>()));
    };
    let mut follower = Follower::new(Flow::Public, true);
    mine(1);
    assert_eq!(compare(&mut follower, &pool), ["head 1 23800"]);
    mine(2);
    let mut events = pool.subscribe_all();
    let item = events.try_next().expect("the head").expect("no lag");
    // It is not sent before the connection is lost.
    follower.on(&item, &pool).iter().rev().for_each(|item| follower.forget(item));
    (3..6).for_each(mine);
    let published = compare(&mut follower, &pool);
    assert_eq!(published, [2, 3, 4, 5].map(|number| format!("head {number} 23800")));
    // The stream is lost, and blocks come until it is made anew: builders are where it ended.
    follower.forget_all();
    (6..8).for_each(mine);
    let published = compare(&mut follower, &pool);
    assert_eq!(published, [1, 2, 3, 4, 5, 6, 7].map(|number| format!("head {number} 23800")));
}

/// Alone, without the blocks before it, it would be a gap for builders, and so would be the branch that the pool is on.
#[test]
fn a_head_that_the_pool_has_left_meanwhile_is_not_published() {
    let pool = pool();
    let mut follower = Follower::new(Flow::Public, true);
    let mut events = pool.subscribe_all();
    let tell = |heads: &[Head]| {
        heads.iter().for_each(|head| _ = pool.on_head(Block::new(*head, [])));
    };
    tell(&[1, 2, 3, 4].map(|number| head(number, 0, 0)));
    assert_eq!(follow(&mut follower, &pool, &mut events).len(), 4);
    tell(&[head(3, 1, 0), head(4, 1, 1), head(3, 0, 0), head(4, 0, 0), head(5, 0, 0)]);
    // A comparison that began before the flip back.
    assert!(follower.on(&Event::Head(head(4, 1, 1).into()), &pool).is_empty());
    let published = follow(&mut follower, &pool, &mut pool.subscribe_all());
    assert_eq!(published, ["head 5 0".to_owned()]);
}

#[test]
fn a_private_transaction_that_left_unseen_is_cancelled_until_that_is_published() {
    let (before, after) = (pool(), pool());
    let txs = txs(3);
    txs.iter().for_each(|tx| send(&before, tx));
    let [sent, cancelled] = ["tx", "cancel"]
        .map(|what| txs.iter().map(|tx| format!("{what} {}", tx.hash())).collect::<Vec<_>>());
    let mut follower = Follower::new(Flow::Private, true);
    assert_eq!(compare(&mut follower, &before), sent);
    // One is still there, and one has become public: it has not left.
    send(&after, &txs[2]);
    insert(&after, &txs[1], Origin::Mempool);
    follower.begin_comparison();
    assert!(follow(&mut follower, &after, &mut after.subscribe_all()).is_empty());
    let items = follower.end_comparison();
    assert_eq!(items.iter().map(text).collect::<Vec<_>>(), cancelled[..1]);
    let Record::CancelPrivate(cancellation) = items[0].record else { panic!("{items:?}") };
    let first = before.get(txs[0].hash()).expect("the first copy");
    let first = first.as_tx().expect("a transaction").first_seen();
    assert_eq!(cancellation.cancelled_at, first, "what is sent again later is not cancelled");
    // The connection is lost before it is published.
    follower.forget(&items[0]);
    assert_eq!(compare(&mut follower, &after), cancelled[..1]);
    assert!(compare(&mut follower, &after).is_empty());
    follower.forget(&items[0]);
    send(&after, &txs[0]);
    assert_eq!(compare(&mut follower, &after), sent[..1], "it was sent again");
    // The stream was made anew, and the connection is lost before the order is published again.
    follower.forget_all();
    follower.begin_comparison();
    let event = after.subscribe_all().try_next().expect("an event").expect("no lag");
    let items = follower.on(&event, &after);
    follower.forget(items.first().expect("it is published again"));
    assert_eq!(compare(&mut follower, &pool()).len(), 3, "builders have them from before");
}

/// Only an addition was published, and it had been one of the private flow.
#[test]
fn what_was_sent_to_this_machine_and_becomes_public_later_is_published_by_the_public_flow() {
    let pool = pool();
    let txs = txs(2);
    let mut flows =
        [Flow::Public, Flow::Private].map(|flow| (Follower::new(flow, true), pool.subscribe_all()));
    let mut published =
        || flows.each_mut().map(|(follower, events)| follow(follower, &pool, events));
    send(&pool, &txs[0]);
    insert(&pool, &txs[1], Origin::Rpc);
    let both: Vec<_> = txs.iter().map(|tx| format!("tx {}", tx.hash())).collect();
    assert_eq!(published(), [vec![], both.clone()]);
    // Twice, as by two nodes.
    for tx in txs.iter().chain(&txs) {
        insert(&pool, tx, Origin::Mempool);
    }
    assert_eq!(published(), [both, vec![]]);
    // Nor is it cancelled by that flow when it has left.
    pool.on_head(Block::new(head(1, 0, 0), [0, 1].map(|n| *txs[n].hash())));
    assert_eq!(compare(&mut flows[0].0, &pool), ["head 1 2"]);
}

/// A uuid that pools have forgotten may be used and cancelled again.
#[test]
fn each_cancellation_is_a_message_of_its_own() {
    let (pool, mut follower) = (pool(), Follower::new(Flow::Private, true));
    let (holder, signer, at) = (Holder::Host, SIGNER, SystemTime::now());
    let private = PrivateCancellation { hash: hash(1, 0), signer, cancelled_at: at, holder };
    let bundle = Cancellation { key: KEY, nonce: None, holder, sent_at: None };
    for event in [Event::Cancelled(bundle), Event::CancelledPrivate(private)] {
        let mut suffix = || follower.on(&event, &pool)[0].suffix("a");
        assert_ne!(suffix(), suffix());
    }
}

/// A builder knew only who had sent an order first: it left with that one's share, and at that one's last block.
#[test]
fn an_order_that_was_sent_first_by_another_caller_is_held_in_builders_pools_as_in_the_publishers() {
    // A caller may hold two private transactions and two bundles.
    let config = PoolConfig { max_external_txs: 64, max_bundles: 64, ..PoolConfig::default() };
    let [ingested, built] = [(); 2].map(|()| OrderPool::new(config.clone()).expect("a pool"));
    for pool in [&ingested, &built] {
        pool.on_head(Block::new(head(10, 0, 0), []));
    }
    let (mut follower, mut events) = (Follower::new(Flow::Private, true), ingested.subscribe_all());
    let mut deliverer = deliverer(true);
    (deliverer.pool, deliverer.flow) = (built.clone(), Flow::Private);
    let stranger = caller(9);
    let send = |tx: &Recovered<PooledTransaction>, holder, max_block| {
        let terms = PrivateTerms { signer: None, max_block };
        let tx = Transaction::private(tx.clone(), terms, SystemTime::now());
        ingested.insert_transaction(tx.held_by(holder));
    };
    let txs = txs(40);
    for holder in [stranger, Holder::Signer(SIGNER)] {
        send(&txs[0], holder, 11 + u64::from(holder != stranger));
    }
    let send_bundle = |n: usize, holder, block| {
        let tx = Transaction::new(txs[n].clone(), Origin::Rpc, SystemTime::now());
        let parts = BundleParts { holder, ..parts(&tx, block) };
        ingested.insert_bundle(Bundle::new(parts).expect("a bundle"));
    };
    for holder in [stranger, caller(8)] {
        send_bundle(0, holder, 12);
    }
    for (n, tx) in txs.iter().enumerate().skip(1) {
        send(tx, stranger, 12);
        send_bundle(n, stranger, 11);
    }
    for item in items(&mut follower, &ingested, &mut events) {
        let Encoded { id, payload } = item.encode(Instant::now()).expect("a known kind");
        deliverer.message(&message(&hex::encode(id), payload), stored_now(SystemTime::now()));
    }
    for pool in [&ingested, &built] {
        assert_eq!(pool.stats().bundles, 3, "the stranger's two, and the other one's");
        assert!(pool.contains(txs[0].hash()), "the stranger's share was full");
        pool.on_head(Block::new(head(11, 0, 0), []));
        assert!(pool.contains(txs[0].hash()), "its last block was the stranger's");
    }
    // The stream is lost: a builder that starts then knows it too.
    follower.forget_all();
    follower.begin_comparison();
    let published = follow(&mut follower, &ingested, &mut ingested.subscribe_all());
    assert!(published.contains(&format!("held tx {}", txs[0].hash())), "{published:?}");
}
