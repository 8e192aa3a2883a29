//! The fetcher alone, into a channel of transactions: for a host that needs only the mempool.
//!
//! `cargo run --release --example channel` reads from a mock node in this process.

mod report;

use std::{env, process, time::Duration};

use mempool_ingest::{Fetcher, FetcherConfig, txpool_fetcher::FetchedTransaction};
use mock_node::{MockNode, NodeConfig};
use tokio::sync::mpsc;

const LOAD: u64 = 1_000;

#[tokio::main]
async fn main() -> report::Result {
    report::help(include_str!("channel.rs"));
    let path = env::temp_dir().join(format!("channel-{}.ipc", process::id()));
    let node =
        NodeConfig { tps: 500, count: Some(LOAD), blobs_per_mille: 5, ..NodeConfig::new(&path) };
    let _node = MockNode::start(node)?;

    // While the channel is full, fetches wait and announcements stay in a bounded buffer. If that
    // overruns, the loss is counted, and a comparison with the node's pool recovers it.
    let (sink, mut transactions) = mpsc::channel::<FetchedTransaction>(1_024);
    let fetcher = Fetcher::start(FetcherConfig::ipc(path), sink).await?;
    let mut count = 0;
    let mut blobs = 0;
    let mut max_latency = Duration::ZERO;
    while count < LOAD {
        let Some(fetched) = transactions.recv().await else {
            return Err(format!("the fetcher has ended: {:?}", fetcher.ended().await).into());
        };
        // It has the sender, the sidecar of a blob transaction, and the time at which the
        // announcement was read.
        count += 1;
        blobs += u64::from(fetched.tx.inner().as_eip4844().is_some());
        max_latency = max_latency.max(fetched.announced_at.elapsed());
    }
    println!("{count} transactions, {blobs} with blobs, the latest after {max_latency:?}");

    // Keep the receiver until here: without it the fetcher would end with the reason `SinkClosed`.
    let end = fetcher.shutdown(Duration::from_secs(5)).await;
    println!("{:?}, balance {}: {:?}", end.reason, end.counts.balance(), end.counts);
    Ok(())
}
