//! What the tests of several modules share.

use std::{
    fmt::Write as _,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use alloy_consensus::{
    SignableTransaction as _, TxEip4844, TxEip4844WithSidecar, transaction::Recovered,
};
use alloy_eips::eip7594::BlobTransactionSidecarVariant;
use alloy_primitives::{Address, B256, Signature};
use async_nats::{HeaderMap, Message, jetstream::stream::Info};
use bytes::Bytes;
use chain_view::{Head, PooledTransaction};
use mock_node::workload::{PreparedTx, Workload, WorkloadConfig};
use order_pool::{BundleParts, Holder, OrderPool, PoolConfig, ReplacementKey, Transaction};
use uuid::Uuid;

use crate::{
    config::{ServerConfig, SourceConfig},
    deliver::{Deliverer, Times},
    metrics::SourceCounters,
};

/// A time, in seconds since the Unix epoch.
pub(crate) fn time(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

pub(crate) fn pool() -> OrderPool {
    OrderPool::new(PoolConfig::default()).expect("a pool")
}

/// An unknown caller.
pub(crate) fn caller(n: u8) -> Holder {
    Holder::caller([10, 0, 0, n].into())
}

pub(crate) const SIGNER: Address = Address::repeat_byte(1);

pub(crate) const KEY: ReplacementKey = ReplacementKey { uuid: Uuid::from_u128(7), signer: SIGNER };

/// Signed transactions of every type without blobs.
pub(crate) fn txs(count: usize) -> Vec<Recovered<PooledTransaction>> {
    let mut load = Workload::new(WorkloadConfig { accounts: 10, ..WorkloadConfig::new(7, 1) });
    load.prepare(count).iter().map(PreparedTx::recovered).collect()
}

/// A transaction with these blobs and a signature of nobody.
pub(crate) fn blob_transaction(
    blob_versioned_hashes: Vec<B256>,
    sidecar: BlobTransactionSidecarVariant,
) -> PooledTransaction {
    let tx = TxEip4844 { chain_id: 1, blob_versioned_hashes, ..TxEip4844::default() };
    let tx = TxEip4844WithSidecar::from_tx_and_sidecar(tx, sidecar);
    PooledTransaction::Eip4844(tx.into_signed(Signature::test_signature()))
}

/// The parts of a bundle without a replacement key.
pub(crate) fn parts(tx: &Transaction, block: u64) -> BundleParts {
    BundleParts { txs: vec![tx.clone()], block: Some(block), ..BundleParts::default() }
}

/// The parts of a bundle with the replacement key [`KEY`].
pub(crate) fn keyed_parts(tx: &Transaction, block: u64, nonce: u64) -> BundleParts {
    BundleParts {
        uuid: Some(KEY.uuid),
        signer: Some(KEY.signer),
        replacement_nonce: Some(nonce),
        ..parts(tx, block)
    }
}

/// The hash of a block, by its number and its branch.
pub(crate) fn block_hash(number: u64, branch: u64) -> B256 {
    B256::left_padding_from(&(number << 8 | branch).to_be_bytes())
}

pub(crate) fn head(number: u64, branch: u64, parent_branch: u64) -> Head {
    Head::new(number, block_hash(number, branch), block_hash(number - 1, parent_branch))
}

/// A deliverer of the public flow with a pool of its own.
pub(crate) fn deliverer(heads: bool) -> Deliverer {
    let config = SourceConfig { heads, ..SourceConfig::new(ServerConfig::default(), 1, "one") };
    Deliverer::new(&pool(), &config, Arc::new(SourceCounters::labelled(&[])))
}

/// The times of a message that the server stores now.
pub(crate) fn stored_now(now: SystemTime) -> Times {
    Times { stored_at: now, now }
}

/// A message as the stream delivers it.
pub(crate) fn message(id: &str, payload: Bytes) -> Message {
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Msg-Id", id);
    Message {
        subject: "mempool.1.tx.a".into(),
        reply: None,
        length: payload.len(),
        payload,
        headers: Some(headers),
        status: None,
        description: None,
    }
}

/// What a server reports about a stream that keeps its messages for 15 minutes and whose oldest
/// message was stored a minute after the Unix epoch.
pub(crate) fn stream_info(cluster: &str, first_sequence: u64, bytes: u64, max_bytes: i64) -> Info {
    let text = format!(
        r#"{{ "created": "2026-01-02T03:04:05.678Z", {cluster}
          "config": {{ "name": "MEMPOOL_1_PUBLIC", "subjects": ["mempool.1.tx.*"],
            "retention": "limits", "max_consumers": -1, "max_msgs": -1, "max_bytes": {max_bytes},
            "max_age": 900000000000, "max_msgs_per_subject": -1, "max_msg_size": -1,
            "discard": "old", "storage": "file", "num_replicas": 3,
            "duplicate_window": 120000000000 }},
          "state": {{ "messages": 9, "bytes": {bytes}, "first_seq": {first_sequence},
            "last_seq": 2000, "first_ts": "1970-01-01T00:01:00Z",
            "last_ts": "1970-01-01T00:01:00Z", "consumer_count": 0 }} }}"#
    );
    serde_json::from_str(&text).expect("what a server sends")
}

/// Runs a function and returns the lines that it writes into the log: each field as `name=value`.
pub(crate) fn capture_log(run: impl FnOnce()) -> Vec<String> {
    let log = LogCapture::default();
    let lines = Arc::clone(&log.lines);
    tracing::subscriber::with_default(log, run);
    std::mem::take(&mut *lines.lock().expect("no panic"))
}

#[derive(Default)]
struct LogCapture {
    lines: Arc<Mutex<Vec<String>>>,
}

struct Line(String);

impl tracing::field::Visit for Line {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        write!(self.0, "{field}={value:?} ").expect("a string");
    }

    fn record_str(&mut self, field: &tracing::field::Field, value: &str) {
        write!(self.0, "{field}={value} ").expect("a string");
    }
}

impl tracing::Subscriber for LogCapture {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.lines.lock().expect("no panic").push(line.0);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}
