//! A host that blocks its runtime loses nothing.

use std::time::{Duration, Instant};

use testkit::ingest::{Node, ingest, settled};

/// Longer than the 10 s after which geth gives up a reader.
const BLOCKED: Duration = Duration::from_secs(15);

#[tokio::test(flavor = "current_thread")]
async fn a_host_that_blocks_its_runtime_for_15_seconds_loses_nothing() {
    const TPS: u32 = 1000;
    let announced = u64::from(TPS) * BLOCKED.as_secs();
    let node = Node::start(0, |config| mock_node::NodeConfig {
        tps: TPS,
        count: Some(announced),
        load_start: mock_node::LoadStart::FirstSubscription,
        ..config
    });
    let (fetcher, pool) = ingest(node.fetcher()).await;
    let start = Instant::now();
    while start.elapsed() < BLOCKED {
        // This blocks the only thread of the test's runtime.
        std::thread::sleep(Duration::from_millis(100));
    }
    let behind = announced - fetcher.counts().pooled;
    // The fetcher worked meanwhile, so only the latest transactions may be missing.
    assert!(behind < announced / 10, "{behind} behind");
    let counts = settled(&fetcher, "all pooled", |counts| counts.pooled == announced).await;
    assert_eq!((counts.lagged, counts.failed), (0, 0));
    assert_eq!(pool.len() as u64, announced);
    assert_eq!(fetcher.status()[0].reconnects, 0);
}
