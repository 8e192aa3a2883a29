//! The fetcher against the mock node, against scripted nodes, and with pools in this process. Tests
//! that need a separate process are next to this folder.

mod bad_peers;
mod deferral;
mod end_to_end;
mod fake;
mod faults;
mod full;
mod half_broken;
mod heads;
mod hostile_node;
mod import;
mod in_process;
mod overload;
mod sink;
mod websocket;

// The files of this folder import these with `use super::*`.
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use mock_node::{
    BadAnswer, Fault, NodeConfig, Target,
    workload::{Mix, PreparedTx, Workload, WorkloadConfig},
};
use order_pool::{OrderPool, PoolConfig};
use serde_json::json;
use testkit::{
    configured,
    ingest::{Node, PATIENCE, arrived_whole, eventually, ingest, settled, socket},
};
use tokio::{sync::mpsc, time::timeout};
use txpool_fetcher::{
    Announcements, AuditMode, AuditReport, Backfill, ChainEvent, ConnectError, Counts, EndReason,
    Endpoint, FetchedTransaction, Fetcher, FetcherConfig, FetcherEnd, Gap, GapReason, Limits,
    LossReason, SinkEvent, SnapshotError, SourceError, SourceState, StartError, StartPolicy,
    TransactionSink,
};

/// Starts a fetcher with other limits than those of the crate, and waits until it is live.
async fn start_with(config: FetcherConfig, limits: Limits, sink: impl TransactionSink) -> Fetcher {
    let fetcher = Fetcher::start_with(config, limits, sink).await.expect("the fetcher starts");
    eventually("the source is live", || fetcher.is_live()).await;
    fetcher
}

/// Like [`start_with`], into an order pool.
async fn ingest_with(config: FetcherConfig, limits: Limits) -> (Fetcher, OrderPool) {
    let pool = order_pool();
    (start_with(config, limits, pool.clone()).await, pool)
}

fn order_pool() -> OrderPool {
    OrderPool::new(PoolConfig::default()).expect("the defaults are valid")
}

/// Like [`ingest_with`], and waits until all sources are live.
async fn ingest_all(config: FetcherConfig, limits: Limits) -> (Fetcher, OrderPool) {
    let (fetcher, pool) = ingest_with(config, limits).await;
    all_live(&fetcher).await;
    (fetcher, pool)
}

/// Limits with which both sides of a comparison settle at once.
fn settles_fast() -> Limits {
    Limits { audit_settle: Duration::from_millis(10), ..Limits::default() }
}

/// Like [`ingest_with`], with [`settles_fast`].
async fn ingest_fast(config: FetcherConfig) -> (Fetcher, OrderPool) {
    ingest_with(config, settles_fast()).await
}

/// Makes a configuration with these nodes as sources.
fn sources<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> FetcherConfig {
    FetcherConfig::new(nodes.into_iter().map(|node| Endpoint::Ipc(node.node.ipc_path().to_owned())))
}

/// Gives the node some of its transactions.
fn submit<'a>(node: &Node, txs: impl IntoIterator<Item = &'a PreparedTx>) {
    for tx in txs {
        node.node.submit(tx.raw.clone()).expect("the node takes its own transactions");
    }
}

/// Gives the node all of its transactions, and waits until that many are pooled.
async fn pool_all(node: &Node, fetcher: &Fetcher) -> Counts {
    node.submit_all();
    let all = node.txs.len() as u64;
    settled(fetcher, "all are pooled", |counts| counts.pooled == all).await
}

/// Waits until all sources are live.
async fn all_live(fetcher: &Fetcher) {
    let live = || fetcher.status().iter().all(|source| source.state == SourceState::Live);
    eventually("all sources are live", live).await;
}

/// Compares the first source's pool with the fetcher's, and fetches missing transactions.
async fn recover(fetcher: &Fetcher) -> AuditReport {
    fetcher.audit(0, AuditMode::Recover).await.expect("the node lists its pool")
}

/// Compares the first source's pool with the fetcher's, and fetches nothing.
async fn compare(fetcher: &Fetcher) -> AuditReport {
    fetcher.audit(0, AuditMode::CompareOnly).await.expect("the node lists its pool")
}

/// Returns whether a gap of the first source for this reason was opened and closed.
fn has_closed_gap(fetcher: &Fetcher, reason: GapReason) -> bool {
    let gaps = &fetcher.status()[0].gaps;
    gaps.iter().any(|gap| gap.reason == reason && gap.closed_at.is_some())
}

/// The metrics of everything that is started on this thread while this lives.
struct Figures {
    snapshotter: Snapshotter,
    _installed: metrics::LocalRecorderGuard<'static>,
    /// For each name and label: the sum of all values, and the latest value that is not 0. A
    /// snapshot has the values since the previous one, and sets gauges to 0.
    read: Mutex<HashMap<(String, String), (f64, f64)>>,
}

impl Figures {
    fn install() -> Self {
        let recorder = Box::leak(Box::new(DebuggingRecorder::new()));
        let snapshotter = recorder.snapshotter();
        let _installed = metrics::set_default_local_recorder(recorder);
        Self { snapshotter, _installed, read: Mutex::default() }
    }

    /// Returns the sum of a metric, and the latest value that was added or set.
    fn get(&self, name: &str, label: &str) -> (f64, f64) {
        let mut read = self.read.lock().unwrap();
        for (key, _, _, value) in self.snapshotter.snapshot().into_vec() {
            let label = key.key().labels().next().map_or("", |label| label.value());
            let value = match value {
                DebugValue::Counter(added) => added as f64,
                DebugValue::Gauge(value) => *value,
                DebugValue::Histogram(values) => values.iter().map(|value| **value).sum(),
            };
            if value != 0.0 {
                let key = (key.key().name().to_owned(), label.to_owned());
                let (sum, latest) = read.entry(key).or_default();
                (*sum, *latest) = (*sum + value, value);
            }
        }
        let key = (format!("mempool_fetcher_{name}"), label.to_owned());
        read.get(&key).copied().unwrap_or_default()
    }
}
