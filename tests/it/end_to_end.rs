//! Fetcher, pool and upkeep together, on the mock node over a real socket.

use txpool_fetcher::AuditMode;

use super::*;

/// Transactions that expired in the pool are still pending in the node. The next comparison offers
/// them again, and they are fetched and pooled a second time.
#[tokio::test]
async fn a_comparison_recovers_expired_transactions_that_are_still_pending() {
    let node = Node::start(20, |config| config);
    let pool = configured(PoolConfig::default(), |config| {
        config.tx_retention = Duration::from_millis(200)
    });
    let mut fetcher = node.fetcher();
    fetcher.audit_interval = None;
    let ingest = Ingest::start(IngestConfig::new(fetcher, pool)).await.expect("it starts");
    eventually("the source is live", || ingest.fetcher().is_live()).await;
    node.submit_all();
    eventually("all have expired", || ingest.pool().stats().expired == 20).await;
    assert!(ingest.pool().is_empty());
    // Comparisons pause until the next upkeep after the expiry. Then they offer a few transactions,
    // and more as long as the pool accepts them.
    let deadline = Instant::now() + PATIENCE;
    while ingest.fetcher().counts().pooled < 40 {
        assert!(Instant::now() < deadline, "{:?}", ingest.fetcher().counts());
        let report = ingest.fetcher().audit(0, AuditMode::Recover).await.expect("a list");
        assert_eq!(report.missing, 0, "removed transactions are not missing: {report:?}");
    }
    settled(ingest.fetcher(), "pooled again", |counts| counts.pooled >= 40).await;
    ingest.shutdown(Duration::from_secs(10)).await;
}
