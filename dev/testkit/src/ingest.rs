//! A mock node, a fetcher into a pool, and functions that wait for a condition.

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

/// How long a test waits for a condition before it fails.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Makes a folder for a socket, which is deleted when dropped. Returns it with the path of the
/// socket.
pub fn socket() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("node.ipc");
    (folder, path)
}

/// A node, and transactions of its accounts that were not submitted yet.
#[derive(Debug)]
pub struct Node {
    pub node: MockNode,
    pub txs: Vec<PreparedTx>,
    _folder: TempDir,
}

impl Node {
    /// Starts a node, and signs `txs` transactions of the default mix.
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

/// The configuration of a pool with room for all transactions of a run.
pub fn roomy() -> PoolConfig {
    let mut config = PoolConfig::default();
    config.max_txs = 600_000;
    config.max_tx_bytes = 4 << 30;
    config.max_external_txs = 600_000;
    config.max_external_tx_bytes = 4 << 30;
    config.tx_retention = Duration::from_secs(3600);
    config
}

/// Starts a fetcher into a new pool, and waits until it is live.
pub async fn ingest(config: FetcherConfig) -> (Fetcher, OrderPool) {
    let pool = OrderPool::new(PoolConfig::default()).expect("the defaults are valid");
    let fetcher = Fetcher::start(config, pool.clone()).await.expect("the fetcher starts");
    eventually("the source is live", || fetcher.is_live()).await;
    (fetcher, pool)
}

/// Asserts that the pool holds the sent transactions, byte by byte and with their sidecars. Returns
/// the transaction types that occur.
pub fn arrived_whole(pool: &OrderPool, sent: &[PreparedTx]) -> BTreeSet<u8> {
    let compare = |sent: &PreparedTx| {
        let order = pool.get(&sent.hash).expect("the transaction was pooled");
        let Order::Tx(tx) = order.as_ref() else { panic!("a transaction") };
        assert_eq!(tx.sender(), sent.sender);
        let inner = tx.recovered().inner();
        assert_eq!(inner.encoded_2718(), sent.raw, "the bytes, with the sidecar");
        inner.tx_type() as u8
    };
    sent.iter().map(compare).collect()
}

/// Waits until a condition is true; panics after [`PATIENCE`].
pub async fn eventually(description: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {description}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits until no fetch is in flight, the counts balance, and `condition` is true. Returns the
/// counts.
pub async fn settled(
    fetcher: &Fetcher,
    description: &str,
    condition: impl Fn(&Counts) -> bool,
) -> Counts {
    eventually(description, || {
        let counts = fetcher.counts();
        counts.unfinished == 0 && counts.balance() == 0 && condition(&counts)
    })
    .await;
    fetcher.counts()
}
