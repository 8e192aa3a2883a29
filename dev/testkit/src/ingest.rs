//! A mock node, a fetcher into a pool, and waiting for a condition.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    time::{Duration, Instant},
};

use alloy_eips::Encodable2718 as _;
use mempool_ingest::{
    Fetcher, FetcherConfig, OrderPool, PoolConfig, order_pool::Order, txpool_fetcher::Counts,
};
use mock_node::{
    MockNode, NodeConfig,
    workload::{Mix, PreparedTx, Workload, WorkloadConfig},
};
use tempfile::TempDir;

/// Longest wait for anything: only a failure takes that long.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// A folder for a socket; deleted when dropped.
pub fn socket() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("node.ipc");
    (folder, path)
}

/// A node, and transactions of its accounts that it does not know yet.
#[derive(Debug)]
pub struct Node {
    pub node: MockNode,
    pub txs: Vec<PreparedTx>,
    _folder: TempDir,
}

impl Node {
    /// With so many transactions of the plain mix.
    pub fn start(txs: usize, adjust: impl FnOnce(NodeConfig) -> NodeConfig) -> Self {
        Self::with_mix(txs, Mix::default(), adjust)
    }

    pub fn with_mix(txs: usize, mix: Mix, adjust: impl FnOnce(NodeConfig) -> NodeConfig) -> Self {
        let (folder, path) = socket();
        let node =
            crate::state::start(adjust(NodeConfig { accounts: 20, ..NodeConfig::new(path) }))
                .expect("the mock node starts");
        let chain_id = node.config().chain_id;
        let workload = WorkloadConfig { accounts: 20, mix, ..WorkloadConfig::new(7, chain_id) };
        let txs = Workload::new(workload).prepare(txs);
        Self { node, txs, _folder: folder }
    }

    pub fn submit_all(&self) {
        for tx in &self.txs {
            self.node.submit(tx.raw.clone()).expect("the node takes its own transactions");
        }
    }

    pub fn fetcher(&self) -> FetcherConfig {
        FetcherConfig::ipc(self.node.ipc_path())
    }
}

/// Room for all transactions of a run until its end, whoever sent them.
pub fn roomy() -> PoolConfig {
    PoolConfig {
        max_txs: 600_000,
        max_tx_bytes: 4 << 30,
        max_external_txs: 600_000,
        max_external_tx_bytes: 4 << 30,
        tx_retention: Duration::from_secs(3600),
        ..PoolConfig::default()
    }
}

/// A fetcher into a pool.
pub async fn ingest(config: FetcherConfig) -> (Fetcher, OrderPool) {
    let pool = OrderPool::new(PoolConfig::default()).expect("the defaults are valid");
    let fetcher = Fetcher::start(config, pool.clone()).await.expect("the fetcher starts");
    eventually("the source is live", || fetcher.is_live()).await;
    (fetcher, pool)
}

/// Compares what the pool holds with what was sent, byte by byte, sidecars too; returns the types that occur.
pub fn arrived_whole(pool: &OrderPool, sent: &[PreparedTx]) -> BTreeSet<u8> {
    let compare = |sent: &PreparedTx| {
        let order = pool.get(&sent.hash).expect("it was pooled");
        let Order::Tx(tx) = order.as_ref() else { panic!("a transaction") };
        assert_eq!(tx.sender(), sent.sender);
        let inner = tx.recovered().inner();
        assert_eq!(inner.encoded_2718(), sent.raw, "byte by byte, the sidecar too");
        inner.tx_type() as u8
    };
    sent.iter().map(compare).collect()
}

/// Waits for a condition; panics when it does not come.
pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "not in {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits until nothing is under way and the counts satisfy `done`, then checks that they balance.
pub async fn settled(fetcher: &Fetcher, what: &str, done: impl Fn(&Counts) -> bool) -> Counts {
    eventually(what, || {
        let counts = fetcher.counts();
        counts.unfinished == 0 && counts.balance() == 0 && done(&counts)
    })
    .await;
    fetcher.counts()
}
