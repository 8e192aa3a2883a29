//! Two nodes, of which one imports the old blocks of the other.
//!
//! As long as it takes: `MEMPOOL_INGEST_IMPORT_BLOCKS=1000 cargo test --release --test it import`.

use mock_node::{LoadStart, MockNode};
use order_pool::Event;
use txpool_fetcher::SourceStatus;

use super::{
    fake::{Fake, FakeBlock},
    faults::number,
    *,
};

/// Blocks that the late node imports in a second.
const IMPORTED_PER_SECOND: u32 = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_imports_old_blocks_rolls_nothing_back_beside_a_live_one() {
    let blocks = number("MEMPOOL_INGEST_IMPORT_BLOCKS", 40) as u32;
    let time = Duration::from_secs(1) * blocks / IMPORTED_PER_SECOND;
    let (_folder, path) = socket();
    let config = NodeConfig {
        tps: 2_000,
        count: Some((2_000.0 * time.as_secs_f64()) as u64),
        accounts: 100,
        load_start: LoadStart::FirstSubscription,
        signed_ahead: (2_000.0 * time.as_secs_f64()) as usize,
        ..NodeConfig::new(path)
    };
    let node = MockNode::start(config).expect("the mock node starts");
    let old: Vec<_> = (0..blocks).map(|_| node.mine()).collect();
    let late = Fake::start();
    let to_fake = |block: &mock_node::Block| FakeBlock {
        number: block.number,
        hash: block.hash,
        parent: block.parent_hash,
        time: block.timestamp,
        txs: Vec::new(),
    };
    let endpoints = [node.ipc_path(), &late.path].map(|path| Endpoint::Ipc(path.to_owned()));
    let (fetcher, pool) = ingest_fast(FetcherConfig::new(endpoints)).await;
    let newest = old.last().map(|block| block.number);
    eventually("the live node leads", || pool.head().map(|head| head.number) == newest).await;
    let mut events = pool.subscribe_all();
    let (mut heads, mut added) = (Vec::new(), HashSet::new());
    let mut tick = tokio::time::interval(Duration::from_secs(1) / IMPORTED_PER_SECOND);
    for (n, block) in (1..).zip(&old) {
        tick.tick().await;
        late.announce(&to_fake(block));
        if n % IMPORTED_PER_SECOND == 0 {
            node.mine();
        }
        while let Some(event) = events.try_next() {
            match event.expect("not so many") {
                Event::Head(head) => heads.push(head.number),
                Event::Added(order) => assert!(added.insert(order.id()), "pooled again"),
                _ => {}
            }
        }
    }
    let last = node.mine().number;
    eventually("the last head", || pool.head().is_some_and(|head| head.number == last)).await;
    settled(&fetcher, "all arrive", |counts| counts.announced > 0).await;
    assert!(heads.is_sorted(), "{heads:?}");
    let has_told = |source: &SourceStatus| source.head >= newest;
    assert!(fetcher.status().iter().all(has_told), "{:?}", fetcher.status());
}
