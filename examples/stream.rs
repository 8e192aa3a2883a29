//! Pending transactions as a stream that owns its fetcher, for a collector or a bot.
//!
//! `cargo run --release --example stream` reads from a mock node in this process;
//! `-- --ipc PATH` from the socket of a real one, until Ctrl-C.

mod report;

use std::{env, path::PathBuf, pin::pin, process, time::Duration};

use alloy_consensus::Transaction as _;
use futures::StreamExt as _;
use mempool_ingest::{Fetcher, FetcherConfig};
use mock_node::{MockNode, NodeConfig};

/// The number of transactions that may wait for the loop below.
const BUFFER: usize = 1024;

/// The number of transactions that the mock node announces.
const LOAD: u64 = 1_500;

#[tokio::main]
async fn main() -> report::Result {
    report::help(include_str!("stream.rs"));
    let args: Vec<_> = env::args().skip(1).collect();
    let (path, _node) = match args.as_slice() {
        [] => {
            let path = env::temp_dir().join(format!("stream-{}.ipc", process::id()));
            let config = NodeConfig { tps: 500, count: Some(LOAD), ..NodeConfig::new(&path) };
            (path, Some(MockNode::start(config)?))
        }
        [flag, path] if flag == "--ipc" => (PathBuf::from(path), None),
        _ => return Err("usage: stream [--ipc PATH]".into()),
    };
    let mut stream = Fetcher::stream(FetcherConfig::ipc(path), BUFFER).await?;
    stream.fetcher().wait_live().await.map_err(|end| format!("the fetcher has ended: {end:?}"))?;
    let mut interrupted = pin!(tokio::signal::ctrl_c());
    let mut count = 0;
    // A real node never stops announcing.
    while !args.is_empty() || count < LOAD {
        let received = tokio::select! {
            received = stream.next() => received,
            _ = interrupted.as_mut() => break,
        };
        let Some(received) = received else { break };
        count += 1;
        if count.is_multiple_of(500) {
            let sender = received.tx.signer();
            let nonce = received.tx.nonce();
            println!("{count}: {} from {sender}, nonce {nonce}", received.hash());
        }
    }
    let end = stream.shutdown(Duration::from_secs(5)).await;
    println!(
        "{:?}: {} announced, {} delivered, {} failed",
        end.reason, end.counts.announced, end.counts.pooled, end.counts.failed
    );
    Ok(())
}
