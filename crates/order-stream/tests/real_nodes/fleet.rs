//! Machines that publish and builders that read, with nothing failing but their own processes.

use alloy_primitives::Address;
use order_pool::{
    Bundle, BundleParts, CANCELLATION_RETENTION, CancelOutcome, Cancellation, Clock, Holder,
    ReplacementKey,
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
    assert_eq!(tx.sender(), txs[300].sender());
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
    until("the replacement", || built.stats().replaced == 1).await;
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

fn cancel(pool: &OrderPool, uuid: u128, nonce: Option<u64>) {
    let key = ReplacementKey { uuid: uuid::Uuid::from_u128(uuid), signer: SIGNER };
    let outcome =
        pool.cancel_bundle(Cancellation { key, nonce, holder: Holder::Host, sent_at: None });
    assert!(matches!(outcome, CancelOutcome::Cancelled { .. }), "{outcome:?}");
}

#[tokio::test]
async fn a_cancellation_in_an_outage_longer_than_pools_remember_it_holds_in_every_builder() {
    let (mut stage, txs) = (Stage::new().await, transactions(10, 2, 0));
    let clock = Clock::manual();
    let [ingested, built] = [(); 2]
        .map(|()| OrderPool::with_clock(PoolConfig::default(), clock.clone()).expect("a pool"));
    let (publisher, source) = stage.both(Flow::Private, &ingested, &built);
    for (uuid, tx) in (1..).zip(&txs) {
        ingested.insert_bundle(sent(uuid, None, tx));
    }
    until("both are there", || built.stats().bundles == 2).await;
    stage.server.kill9().expect("a dead server");
    until("it knows", || is_lost(publisher.state())).await;
    cancel(&ingested, 1, None);
    clock.advance(CANCELLATION_RETENTION);
    for pool in [&ingested, &built] {
        while pool.upkeep() {}
    }
    stage.server.restart().expect("a server");
    until("it is cancelled", || built.stats().bundles == 1).await;
    finish_all([publisher], [source]).await;
}
