//! Failures of servers, streams and messages.

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

use super::{resets::check_new_builder, *};

/// Stores transactions as another machine does.
async fn store(fixture: &Fixture, txs: &[Transaction]) {
    let context = fixture.client().await;
    for Encoded { id, payload } in txs.iter().map(|tx| encode_transaction(tx, Duration::ZERO)) {
        let message = PublishMessage::build().message_id(hex::encode(id)).payload(payload);
        let sent = context.send_publish("mempool.1.tx.other", message).await;
        sent.expect("sent").await.expect("stored");
    }
}

#[tokio::test]
async fn a_server_that_is_killed_and_started_again_loses_nothing() {
    let (mut fixture, ingested, built) = Fixture::with_pools().await;
    let txs = transactions(11, 900, 0);
    let (publisher, source) = fixture.both(Flow::Public, &ingested, &built);
    insert(&ingested, &txs[..300]);
    wait_until_equal(&ingested, &built).await;
    insert(&ingested, &txs[300..600]);
    fixture.server.kill9().expect("a dead server");
    let unreachable = State::Disconnected { reason: DisconnectReason::Unreachable };
    wait_for_state_of_both(unreachable, &publisher, &source).await;
    insert(&ingested, &txs[600..]);
    fixture.server.restart().expect("a server");
    let took = wait_until_equal(&ingested, &built).await;
    println!("equal {took:?} after the restart");
    let stats = finish(publisher).await;
    assert!(stats.connects >= 2 && stats.comparisons >= 2, "{stats:?}");
    assert_eq!((stats.published, stats.refused_total()), (900, 0));
    let stats = finish_source(source).await;
    assert_eq!((stats.pooled, stats.missed), (900, 0));
}

#[tokio::test]
async fn a_missing_stream_is_waited_for_and_then_gets_everything() {
    let fixture = Fixture::without_streams(&NatsConfig::default());
    let (ingested, built) = (pool(), pool());
    let txs = transactions(12, 200, 0);
    insert(&ingested, &txs[..100]);
    let (publisher, source) = fixture.both(Flow::Public, &ingested, &built);
    wait_for_state_of_both(State::StreamMissing, &publisher, &source).await;
    fixture.create_streams(&fixture.config()).await;
    wait_until_equal(&ingested, &built).await;
    wait_for_state_of_both(State::Live, &publisher, &source).await;
    fixture.client().await.delete_stream(STREAM).await.expect("a deletion");
    insert(&ingested, &txs[100..]);
    wait_until("the publisher notices", || publisher.state() != State::Live).await;
    fixture.create_streams(&fixture.config()).await;
    wait_until_equal(&ingested, &built).await;
    finish_source(source).await;
    check_new_builder("missing for a while", &fixture, &ingested, publisher).await;
}

#[tokio::test]
async fn a_full_stream_gets_the_rest_when_it_has_room() {
    let fixture = Fixture::new().await;
    let context = fixture.client().await;
    let large = context.get_stream(STREAM).await.expect("the stream").cached_info().config.clone();
    let mut small = large.clone();
    (small.max_bytes, small.discard) = (64 << 10, DiscardPolicy::New);
    context.update_stream(small).await.expect("a smaller stream");
    let (ingested, built) = (pool(), pool());
    let txs = transactions(13, 1_000, 0);
    insert(&ingested, &txs);
    let publisher = fixture.publisher(&ingested, "a");
    wait_until("a full stream", || publisher.state() == State::Full).await;
    let source = fixture.source(&built, "one");
    wait_until("some", || built.stats().txs > 100).await;
    assert!(publisher.stats().unfinished > 0);
    context.update_stream(large).await.expect("a larger stream");
    wait_until_equal(&ingested, &built).await;
    wait_until_live(&publisher).await;
    let stats = finish(publisher).await;
    assert_eq!((stats.published, stats.stored + stats.duplicate), (1_000, 1_000), "{stats:?}");
    finish_source(source).await;
}

/// The stream holds more than one pull request of the source, by messages and by bytes.
#[tokio::test]
async fn a_builder_that_is_behind_misses_nothing() {
    let (fixture, ingested, built) = Fixture::with_pools().await;
    let source = fixture.source(&built, "slow");
    insert(&ingested, &transactions(15, 10_000, 10));
    let publisher = fixture.publisher(&ingested, "a");
    wait_until_equal(&ingested, &built).await;
    finish(publisher).await;
    let stats = finish_source(source).await;
    assert_eq!((stats.pooled, stats.missed), (10_000, 0));
}

#[tokio::test]
async fn only_messages_that_are_too_large_are_refused() {
    let config = NatsConfig { max_payload_bytes: 64 << 10, ..NatsConfig::default() };
    let fixture = Fixture::without_streams(&config);
    fixture.create_streams(&fixture.config()).await;
    let (ingested, built) = (pool(), pool());
    let txs = transactions(14, 200, 50);
    insert(&ingested, &txs);
    let blobs = txs.iter().filter(|tx| tx.blob_count() > 0).count() as u64;
    assert!(blobs > 0);
    let (publisher, source) = fixture.both(Flow::Public, &ingested, &built);
    wait_until("the others", || built.stats().txs == 200 - blobs).await;
    let stats = finish(publisher).await;
    assert_eq!(stats.refused[RefuseReason::TooLarge as usize], blobs);
    assert_eq!((stats.published, stats.stored), (200, 200 - blobs));
    finish_source(source).await;
}

#[tokio::test]
async fn deleted_messages_are_counted_as_missed() {
    let (fixture, ingested, built) = Fixture::with_pools().await;
    let txs = transactions(16, 21, 0);
    let publisher = fixture.publish(&ingested, &txs[..20]).await;
    let stream = fixture.client().await.get_stream(STREAM).await.expect("the stream");
    for sequence in [5, 6, 11, 20] {
        assert!(stream.delete_message(sequence).await.expect("a deletion"));
    }
    let source = fixture.source(&built, "one");
    wait_until("the rest", || built.stats().txs == 16 && source.state() == State::Live).await;
    insert(&ingested, &txs[20..]);
    wait_until("a new one", || built.stats().txs == 17 && source.stats().behind == 0).await;
    let stats = finish_source(source).await;
    assert_eq!((stats.received, stats.missed), (17, 4), "{stats:?}");
    finish(publisher).await;
}

/// A builder that started later lacked messages, and no counter said so.
#[tokio::test]
async fn a_late_builder_reports_that_the_stream_deleted_messages_for_space() {
    let (fixture, ingested, built) = Fixture::with_pools().await;
    let early = fixture.source(&built, "early");
    let publisher = fixture.publisher(&ingested, "a");
    insert(&ingested, &transactions(27, 100, 0));
    wait_until_equal(&ingested, &built).await;
    let whole = fixture.source(&pool(), "whole");
    wait_until("it reads", || whole.state() == State::Live).await;
    let limited = configured(stream(Flow::Public), |config| config.max_bytes = 16 << 10);
    ensure_stream(&fixture.config(), &limited).await.expect("a smaller stream");
    let late = fixture.source(&pool(), "late");
    wait_until("it reads", || late.state() == State::Live).await;
    let cut = [early, whole, late].map(|source| source.stats().cut);
    assert_eq!(cut, [0, 0, 1]);
    finish(publisher).await;
}

#[tokio::test]
async fn a_stream_that_lost_everything_and_grew_again_is_read_anew() {
    let mut fixture = Fixture::new().await;
    let built = pool();
    let txs = transactions(21, 22, 0);
    let source = fixture.source(&built, "one");
    store(&fixture, &txs[..10]).await;
    wait_until("the first", || built.stats().txs == 10).await;
    fixture.server.kill9().expect("a dead server");
    let folder = fixture.dir.path().join("nats-1/jetstream/$G/streams").join(STREAM).join("msgs");
    std::fs::remove_dir_all(folder).expect("the messages");
    // The source comes back after a backoff. By then the stream is longer than before.
    wait_until("some attempts", || source.state() != State::Live).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    fixture.server.restart().expect("a server");
    store(&fixture, &txs[10..]).await;
    wait_until("all", || built.stats().txs == 22).await;
    let stats = finish_source(source).await;
    assert_eq!((stats.pooled, stats.resets, stats.missed), (22, 1, 0), "{stats:?}");
}

#[tokio::test]
async fn a_shutdown_publishes_everything_once_the_server_is_back() {
    let (mut fixture, ingested, built) = Fixture::with_pools().await;
    let publisher = fixture.publisher(&ingested, "a");
    wait_until_live(&publisher).await;
    fixture.server.kill9().expect("a dead server");
    insert(&ingested, &transactions(23, 50, 0));
    wait_until("the loss is noticed", || is_lost(publisher.state())).await;
    let restart = async { fixture.server.restart().expect("a server") };
    let (stats, ()) = tokio::join!(finish(publisher), restart);
    assert_eq!(stats.stored, 50, "{stats:?}");
    let source = fixture.source(&built, "one");
    wait_until_equal(&ingested, &built).await;
    finish_source(source).await;
}

#[tokio::test]
async fn a_shutdown_keeps_its_deadline_although_the_server_hangs() {
    let (fixture, ingested, built) = Fixture::with_pools().await;
    let (publisher, source) = fixture.both(Flow::Public, &ingested, &built);
    wait_for_state_of_both(State::Live, &publisher, &source).await;
    let txs = transactions(21, 601, 1_000);
    // A connection begins with one message.
    insert(&ingested, &txs[..1]);
    wait_until("stored", || publisher.stats().stored == 1).await;
    fixture.server.sigstop().expect("a stopped server");
    // They are far more bytes than client and sockets buffer.
    insert(&ingested, &txs[1..]);
    let mut published = 0;
    let mut changed_at = Instant::now();
    wait_until("the socket accepts nothing", || {
        let latest = publisher.stats().published;
        if latest != published {
            published = latest;
            changed_at = Instant::now();
        }
        published > 100 && changed_at.elapsed() > Duration::from_millis(500)
    })
    .await;
    let began = Instant::now();
    let deadline = Duration::from_millis(300);
    let end = publisher.shutdown(deadline).await;
    source.shutdown(deadline).await;
    let stats = end.stats;
    let took = began.elapsed();
    fixture.server.sigcont().expect("a server");
    assert!(took < Duration::from_secs(3), "{took:?}");
    assert!(
        end.state == State::Ended && stats.published < 600,
        "the window took everything: {end:?}"
    );
    assert_eq!((stats.stored, stats.published), (1, 1 + stats.unfinished));
}

#[tokio::test]
async fn a_server_that_hung_is_not_mistaken_for_a_reset_stream() {
    let fixture = Fixture::new().await;
    let ingested = pool();
    let publisher = fixture.publisher(&ingested, "a");
    wait_until_live(&publisher).await;
    fixture.server.sigstop().expect("a stopped server");
    insert(&ingested, &transactions(22, 10_000, 0));
    // The server goes on before the connection is given up.
    wait_until("unavailable", || publisher.state() == State::Unavailable).await;
    fixture.server.sigcont().expect("a server");
    let stats = finish(publisher).await;
    assert_eq!((stats.published, stats.resets), (10_000, 0), "{stats:?}");
    // The connection is given up after four seconds, which may be before the server goes on.
    assert!(stats.connects <= 3 && stats.refused_total() == 0, "{stats:?}");
}

/// The acknowledgements of two attempts exceeded what the client waits for at once, and nobody read
/// those of the first attempt meanwhile. The publisher stood still for ever.
#[tokio::test]
async fn a_whole_window_is_republished_while_its_acknowledgements_are_pending() {
    let fixture = Fixture::new().await;
    // The server gets nothing of the window that follows the first message.
    let mut published = 0;
    let url = proxy::start(&fixture.server, move |subject| {
        published += usize::from(subject.starts_with("mempool."));
        !subject.starts_with("mempool.") || !(2..=4_097).contains(&published)
    });
    let ingested = pool();
    let publisher = publisher(ServerConfig::new(url), &ingested, "a");
    wait_until_live(&publisher).await;
    let txs = transactions(24, 6_000, 0);
    insert(&ingested, &txs[..100]);
    // These are published again first, while the others are pending.
    tokio::time::sleep(Duration::from_millis(300)).await;
    insert(&ingested, &txs[100..]);
    let stats = finish(publisher).await;
    // A message that was published again while it was stored is a duplicate.
    let acknowledged = stats.stored + stats.duplicate;
    assert_eq!((stats.published, acknowledged, stats.connects), (6_000, 6_000, 1), "{stats:?}");
    assert!(stats.republished >= 4_096, "{stats:?}");
}

/// A server that stored nothing got the whole window again and again.
#[tokio::test]
async fn a_stream_that_stores_nothing_gets_one_message_at_a_time() {
    let fixture = Fixture::new().await;
    let context = fixture.client().await;
    let large = context.get_stream(STREAM).await.expect("the stream").cached_info().config.clone();
    let mut full = large.clone();
    (full.max_messages, full.discard) = (1, DiscardPolicy::New);
    context.update_stream(full).await.expect("a smaller stream");
    let published = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&published);
    let url = proxy::start(&fixture.server, move |subject| {
        counted.fetch_add(usize::from(subject.starts_with("mempool.")), SeqCst);
        true
    });
    let ingested = pool();
    let publisher = publisher(ServerConfig::new(url), &ingested, "a");
    wait_until_live(&publisher).await;
    insert(&ingested, &transactions(28, 1_000, 0));
    wait_until("a full stream", || publisher.state() == State::Full).await;
    let before = published.load(SeqCst);
    // Each copy of the message comes after a pause of at least half a second.
    let began = Instant::now();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let copies = published.load(SeqCst) - before;
    let pauses = began.elapsed().as_millis() / 500;
    assert!(copies >= 1 && copies as u128 <= 2 * (pauses + 1), "{copies} copies");
    context.update_stream(large).await.expect("a larger stream");
    let stats = finish(publisher).await;
    let acknowledged = stats.stored + stats.duplicate;
    assert_eq!((stats.published, acknowledged, stats.connects), (1_000, 1_000, 1), "{stats:?}");
}

/// Messages that a leader dropped while it stepped down reached builders after the timeout of their
/// acknowledgements, five seconds later.
#[tokio::test]
async fn messages_that_the_server_dropped_silently_arrive_half_a_second_later() {
    let fixture = Fixture::new().await;
    let mut published = 0;
    // The server loses ten of a hundred messages, in a row.
    let url = proxy::start(&fixture.server, move |subject| {
        published += usize::from(subject.starts_with("mempool."));
        !subject.starts_with("mempool.") || !(41..=50).contains(&published)
    });
    let (ingested, built) = (pool(), pool());
    let source = fixture.source(&built, "one");
    let publisher = publisher(ServerConfig::new(url), &ingested, "a");
    wait_until_live(&publisher).await;
    insert(&ingested, &transactions(26, 100, 0));
    let took = wait_until_equal(&ingested, &built).await;
    println!("equal after {took:?}");
    assert!(took < Duration::from_secs(4), "{took:?}");
    let stats = finish(publisher).await;
    assert_eq!((stats.published, stats.stored), (100, 100), "{stats:?}");
    assert!(stats.republished < 20, "{stats:?}");
    finish_source(source).await;
}

/// The source delivered nothing while it waited for the response, and then gave the connection up.
#[tokio::test]
async fn a_source_keeps_reading_while_its_check_has_no_response() {
    let fixture = Fixture::new().await;
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&requests);
    // The first request gets a response, because nothing is read without it.
    let url = proxy::start(&fixture.server, move |subject| {
        !subject.starts_with("$JS.API.STREAM.INFO.") || counted.fetch_add(1, SeqCst) == 0
    });
    let built = pool();
    let source = source(ServerConfig::new(url), &built);
    let mut took = Vec::new();
    for (n, tx) in transactions(25, 3, 0).iter().enumerate() {
        wait_until("a request without a response", || requests.load(SeqCst) >= n + 2).await;
        store(&fixture, slice::from_ref(tx)).await;
        took.push(wait_until("it comes", || built.contains(tx.hash())).await);
    }
    // Each took two seconds, until the request was given up. One may be late on a busy machine.
    assert!(took.iter().min() < Some(&Duration::from_secs(1)), "{took:?}");
    assert_eq!((source.state(), source.stats().connects), (State::Live, 1));
    finish_source(source).await;
}

/// A response about the stream that came after later messages was taken for a stream that had lost
/// its end. Builders connected again every few seconds, and got nothing meanwhile.
#[tokio::test]
async fn a_source_keeps_its_connection_if_messages_overtake_a_response_about_the_stream() {
    let fixture = Fixture::new().await;
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&requests);
    let count = move |subject: &str| {
        counted.fetch_add(usize::from(subject.starts_with("$JS.API.STREAM.INFO.")), SeqCst);
        true
    };
    let url = proxy::start_with_delays(&fixture.server, count, |payload| {
        let is_info = String::from_utf8_lossy(payload).contains("v1.stream_info_response");
        if is_info { Duration::from_millis(500) } else { Duration::ZERO }
    });
    let built = pool();
    let source = source(ServerConfig::new(url), &built);
    for (n, tx) in transactions(30, 3, 0).iter().enumerate() {
        // The first request is that of the begin.
        wait_until("a check", || requests.load(SeqCst) >= n + 2).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        store(&fixture, slice::from_ref(tx)).await;
        let took = wait_until("it comes", || built.contains(tx.hash())).await;
        println!("it came after {took:?}");
    }
    wait_until("a further check", || requests.load(SeqCst) >= 5).await;
    assert_eq!(source.stats().connects, 1);
    finish_source(source).await;
}

/// An ingest stayed ready for 35 seconds, and what it answered with success meanwhile reached no
/// builder.
#[tokio::test]
async fn a_publisher_without_its_server_is_not_ready_after_two_seconds() {
    let fixture = Fixture::new().await;
    let ingested = pool();
    let unconnected = publisher(ServerConfig::new("nats://127.0.0.1:1"), &pool(), "b");
    let publisher = fixture.publisher(&ingested, "a");
    wait_until_live(&publisher).await;
    let is_ready = publisher.readiness();
    assert!(is_ready() && publisher.unstored_for().is_none());
    assert!(!unconnected.readiness()(), "it was never connected");
    fixture.server.sigstop().expect("a stopped server");
    insert(&ingested, &transactions(28, 1, 0));
    let took = wait_until("it is not ready", || !is_ready()).await;
    println!("not ready after {took:?}");
    // The publisher took the order some milliseconds before this measurement began.
    assert!((UNSTORED_LIMIT * 9 / 10..2 * UNSTORED_LIMIT).contains(&took), "{took:?}");
    wait_until("its state says so", || publisher.state() != State::Live).await;
    fixture.server.sigcont().expect("a server");
    wait_until("it is ready", &is_ready).await;
    wait_until_live(&publisher).await;
    assert_eq!(publisher.stats().unfinished, 0);
    finish(publisher).await;
    assert!(!is_ready(), "it has ended");
    unconnected.shutdown(Duration::ZERO).await;
}

/// A server disables JetStream when its disk is full, and does not enable it again when there is
/// room. Here a reload of its configuration disables it. The state changed to catching up at each
/// attempt, so an alert for 15 seconds without storing could not fire.
#[tokio::test]
async fn nothing_is_stored_while_a_server_has_disabled_jetstream() {
    let (mut fixture, ingested, built) = Fixture::with_pools().await;
    let (publisher, source) = fixture.both(Flow::Public, &ingested, &built);
    wait_for_state_of_both(State::Live, &publisher, &source).await;
    let is_ready = publisher.readiness();
    let path = fixture.dir.path().join("nats-1.conf");
    let enabled = std::fs::read_to_string(&path).expect("the configuration");
    let disabled: Vec<_> = enabled.lines().filter(|line| !line.starts_with("jetstream ")).collect();
    std::fs::write(&path, disabled.join("\n")).expect("written");
    fixture.server.sighup().expect("a reload");
    insert(&ingested, &transactions(29, 20, 0));
    wait_until("nothing is stored", || publisher.state() == State::Unavailable && !is_ready())
        .await;
    let mut states = publisher.watch();
    // The first messages may have been stored before the reload.
    let before = publisher.stats();
    while publisher.stats().connects < before.connects + 3 {
        let changed = tokio::time::timeout(TIMEOUT, states.changed()).await;
        changed.expect("another attempt").expect("it runs");
        let state = *states.borrow_and_update();
        assert!(!matches!(state, State::Live | State::Lagging | State::CatchingUp), "{state:?}");
    }
    assert_eq!(publisher.stats().stored, before.stored);
    std::fs::write(&path, enabled).expect("written");
    fixture.server.kill9().expect("a dead server");
    fixture.server.restart().expect("a server");
    wait_until_equal(&ingested, &built).await;
    wait_until("it is ready", &is_ready).await;
    finish_all([publisher], [source]).await;
}
