//! Users who may do what the README says, and users who may not.

use chain_view::{Block, Head};

use super::{malformed::RawClient, *};

/// The users of the README's table, with prefixes of their own; `mute` may publish nothing but reports,
/// and `old` may not read single messages.
const USERS: &str = r#"
authorization { users: [
  { user: admin, password: p }
  { user: a, password: p, permissions: {
      publish: ["mempool.1.tx.*.a", "mempool.1.head.a", "mempool.1.seen.a", "$JS.API.STREAM.INFO.MEMPOOL_1_TX_0"]
      subscribe: ["_INBOX_a.>"] } }
  { user: mute, password: p, permissions: {
      publish: ["mempool.1.seen.a", "$JS.API.STREAM.INFO.MEMPOOL_1_TX_0"], subscribe: ["_INBOX_a.>"] } }
  { user: deaf, password: p, permissions: {
      publish: ["mempool.1.tx.*.a", "$JS.API.STREAM.INFO.MEMPOOL_1_TX_0"], subscribe: ["_INBOX_b.>"] } }
  { user: one, password: p, permissions: {
      publish: [
        "$JS.API.STREAM.INFO.MEMPOOL_1_TX_0", "$JS.API.CONSUMER.CREATE.MEMPOOL_1_TX_0.one",
        "$JS.API.CONSUMER.DELETE.MEMPOOL_1_TX_0.one", "$JS.API.CONSUMER.MSG.NEXT.MEMPOOL_1_TX_0.one"
        "$JS.API.STREAM.MSG.GET.MEMPOOL_1_TX_0" ]
      subscribe: ["_INBOX_one.>", "mempool.1.seen.*"] } }
  { user: old, password: p, permissions: {
      publish: [
        "$JS.API.STREAM.INFO.MEMPOOL_1_TX_0", "$JS.API.CONSUMER.CREATE.MEMPOOL_1_TX_0.old"
        "$JS.API.CONSUMER.DELETE.MEMPOOL_1_TX_0.old", "$JS.API.CONSUMER.MSG.NEXT.MEMPOOL_1_TX_0.old" ]
      subscribe: ["_INBOX_old.>", "mempool.1.seen.*"] } }
] }"#;

impl Stage {
    async fn admin(&self) -> async_nats::jetstream::Context {
        let options =
            async_nats::ConnectOptions::with_user_and_password("admin".into(), "p".into());
        let client = options.connect(self.server.url()).await.expect("a connection");
        async_nats::jetstream::new(client)
    }
}

async fn stage() -> Stage {
    let stage = Stage::without_streams(&NatsConfig::default().with_extra(USERS));
    let admin = stage.config().with_user("admin", "p");
    ensure_streams(&admin, &streams()).await.expect("streams");
    stage
}

fn publisher(stage: &Stage, pool: &OrderPool, user: &str, password: &str) -> Publisher {
    let server = stage.config().with_user(user, password).with_inbox_prefix("_INBOX_a");
    let config = PublisherConfig::new(server, CHAIN, "a").with_backoff(BACKOFF);
    Publisher::start(pool, config).expect("a publisher")
}

fn source(stage: &Stage, pool: &OrderPool, user: &str) -> Source {
    let prefix = format!("_INBOX_{user}");
    let server = stage.config().with_user(user, "p").with_inbox_prefix(prefix);
    let config = SourceConfig::new(server, CHAIN, user).with_backoff(BACKOFF);
    Source::start(pool, config).expect("a source")
}

#[tokio::test]
async fn the_rights_of_the_readme_are_enough() {
    let stage = stage().await;
    let (ingested, built) = (pool(), pool());
    insert(&ingested, &transactions(31, 100, 0));
    let publisher = publisher(&stage, &ingested, "a", "p");
    let source = source(&stage, &built, "one");
    until_equal(&ingested, &built).await;
    RawClient::connect(&stage.server, r#""user":"admin","pass":"p""#).store(
        "mempool.1.tx.0.evil",
        "NATS/1.0\r\nno colon\r\n\r\n",
        b"",
    );
    until("a malformed message", || source.stats().malformed == 1).await;
    assert_eq!(finish(publisher).await.stored, 100);
    source.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn a_source_that_may_not_read_single_messages_is_denied_what_no_consumer_can_bring() {
    let stage = stage().await;
    let (ingested, built) = (pool(), pool());
    insert(&ingested, &transactions(33, 20, 0));
    let publisher = publisher(&stage, &ingested, "a", "p");
    until("all stored", || publisher.stats().stored == 20).await;
    let admin = stage.admin().await;
    let stream = admin.get_stream("MEMPOOL_1_TX_0").await.expect("the stream");
    assert!(stream.delete_message(7).await.expect("a deletion"));
    let source = source(&stage, &built, "old");
    until("the rest, by a third consumer", || built.stats().txs == 19).await;
    until("live", || source.state() == State::Live).await;
    RawClient::connect(&stage.server, r#""user":"admin","pass":"p""#).store(
        "mempool.1.tx.0.evil",
        "NATS/1.0\r\nno colon\r\n\r\n",
        b"",
    );
    until("denied", || source.state() == State::Denied).await;
    assert!(stream.delete_message(21).await.expect("a deletion"));
    insert(&ingested, &transactions(34, 1, 0));
    until("the next message", || built.stats().txs == 20).await;
    let stats = finish_source(source).await;
    assert_eq!((stats.received, stats.missed), (20, 2), "{stats:?}");
    finish(publisher).await;
}

#[tokio::test]
async fn a_wrong_password_and_missing_rights_are_denied() {
    let stage = stage().await;
    let (ingested, built) = (pool(), pool());
    insert(&ingested, &transactions(32, 10, 0));
    let wrong = publisher(&stage, &ingested, "a", "x");
    let mute = publisher(&stage, &ingested, "mute", "p");
    let deaf = publisher(&stage, &ingested, "deaf", "p");
    let server = stage.config().with_user("a", "p").with_inbox_prefix("_INBOX_a");
    let config = SourceConfig::new(server, CHAIN, "one").with_backoff(BACKOFF);
    let source = Source::start(&built, config).expect("a source");
    let denied = State::Denied;
    until("a wrong password", || wrong.state() == denied).await;
    until("a denied subject", || mute.state() == denied).await;
    until("denied answers", || deaf.state() == denied).await;
    until("a denied consumer", || source.state() == denied).await;
    until("all kept", || mute.stats().unfinished == 10).await;
    let stats = mute.shutdown(Duration::from_millis(500)).await;
    assert_eq!((stats.published, stats.refused_total()), (stats.unfinished, 0), "{stats:?}");
    wrong.shutdown(PATIENCE).await;
    deaf.shutdown(PATIENCE).await;
    source.shutdown(PATIENCE).await;
}

/// A machine without the right to publish heads.
const NO_HEADS: &str = r#"
authorization { users: [
  { user: admin, password: p }
  { user: a, password: p, permissions: {
      publish: ["mempool.1.tx.*.a", "$JS.API.STREAM.INFO.MEMPOOL_1_TX_0"], subscribe: ["_INBOX_a.>"] } }
] }"#;

#[tokio::test]
async fn a_denied_subject_does_not_hold_up_the_others() {
    let stage = Stage::without_streams(&NatsConfig::default().with_extra(NO_HEADS));
    let admin = stage.config().with_user("admin", "p");
    ensure_streams(&admin, &streams()).await.expect("streams");
    let ingested = pool();
    let publisher = publisher(&stage, &ingested, "a", "p");
    until_live(&publisher).await;
    let block = Head::new(1, B256::repeat_byte(1), B256::ZERO);
    ingested.on_head(Block::new(block, []));
    until("a denied head", || publisher.state() == State::Denied).await;
    insert(&ingested, &transactions(33, 500, 0));
    until("stored", || publisher.stats().stored == 500).await;
    let stats = publisher.shutdown(Duration::ZERO).await;
    assert_eq!((stats.comparisons, stats.unfinished), (1, 1), "{stats:?}");
}

/// A source without the right to delete its consumer.
const NO_DELETION: &str = r#"
authorization { users: [
  { user: admin, password: p }
  { user: one, password: p, permissions: {
      publish: [
        "$JS.API.STREAM.INFO.MEMPOOL_1_TX_0", "$JS.API.CONSUMER.CREATE.MEMPOOL_1_TX_0.one",
        "$JS.API.CONSUMER.MSG.NEXT.MEMPOOL_1_TX_0.one" ]
      subscribe: ["_INBOX_one.>", "mempool.1.seen.*"] } }
] }"#;

#[tokio::test]
async fn a_source_does_not_read_on_where_an_earlier_one_stood() {
    let stage = Stage::without_streams(&NatsConfig::default().with_extra(NO_DELETION));
    let admin = stage.config().with_user("admin", "p");
    ensure_streams(&admin, &streams()).await.expect("streams");
    let ingested = pool();
    insert(&ingested, &transactions(36, 100, 0));
    let publisher = Publisher::start(&ingested, PublisherConfig::new(admin, CHAIN, "a"));
    let publisher = publisher.expect("a publisher");
    until("stored", || publisher.stats().stored == 100).await;
    let start = |pool: &OrderPool| {
        let server = stage.config().with_user("one", "p").with_inbox_prefix("_INBOX_one");
        let config = SourceConfig::new(server, CHAIN, "one").with_backoff(BACKOFF);
        Source::start(pool, config).expect("a source")
    };
    let (first, second) = (pool(), pool());
    let source = start(&first);
    until_equal(&ingested, &first).await;
    finish_source(source).await;
    insert(&ingested, &transactions(37, 10, 0));
    until("stored", || publisher.stats().stored == 110).await;
    // The earlier consumer would bring these ten, and nobody would miss the hundred.
    let source = start(&second);
    until("it is told", || source.state() == State::Denied).await;
    assert_eq!(source.stats().received, 0);
    source.shutdown(PATIENCE).await;
    finish(publisher).await;
}
