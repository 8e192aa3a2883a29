//! Servers, streams and messages that fail.

use alloy_primitives::hex;
use order_stream::{
    DisconnectReason, RefuseReason,
    wire::{Encoded, TxRecord},
};

use super::{malformed::RawClient, *};

const STREAM: &str = "MEMPOOL_1_TX_0";

#[tokio::test]
async fn a_server_that_is_killed_and_started_again_loses_nothing() {
    let mut stage = Stage::new(streams()).await;
    let (ingested, built) = (pool(), pool());
    let txs = transactions(11, 900, 0);
    let publisher = stage.publisher(&ingested, "a");
    let source = stage.source(&built, "one");
    insert(&ingested, &txs[..300]);
    until_equal(&ingested, &built).await;
    insert(&ingested, &txs[300..600]);
    stage.server.kill9().expect("a dead server");
    let lost = |state| matches!(state, State::Disconnected { .. } | State::Connecting);
    until("both know", || lost(publisher.state()) && lost(source.state())).await;
    insert(&ingested, &txs[600..]);
    stage.server.restart().expect("a server");
    let took = until_equal(&ingested, &built).await;
    println!("equal {took:?} after the restart");
    let stats = finish(publisher).await;
    assert!(stats.connects >= 2 && stats.comparisons >= 2, "{stats:?}");
    assert_eq!((stats.published, stats.refused_total()), (900, 0));
    let stats = finish_source(source).await;
    assert_eq!((stats.pooled, stats.missed), (900, 0));
}

#[tokio::test]
async fn a_stream_that_is_missing_is_waited_for_and_one_that_is_made_anew_gets_everything() {
    let stage = Stage::without_streams(&NatsConfig::default());
    let (ingested, built) = (pool(), pool());
    let txs = transactions(12, 200, 0);
    insert(&ingested, &txs[..100]);
    let publisher = stage.publisher(&ingested, "a");
    let source = stage.source(&built, "one");
    let missing = State::StreamMissing;
    until("both miss it", || publisher.state() == missing && source.state() == missing).await;
    ensure_streams(&stage.config(), &streams()).await.expect("streams");
    until_equal(&ingested, &built).await;
    until("live", || publisher.state() == State::Live && source.state() == State::Live).await;
    stage.client().await.delete_stream(STREAM).await.expect("a deletion");
    insert(&ingested, &txs[100..]);
    until("the publisher notices", || publisher.state() != State::Live).await;
    ensure_streams(&stage.config(), &streams()).await.expect("streams");
    until_equal(&ingested, &built).await;
    let context = stage.client().await;
    let stored =
        async || context.get_stream(STREAM).await.expect("the stream").cached_info().state.messages;
    let began = Instant::now();
    while stored().await < 200 {
        assert!(began.elapsed() < PATIENCE, "the new stream has {}", stored().await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    finish(publisher).await;
    finish_source(source).await;
}

#[tokio::test]
async fn a_full_stream_refuses_and_gets_the_rest_when_it_has_room() {
    let small = streams().with_max_bytes(64 << 10).with_refuse_when_full(true);
    let stage = Stage::new(small).await;
    let (ingested, built) = (pool(), pool());
    let txs = transactions(13, 1_000, 0);
    insert(&ingested, &txs);
    let publisher = stage.publisher(&ingested, "a");
    until("a full stream", || publisher.state() == State::Full).await;
    let source = stage.source(&built, "one");
    until("some", || built.stats().txs > 100).await;
    assert!(publisher.stats().unfinished > 0);
    let large = streams().with_refuse_when_full(true);
    ensure_streams(&stage.config(), &large).await.expect("streams");
    until_equal(&ingested, &built).await;
    until_live(&publisher).await;
    let stats = finish(publisher).await;
    assert_eq!((stats.published, stats.stored + stats.duplicate), (1_000, 1_000), "{stats:?}");
    finish_source(source).await;
}

#[tokio::test]
async fn a_full_shard_does_not_hold_up_another_one_and_gets_what_it_missed() {
    let two = streams().with_shards(2).with_refuse_when_full(true);
    let stage = Stage::new(two.clone()).await;
    let context = stage.client().await;
    let mut small =
        context.get_stream("MEMPOOL_1_TX_1").await.expect("it").cached_info().config.clone();
    small.max_bytes = 16 << 10;
    context.update_stream(small).await.expect("a smaller stream");
    let (ingested, built) = (pool(), pool());
    let txs = transactions(20, 1_000, 0);
    let config = PublisherConfig::new(stage.config(), CHAIN, "a").with_backoff(BACKOFF);
    let config = config.with_shards(2).with_window(64, 1 << 20);
    let publisher = Publisher::start(&ingested, config).expect("a publisher");
    let config = stage.source_config("one").with_shards(2);
    let source = Source::start(&built, config).expect("a source");
    insert(&ingested, &txs);
    let is_of_the_first = |tx: &&Transaction| tx.hash()[1].is_multiple_of(2);
    let first: BTreeSet<B256> = txs.iter().filter(is_of_the_first).map(|tx| *tx.hash()).collect();
    until("all of one shard", || first.is_subset(&hashes(&built))).await;
    assert_eq!(publisher.state(), State::Full);
    assert!(built.stats().txs < 1_000);
    ensure_streams(&stage.config(), &two).await.expect("larger streams");
    until_equal(&ingested, &built).await;
    until_live(&publisher).await;
    let stats = finish(publisher).await;
    assert_eq!((stats.stored, stats.refused_total()), (1_000, 0), "{stats:?}");
    finish_source(source).await;
}

#[tokio::test]
async fn a_message_that_is_too_large_is_refused_and_the_others_are_not() {
    let config = NatsConfig::default().with_max_payload_bytes(64 << 10);
    let stage = Stage::without_streams(&config);
    ensure_streams(&stage.config(), &streams()).await.expect("streams");
    let (ingested, built) = (pool(), pool());
    let txs = transactions(14, 200, 50);
    insert(&ingested, &txs);
    let blobs = txs.iter().filter(|tx| tx.blob_count() > 0).count() as u64;
    assert!(blobs > 0);
    let publisher = stage.publisher(&ingested, "a");
    let source = stage.source(&built, "one");
    until("the others", || built.stats().txs == 200 - blobs).await;
    let stats = finish(publisher).await;
    assert_eq!(stats.refused[RefuseReason::TooLarge.index()], blobs);
    assert_eq!((stats.published, stats.stored), (200, 200 - blobs));
    finish_source(source).await;
}

#[tokio::test]
async fn a_builder_that_is_behind_misses_nothing() {
    let stage = Stage::new(streams()).await;
    let (ingested, built) = (pool(), pool());
    let source = stage.source(&built, "slow");
    until("a live source", || source.state() == State::Live).await;
    insert(&ingested, &transactions(15, 10_000, 0));
    let publisher = stage.publisher(&ingested, "a");
    until_equal(&ingested, &built).await;
    until("nothing behind", || source.state() == State::Live && source.stats().behind == 0).await;
    finish(publisher).await;
    let stats = finish_source(source).await;
    assert_eq!((stats.pooled, stats.missed), (10_000, 0));
}

#[tokio::test]
async fn a_hole_is_asked_for_and_then_counted() {
    let stage = Stage::new(streams()).await;
    let (ingested, built) = (pool(), pool());
    insert(&ingested, &transactions(16, 20, 0));
    let publisher = stage.publisher(&ingested, "a");
    until("all stored", || publisher.stats().stored == 20).await;
    let stream = stage.client().await.get_stream(STREAM).await.expect("the stream");
    for sequence in [5, 6, 11] {
        assert!(stream.delete_message(sequence).await.expect("a deletion"));
    }
    let source = stage.source(&built, "one");
    until("the rest", || built.stats().txs == 17 && source.state() == State::Live).await;
    let stats = finish_source(source).await;
    // The first is asked for twice, and the second is found while messages are read one by one.
    assert_eq!((stats.received, stats.missed, stats.holes), (17, 3, 2), "{stats:?}");
    finish(publisher).await;
}

#[tokio::test]
async fn a_stream_that_lost_everything_and_was_filled_again_is_read_from_its_start() {
    let mut stage = Stage::new(streams()).await;
    let built = pool();
    let txs = transactions(21, 22, 0);
    let store = |stage: &Stage, txs: &[Transaction]| {
        let mut client = RawClient::connect(&stage.server, "");
        txs.iter().for_each(|tx| client.store_tx("NATS/1.0", tx));
    };
    // It comes back when the stream is longer than before.
    let slow = Backoff { base: Duration::from_secs(6), cap: Duration::from_secs(6) };
    let source = Source::start(&built, stage.source_config("one").with_backoff(slow));
    let source = source.expect("a source");
    store(&stage, &txs[..10]);
    until("the first", || built.stats().txs == 10).await;
    stage.server.kill9().expect("a dead server");
    let folder = stage.dir.path().join("nats-1/jetstream/$G/streams").join(STREAM).join("msgs");
    std::fs::remove_dir_all(folder).expect("the messages");
    stage.server.restart().expect("a server");
    store(&stage, &txs[10..]);
    until("all", || built.stats().txs == 22).await;
    let stats = finish_source(source).await;
    assert_eq!((stats.pooled, stats.resets, stats.missed), (22, 1, 0), "{stats:?}");
}

#[tokio::test]
async fn what_was_deleted_before_it_came_is_missed_and_the_source_is_live() {
    let mut stage = Stage::new(streams()).await;
    let (ingested, built) = (pool(), pool());
    let txs = transactions(20, 10, 0);
    insert(&ingested, &txs[..8]);
    let publisher = stage.publisher(&ingested, "a");
    let source = stage.source(&built, "one");
    until_equal(&ingested, &built).await;
    let context = stage.client().await;
    let pause = serde_json::json!({ "pause_until": "2100-01-01T00:00:00Z" });
    let subject = format!("CONSUMER.PAUSE.{STREAM}.one");
    let answer: serde_json::Value = context.request(subject, &pause).await.expect("an answer");
    assert_eq!(answer["paused"], true, "{answer}");
    insert(&ingested, &txs[8..]);
    until("all stored", || publisher.stats().stored == 10).await;
    let stream = context.get_stream(STREAM).await.expect("the stream");
    for sequence in 8..=10 {
        assert!(stream.delete_message(sequence).await.expect("a deletion"));
    }
    stage.server.restart().expect("a server");
    until("they are missed", || source.stats().missed == 2).await;
    until("live", || source.state() == State::Live && source.stats().behind == 0).await;
    let stats = finish_source(source).await;
    assert_eq!((stats.received, stats.missed, stats.holes), (8, 2, 0), "{stats:?}");
    finish(publisher).await;
}

#[tokio::test]
async fn a_damaged_message_does_not_reach_the_pool_and_the_next_one_does() {
    let stage = Stage::new(streams()).await;
    let built = pool();
    let source = stage.source(&built, "one");
    let context = stage.client().await;
    let txs = transactions(17, 2, 0);
    let other = Encoded { id: B256::repeat_byte(7), ..TxRecord::of(&txs[1]).encode() };
    for encoded in [other, TxRecord::of(&txs[0]).encode()] {
        let message = async_nats::jetstream::message::PublishMessage::build()
            .message_id(hex::encode(encoded.id))
            .payload(encoded.payload);
        let sent = context.send_publish("mempool.1.tx.0.a", message).await;
        sent.expect("sent").await.expect("stored");
    }
    until("two messages", || source.stats().received == 2).await;
    assert_eq!(hashes(&built), [*txs[0].hash()].into());
    let stats = source.shutdown(PATIENCE).await;
    assert_eq!((stats.received, stats.pooled, stats.malformed), (2, 1, 1));
}

#[tokio::test]
async fn a_shutdown_lasts_no_longer_than_its_limit_beside_a_server_that_hangs() {
    let stage = Stage::new(streams()).await;
    let (ingested, built) = (pool(), pool());
    let publisher = stage.publisher(&ingested, "a");
    let source = stage.source(&built, "one");
    until("live", || publisher.state() == State::Live && source.state() == State::Live).await;
    stage.server.sigstop().expect("a stopped server");
    insert(&ingested, &transactions(18, 50, 0));
    until("all published", || publisher.stats().published == 50).await;
    let began = Instant::now();
    let limit = Duration::from_millis(300);
    let stats = publisher.shutdown(limit).await;
    source.shutdown(limit).await;
    let took = began.elapsed();
    stage.server.sigcont().expect("a server");
    assert!(took < Duration::from_secs(3), "{took:?}");
    assert_eq!((stats.published, stats.stored, stats.unfinished), (50, 0, 50));
}

#[tokio::test]
async fn a_shutdown_lasts_no_longer_than_its_limit_while_the_socket_takes_nothing() {
    let stage = Stage::new(streams()).await;
    let ingested = pool();
    // Pings that nobody answers would end the connection before the limit shows anything.
    let minute = Duration::from_secs(60);
    let server = stage.config().with_times(minute, minute);
    let config = PublisherConfig::new(server, CHAIN, "a").with_backoff(BACKOFF);
    let config = config.with_ack_timeout(minute).with_window(4_096, 1 << 30);
    let publisher = Publisher::start(&ingested, config).expect("a publisher");
    until_live(&publisher).await;
    stage.server.sigstop().expect("a stopped server");
    // Far more than the client and the sockets buffer.
    insert(&ingested, &transactions(21, 600, 1_000));
    let mut before = (0, Instant::now());
    until("a socket that takes nothing", || {
        let now = publisher.stats().published;
        if before.0 != now {
            before = (now, Instant::now());
        }
        now > 256 && before.1.elapsed() > Duration::from_millis(500)
    })
    .await;
    let began = Instant::now();
    let stats = publisher.shutdown(Duration::from_millis(300)).await;
    let took = began.elapsed();
    stage.server.sigcont().expect("a server");
    assert!(took < Duration::from_secs(3), "{took:?}");
    assert!(stats.published < 600, "the socket took everything");
    assert_eq!((stats.stored, stats.published), (0, stats.unfinished));
}

#[tokio::test]
async fn a_server_that_hung_is_not_taken_for_a_new_stream_though_answers_come_out_of_turn() {
    let stage = Stage::new(streams()).await;
    let ingested = pool();
    // Pings that nobody answers would end the connection.
    let minute = Duration::from_secs(60);
    let server = stage.config().with_times(minute, minute);
    let config = PublisherConfig::new(server, CHAIN, "a").with_backoff(BACKOFF);
    let config = config.with_ack_timeout(Duration::from_millis(300));
    let publisher = Publisher::start(&ingested, config).expect("a publisher");
    until_live(&publisher).await;
    stage.server.sigstop().expect("a stopped server");
    insert(&ingested, &transactions(22, 10_000, 0));
    until("unavailable", || publisher.state() == State::Unavailable).await;
    stage.server.sigcont().expect("a server");
    let stats = finish(publisher).await;
    assert_eq!((stats.published, stats.resets), (10_000, 0), "{stats:?}");
    assert_eq!((stats.connects, stats.refused_total()), (1, 0), "{stats:?}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_reported_and_waited_for() {
    let mut stage = Stage::new(streams()).await;
    stage.server.kill9().expect("a dead server");
    let (ingested, built) = (pool(), pool());
    insert(&ingested, &transactions(19, 10, 0));
    let publisher = stage.publisher(&ingested, "a");
    let source = stage.source(&built, "one");
    let unreachable = State::Disconnected { reason: DisconnectReason::Unreachable };
    until("reported", || publisher.state() == unreachable).await;
    until("reported", || source.state() == unreachable).await;
    stage.server.restart().expect("a server");
    until_equal(&ingested, &built).await;
    finish(publisher).await;
    finish_source(source).await;
}
