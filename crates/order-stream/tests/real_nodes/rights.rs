//! Users with fewer rights than those of the sample configuration, which the tests of `testkit`
//! use.

use super::*;

/// Users of one account: `a` is a machine of the sample, `mute` may publish no order, `deaf` may
/// receive no responses, and `stuck` is a builder that may not delete its consumer.
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
      publish: ["mempool.1.tx.a", "$JS.API.STREAM.INFO.MEMPOOL_1_PUBLIC"]
      subscribe: ["_INBOX_b.>"] } }
  { user: stuck, password: p, permissions: {
      publish: [
        "$JS.API.STREAM.INFO.MEMPOOL_1_PUBLIC", "$JS.API.CONSUMER.CREATE.MEMPOOL_1_PUBLIC.one",
        "$JS.API.CONSUMER.MSG.NEXT.MEMPOOL_1_PUBLIC.one" ]
      subscribe: ["_INBOX_one.>"] } }
] }"#;

impl Fixture {
    /// The server configuration of a user, with the password in the URL.
    fn user(&self, user: &str, password: &str) -> ServerConfig {
        ServerConfig::new(self.server.url().replace("://", &format!("://{user}:{password}@")))
    }
}

async fn fixture_with_users() -> Fixture {
    let fixture =
        Fixture::without_streams(&NatsConfig { extra: USERS.into(), ..NatsConfig::default() });
    fixture.create_streams(&fixture.user("admin", "p")).await;
    fixture
}

#[tokio::test]
async fn a_wrong_password_and_missing_rights_are_reported_as_denied() {
    let fixture = fixture_with_users().await;
    let (ingested, built) = (pool(), pool());
    insert(&ingested, &transactions(32, 10, 0));
    let wrong = publisher(fixture.user("a", "x"), &ingested, "a");
    let mute = publisher(fixture.user("mute", "p"), &ingested, "a");
    let deaf = publisher(fixture.user("deaf", "p"), &ingested, "a");
    let source = source(fixture.user("a", "p%40%2F"), &built);
    let denied = State::Denied;
    wait_until("a wrong password", || wrong.state() == denied).await;
    wait_until("a denied subject", || mute.state() == denied).await;
    wait_until("denied responses", || deaf.state() == denied).await;
    wait_until("a denied consumer", || source.state() == denied).await;
    wait_until("all orders are kept", || mute.stats().unfinished == 10).await;
    let stats = mute.shutdown(Duration::from_millis(500)).await.stats;
    let waiting = stats.published + stats.unpublished;
    assert_eq!((waiting, stats.refused_total()), (stats.unfinished, 0), "{stats:?}");
    // Orders also wait behind a login that was refused.
    wait_until("all orders wait", || wrong.stats().unfinished == 10).await;
    let stats = wrong.shutdown(TIMEOUT).await.stats;
    assert_eq!((stats.published, stats.unpublished, stats.unfinished), (0, 10, 10), "{stats:?}");
    deaf.shutdown(TIMEOUT).await;
    source.shutdown(TIMEOUT).await;
}

#[tokio::test]
async fn two_sources_with_one_name_both_get_everything() {
    let fixture = Fixture::new().await;
    let (ingested, built) = (pool(), [pool(), pool()]);
    let publisher = fixture.publisher(&ingested, "a");
    let sources = built.each_ref().map(|pool| fixture.source(pool, "one"));
    for chunk in transactions(38, 600, 0).chunks(20) {
        insert(&ingested, chunk);
        let stored = ingested.stats().txs;
        wait_until("stored", || publisher.stats().stored == stored).await;
    }
    for pool in &built {
        wait_until_equal(&ingested, pool).await;
    }
    for source in sources {
        let stats = finish_source(source).await;
        assert_eq!((stats.pooled, stats.missed), (600, 0), "{stats:?}");
    }
    finish(publisher).await;
}

#[tokio::test]
async fn a_source_does_not_continue_at_the_position_of_an_earlier_one() {
    let fixture = fixture_with_users().await;
    let ingested = pool();
    insert(&ingested, &transactions(36, 100, 0));
    let publisher = publisher(fixture.user("a", "p%40%2F"), &ingested, "a");
    wait_until("stored", || publisher.stats().stored == 100).await;
    let (first, second) = (pool(), pool());
    let earlier = source(fixture.user("stuck", "p"), &first);
    wait_until_equal(&ingested, &first).await;
    finish_source(earlier).await;
    insert(&ingested, &transactions(37, 10, 0));
    wait_until("stored", || publisher.stats().stored == 110).await;
    // The earlier consumer would deliver these ten, and nobody would notice that a hundred are
    // missing.
    let later = source(fixture.user("stuck", "p"), &second);
    wait_until("it is denied", || later.state() == State::Denied).await;
    assert_eq!(later.stats().received, 0);
    later.shutdown(TIMEOUT).await;
    finish(publisher).await;
}
