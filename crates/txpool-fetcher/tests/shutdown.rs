//! After a stop nothing is left. Alone in its process, because it looks at the process's threads.

use std::{
    panic,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use mock_node::NodeConfig;
use order_pool::{OrderPool, PoolConfig};
use testkit::ingest::{Node, eventually, ingest, settled};
use txpool_fetcher::{EndReason, Fetcher, FetcherEnd, SourceState};

/// Both tests look at the threads.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

fn our_threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux");
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.map(|name| name.trim().to_owned()).filter(|name| name.starts_with("mempool-")).collect()
}

#[tokio::test]
async fn after_a_shutdown_no_thread_is_left_and_what_was_under_way_is_counted() {
    let _alone = ALONE.lock().await;
    // Answers so slow that the stop comes in the middle of them.
    let latency = Duration::from_secs(1);
    let node = Node::start(100, |config| NodeConfig { latency, ..config });
    let (fetcher, _pool) = ingest(node.fetcher()).await;
    assert!(our_threads().len() >= 2, "{:?}", our_threads());
    node.submit_all();
    eventually("all are announced", || fetcher.counts().announced >= 64).await;
    let FetcherEnd { reason, counts, ended, .. } = fetcher.shutdown(Duration::from_secs(5)).await;
    assert_eq!((reason, ended), (EndReason::Stopped, true));
    assert!(counts.unfinished > 0, "{counts:?}");
    assert_eq!(counts.balance(), 0);
    eventually("the threads have ended", || our_threads().is_empty()).await;

    let (fetcher, _pool) = ingest(Node::start(0, |config| config).fetcher()).await;
    settled(&fetcher, "nothing to do", |_| true).await;
    drop(fetcher);
    eventually("dropping stops too", || our_threads().is_empty()).await;
}

/// The thread that reads the pool blocked on the runtime of the sockets, which ended first: it
/// panicked.
#[tokio::test]
async fn a_stop_while_a_pool_is_listed_ends_that_thread_too_and_without_a_panic() {
    let _alone = ALONE.lock().await;
    let panics: Arc<Mutex<Vec<String>>> = Arc::default();
    let before = Arc::new(panic::take_hook());
    {
        let (panics, before) = (Arc::clone(&panics), Arc::clone(&before));
        panic::set_hook(Box::new(move |info| {
            panics.lock().unwrap().push(info.to_string());
            before(info);
        }));
    }
    // It was a race between two threads at the end.
    let list_time = Duration::from_secs(3_600);
    for _ in 0..50 {
        let pool = OrderPool::new(PoolConfig::default()).expect("the defaults are valid");
        let node = Node::start(0, |config| NodeConfig { list_time, ..config });
        let fetcher = Fetcher::start(node.fetcher(), pool).await.expect("a node is there");
        let is_listing = || our_threads().iter().any(|name| name == "mempool-blocks");
        eventually("the pool is listed", is_listing).await;
        assert_eq!(fetcher.status()[0].state, SourceState::Backfilling);
        let deadline = Duration::from_secs(5);
        let start = Instant::now();
        let end = fetcher.shutdown(deadline).await;
        assert_eq!((end.reason, end.ended), (EndReason::Stopped, true));
        assert!(start.elapsed() < deadline, "{:?}", start.elapsed());
        eventually("the threads have ended", || our_threads().is_empty()).await;
    }
    let panics = panics.lock().unwrap();
    assert!(panics.is_empty(), "{panics:?}");
}
