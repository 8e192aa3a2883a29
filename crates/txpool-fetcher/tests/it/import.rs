//! Two nodes, of which one imports the old blocks of the other.
//!
//! As long as it takes: `MEMPOOL_INGEST_IMPORT_BLOCKS=1000 cargo test --release --test it import -- --nocapture`.

use mock_node::{LoadStart, MockNode};

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
        // All that it announces: its pool does not grow.
        block_gas_limit: 2_000_000_000,
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
        let (began, mut late_by) = (Instant::now(), Vec::with_capacity(count as usize));
        for (n, block) in (1..).zip(&old) {
            loop {
                let event = tokio::select! {
                    _ = tick.tick() => break,
                    event = events.recv() => event.expect("it runs"),
                };
                let announced_at = note(event, &mut heads, &mut delivered);
                // What came during the start has waited for this task.
                late_by.extend(announced_at.filter(|at| *at > began).map(|at| at.elapsed()));
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
        let p99 = late_by.get(late_by.len() * 99 / 100);
        println!("{blocks} blocks, imported: {imports}: p99 {p99:?} of {}", late_by.len());
    }
    // The live node's blocks are not held up, nor is what it announces.
    let last = u64::from(blocks + 2 * (blocks / IMPORTED_PER_SECOND));
    eventually("all has come", || {
        while let Ok(event) = events.try_recv() {
            note(event, &mut heads, &mut delivered);
        }
        let told: Vec<_> = fetcher.status().iter().map(|source| source.head).collect();
        let has_told = told == [Some(last), Some(blocks.into())];
        // What is mined before its response is read does not reach the sink.
        let arrived = delivered.len() as u64 + fetcher.counts().mined;
        has_told && heads.last() == Some(&last) && arrived == u64::from(count)
    })
    .await;
    assert!(heads.iter().copied().eq(u64::from(blocks)..=last), "{heads:?}");
}

/// When it was announced, of a transaction.
fn note(event: SinkEvent, heads: &mut Vec<u64>, seen: &mut HashSet<B256>) -> Option<Instant> {
    match event {
        SinkEvent::Transaction(tx) => {
            assert!(seen.insert(*tx.tx.inner().hash()), "delivered again");
            return Some(tx.announced_at);
        }
        SinkEvent::Chain(ChainEvent::Head(block)) => heads.push(block.head.number),
        _ => {}
    }
    None
}
