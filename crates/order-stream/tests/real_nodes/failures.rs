//! Servers, streams and messages that fail.

use std::{
    slice,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use alloy_primitives::hex;
use async_nats::jetstream::{message::PublishMessage, stream::DiscardPolicy};
use order_stream::{
    DisconnectReason, RefuseReason, UNSTORED_LIMIT,
    wire::{Encoded, encode_transaction},
};

use super::{resets::a_new_builder_equals, *};

/// Stores transactions as a machine does that is not there.
async fn store(stage: &Stage, txs: &[Transaction]) {
    let context = stage.client().await;
    for Encoded { id, payload } in txs.iter().map(|tx| encode_transaction(tx, Duration::ZERO)) {
        let message = PublishMessage::build().message_id(hex::encode(id)).payload(payload);
        let sent = context.send_publish("mempool.1.tx.other", message).await;
        sent.expect("sent").await.expect("stored");
    }
}

#[tokio::test]
async fn a_server_that_is_killed_and_started_again_loses_nothing() {
    let (mut stage, ingested, built) = Stage::with_pools().await;
    let txs = transactions(11, 900, 0);
    let (publisher, source) = stage.both(Flow::Public, &ingested, &built);
    insert(&ingested, &txs[..300]);
    until_equal(&ingested, &built).await;
    insert(&ingested, &txs[300..600]);
    stage.server.kill9().expect("a dead server");
    let unreachable = State::Disconnected { reason: DisconnectReason::Unreachable };
    until_both(unreachable, &publisher, &source).await;
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
    let (publisher, source) = stage.both(Flow::Public, &ingested, &built);
    until_both(State::StreamMissing, &publisher, &source).await;
    stage.make(&stage.config()).await;
    until_equal(&ingested, &built).await;
    until_both(State::Live, &publisher, &source).await;
    stage.client().await.delete_stream(STREAM).await.expect("a deletion");
    insert(&ingested, &txs[100..]);
    until("the publisher notices", || publisher.state() != State::Live).await;
    stage.make(&stage.config()).await;
    until_equal(&ingested, &built).await;
    finish_source(source).await;
    a_new_builder_equals("missing for a while", &stage, &ingested, publisher).await;
}

#[tokio::test]
async fn a_full_stream_refuses_and_gets_the_rest_when_it_has_room() {
    let stage = Stage::new().await;
    let context = stage.client().await;
    let large = context.get_stream(STREAM).await.expect("it").cached_info().config.clone();
    let mut small = large.clone();
    (small.max_bytes, small.discard) = (64 << 10, DiscardPolicy::New);
    context.update_stream(small).await.expect("a smaller stream");
    let (ingested, built) = (pool(), pool());
    let txs = transactions(13, 1_000, 0);
    insert(&ingested, &txs);
    let publisher = stage.publisher(&ingested, "a");
    until("a full stream", || publisher.state() == State::Full).await;
    let source = stage.source(&built, "one");
    until("some", || built.stats().txs > 100).await;
    assert!(publisher.stats().unfinished > 0);
    context.update_stream(large).await.expect("a larger stream");
    until_equal(&ingested, &built).await;
    until_live(&publisher).await;
    let stats = finish(publisher).await;
    assert_eq!((stats.published, stats.stored + stats.duplicate), (1_000, 1_000), "{stats:?}");
    finish_source(source).await;
}

/// More than one pull of the source, by number and by bytes.
#[tokio::test]
async fn a_builder_that_is_behind_misses_nothing() {
    let (stage, ingested, built) = Stage::with_pools().await;
    let source = stage.source(&built, "slow");
    insert(&ingested, &transactions(15, 10_000, 10));
    let publisher = stage.publisher(&ingested, "a");
    until_equal(&ingested, &built).await;
    finish(publisher).await;
    let stats = finish_source(source).await;
    assert_eq!((stats.pooled, stats.missed), (10_000, 0));
}

#[tokio::test]
async fn a_message_that_is_too_large_is_refused_and_the_others_are_not() {
    let config = NatsConfig { max_payload_bytes: 64 << 10, ..NatsConfig::default() };
    let stage = Stage::without_streams(&config);
    stage.make(&stage.config()).await;
    let (ingested, built) = (pool(), pool());
    let txs = transactions(14, 200, 50);
    insert(&ingested, &txs);
    let blobs = txs.iter().filter(|tx| tx.blob_count() > 0).count() as u64;
    assert!(blobs > 0);
    let (publisher, source) = stage.both(Flow::Public, &ingested, &built);
    until("the others", || built.stats().txs == 200 - blobs).await;
    let stats = finish(publisher).await;
    assert_eq!(stats.refused[RefuseReason::TooLarge as usize], blobs);
    assert_eq!((stats.published, stats.stored), (200, 200 - blobs));
    finish_source(source).await;
}

#[tokio::test]
async fn what_was_deleted_is_missed_and_the_rest_is_not() {
    let (stage, ingested, built) = Stage::with_pools().await;
    let txs = transactions(16, 21, 0);
    let publisher = stage.publish(&ingested, &txs[..20]).await;
    let stream = stage.client().await.get_stream(STREAM).await.expect("the stream");
    for sequence in [5, 6, 11, 20] {
        assert!(stream.delete_message(sequence).await.expect("a deletion"));
    }
    let source = stage.source(&built, "one");
    until("the rest", || built.stats().txs == 16 && source.state() == State::Live).await;
    insert(&ingested, &txs[20..]);
    until("a new one", || built.stats().txs == 17 && source.stats().behind == 0).await;
    let stats = finish_source(source).await;
    assert_eq!((stats.received, stats.missed), (17, 4), "{stats:?}");
    finish(publisher).await;
}

/// A builder that started later lacked them, and no counter said so.
#[tokio::test]
async fn a_builder_that_starts_later_says_that_messages_have_left_the_stream_for_space() {
    let (stage, ingested, built) = Stage::with_pools().await;
    let early = stage.source(&built, "early");
    let publisher = stage.publisher(&ingested, "a");
    insert(&ingested, &transactions(27, 100, 0));
    until_equal(&ingested, &built).await;
    let whole = stage.source(&pool(), "whole");
    until("it reads", || whole.state() == State::Live).await;
    let limited = StreamConfig { max_bytes: 16 << 10, ..stream(Flow::Public) };
    ensure_stream(&stage.config(), &limited).await.expect("a smaller stream");
    let late = stage.source(&pool(), "late");
    until("it reads", || late.state() == State::Live).await;
    let cut = [early, whole, late].map(|source| source.stats().cut);
    assert_eq!(cut, [0, 0, 1]);
    finish(publisher).await;
}

#[tokio::test]
async fn a_stream_that_lost_everything_and_was_filled_again_is_read_from_its_start() {
    let mut stage = Stage::new().await;
    let built = pool();
    let txs = transactions(21, 22, 0);
    let source = stage.source(&built, "one");
    store(&stage, &txs[..10]).await;
    until("the first", || built.stats().txs == 10).await;
    stage.server.kill9().expect("a dead server");
    let folder = stage.dir.path().join("nats-1/jetstream/$G/streams").join(STREAM).join("msgs");
    std::fs::remove_dir_all(folder).expect("the messages");
    // It comes back after a backoff; by then the stream is longer than before.
    until("some attempts", || source.state() != State::Live).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    stage.server.restart().expect("a server");
    store(&stage, &txs[10..]).await;
    until("all", || built.stats().txs == 22).await;
    let stats = finish_source(source).await;
    assert_eq!((stats.pooled, stats.resets, stats.missed), (22, 1, 0), "{stats:?}");
}

#[tokio::test]
async fn a_shutdown_waits_for_a_server_that_comes_back_and_publishes_everything() {
    let (mut stage, ingested, built) = Stage::with_pools().await;
    let publisher = stage.publisher(&ingested, "a");
    until_live(&publisher).await;
    stage.server.kill9().expect("a dead server");
    insert(&ingested, &transactions(23, 50, 0));
    until("it knows", || is_lost(publisher.state())).await;
    let restart = async { stage.server.restart().expect("a server") };
    let (stats, ()) = tokio::join!(finish(publisher), restart);
    assert_eq!(stats.stored, 50, "{stats:?}");
    let source = stage.source(&built, "one");
    until_equal(&ingested, &built).await;
    finish_source(source).await;
}

#[tokio::test]
async fn a_shutdown_lasts_no_longer_than_its_limit_beside_a_server_that_hangs() {
    let (stage, ingested, built) = Stage::with_pools().await;
    let (publisher, source) = stage.both(Flow::Public, &ingested, &built);
    until_both(State::Live, &publisher, &source).await;
    stage.server.sigstop().expect("a stopped server");
    // Far more than the client and the sockets buffer.
    insert(&ingested, &transactions(21, 600, 1_000));
    let mut before = (0, Instant::now());
    until("a socket that takes nothing", || {
        let now = publisher.stats().published;
        if before.0 != now {
            before = (now, Instant::now());
        }
        now > 100 && before.1.elapsed() > Duration::from_millis(500)
    })
    .await;
    let began = Instant::now();
    let limit = Duration::from_millis(300);
    let end = publisher.shutdown(limit).await;
    source.shutdown(limit).await;
    let stats = end.stats;
    let took = began.elapsed();
    stage.server.sigcont().expect("a server");
    assert!(took < Duration::from_secs(3), "{took:?}");
    assert!(
        end.state == State::Ended && stats.published < 600,
        "the window took everything: {end:?}"
    );
    assert_eq!((stats.stored, stats.published), (0, stats.unfinished));
}

#[tokio::test]
async fn a_server_that_hung_is_not_taken_for_a_new_stream_though_answers_come_out_of_turn() {
    let stage = Stage::new().await;
    let ingested = pool();
    let publisher = stage.publisher(&ingested, "a");
    until_live(&publisher).await;
    stage.server.sigstop().expect("a stopped server");
    insert(&ingested, &transactions(22, 10_000, 0));
    // Before the connection is given up.
    until("unavailable", || publisher.state() == State::Unavailable).await;
    stage.server.sigcont().expect("a server");
    let stats = finish(publisher).await;
    assert_eq!((stats.published, stats.resets), (10_000, 0), "{stats:?}");
    // It is given up after four seconds, which is before or after the test notices.
    assert!(stats.connects <= 3 && stats.refused_total() == 0, "{stats:?}");
}

/// The responses to the attempt before and to this one were more than the client waited for at once, and nobody took the
/// former while it published: the publisher stood still for good.
#[tokio::test]
async fn a_whole_window_is_published_again_while_the_responses_to_it_are_still_waited_for() {
    let stage = Stage::new().await;
    // The stream gets nothing of the first window.
    let mut published = 0;
    let url = proxy::before(&stage.server, move |subject| {
        published += usize::from(subject.starts_with("mempool."));
        !subject.starts_with("mempool.") || published > 4_096
    });
    let ingested = pool();
    let publisher = publisher(ServerConfig::new(url), &ingested, "a");
    until_live(&publisher).await;
    let txs = transactions(24, 6_000, 0);
    insert(&ingested, &txs[..100]);
    // These time out first, and the others are on their way for two seconds more.
    tokio::time::sleep(Duration::from_secs(2)).await;
    insert(&ingested, &txs[100..]);
    let stats = finish(publisher).await;
    // The one whose wait ended while it was stored is a duplicate.
    let acknowledged = stats.stored + stats.duplicate;
    assert_eq!((stats.published, acknowledged, stats.connects), (6_000, 6_000, 1), "{stats:?}");
    assert!(stats.republished >= 4_096, "{stats:?}");
}

/// What a leader drops while it steps down came to builders when its acknowledgement had been waited for in vain, five seconds
/// later.
#[tokio::test]
async fn what_the_stream_has_lost_without_a_word_comes_half_a_second_later() {
    let stage = Stage::new().await;
    let mut published = 0;
    // Of a hundred messages, ten in a row.
    let url = proxy::before(&stage.server, move |subject| {
        published += usize::from(subject.starts_with("mempool."));
        !subject.starts_with("mempool.") || !(41..=50).contains(&published)
    });
    let (ingested, built) = (pool(), pool());
    let source = stage.source(&built, "one");
    let publisher = publisher(ServerConfig::new(url), &ingested, "a");
    until_live(&publisher).await;
    insert(&ingested, &transactions(26, 100, 0));
    let took = until_equal(&ingested, &built).await;
    println!("equal after {took:?}");
    assert!(took < Duration::from_secs(4), "{took:?}");
    let stats = finish(publisher).await;
    assert_eq!((stats.published, stats.stored), (100, 100), "{stats:?}");
    assert!(stats.republished < 20, "{stats:?}");
    finish_source(source).await;
}

/// Nothing was delivered while the response was waited for, and without one the connection was given up.
#[tokio::test]
async fn a_source_reads_on_while_its_request_for_the_stream_has_no_response() {
    let stage = Stage::new().await;
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&requests);
    // The first one has: without it nothing is read.
    let url = proxy::before(&stage.server, move |subject| {
        !subject.starts_with("$JS.API.STREAM.INFO.") || counted.fetch_add(1, SeqCst) == 0
    });
    let built = pool();
    let source = source(ServerConfig::new(url), &built);
    let mut took = Vec::new();
    for (n, tx) in transactions(25, 3, 0).iter().enumerate() {
        until("a request without a response", || requests.load(SeqCst) >= n + 2).await;
        store(&stage, slice::from_ref(tx)).await;
        took.push(until("it comes", || built.contains(tx.hash())).await);
    }
    // Two seconds each, until the request was given up; one may be late on a busy machine.
    assert!(took.iter().min() < Some(&Duration::from_secs(1)), "{took:?}");
    assert_eq!((source.state(), source.stats().connects), (State::Live, 1));
    finish_source(source).await;
}

/// It stayed ready for 35 seconds, and what it answered with success meanwhile reached no builder.
#[tokio::test]
async fn a_publisher_that_is_cut_off_says_so_after_two_seconds_and_is_ready_again_when_all_is_stored()
 {
    let stage = Stage::new().await;
    let ingested = pool();
    let nobody = publisher(ServerConfig::new("nats://127.0.0.1:1"), &pool(), "b");
    let publisher = stage.publisher(&ingested, "a");
    until_live(&publisher).await;
    let is_ready = publisher.readiness();
    assert!(is_ready() && publisher.unstored_for().is_none());
    assert!(!nobody.readiness()(), "it was never connected");
    stage.server.sigstop().expect("a stopped server");
    insert(&ingested, &transactions(28, 1, 0));
    let took = until("it is not ready", || !is_ready()).await;
    println!("not ready after {took:?}");
    // The publisher took the order some milliseconds before the time begins here.
    assert!((UNSTORED_LIMIT * 9 / 10..2 * UNSTORED_LIMIT).contains(&took), "{took:?}");
    until("its state says so", || publisher.state() != State::Live).await;
    stage.server.sigcont().expect("a server");
    until("it is ready", &is_ready).await;
    until_live(&publisher).await;
    assert_eq!(publisher.stats().unfinished, 0);
    finish(publisher).await;
    assert!(!is_ready(), "it has ended");
    nobody.shutdown(Duration::ZERO).await;
}
