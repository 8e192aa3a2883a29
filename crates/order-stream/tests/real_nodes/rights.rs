//! Users who may do what the README says, and users who may not.

use chain_view::{Block, Head};

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
  { user: deaf, password: p, permissions: {
      publish: ["mempool.1.tx.*.a", "$JS.API.STREAM.INFO.MEMPOOL_1_TX_0"], subscribe: ["_INBOX_b.>"] } }
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
