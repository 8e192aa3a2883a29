//! A host's own pool as the sink of a fetcher: it accepts transactions and follows the chain.
//!
//! `cargo run --release --example own_pool` reads from a mock node in this process.

mod report;

use std::{collections::HashMap, env, process, sync::Arc, sync::Mutex, time::Duration};

use alloy_primitives::B256;
use mempool_ingest::{Fetcher, FetcherConfig, txpool_fetcher::*};
use mock_node::{MockNode, NodeConfig};

#[derive(Clone, Default)]
struct OwnPool(Arc<Mutex<HashMap<B256, FetchedTransaction>>>);

impl TransactionSink for OwnPool {
    async fn deliver(&self, tx: FetchedTransaction) -> Delivery {
        match self.0.lock().unwrap().insert(tx.hash(), tx) {
            None => Delivery::Pooled,
            Some(_) => Delivery::Known,
        }
    }

    async fn chain_event(&self, event: ChainEvent) {
        let mut txs = self.0.lock().unwrap();
        match event {
            ChainEvent::Head(block) => block.mined.iter().for_each(|hash| drop(txs.remove(hash))),
            ChainEvent::Vanished(hash) => drop(txs.remove(&hash)),
            _ => {} // No nonces arrive, see `wants_nonces`.
        }
    }

    fn wants_nonces(&self) -> bool {
        false
    }

    /// Comparisons with the node's pool call this to find missing transactions.
    fn holding(&self, hash: &B256) -> Holding {
        if self.0.lock().unwrap().contains_key(hash) { Holding::Held } else { Holding::MayReturn }
    }
}

#[tokio::main]
async fn main() -> report::Result {
    report::help(include_str!("own_pool.rs"));
    let path = env::temp_dir().join(format!("own_pool-{}.ipc", process::id()));
    let node = MockNode::start(NodeConfig { preload: 500, ..NodeConfig::new(&path) })?;
    let pool = OwnPool::default();
    let fetcher = Fetcher::start(FetcherConfig::ipc(path), pool.clone()).await?;
    fetcher.wait_live().await.map_err(|end| format!("the fetcher has ended: {end:?}"))?;
    println!("{} of 500 pooled", pool.0.lock().unwrap().len());
    node.mine();
    while !pool.0.lock().unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    println!("mined: {:?}", fetcher.shutdown(Duration::from_secs(5)).await.reason);
    Ok(())
}
