//! Every fault a node can show at its socket, each alone: at the end nothing is missing and every hash is accounted
//! for. `dev/trial` combines them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use load_control::Backoff;
use mock_node::{Fault, FaultPlan, LoadStart, MockNode, NodeConfig, Target};
use order_pool::{OrderPool, PoolConfig};
use testkit::ingest::{settled, socket};
use tokio::sync::Semaphore;
use txpool_fetcher::{
    Announcements, AuditMode, AuditReport, Counts, Endpoint, Fetcher, FetcherConfig, Limits,
    SourceState, SourceStatus, StartPolicy,
};

/// From the first transaction to the last.
const TIME: Duration = Duration::from_secs(2);

const TPS: u32 = 500;

/// The times of the defaults, shortened as the time of a run is.
fn limits() -> Limits {
    let millis = Duration::from_millis;
    Limits {
        fetch_timeout: millis(200),
        call_timeout: millis(1000),
        ping_interval: millis(100),
        ping_timeout: millis(400),
        retry_backoff: Backoff { base: millis(5), cap: millis(50) },
        reconnect: Backoff { base: millis(10), cap: millis(100) },
        audit_settle: millis(50),
        ..Limits::default()
    }
}

/// A node with these faults and its fetcher, from the first subscription to the final audit.
async fn run(what: &str, plan: FaultPlan, announcements: Announcements) -> (Counts, SourceStatus) {
    let (_folder, path) = socket();
    let config = NodeConfig {
        accounts: 100,
        tps: TPS,
        count: Some(u64::from(TPS) * TIME.as_secs()),
        block_time: TIME / 5,
        // Small blocks: what was missed must not be mined away before the audit.
        block_max_txs: 20,
        load_start: LoadStart::FirstSubscription,
        faults: Some(plan),
        ..NodeConfig::new(&path)
    };
    let node = tokio::task::spawn_blocking(|| MockNode::start(config)).await.expect("no panic");
    let node = Arc::new(node.expect("the mock node starts"));
    let config = FetcherConfig {
        start: StartPolicy::WaitForNode,
        announcements,
        audit_interval: Some(Duration::from_secs(2)),
        request_connections: 1,
        ..FetcherConfig::new([Endpoint::Ipc(path)])
    };
    let pool = OrderPool::new(PoolConfig::default()).expect("the defaults are valid");
    let fetcher = Fetcher::start_with(config, limits(), pool).await.expect("it waits for the node");
    let waiting = Arc::clone(&node);
    let finished = tokio::task::spawn_blocking(move || {
        waiting.wait_load_finished(testkit::ingest::PATIENCE)
            && waiting.wait_faults_finished(testkit::ingest::PATIENCE)
    });
    assert!(finished.await.expect("no panic"), "{what}: load and faults end");
    // Live again, and one audit.
    audit(what, &fetcher, AuditMode::Recover).await;
    settled(&fetcher, what, |_| true).await;
    let AuditReport { missing, removed, .. } = audit(what, &fetcher, AuditMode::CompareOnly).await;
    let counts = settled(&fetcher, what, |_| true).await;
    let status = fetcher.status().remove(0);
    assert_eq!((missing, removed), (0, 0), "{what}: {counts:?} {status:?}");
    assert!(counts.pooled > 0, "{what}: {counts:?}");
    let last = fetcher.shutdown(Duration::from_secs(5)).await.counts;
    assert_eq!(last.balance(), 0, "{what}: {last:?}");
    (counts, status)
}

/// An audit, tried until the node lists its pool: an armed fault may still strike its connection.
async fn audit(what: &str, fetcher: &Fetcher, mode: AuditMode) -> AuditReport {
    let deadline = Instant::now() + testkit::ingest::PATIENCE;
    loop {
        while fetcher.status()[0].state != SourceState::Live {
            let (status, counts) = (fetcher.status(), fetcher.counts());
            assert!(Instant::now() < deadline, "{what}: not live again: {status:?} {counts:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        match fetcher.audit(0, mode).await {
            Ok(report) => return report,
            Err(error) => assert!(Instant::now() < deadline, "{what}: no audit: {error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_fault_alone_leaves_nothing_missing() {
    let start = Instant::now();
    let permits = Arc::new(Semaphore::new(3));
    let mut runs = tokio::task::JoinSet::new();
    for fault in Fault::all() {
        let permits = Arc::clone(&permits);
        runs.spawn(async move {
            let _permit = permits.acquire_owned().await.expect("never closed");
            let mut steps = vec![(TIME / 4, fault)];
            let meets_newcomers = matches!(
                fault,
                Fault::CloseOnAccept { .. }
                    | Fault::CloseAfterSubscribe { .. }
                    | Fault::TableFull { .. }
            );
            if meets_newcomers {
                steps.push((TIME / 4 + Duration::from_millis(1), Fault::Close(Target::All)));
            }
            let announcements = match fault {
                Fault::DropObjects { .. } => Announcements::Full,
                _ => Announcements::Hashes,
            };
            let what = format!("{fault:?}");
            let (counts, status) = run(&what, FaultPlan::new(steps), announcements).await;
            assert!(!meets_newcomers || status.reconnects > 0, "{fault:?} has met nobody");
            println!(
                "{fault:?}: reconnects {} lagged {} audit_recovered {} backfilled {}",
                status.reconnects, counts.lagged, counts.audit_recovered, counts.backfilled
            );
        });
    }
    while let Some(joined) = runs.join_next().await {
        joined.expect("a fault left something behind");
    }
    println!("{} faults alone in {:?}", Fault::all().len(), start.elapsed());
}
