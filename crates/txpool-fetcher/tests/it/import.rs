//! Two nodes, of which one imports the old blocks of the other.
//!
//! As long as it takes: `MEMPOOL_INGEST_IMPORT_BLOCKS=1000 cargo test --release --test it import -- --nocapture`.

use mock_node::{LoadStart, MockNode};
use txpool_fetcher::SourceStatus;

use super::{
    fake::{Fake, FakeBlock},
    faults::number,
    *,
};

/// Blocks that the late node imports in a second, beside so many announcements of the other.
const IMPORTED_PER_SECOND: u32 = 20;
const TPS: u32 = 2_000;

/// First the late node is silent for as long, and how late the announcements are is printed for both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_imports_old_blocks_rolls_nothing_back_beside_a_live_one() {
    let blocks = number("MEMPOOL_INGEST_IMPORT_BLOCKS", 40) as u32;
    let (_folder, path) = socket();
    let count = 2 * blocks * TPS / IMPORTED_PER_SECOND;
    let config = NodeConfig {
        tps: TPS,
        count: Some(count.into()),
        accounts: 100,
        load_start: LoadStart::FirstSubscription,
        signed_ahead: count as usize,
        ..NodeConfig::new(path)
    };
    let node = Arc::new(MockNode::start(config).expect("the mock node starts"));
    let old: Vec<_> = (0..blocks).map(|_| node.mine()).collect();
    let late = Fake::start();
    let endpoints = [node.ipc_path(), &late.path].map(|path| Endpoint::Ipc(path.to_owned()));
    let (sink, mut events) = mpsc::channel(1 << 16);
    let fetcher = start_with(FetcherConfig::new(endpoints), settles_fast(), sink).await;
    // With room for all: neither grows while it is timed.
    let (mut heads, mut delivered) = (Vec::new(), HashSet::with_capacity(count as usize));
    let mut tick = tokio::time::interval(Duration::from_secs(1) / IMPORTED_PER_SECOND);
    for imports in [false, true] {
        let mut late_by = Vec::with_capacity(count as usize);
        for (n, block) in (1..).zip(&old) {
            loop {
                let event = tokio::select! {
                    _ = tick.tick() => break,
                    event = events.recv() => event.expect("it runs"),
                };
                match event {
                    SinkEvent::Transaction(tx) => {
                        late_by.push(tx.announced_at.elapsed());
                        assert!(delivered.insert(*tx.tx.inner().hash()), "delivered again");
                    }
                    SinkEvent::Chain(ChainEvent::Head(block)) => heads.push(block.head.number),
                    _ => {}
                }
            }
            if imports {
                late.announce(&FakeBlock {
                    number: block.number,
                    hash: block.hash,
                    parent: block.parent_hash,
                    time: block.timestamp,
                    txs: Vec::new(),
                });
            }
            if n % IMPORTED_PER_SECOND == 0 {
                // It takes milliseconds, in which this task would time nothing.
                let node = Arc::clone(&node);
                drop(tokio::task::spawn_blocking(move || node.mine()));
            }
        }
        late_by.sort();
        let p99 = late_by[late_by.len() * 99 / 100];
        println!("{blocks} blocks, imported: {imports}: p99 {p99:?} of {}", late_by.len());
    }
    assert!(heads.is_sorted() && heads.first() == Some(&blocks.into()), "{heads:?}");
    assert!(heads.len() as u32 > 2 * (blocks / IMPORTED_PER_SECOND - 1), "{heads:?}");
    let has_told = |source: &SourceStatus| source.head >= Some(blocks.into());
    eventually("both have told it", || fetcher.status().iter().all(has_told)).await;
}
