//! After a stop nothing is left. Alone in its process, because it looks at the process's threads.

use std::time::Duration;

use mempool_ingest::txpool_fetcher::EndReason;
use testkit::ingest::{Node, ingest, settled};

fn our_threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux");
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.map(|name| name.trim().to_owned()).filter(|name| name.starts_with("mempool-")).collect()
}

#[tokio::test]
async fn after_a_shutdown_no_thread_is_left_and_what_was_under_way_is_counted() {
    // Answers so slow that the stop comes in the middle of them.
    let latency = mock_node::Latency::Fixed(Duration::from_secs(1));
    let node = Node::start(100, |config| config.with_latency(latency));
    let (fetcher, _pool) = ingest(node.fetcher()).await;
    assert!(our_threads().len() >= 2, "{:?}", our_threads());
    node.submit_all();
    testkit::ingest::eventually("all are announced", || fetcher.counts().announced >= 64).await;
    let (reason, counts) = fetcher.shutdown(Duration::from_secs(5)).await;
    assert_eq!(reason, EndReason::Stopped);
    assert!(counts.unfinished > 0, "{counts:?}");
    assert_eq!(counts.balance(), 0);
    testkit::ingest::eventually("the threads have ended", || our_threads().is_empty()).await;

    let (fetcher, _pool) = ingest(Node::start(0, |config| config).fetcher()).await;
    settled(&fetcher, "nothing to do", |_| true).await;
    drop(fetcher);
    testkit::ingest::eventually("dropping stops too", || our_threads().is_empty()).await;
}
