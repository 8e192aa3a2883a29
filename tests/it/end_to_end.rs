//! Fetcher, pool and upkeep together against the mock node, over a real socket.

use txpool_fetcher::AuditMode;

use super::*;

/// What the pool let go for its age is still pending in the node: the next comparison offers it again, and it is
/// fetched and pooled a second time.
#[tokio::test]
async fn what_has_expired_and_is_still_pending_comes_back_by_a_comparison() {
    let node = Node::start(20, |config| config);
    let pool = PoolConfig { tx_retention: Duration::from_millis(200), ..PoolConfig::default() };
    let fetcher = FetcherConfig { audit_interval: None, ..node.fetcher() };
    let ingest = Ingest::start(IngestConfig::new(fetcher, pool)).await.expect("it starts");
    eventually("the source is live", || ingest.fetcher().is_live()).await;
    node.submit_all();
    eventually("all have expired", || ingest.pool().stats().expired == 20).await;
    assert!(ingest.pool().is_empty());
    // The pause after the expiry ends with the next upkeep. Then a few are offered at first, and more as long as
    // the pool takes them.
    let deadline = Instant::now() + PATIENCE;
    while ingest.fetcher().counts().pooled < 40 {
        assert!(Instant::now() < deadline, "{:?}", ingest.fetcher().counts());
        let report = ingest.fetcher().audit(0, AuditMode::Recover).await.expect("a list");
        assert_eq!(report.missing, 0, "what the pool removed is not missing: {report:?}");
    }
    settled(ingest.fetcher(), "pooled again", |counts| counts.pooled >= 40).await;
    ingest.shutdown(Duration::from_secs(10)).await;
}
