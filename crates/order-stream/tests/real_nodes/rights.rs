//! Users with fewer rights than those of the sample, with which the tests of `testkit` publish and read.

use super::*;

/// In one account: `a` is a machine of the sample, `mute` may publish nothing, `deaf` may receive no responses, and `stuck`,
/// a builder, may not delete its consumer.
const USERS: &str = r#"
authorization { users: [
  { user: admin, password: p }
  { user: a, password: "p@/", permissions: {
      publish: ["mempool.1.tx.a", "mempool.1.head.a"
        "$JS.API.STREAM.INFO.MEMPOOL_1_PUBLIC", "$JS.API.STREAM.MSG.GET.MEMPOOL_1_PUBLIC"]
      subscribe: ["_INBOX_a.>"] } }
  { user: mute, password: p, permissions: {
      publish: ["$JS.API.STREAM.INFO.MEMPOOL_1_PUBLIC"], subscribe: ["_INBOX_a.>"] } }
  { user: deaf, password: p, permissions: {
      publish: ["mempool.1.tx.a", "$JS.API.STREAM.INFO.MEMPOOL_1_PUBLIC"], subscribe: ["_INBOX_b.>"] } }
  { user: stuck, password: p, permissions: {
      publish: [
        "$JS.API.STREAM.INFO.MEMPOOL_1_PUBLIC", "$JS.API.CONSUMER.CREATE.MEMPOOL_1_PUBLIC.one",
        "$JS.API.CONSUMER.MSG.NEXT.MEMPOOL_1_PUBLIC.one" ]
      subscribe: ["_INBOX_one.>"] } }
] }"#;

impl Stage {
    /// The server, for a user whose password stands in the URL.
    fn user(&self, user: &str, password: &str) -> ServerConfig {
        ServerConfig::new(self.server.url().replace("://", &format!("://{user}:{password}@")))
    }
}

async fn stage() -> Stage {
    let stage =
        Stage::without_streams(&NatsConfig { extra: USERS.into(), ..NatsConfig::default() });
    stage.make(&stage.user("admin", "p")).await;
    stage
}

#[tokio::test]
async fn a_wrong_password_and_missing_rights_are_denied() {
    let stage = stage().await;
    let (ingested, built) = (pool(), pool());
    insert(&ingested, &transactions(32, 10, 0));
    let wrong = publisher(stage.user("a", "x"), &ingested, "a");
    let mute = publisher(stage.user("mute", "p"), &ingested, "a");
    let deaf = publisher(stage.user("deaf", "p"), &ingested, "a");
    let source = source(stage.user("a", "p%40%2F"), &built);
    let denied = State::Denied;
    until("a wrong password", || wrong.state() == denied).await;
    until("a denied subject", || mute.state() == denied).await;
    until("denied responses", || deaf.state() == denied).await;
    until("a denied consumer", || source.state() == denied).await;
    until("all kept", || mute.stats().unfinished == 10).await;
    let stats = mute.shutdown(Duration::from_millis(500)).await.stats;
    assert_eq!((stats.published, stats.refused_total()), (stats.unfinished, 0), "{stats:?}");
    wrong.shutdown(PATIENCE).await;
    deaf.shutdown(PATIENCE).await;
    source.shutdown(PATIENCE).await;
}

#[tokio::test]
async fn two_sources_of_one_name_disturb_each_other_and_both_get_everything() {
    let stage = Stage::new().await;
    let (ingested, built) = (pool(), [pool(), pool()]);
    let publisher = stage.publisher(&ingested, "a");
    let sources = built.each_ref().map(|pool| stage.source(pool, "one"));
    for chunk in transactions(38, 600, 0).chunks(20) {
        insert(&ingested, chunk);
        let stored = ingested.stats().txs;
        until("stored", || publisher.stats().stored == stored).await;
    }
    for pool in &built {
        until_equal(&ingested, pool).await;
    }
    for source in sources {
        let stats = finish_source(source).await;
        assert_eq!((stats.pooled, stats.missed), (600, 0), "{stats:?}");
    }
    finish(publisher).await;
}

#[tokio::test]
async fn a_source_does_not_read_on_where_an_earlier_one_stood() {
    let stage = stage().await;
    let ingested = pool();
    insert(&ingested, &transactions(36, 100, 0));
    let publisher = publisher(stage.user("a", "p%40%2F"), &ingested, "a");
    until("stored", || publisher.stats().stored == 100).await;
    let (first, second) = (pool(), pool());
    let earlier = source(stage.user("stuck", "p"), &first);
    until_equal(&ingested, &first).await;
    finish_source(earlier).await;
    insert(&ingested, &transactions(37, 10, 0));
    until("stored", || publisher.stats().stored == 110).await;
    // The earlier consumer would bring these ten, and nobody would miss the hundred.
    let later = source(stage.user("stuck", "p"), &second);
    until("it is told", || later.state() == State::Denied).await;
    assert_eq!(later.stats().received, 0);
    later.shutdown(PATIENCE).await;
    finish(publisher).await;
}
