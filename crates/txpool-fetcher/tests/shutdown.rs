//! After a stop no thread is left. The tests have their own process, because they look at its
//! threads.

use std::{
    panic,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use mock_node::NodeConfig;
use order_pool::{OrderPool, PoolConfig};
use testkit::ingest::{Node, eventually, ingest, settled};
use txpool_fetcher::{EndReason, Fetcher, FetcherEnd, SourceState};

/// Serializes the tests, because both look at the threads.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

fn our_threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux");
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.map(|name| name.trim().to_owned()).filter(|name| name.starts_with("mempool-")).collect()
}

#[tokio::test]
async fn a_shutdown_leaves_no_thread_and_counts_unfinished_hashes() {
    let _alone = ALONE.lock().await;
    // The node responds so slowly that the stop comes before the responses.
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

/// Before the fix the thread that reads the list used the runtime of the sockets, which ended
/// first, and panicked.
#[tokio::test]
async fn a_stop_ends_the_thread_that_lists_a_pool_without_a_panic() {
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
    // Repeated, because it was a race between two threads.
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
