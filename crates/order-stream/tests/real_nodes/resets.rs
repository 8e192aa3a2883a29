//! Streams that lose their messages, during a connection or between two connections.

use order_pool::PrivateTerms;

use super::{fleet::SIGNER, *};

/// Checks that a builder that starts now gets everything that the publisher's pool holds, and that
/// the publisher has counted a reset.
pub(crate) async fn check_new_builder(
    scenario: &str,
    fixture: &Fixture,
    ingested: &OrderPool,
    publisher: Publisher,
) {
    let built = pool();
    let source = fixture.source(&built, "late");
    let took = wait_until_equal(ingested, &built).await;
    source.shutdown(TIMEOUT).await;
    let (resets, all) = (finish(publisher).await.resets, ingested.stats().txs);
    println!(
        "{scenario}: a new builder has {} of {all} after {took:.1?}, resets {resets}",
        built.stats().txs
    );
    assert!(resets > 0, "{scenario}");
}

#[tokio::test]
async fn a_purged_or_recreated_stream_gets_everything_again() {
    for is_purged in [true, false] {
        let (fixture, ingested) = (Fixture::new().await, pool());
        let txs = transactions(61, 110, 0);
        let publisher = fixture.publish(&ingested, &txs[..100]).await;
        let context = fixture.client().await;
        if is_purged {
            let stream = context.get_stream(STREAM).await.expect("the stream");
            stream.purge().await.expect("a purge");
        } else {
            context.delete_stream(STREAM).await.expect("a deletion");
            ensure_stream(&fixture.config(), &stream(Flow::Public)).await.expect("a stream");
        }
        insert(&ingested, &txs[100..]);
        let scenario = if is_purged { "purged" } else { "recreated" };
        check_new_builder(scenario, &fixture, &ingested, publisher).await;
    }
}

/// The server kept them in memory as long as the messages, also those of messages that the stream
/// had no room for.
#[tokio::test]
async fn a_stream_keeps_the_ids_of_private_messages_for_a_minute() {
    let fixture = Fixture::without_streams(&NatsConfig::default());
    let context = fixture.client().await;
    for (flow, name, kept) in
        [(Flow::Private, "MEMPOOL_1_PRIVATE", 60), (Flow::Public, STREAM, 600)]
    {
        let config = stream(flow);
        for was_created_before in [false, true] {
            ensure_stream(&fixture.config(), &config).await.expect("a stream");
            let created = context.get_stream(name).await.expect("the stream");
            let mut stored = created.cached_info().config.clone();
            assert_eq!(
                stored.duplicate_window,
                Duration::from_secs(kept),
                "{name}, created before: {was_created_before}"
            );
            assert_eq!(stored.max_age, config.max_age);
            stored.duplicate_window = config.max_age;
            context.update_stream(stored).await.expect("the configuration of earlier versions");
        }
    }
}

#[tokio::test]
async fn a_stream_that_was_rolled_back_and_grew_longer_gets_everything_again() {
    let (mut fixture, ingested) = (Fixture::new().await, pool());
    let txs = transactions(63, 500, 0);
    let publisher = fixture.publish(&ingested, &txs[..50]).await;
    fixture.server.kill9().expect("a dead server");
    let (folder, copy) = (fixture.dir.path().join("nats-1"), fixture.dir.path().join("copy"));
    copy_folder(&folder, &copy);
    fixture.server.restart().expect("a server");
    insert(&ingested, &txs[50..100]);
    wait_until("stored", || publisher.stats().stored == 100).await;
    fixture.server.kill9().expect("a dead server");
    std::fs::remove_dir_all(&folder).expect("the store");
    copy_folder(&copy, &folder);
    fixture.server.restart().expect("a server");
    // Another machine is back first, and makes the stream longer than it was.
    let other = pool();
    insert(&other, &txs[100..]);
    let second = fixture.publisher(&other, "b");
    wait_until("longer", || second.stats().stored == 400).await;
    insert(&ingested, &txs[100..]);
    check_new_builder("rolled back, and longer again", &fixture, &ingested, publisher).await;
    finish(second).await;
}

/// The stream kept raw transactions for as long as bundles, and a builder that started later took
/// them for new.
#[tokio::test]
async fn raw_transactions_leave_the_private_stream_after_a_minute_without_a_reset() {
    let (fixture, ingested, built) = Fixture::with_pools().await;
    let txs = transactions(65, 2, 0);
    ingested.on_head(block(10, 0, 0, &[]));
    let publisher = fixture.publisher_for_flow(&ingested, Flow::Private, "a");
    wait_until_live(&publisher).await;
    let raw = Transaction::new(txs[0].recovered().clone(), Origin::Rpc, SystemTime::now());
    ingested.insert_transaction(raw);
    wait_until("it is stored", || publisher.stats().stored == 1).await;
    let stream = fixture.client().await.get_stream("MEMPOOL_1_PRIVATE").await.expect("the stream");
    let began = Instant::now();
    loop {
        let count = stream.get_info().await.expect("its state").state.messages;
        if count == 0 {
            break;
        }
        assert!(began.elapsed() < TIMEOUT, "{count} messages");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    println!("it left after {:?}", began.elapsed());
    assert!(began.elapsed() > Duration::from_secs(50), "{:?}", began.elapsed());
    // Private until the twentieth block, which is ten slots away.
    ingested.insert_transaction(private(&txs[1]));
    ingested.cancel_private(txs[1].hash(), SIGNER, order_pool::Holder::Host, SystemTime::now());
    wait_until("they are stored", || publisher.stats().stored == 3).await;
    let mut lifetimes = Vec::new();
    for sequence in [2, 3] {
        let message = stream.get_raw_message(sequence).await.expect("a message");
        lifetimes.push(message.headers.get("Nats-TTL").map(ToString::to_string));
    }
    assert_eq!(lifetimes, [Some("252".to_owned()), None]);
    let source = fixture.source_for_flow(&built, Flow::Private, "late");
    wait_until("both are read", || source.stats().received == 2).await;
    assert!(!built.contains(txs[0].hash()) && !built.contains(txs[1].hash()));
    assert_eq!(finish_source(source).await.missed, 0);
    // A check came while the stream was empty.
    assert_eq!(finish(publisher).await.resets, 0);
}

#[tokio::test]
async fn a_publisher_waits_until_an_earlier_versions_stream_keeps_lifetimes() {
    let fixture = Fixture::without_streams(&NatsConfig::default());
    let earlier = async_nats::jetstream::stream::Config {
        name: "MEMPOOL_1_PRIVATE".into(),
        subjects: order_stream::stream_subjects(Flow::Private, CHAIN),
        ..Default::default()
    };
    fixture.client().await.create_stream(earlier).await.expect("a stream");
    let ingested = pool();
    ingested.insert_transaction(private(&transactions(66, 1, 0)[0]));
    let publisher = fixture.publisher_for_flow(&ingested, Flow::Private, "a");
    wait_until("it waits", || publisher.state() == State::StreamMissing).await;
    assert_eq!(publisher.stats().published, 0);
    fixture.create_streams(&fixture.config()).await;
    wait_until("it is stored", || publisher.stats().stored == 1).await;
    finish(publisher).await;
}

fn copy_folder(source: &std::path::Path, target: &std::path::Path) {
    let status = std::process::Command::new("cp").arg("-a").args([source, target]).status();
    assert!(status.expect("cp runs").success());
}

/// A private transaction of the signer, sent now.
fn private(tx: &Transaction) -> Transaction {
    let terms = PrivateTerms { signer: Some(SIGNER), max_block: 20 };
    Transaction::private(tx.recovered().clone(), terms, SystemTime::now())
}

#[tokio::test]
async fn a_second_cancellation_after_a_restart_is_stored() {
    let (fixture, built) = (Fixture::new().await, pool());
    let tx = &transactions(64, 1, 0)[0];
    let hash = *tx.hash();
    let source = fixture.source_for_flow(&built, Flow::Private, "one");
    for _ in 0..2 {
        // The process starts again, with an empty pool.
        let ingested = pool();
        let publisher = fixture.publisher_for_flow(&ingested, Flow::Private, "a");
        wait_until_live(&publisher).await;
        for _ in 0..2 {
            ingested.insert_transaction(private(tx));
            wait_until("it is there", || built.contains(&hash)).await;
            ingested.cancel_private(&hash, SIGNER, order_pool::Holder::Host, SystemTime::now());
            wait_until("it is cancelled", || !built.contains(&hash)).await;
        }
        let stats = finish(publisher).await;
        assert_eq!((stats.stored, stats.duplicate), (4, 0), "{stats:?}");
    }
    finish_source(source).await;
}
