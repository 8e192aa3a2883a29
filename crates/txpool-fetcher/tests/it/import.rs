//! Two nodes, of which one imports the old blocks of the other.
//!
//! As long as it takes: `MEMPOOL_INGEST_IMPORT_BLOCKS=1000 cargo test --release --test it import -- --nocapture`.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use alloy_primitives::B256;
use mock_node::{LoadStart, MockNode, NodeConfig};
use order_pool::{Event, OrderPool, PoolConfig};
use testkit::ingest::{eventually, settled, socket};
use txpool_fetcher::{
    ChainEvent, Delivery, Endpoint, FetchedTransaction, FetcherConfig, Holding, SourceStatus,
    TransactionSink,
};

use super::{
    fake::{Fake, FakeBlock},
    faults::number,
    settles_fast, start_with,
};

/// Blocks that the late node imports in a second.
const IMPORTED_PER_SECOND: u32 = 20;

/// An order pool, and how late each announcement was.
#[derive(Clone)]
struct Timed(OrderPool, Arc<Mutex<Vec<Duration>>>);

impl TransactionSink for Timed {
    async fn deliver(&self, tx: FetchedTransaction) -> Delivery {
        let announced_at = tx.announced_at;
        let delivery = self.0.deliver(tx).await;
        self.1.lock().expect("no panic").push(announced_at.elapsed());
        delivery
    }

    async fn chain_event(&self, event: ChainEvent) {
        self.0.chain_event(event).await;
    }

    fn holding(&self, hash: &B256) -> Holding {
        self.0.holding(hash)
    }
}

/// The p99 of the announcements of a live node, beside one that imports its first blocks, or alone.
async fn p99(blocks: u32, with_late: bool) -> Duration {
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
    let mut endpoints = vec![Endpoint::Ipc(node.ipc_path().to_owned())];
    endpoints.extend(with_late.then(|| Endpoint::Ipc(late.path.clone())));
    let pool = OrderPool::new(PoolConfig::default()).expect("the defaults are valid");
    let sink = Timed(pool.clone(), Arc::default());
    let fetcher = start_with(FetcherConfig::new(endpoints), settles_fast(), sink.clone()).await;
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
    let mut late_by = std::mem::take(&mut *sink.1.lock().expect("no panic"));
    late_by.sort();
    late_by[late_by.len() * 99 / 100]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_imports_old_blocks_rolls_nothing_back_beside_a_live_one() {
    let blocks = number("MEMPOOL_INGEST_IMPORT_BLOCKS", 40) as u32;
    let alone = p99(blocks, false).await;
    let both = p99(blocks, true).await;
    println!("{blocks} old blocks: p99 alone {alone:?}, with the other {both:?}");
}
