//! Two nodes, of which one imports the old blocks of the other.
//!
//! For a long run: `MEMPOOL_INGEST_IMPORT_BLOCKS=1000 cargo test --release --test it import --
//! --nocapture`.

use mock_node::{LoadStart, MockNode};

use super::{
    fake::{Fake, FakeBlock},
    faults::number,
    *,
};

/// The number of blocks that the late node imports in a second.
const IMPORTED_PER_SECOND: u32 = 20;

/// The number of transactions that the live node announces in a second.
const TPS: u32 = 2_000;

/// In the first half the late node is silent. The latency of announcements is printed for both
/// halves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_imports_old_blocks_causes_no_reorg() {
    let blocks = number("MEMPOOL_INGEST_IMPORT_BLOCKS", 40) as u32;
    let (_folder, path) = socket();
    let count = 2 * blocks * TPS / IMPORTED_PER_SECOND;
    let config = NodeConfig {
        tps: TPS,
        count: Some(count.into()),
        accounts: 100,
        // Room for everything that it announces, so that its pool does not grow.
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
    // With capacity for all, so that neither grows during the measurement.
    let (mut heads, mut delivered) = (Vec::new(), HashSet::with_capacity(count as usize));
    let mut tick = tokio::time::interval(Duration::from_secs(1) / IMPORTED_PER_SECOND);
    for imports in [false, true] {
        let (began, mut latencies) = (Instant::now(), Vec::with_capacity(count as usize));
        for (n, block) in (1..).zip(&old) {
            loop {
                let event = tokio::select! {
                    _ = tick.tick() => break,
                    event = events.recv() => event.expect("it runs"),
                };
                let announced_at = record(event, &mut heads, &mut delivered);
                // Transactions from before the start have waited for this task.
                let announced_at = announced_at.filter(|announced_at| *announced_at > began);
                latencies.extend(announced_at.map(|announced_at| announced_at.elapsed()));
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
                // Mining takes milliseconds, in which this task would measure nothing.
                let node = Arc::clone(&node);
                drop(tokio::task::spawn_blocking(move || node.mine()));
            }
        }
        latencies.sort();
        let p99 = latencies.get(latencies.len() * 99 / 100);
        println!("{blocks} blocks, imported: {imports}: p99 {p99:?} of {}", latencies.len());
    }
    // Neither the live node's blocks nor its announcements are held up.
    let last = u64::from(blocks + 2 * (blocks / IMPORTED_PER_SECOND));
    eventually("all has come", || {
        while let Ok(event) = events.try_recv() {
            record(event, &mut heads, &mut delivered);
        }
        let announced: Vec<_> = fetcher.status().iter().map(|source| source.head).collect();
        let are_announced = announced == [Some(last), Some(blocks.into())];
        // A transaction that is mined before its response is read does not reach the sink.
        let arrived = delivered.len() as u64 + fetcher.counts().mined;
        are_announced && heads.last() == Some(&last) && arrived == u64::from(count)
    })
    .await;
    assert!(heads.iter().copied().eq(u64::from(blocks)..=last), "{heads:?}");
}

/// Records an event. Returns when it was announced, if it is a transaction.
fn record(event: SinkEvent, heads: &mut Vec<u64>, seen: &mut HashSet<B256>) -> Option<Instant> {
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
