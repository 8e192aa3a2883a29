//! Machines that publish and builders that read, with nothing failing but their own processes.

use alloy_primitives::Address;
use order_pool::{
    Bundle, BundleParts, CANCELLATION_RETENTION, CancelOutcome, CancelPrivateOutcome, Cancellation,
    Clock, Holder, InsertOutcome, PrivateTerms, ReplacementKey,
};

use super::*;

#[tokio::test]
async fn a_builders_pool_becomes_the_publishers_and_stays_it() {
    let (stage, ingested, built) = Stage::with_pools().await;
    let txs = transactions(1, 400, 20);
    insert(&ingested, &txs[..200]);
    let (publisher, source) = stage.both(Flow::Public, &ingested, &built);
    until_equal(&ingested, &built).await;
    insert(&ingested, &txs[200..]);
    until_equal(&ingested, &built).await;
    let order = built.get(txs[300].hash()).expect("an order");
    let tx = order.as_tx().expect("a transaction");
    assert_eq!((tx.sender(), tx.first_seen()), (txs[300].sender(), txs[300].first_seen()));
    assert_eq!(tx.recovered(), txs[300].recovered());
    ingested.on_head(block(1, 0, 0, &[*txs[0].hash(), *txs[399].hash()]));
    until("the head", || built.head() == ingested.head()).await;
    until_equal(&ingested, &built).await;
    until("a live source", || source.state() == State::Live).await;
    let stats = finish(publisher).await;
    assert_eq!((stats.published, stats.stored, stats.comparisons), (401, 401, 1));
    let stats = finish_source(source).await;
    assert_eq!((stats.received, stats.pooled, stats.missed), (401, 401, 0));
}

#[tokio::test]
async fn two_machines_whose_pools_overlap_store_the_union_once() {
    let stage = Stage::new().await;
    let txs = transactions(2, 1_000, 0);
    let (first, second) = (pool(), pool());
    let publishers =
        [(&first, "a"), (&second, "b")].map(|(pool, machine)| stage.publisher(pool, machine));
    let built = [pool(), pool()];
    let sources = [(0, "one"), (1, "two")].map(|(n, name)| stage.source(&built[n], name));
    for chunk in txs.chunks(50) {
        // Of ten, seven reach both, two only the first and one only the second.
        for (n, tx) in chunk.iter().enumerate() {
            if n % 10 != 9 {
                first.insert_transaction(tx.clone());
            }
            if n % 10 < 7 || n % 10 == 9 {
                second.insert_transaction(tx.clone());
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
        publishers.iter().for_each(|publisher| _ = balanced(publisher.stats()));
    }
    for pool in &built {
        until("the union", || pool.stats().txs == 1_000).await;
        assert_eq!(hashes(pool), txs.iter().map(|tx| *tx.hash()).collect());
    }
    let [a, b] = publishers;
    let (a, b) = (finish(a).await, finish(b).await);
    assert_eq!((a.published, b.published), (900, 800));
    assert_eq!((a.stored + b.stored, a.duplicate + b.duplicate), (1_000, 700), "{a:?} {b:?}");
    for source in sources {
        let stats = finish_source(source).await;
        assert_eq!((stats.received, stats.pooled, stats.known), (1_000, 1_000, 0));
    }
}

#[tokio::test]
async fn what_a_block_contains_leaves_a_builder_though_the_machine_of_its_head_never_had_it() {
    let (mut stage, first, built) = Stage::with_pools().await;
    let (second, txs) = (pool(), transactions(11, 2, 0));
    let mine =
        |number, mined: &Transaction| _ = first.on_head(block(number, 0, 0, &[*mined.hash()]));
    let source = stage.source(&built, "one");
    let a = stage.publisher(&first, "a");
    let b = stage.publisher(&second, "b");
    insert(&second, &txs);
    until("both", || built.len() == 2).await;
    mine(1, &txs[0]);
    until("the first is gone", || !built.contains(txs[0].hash())).await;
    // Two heads come while nothing can be published.
    stage.server.kill9().expect("a dead server");
    until("it knows", || is_lost(a.state())).await;
    mine(2, &txs[1]);
    mine(3, &txs[0]);
    stage.server.restart().expect("a server");
    until("the second is gone", || built.is_empty()).await;
    finish_all([a, b], [source]).await;
}

/// The way back was the duplicate of what the other machine had told before, and the builder stood on the block before.
#[tokio::test]
async fn a_machine_that_comes_back_to_the_branch_of_another_one_brings_the_builder_there() {
    let (stage, first, built) = Stage::with_pools().await;
    let second = pool();
    let tell = |pool: &OrderPool, number, branch| _ = pool.on_head(block(number, branch, 0, &[]));
    let source = stage.source(&built, "one");
    let a = stage.publisher(&first, "a");
    let b = stage.publisher(&second, "b");
    until_live(&a).await;
    until_live(&b).await;
    (100..103).for_each(|number| tell(&first, number, 0));
    until("the head of the first", || built.head() == first.head()).await;
    tell(&second, 100, 0);
    tell(&second, 101, 1);
    until("the head of the second", || built.head() == second.head()).await;
    (101..103).for_each(|number| tell(&second, number, 0));
    until("their head", || built.head() == first.head()).await;
    // From then on each head is stored once.
    let stored = || a.stats().stored + b.stats().stored;
    until("all acknowledged", || a.stats().unfinished + b.stats().unfinished == 0).await;
    let before = stored();
    for number in 103..110 {
        tell(&first, number, 0);
        tell(&second, number, 0);
    }
    until("the last", || built.head() == first.head() && b.stats().unfinished == 0).await;
    assert_eq!((stored(), built.head()), (before + 7, second.head()));
    finish_all([a, b], [source]).await;
}

#[tokio::test]
async fn a_builder_that_starts_late_or_again_reads_what_the_stream_holds() {
    let stage = Stage::new().await;
    let ingested = pool();
    let txs = transactions(3, 600, 0);
    let publisher = stage.publish(&ingested, &txs[..300]).await;
    let late = pool();
    let source = stage.source(&late, "late");
    until_equal(&ingested, &late).await;
    // Without a shutdown, as if its process had been killed.
    drop(source);
    insert(&ingested, &txs[300..]);
    until("all stored", || publisher.stats().stored == 600).await;
    let again = pool();
    let source = stage.source(&again, "late");
    until_equal(&ingested, &again).await;
    let stats = finish_source(source).await;
    assert_eq!((stats.received, stats.missed), (600, 0));
    finish(publisher).await;
}

/// The stream still holds a caller's bundles for blocks that are over, more than a builder's pool may hold of one caller.
#[tokio::test]
async fn a_builder_that_starts_late_has_the_latest_bundles_of_who_sent_many() {
    const BLOCKS: u64 = 40;
    let stage = Stage::new().await;
    let ingested = pool();
    let private = stage.publisher_of(&ingested, Flow::Private, "a");
    let public = stage.publisher(&ingested, "a");
    let txs = transactions(6, 400, 0);
    for (number, txs) in (1..).zip(txs.chunks(10)) {
        for tx in txs {
            let parts = BundleParts {
                txs: vec![tx.clone()],
                block: Some(number + 1),
                holder: Holder::Caller([10, 0, 0, 1].into()),
                ..BundleParts::default()
            };
            ingested.insert_bundle(Bundle::new(parts).expect("a bundle"));
        }
        until("they are stored", || private.stats().stored == 10 * number).await;
        if number < BLOCKS {
            ingested.on_head(block(number + 1, 0, 0, &[]));
        }
    }
    until("the heads are stored", || public.stats().stored == BLOCKS - 1).await;
    // A thirty-second of half of it is 50.
    let config = PoolConfig { max_bundles: 3_200, ..PoolConfig::default() };
    let built = OrderPool::new(config).expect("a pool");
    let private_source = stage.source_of(&built, Flow::Private, "late");
    // The heads come later, as when the other source connects later.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let sources = [private_source, stage.source(&built, "late")];
    until("all is read", || {
        let received = sources.each_ref().map(|source| source.stats().received);
        received == [10 * BLOCKS, BLOCKS - 1]
    })
    .await;
    assert_eq!((built.head(), built.stats().bundles), (ingested.head(), 10));
    finish_all([private, public], sources).await;
}

#[tokio::test]
async fn private_orders_travel_by_their_own_stream() {
    let (stage, ingested, built) = Stage::with_pools().await;
    let txs = transactions(5, 3, 0);
    ingested.insert_bundle(sent(1, Some(1), &txs[0]));
    let rpc = Transaction::new(txs[1].recovered().clone(), Origin::Rpc, SystemTime::now());
    ingested.insert_transaction(rpc);
    ingested.insert_transaction(txs[2].clone());
    let public = stage.publisher(&ingested, "a");
    let private = stage.publisher_of(&ingested, Flow::Private, "a");
    let source = stage.source_of(&built, Flow::Private, "one");
    until("two orders", || built.stats().bundles == 1 && built.stats().txs == 1).await;
    assert!(built.contains(txs[1].hash()) && !built.contains(txs[2].hash()));
    ingested.insert_bundle(sent(1, Some(2), &txs[1]));
    until("the replacement", || built.contains(pooled_bundle(&ingested).id())).await;
    assert_eq!(built.stats().bundles, 1);
    cancel(&ingested, 1, Some(3));
    until("the cancellation", || built.stats().bundles == 0).await;
    // Which belongs to the public flow.
    ingested.on_head(block(1, 0, 0, &[]));
    let stats = finish(private).await;
    assert_eq!((stats.published, stats.stored), (4, 4));
    assert_eq!(finish(public).await.published, 2);
    assert_eq!(finish_source(source).await.pooled, 4);
}

/// All went through the stream in the order in which it was accepted: behind a flood nothing came in time.
#[tokio::test]
async fn a_flood_of_one_stranger_holds_up_neither_a_known_signer_nor_another_stranger() {
    let (stage, ingested, built) = Stage::with_pools().await;
    // 138 kB each.
    let txs = transactions(12, 200, 1_000);
    let caller = |n: u8| Holder::caller([10, 0, 0, n].into());
    let send = |tx: &Transaction, holder| {
        let tx = Transaction::new(tx.recovered().clone(), Origin::Rpc, SystemTime::now());
        assert_eq!(ingested.insert_transaction(tx.held_by(holder)), InsertOutcome::Added);
    };
    txs[2..].iter().for_each(|tx| send(tx, caller(1)));
    send(&txs[0], Holder::Signer(SIGNER));
    send(&txs[1], caller(2));
    let (publisher, source) = stage.both(Flow::Private, &ingested, &built);
    let are_there = || txs[..2].iter().all(|tx| built.contains(tx.hash()));
    until("those of the others", are_there).await;
    let before = built.stats().txs;
    assert!(before < 100, "behind {before} of the flood's 198");
    // What a block contains is not published any more.
    let mined: Vec<_> = txs[2..].iter().map(|tx| *tx.hash()).collect();
    ingested.on_head(block(1, 0, 0, &mined));
    until("nothing waits", || publisher.stats().waiting == 0).await;
    let stats = finish(publisher).await;
    assert_eq!(stats.published + stats.unsent, 200, "{stats:?}");
    finish_source(source).await;
}

#[tokio::test]
async fn a_private_cancellation_arrives_though_it_came_without_a_connection_and_one_may_send_again()
{
    let (mut stage, ingested, built) = Stage::with_pools().await;
    let txs = transactions(6, 3, 0);
    let send = |n: usize| ingested.insert_transaction(private(&txs[n]));
    (0..3).for_each(|n| _ = send(n));
    let (publisher, source) = stage.both(Flow::Private, &ingested, &built);
    until_equal(&ingested, &built).await;
    ingested.cancel_private(txs[0].hash(), SIGNER, Holder::Host, SystemTime::now());
    until_equal(&ingested, &built).await;
    send(0);
    until("it was sent again", || built.contains(txs[0].hash())).await;
    stage.server.kill9().expect("a dead server");
    until("it knows", || is_lost(publisher.state())).await;
    ingested.cancel_private(txs[0].hash(), SIGNER, Holder::Host, SystemTime::now());
    ingested.cancel_private(txs[1].hash(), SIGNER, Holder::Host, SystemTime::now());
    stage.server.restart().expect("a server");
    until_equal(&ingested, &built).await;
    assert!(built.contains(txs[2].hash()));
    send(1);
    until_equal(&ingested, &built).await;
    let stats = finish(publisher).await;
    assert_eq!(stats.published, 8, "{stats:?}");
    assert_eq!(finish_source(source).await.pooled, 8);
}

fn pooled_bundle(pool: &OrderPool) -> Bundle {
    let mut events = pool.subscribe_all();
    std::iter::from_fn(|| events.try_next())
        .find_map(|event| match event {
            Ok(Event::Added(order)) => order.as_bundle().cloned(),
            _ => None,
        })
        .expect("a bundle")
}

/// A bundle of a signer for any block, sent now.
fn sent(uuid: u128, nonce: Option<u64>, tx: &Transaction) -> Bundle {
    let parts = BundleParts {
        txs: vec![tx.clone()],
        uuid: Some(uuid::Uuid::from_u128(uuid)),
        replacement_nonce: nonce,
        signer: Some(SIGNER),
        first_seen: Some(SystemTime::now()),
        ..BundleParts::default()
    };
    Bundle::new(parts).expect("a bundle")
}

pub(crate) const SIGNER: Address = Address::repeat_byte(1);

/// A private transaction of the signer, sent now.
pub(crate) fn private(tx: &Transaction) -> Transaction {
    let terms = PrivateTerms { signer: Some(SIGNER), max_block: 20 };
    Transaction::private(tx.recovered().clone(), terms, SystemTime::now())
}

fn cancel(pool: &OrderPool, uuid: u128, nonce: Option<u64>) {
    let key = ReplacementKey { uuid: uuid::Uuid::from_u128(uuid), signer: SIGNER };
    let outcome = pool.cancel_bundle(Cancellation { key, nonce, holder: Holder::Host });
    assert!(matches!(outcome, CancelOutcome::Cancelled { .. }), "{outcome:?}");
}

#[tokio::test]
async fn of_replacements_without_a_nonce_at_two_machines_builders_keep_the_latest() {
    let (stage, first, built) = Stage::with_pools().await;
    let (second, txs) = (pool(), transactions(7, 6, 0));
    let holds = |n: usize| {
        let bundles = built.stats().bundles == 1;
        bundles && pooled_bundle(&built).txs()[0].hash() == txs[n].hash()
    };
    let source = stage.source_of(&built, Flow::Private, "one");
    let a = stage.publisher_of(&first, Flow::Private, "a");
    let b = stage.publisher_of(&second, Flow::Private, "b");
    for n in 0..4 {
        [&first, &second][n % 2].insert_bundle(sent(1, None, &txs[n]));
        until("the latest", || holds(n)).await;
    }
    // One starts again with nothing, and what the other accepts is published behind a later one.
    finish_all([a, b], []).await;
    let first = pool();
    second.insert_bundle(sent(1, None, &txs[4]));
    first.insert_bundle(sent(1, None, &txs[5]));
    let a = stage.publisher_of(&first, Flow::Private, "a");
    until("the latest", || holds(5)).await;
    let b = stage.publisher_of(&second, Flow::Private, "b");
    until("all stored", || b.stats().stored == 1).await;
    until("superseded", || source.stats().superseded == 1).await;
    assert!(holds(5));
    finish_all([a, b], []).await;
    let stats = finish_source(source).await;
    assert_eq!((stats.pooled, stats.known), (5, 0), "{stats:?}");
}

#[tokio::test]
async fn a_cancellation_at_another_machine_than_the_orders_holds_in_every_builder() {
    let (stage, first, built) = Stage::with_pools().await;
    let (second, txs) = (pool(), transactions(8, 4, 0));
    let send = |uuid, n: usize| {
        first.insert_bundle(sent(uuid, None, &txs[n]));
        first.insert_transaction(private(&txs[n + 1]));
    };
    let cancel_both = |uuid, n: usize| {
        cancel(&second, uuid, None);
        let outcome =
            second.cancel_private(txs[n + 1].hash(), SIGNER, Holder::Host, SystemTime::now());
        assert_eq!(outcome, CancelPrivateOutcome::Unknown);
    };
    let source = stage.source_of(&built, Flow::Private, "one");
    let a = stage.publisher_of(&first, Flow::Private, "a");
    let b = stage.publisher_of(&second, Flow::Private, "b");
    send(1, 0);
    until("both", || built.len() == 2).await;
    cancel_both(1, 0);
    until("none", || built.is_empty()).await;
    // The machine of the orders is cut off: they are published behind their cancellations.
    finish(a).await;
    send(2, 2);
    cancel_both(2, 2);
    until("cancellations", || source.stats().received == 6).await;
    let a = stage.publisher_of(&first, Flow::Private, "a");
    // What it holds is published again: the two that are cancelled, and these.
    until("all read", || source.stats().received == 10).await;
    assert!(built.is_empty());
    let stats = source.stats();
    assert_eq!((stats.pooled, stats.known, stats.superseded), (5, 1, 4), "{stats:?}");
    // A builder that starts now reads the same.
    let late = pool();
    let other = stage.source_of(&late, Flow::Private, "late");
    until("all read", || other.stats().received == 10).await;
    assert!(late.is_empty());
    finish_all([a, b], [source, other]).await;
}

/// Two pools, and a call after which they have forgotten all cancellations.
fn forgetful() -> ([OrderPool; 2], impl Fn()) {
    let clock = Clock::manual();
    let pool = || OrderPool::with_clock(PoolConfig::default(), clock.clone()).expect("a pool");
    let pools = [pool(), pool()];
    let forget = {
        let pools = pools.clone();
        move || {
            clock.advance(CANCELLATION_RETENTION);
            for pool in &pools {
                while pool.upkeep() {}
            }
        }
    };
    (pools, forget)
}

#[tokio::test]
async fn a_cancellation_in_an_outage_longer_than_pools_remember_it_holds_in_every_builder() {
    let (mut stage, txs) = (Stage::new().await, transactions(10, 2, 0));
    let ([ingested, built], forget) = forgetful();
    let (publisher, source) = stage.both(Flow::Private, &ingested, &built);
    for (uuid, tx) in (1..).zip(&txs) {
        ingested.insert_bundle(sent(uuid, None, tx));
    }
    until("both are there", || built.stats().bundles == 2).await;
    stage.server.kill9().expect("a dead server");
    until("it knows", || is_lost(publisher.state())).await;
    cancel(&ingested, 1, None);
    forget();
    stage.server.restart().expect("a server");
    until("it is cancelled", || built.stats().bundles == 1).await;
    finish_all([publisher], [source]).await;
}

#[tokio::test]
async fn a_uuid_that_is_forgotten_and_used_again_can_be_cancelled_again() {
    let (stage, tx) = (Stage::new().await, &transactions(9, 1, 0)[0]);
    let ([ingested, built], forget) = forgetful();
    let (publisher, source) = stage.both(Flow::Private, &ingested, &built);
    for _ in 0..2 {
        ingested.insert_bundle(sent(1, None, tx));
        until("it is there", || built.stats().bundles == 1).await;
        cancel(&ingested, 1, None);
        until("it is cancelled", || built.is_empty()).await;
        forget();
    }
    assert_eq!(finish(publisher).await.stored, 4);
    finish_source(source).await;
}
