//! The fetcher against the mock node, against nodes of a few lines, and with pools of this process. Tests that need a
//! process of their own are beside this folder.

mod bad_peers;
mod deferral;
mod end_to_end;
mod fake;
mod faults;
mod full;
mod heads;
mod hostile_node;
mod in_process;
mod overload;
mod peer;
mod sink;
mod stream;
mod websocket;

use std::{collections::HashMap, time::Duration};

use mock_node::workload::PreparedTx;
use order_pool::{OrderPool, PoolConfig};
use testkit::ingest::{Node, PATIENCE, eventually, settled};
use tokio::sync::mpsc;
use txpool_fetcher::{
    AuditMode, AuditReport, Endpoint, FetchedTransaction, Fetcher, FetcherConfig, Limits,
    SourceState, TransactionSink,
};

/// A live fetcher with smaller limits than those of the crate.
async fn start_with(config: FetcherConfig, limits: Limits, sink: impl TransactionSink) -> Fetcher {
    let fetcher = Fetcher::start_with(config, limits, sink).await.expect("the fetcher starts");
    eventually("the source is live", || fetcher.is_live()).await;
    fetcher
}

/// The same into a pool.
async fn ingest_with(config: FetcherConfig, limits: Limits) -> (Fetcher, OrderPool) {
    let pool = OrderPool::new(PoolConfig::default()).expect("the defaults are valid");
    (start_with(config, limits, pool.clone()).await, pool)
}

/// Both sides of a comparison settle at once.
fn settles_fast() -> Limits {
    Limits { audit_settle: Duration::from_millis(10), ..Limits::default() }
}

async fn ingest_fast(config: FetcherConfig) -> (Fetcher, OrderPool) {
    ingest_with(config, settles_fast()).await
}

/// With these nodes as sources.
fn sources<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> FetcherConfig {
    FetcherConfig::new(nodes.into_iter().map(|node| Endpoint::Ipc(node.node.ipc_path().to_owned())))
}

/// Gives the node some of its transactions.
fn submit<'a>(node: &Node, txs: impl IntoIterator<Item = &'a PreparedTx>) {
    for tx in txs {
        node.node.submit(tx.raw.clone()).expect("the node takes its own transactions");
    }
}

async fn all_live(fetcher: &Fetcher) {
    let live = || fetcher.status().iter().all(|source| source.state == SourceState::Live);
    eventually("all sources are live", live).await;
}

/// With a sink that takes one at a time and a buffer for a few: all arrive, some by a comparison.
async fn overruns(config: FetcherConfig, txs: &[PreparedTx], announce: impl FnOnce()) {
    let (sink, mut transactions) = mpsc::channel::<FetchedTransaction>(1);
    let limits = Limits { announcement_buffer: 16, ..settles_fast() };
    let fetcher = start_with(config, limits, sink).await;
    announce();
    let all = txs.len() as u64;
    eventually("more has come than is kept", || fetcher.counts().lagged > 0).await;
    let mut arrived = HashMap::new();
    while arrived.len() < txs.len() {
        let next = tokio::time::timeout(PATIENCE, transactions.recv()).await;
        let fetched = next.expect("more comes").expect("the fetcher runs");
        arrived.insert(fetched.hash(), fetched.raw());
    }
    // An object is encoded again only when somebody asks for it.
    assert!(txs.iter().all(|tx| arrived[&tx.hash] == tx.raw));
    let counts = settled(&fetcher, "all delivered", |counts| counts.pooled == all).await;
    assert!(counts.lagged > 0 && counts.audit_recovered > 0, "{counts:?}");
    assert_eq!(compare(&fetcher).await.missing, 0);
}

/// Compares the first source's pool with ours, and fetches what is missing.
async fn recover(fetcher: &Fetcher) -> AuditReport {
    fetcher.audit(0, AuditMode::Recover).await.expect("the node lists its pool")
}

/// The same, and fetches nothing.
async fn compare(fetcher: &Fetcher) -> AuditReport {
    fetcher.audit(0, AuditMode::CompareOnly).await.expect("the node lists its pool")
}
