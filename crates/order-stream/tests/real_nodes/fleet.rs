//! Machines that publish and builders that read, without failures of servers.

use alloy_primitives::Address;
use order_pool::{
    Bundle, BundleParts, CANCELLATION_RETENTION, CancelOutcome, Cancellation, Clock, Holder,
    ReplacementKey,
};

use super::*;

#[tokio::test]
async fn a_builders_pool_equals_the_publishers_pool() {
    let (fixture, ingested, built) = Fixture::with_pools().await;
    let txs = transactions(1, 400, 20);
    insert(&ingested, &txs[..200]);
    let (publisher, source) = fixture.both(Flow::Public, &ingested, &built);
    wait_until_equal(&ingested, &built).await;
    insert(&ingested, &txs[200..]);
    wait_until_equal(&ingested, &built).await;
    let order = built.get(txs[300].hash()).expect("an order");
    let tx = order.as_tx().expect("a transaction");
    assert_eq!(tx.sender(), txs[300].sender());
    assert_eq!(tx.recovered(), txs[300].recovered());
    ingested.on_head(block(1, 0, 0, &[*txs[0].hash(), *txs[399].hash()]));
    wait_until("the head", || built.head() == ingested.head()).await;
    wait_until_equal(&ingested, &built).await;
    wait_until("a live source", || source.state() == State::Live).await;
    let stats = finish(publisher).await;
    assert_eq!((stats.published, stats.stored, stats.comparisons), (401, 401, 1));
    let stats = finish_source(source).await;
    assert_eq!((stats.received, stats.pooled, stats.missed), (401, 401, 0));
}

/// Builders lost what nodes had listed for longer than a minute.
#[tokio::test]
async fn two_machines_publish_again_what_they_hold_and_the_stream_has_it_once() {
    let (fixture, ingested, built) = Fixture::with_pools().await;
    let txs = transactions(9, 50, 0);
    insert(&ingested, &txs);
    let (a, source) = fixture.both(Flow::Public, &ingested, &built);
    let b = fixture.publisher(&ingested, "b");
    let stats = || [a.stats(), b.stats()];
    let sum = |count: fn(&PublisherStats) -> u64| stats().iter().map(count).sum::<u64>();
    let took = wait_until("all is published again", || {
        sum(|stats| stats.published) == 200 && sum(|stats| stats.unfinished) == 0
    })
    .await;
    assert!(took > Duration::from_secs(25), "after {took:?}");
    // A period may have ended between the messages of the two machines.
    let stored = sum(|stats| stats.stored);
    assert!((100..=150).contains(&stored), "{:?}", stats());
    wait_until("all is read", || source.stats().received == stored).await;
    assert_eq!((source.stats().pooled, hashes(&built)), (50, hashes(&ingested)));
    finish_all([a, b], [source]).await;
}

/// The head was a duplicate of one that the other machine had published, so the builder stood on
/// the block before.
#[tokio::test]
async fn a_builder_follows_a_machine_that_joins_another_machines_branch() {
    let (fixture, first, built) = Fixture::with_pools().await;
    let second = pool();
    let apply_head = |pool: &OrderPool, number, branch| {
        pool.on_head(block(number, branch, 0, &[]));
    };
    let source = fixture.source(&built, "one");
    let a = fixture.publisher(&first, "a");
    let b = fixture.publisher(&second, "b");
    wait_until_live(&a).await;
    wait_until_live(&b).await;
    (100..103).for_each(|number| apply_head(&first, number, 0));
    wait_until("the head of the first", || built.head() == first.head()).await;
    apply_head(&second, 100, 0);
    apply_head(&second, 101, 1);
    wait_until("the head of the second", || built.head() == second.head()).await;
    (101..103).for_each(|number| apply_head(&second, number, 0));
    wait_until("their head", || built.head() == first.head()).await;
    // From here on each head is stored once.
    let stored = || a.stats().stored + b.stats().stored;
    wait_until("all acknowledged", || a.stats().unfinished + b.stats().unfinished == 0).await;
    let before = stored();
    for number in 103..110 {
        apply_head(&first, number, 0);
        apply_head(&second, number, 0);
    }
    wait_until("the last", || built.head() == first.head() && b.stats().unfinished == 0).await;
    assert_eq!((stored(), built.head()), (before + 7, second.head()));
    finish_all([a, b], [source]).await;
}

/// The stream still holds a caller's bundles for past blocks, more than a builder's pool may hold
/// of one caller.
#[tokio::test]
async fn a_late_builder_has_the_latest_bundles_of_a_caller_with_many() {
    const BLOCKS: u64 = 40;
    let fixture = Fixture::new().await;
    let ingested = pool();
    let private = fixture.publisher_for_flow(&ingested, Flow::Private, "a");
    let public = fixture.publisher(&ingested, "a");
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
        wait_until("they are stored", || private.stats().stored == 10 * number).await;
        if number < BLOCKS {
            ingested.on_head(block(number + 1, 0, 0, &[]));
        }
    }
    wait_until("the heads are stored", || public.stats().stored == BLOCKS - 1).await;
    // One caller may hold a thirty-second of half of it, which is 50.
    let config = configured(PoolConfig::default(), |config| config.max_bundles = 3_200);
    let built = OrderPool::new(config).expect("a pool");
    let private_source = fixture.source_for_flow(&built, Flow::Private, "late");
    // The heads arrive later, as when the other source connects later.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let sources = [private_source, fixture.source(&built, "late")];
    wait_until("all is read", || {
        let received = sources.each_ref().map(|source| source.stats().received);
        received == [10 * BLOCKS, BLOCKS - 1]
    })
    .await;
    assert_eq!((built.head(), built.stats().bundles), (ingested.head(), 10));
    finish_all([private, public], sources).await;
}

#[tokio::test]
async fn private_orders_have_their_own_stream() {
    let (fixture, ingested, built) = Fixture::with_pools().await;
    let txs = transactions(5, 3, 0);
    ingested.insert_bundle(bundle(1, Some(1), &txs[0]));
    let rpc = Transaction::new(txs[1].recovered().clone(), Origin::Rpc, SystemTime::now());
    ingested.insert_transaction(rpc);
    ingested.insert_transaction(txs[2].clone());
    let public = fixture.publisher(&ingested, "a");
    let private = fixture.publisher_for_flow(&ingested, Flow::Private, "a");
    let source = fixture.source_for_flow(&built, Flow::Private, "one");
    wait_until("two orders", || built.stats().bundles == 1 && built.stats().txs == 1).await;
    assert!(built.contains(txs[1].hash()) && !built.contains(txs[2].hash()));
    ingested.insert_bundle(bundle(1, Some(2), &txs[1]));
    wait_until("the replacement", || built.stats().replaced == 1).await;
    assert_eq!(built.stats().bundles, 1);
    cancel(&ingested, 1, Some(3));
    wait_until("the cancellation", || built.stats().bundles == 0).await;
    // A head belongs to the public flow.
    ingested.on_head(block(1, 0, 0, &[]));
    let stats = finish(private).await;
    assert_eq!((stats.published, stats.stored), (4, 4));
    assert_eq!(finish(public).await.published, 2);
    assert_eq!(finish_source(source).await.pooled, 4);
}

/// A bundle of the signer for any block, sent now.
fn bundle(uuid: u128, nonce: Option<u64>, tx: &Transaction) -> Bundle {
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

fn cancel(pool: &OrderPool, uuid: u128, nonce: Option<u64>) {
    let key = ReplacementKey { uuid: uuid::Uuid::from_u128(uuid), signer: SIGNER };
    let outcome =
        pool.cancel_bundle(Cancellation { key, nonce, holder: Holder::Host, sent_at: None });
    assert!(matches!(outcome, CancelOutcome::Cancelled { .. }), "{outcome:?}");
}

#[tokio::test]
async fn a_cancellation_in_a_long_outage_reaches_the_builders() {
    let (mut fixture, txs) = (Fixture::new().await, transactions(10, 2, 0));
    let clock = Clock::manual();
    let [ingested, built] = [(); 2]
        .map(|()| OrderPool::with_clock(PoolConfig::default(), clock.clone()).expect("a pool"));
    let (publisher, source) = fixture.both(Flow::Private, &ingested, &built);
    for (uuid, tx) in (1..).zip(&txs) {
        ingested.insert_bundle(bundle(uuid, None, tx));
    }
    wait_until("both are there", || built.stats().bundles == 2).await;
    fixture.server.kill9().expect("a dead server");
    wait_until("the loss is noticed", || is_lost(publisher.state())).await;
    cancel(&ingested, 1, None);
    clock.advance(CANCELLATION_RETENTION);
    for pool in [&ingested, &built] {
        while pool.upkeep() {}
    }
    fixture.server.restart().expect("a server");
    wait_until("it is cancelled", || built.stats().bundles == 1).await;
    finish_all([publisher], [source]).await;
}
