//! What the tests of several modules share.

use std::{sync::Arc, time::SystemTime};

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

pub(crate) fn pool() -> OrderPool {
    OrderPool::new(PoolConfig::default()).expect("a pool")
}

/// A caller of whom only the address is known.
pub(crate) fn caller(n: u8) -> Holder {
    Holder::caller([10, 0, 0, n].into())
}

pub(crate) const SIGNER: Address = Address::repeat_byte(1);

pub(crate) const KEY: ReplacementKey = ReplacementKey { uuid: Uuid::from_u128(7), signer: SIGNER };

/// Signed, of every type without blobs.
pub(crate) fn txs(count: usize) -> Vec<Recovered<PooledTransaction>> {
    let mut load = Workload::new(WorkloadConfig { accounts: 10, ..WorkloadConfig::new(7, 1) });
    load.prepare(count).iter().map(PreparedTx::recovered).collect()
}

/// What carries these blobs, signed by nobody.
pub(crate) fn of_blobs(
    blob_versioned_hashes: Vec<B256>,
    sidecar: BlobTransactionSidecarVariant,
) -> PooledTransaction {
    let tx = TxEip4844 { chain_id: 1, blob_versioned_hashes, ..TxEip4844::default() };
    let tx = TxEip4844WithSidecar::from_tx_and_sidecar(tx, sidecar);
    PooledTransaction::Eip4844(tx.into_signed(Signature::test_signature()))
}

/// Of a bundle that has no place of its own.
pub(crate) fn parts(tx: &Transaction, block: u64) -> BundleParts {
    BundleParts { txs: vec![tx.clone()], block: Some(block), ..BundleParts::default() }
}

/// The same, in the place of [`KEY`].
pub(crate) fn keyed_parts(tx: &Transaction, block: u64, nonce: u64) -> BundleParts {
    let (uuid, signer, replacement_nonce) = (Some(KEY.uuid), Some(KEY.signer), Some(nonce));
    BundleParts { uuid, signer, replacement_nonce, ..parts(tx, block) }
}

/// The hash of a block by its number and its branch.
pub(crate) fn hash(number: u64, branch: u64) -> B256 {
    B256::left_padding_from(&(number << 8 | branch).to_be_bytes())
}

pub(crate) fn head(number: u64, branch: u64, of_parent: u64) -> Head {
    Head::new(number, hash(number, branch), hash(number - 1, of_parent))
}

/// Of the public flow, with a pool of its own.
pub(crate) fn deliverer(heads: bool) -> Deliverer {
    let config = SourceConfig { heads, ..SourceConfig::new(ServerConfig::default(), 1, "one") };
    Deliverer::new(&pool(), &config, Arc::new(SourceCounters::labelled(&[])))
}

/// Stored now, by the server's clock.
pub(crate) fn stored_now(stored: SystemTime) -> Times {
    Times { stored, now: stored }
}

/// As the stream delivers it.
pub(crate) fn message(id: &str, payload: Bytes) -> Message {
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Msg-Id", id);
    let (subject, length) = ("mempool.1.tx.a".into(), payload.len());
    let headers = Some(headers);
    Message { subject, reply: None, payload, headers, status: None, description: None, length }
}

/// What a server says of a stream that keeps its messages for 15 minutes, the oldest since a minute after the epoch.
pub(crate) fn info(cluster: &str, first: u64, bytes: u64, max_bytes: i64) -> Info {
    let text = format!(
        r#"{{ "created": "2026-01-02T03:04:05.678Z", {cluster}
          "config": {{ "name": "MEMPOOL_1_PUBLIC", "subjects": ["mempool.1.tx.*"],
            "retention": "limits", "max_consumers": -1, "max_msgs": -1, "max_bytes": {max_bytes},
            "max_age": 900000000000, "max_msgs_per_subject": -1, "max_msg_size": -1,
            "discard": "old", "storage": "file", "num_replicas": 3,
            "duplicate_window": 120000000000 }},
          "state": {{ "messages": 9, "bytes": {bytes}, "first_seq": {first}, "last_seq": 2000,
            "first_ts": "1970-01-01T00:01:00Z", "last_ts": "1970-01-01T00:01:00Z",
            "consumer_count": 0 }} }}"#
    );
    serde_json::from_str(&text).expect("what a server sends")
}
