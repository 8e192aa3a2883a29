//! What the host's side can do to the fetcher, its sink above all: block, panic, be full, call back.

use std::time::Duration;

use mempool_ingest::txpool_fetcher::{AuditMode, AuditReport, Backfill, SnapshotError};
use testkit::ingest::{Node, ingest, settled};

#[tokio::test]
async fn audits_run_one_after_another_and_callers_beyond_the_queue_are_told() {
    let node = Node::start(1, |config| config);
    let mut config = node.fetcher();
    config.audit_settle = Duration::from_millis(300);
    let (fetcher, _pool) = ingest(config).await;
    let audits = (0..10).map(|_| fetcher.audit(0, AuditMode::CompareOnly));
    let results = futures::future::join_all(audits).await;
    let busy = |result: &&Result<_, _>| matches!(result, Err(SnapshotError::Busy { waiting: 4 }));
    let (busy, done) =
        (results.iter().filter(busy).count(), results.iter().filter(|r| r.is_ok()).count());
    assert_eq!(busy + done, 10, "{results:?}");
    // Four wait, and the one that runs may have been taken out before the last of them came.
    assert!((4..=5).contains(&done), "{results:?}");
    fetcher.audit(0, AuditMode::CompareOnly).await.expect("there is room again");
}

#[tokio::test]
async fn a_report_keeps_the_number_of_what_was_missing_and_some_of_the_hashes() {
    let node = Node::start(100, |config| config);
    node.submit_all();
    let (fetcher, _pool) = ingest(node.fetcher().with_backfill(Backfill::Pending)).await;
    settled(&fetcher, "100 pooled", |counts| counts.pooled == 100).await;
    let report = fetcher.status().remove(0).last_audit.expect("the start-up's");
    assert_eq!((report.missing, report.recovered), (100, 100));
    assert_eq!(report.missing_sample.len(), AuditReport::MISSING_SAMPLE);
    let sent = |hash| node.txs.iter().any(|tx| tx.hash == hash);
    assert!(report.missing_sample.into_iter().all(sent));
}
