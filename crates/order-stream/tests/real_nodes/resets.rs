//! Streams that lose what they had while publishers and sources are connected, or between two connections.

use order_pool::PrivateTerms;

use super::{fleet::SIGNER, *};

/// A builder that starts now gets everything that the other pool holds, and the publisher has counted a reset.
pub(crate) async fn a_new_builder_equals(
    what: &str,
    stage: &Stage,
    ingested: &OrderPool,
    publisher: Publisher,
) {
    let built = pool();
    let source = stage.source(&built, "late");
    let took = until_equal(ingested, &built).await;
    source.shutdown(PATIENCE).await;
    let (resets, all) = (finish(publisher).await.resets, ingested.stats().txs);
    println!(
        "{what}: a new builder has {} of {all} after {took:.1?}, resets {resets}",
        built.stats().txs
    );
    assert!(resets > 0, "{what}");
}

#[tokio::test]
async fn a_stream_that_is_purged_or_made_anew_at_once_gets_everything_again() {
    for is_purged in [true, false] {
        let (stage, ingested) = (Stage::new().await, pool());
        let txs = transactions(61, 110, 0);
        let publisher = stage.publish(&ingested, &txs[..100]).await;
        let context = stage.client().await;
        if is_purged {
            let stream = context.get_stream(STREAM).await.expect("the stream");
            stream.purge().await.expect("a purge");
        } else {
            context.delete_stream(STREAM).await.expect("a deletion");
            ensure_stream(&stage.config(), &stream(Flow::Public)).await.expect("a stream");
        }
        insert(&ingested, &txs[100..]);
        let what = if is_purged { "purged" } else { "made anew" };
        a_new_builder_equals(what, &stage, &ingested, publisher).await;
    }
}

/// They were kept as long as the messages, in memory, also of messages that the stream had no room for.
#[tokio::test]
async fn the_ids_of_private_messages_are_kept_for_a_minute_also_by_a_stream_that_is_there_already()
{
    let stage = Stage::without_streams(&NatsConfig::default());
    let context = stage.client().await;
    for (flow, name, kept) in
        [(Flow::Private, "MEMPOOL_1_PRIVATE", 60), (Flow::Public, STREAM, 600)]
    {
        let config = stream(flow);
        for is_before in [true, false] {
            ensure_stream(&stage.config(), &config).await.expect("a stream");
            let it = context.get_stream(name).await.expect("the stream");
            let mut stored = it.cached_info().config.clone();
            assert_eq!(stored.duplicate_window, Duration::from_secs(kept), "{name} {is_before}");
            assert_eq!(stored.max_age, config.max_age);
            stored.duplicate_window = config.max_age;
            context.update_stream(stored).await.expect("as it was made before");
        }
    }
}

#[tokio::test]
async fn a_stream_that_went_back_to_an_earlier_copy_and_grew_longer_gets_everything_again() {
    let (mut stage, ingested) = (Stage::new().await, pool());
    let txs = transactions(63, 500, 0);
    let publisher = stage.publish(&ingested, &txs[..50]).await;
    stage.server.kill9().expect("a dead server");
    let (folder, copy) = (stage.dir.path().join("nats-1"), stage.dir.path().join("copy"));
    let copied = |from: &std::path::Path, to: &std::path::Path| {
        let status = std::process::Command::new("cp").arg("-a").args([from, to]).status();
        assert!(status.expect("cp runs").success());
    };
    copied(&folder, &copy);
    stage.server.restart().expect("a server");
    insert(&ingested, &txs[50..100]);
    until("stored", || publisher.stats().stored == 100).await;
    stage.server.kill9().expect("a dead server");
    std::fs::remove_dir_all(&folder).expect("the store");
    copied(&copy, &folder);
    stage.server.restart().expect("a server");
    // Another machine is back first, and the stream is longer than it was.
    let other = pool();
    insert(&other, &txs[100..]);
    let second = stage.publisher(&other, "b");
    until("longer", || second.stats().stored == 400).await;
    insert(&ingested, &txs[100..]);
    a_new_builder_equals("rolled back, and longer again", &stage, &ingested, publisher).await;
    finish(second).await;
}

/// A private transaction of the signer, sent now.
fn private(tx: &Transaction) -> Transaction {
    let terms = PrivateTerms { signer: Some(SIGNER), max_block: 20 };
    Transaction::private(tx.recovered().clone(), terms, SystemTime::now())
}

#[tokio::test]
async fn a_cancellation_after_a_restart_is_stored_though_there_was_one_before_it() {
    let (stage, built) = (Stage::new().await, pool());
    let tx = &transactions(64, 1, 0)[0];
    let hash = *tx.hash();
    let source = stage.source_of(&built, Flow::Private, "one");
    for _ in 0..2 {
        // The process starts again, with an empty pool.
        let ingested = pool();
        let publisher = stage.publisher_of(&ingested, Flow::Private, "a");
        until_live(&publisher).await;
        for _ in 0..2 {
            ingested.insert_transaction(private(tx));
            until("it is there", || built.contains(&hash)).await;
            ingested.cancel_private(&hash, SIGNER, order_pool::Holder::Host, SystemTime::now());
            until("it is cancelled", || !built.contains(&hash)).await;
        }
        let stats = finish(publisher).await;
        assert_eq!((stats.stored, stats.duplicate), (4, 0), "{stats:?}");
    }
    finish_source(source).await;
}
