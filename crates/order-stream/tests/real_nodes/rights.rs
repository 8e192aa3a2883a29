//! Users who may do what the README says, and users who may not.

use order_stream::RefuseReason;

use super::*;

/// The users of the README's table, with prefixes of their own; `mute` may publish nothing but reports.
const USERS: &str = r#"
authorization { users: [
  { user: admin, password: p }
  { user: a, password: p, permissions: {
      publish: ["mempool.1.tx.*.a", "mempool.1.head.a", "mempool.1.seen.a", "$JS.API.STREAM.INFO.MEMPOOL_1_TX_0"]
      subscribe: ["_INBOX_a.>"] } }
  { user: mute, password: p, permissions: {
      publish: ["mempool.1.seen.a", "$JS.API.STREAM.INFO.MEMPOOL_1_TX_0"], subscribe: ["_INBOX_a.>"] } }
  { user: one, password: p, permissions: {
      publish: [
        "$JS.API.STREAM.INFO.MEMPOOL_1_TX_0", "$JS.API.CONSUMER.CREATE.MEMPOOL_1_TX_0.one",
        "$JS.API.CONSUMER.DELETE.MEMPOOL_1_TX_0.one", "$JS.API.CONSUMER.MSG.NEXT.MEMPOOL_1_TX_0.one" ]
      subscribe: ["_INBOX_one.>", "mempool.1.seen.*"] } }
] }"#;

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

#[tokio::test]
async fn the_rights_of_the_readme_are_enough() {
    let stage = stage().await;
    let (ingested, built) = (pool(), pool());
    insert(&ingested, &transactions(31, 100, 0));
    let publisher = publisher(&stage, &ingested, "a", "p");
    let server = stage.config().with_user("one", "p").with_inbox_prefix("_INBOX_one");
    let config = SourceConfig::new(server, CHAIN, "one").with_backoff(BACKOFF);
    let source = Source::start(&built, config.with_trust(Trust::Everybody)).expect("a source");
    until_equal(&ingested, &built).await;
    assert_eq!(finish(publisher).await.stored, 100);
    finish_source(source).await;
}

#[tokio::test]
async fn a_wrong_password_and_missing_rights_are_denied() {
    let stage = stage().await;
    let (ingested, built) = (pool(), pool());
    insert(&ingested, &transactions(32, 10, 0));
    let wrong = publisher(&stage, &ingested, "a", "x");
    let mute = publisher(&stage, &ingested, "mute", "p");
    let server = stage.config().with_user("a", "p").with_inbox_prefix("_INBOX_a");
    let config = SourceConfig::new(server, CHAIN, "one").with_backoff(BACKOFF);
    let source = Source::start(&built, config).expect("a source");
    let denied = State::Denied;
    until("a wrong password", || wrong.state() == denied).await;
    until("a denied subject", || mute.state() == denied).await;
    until("a denied consumer", || source.state() == denied).await;
    until("it is counted", || mute.stats().refused[RefuseReason::Denied.index()] > 0).await;
    let stats = mute.shutdown(Duration::from_millis(500)).await;
    let settled = stats.stored + stats.duplicate + stats.refused_total() + stats.unfinished;
    assert_eq!((stats.stored, stats.published), (0, settled), "{stats:?}");
    wrong.shutdown(PATIENCE).await;
    source.shutdown(PATIENCE).await;
}
