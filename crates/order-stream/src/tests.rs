//! What the tests of several modules share.

use std::sync::Arc;

use alloy_primitives::B256;
use async_nats::{HeaderMap, Message, jetstream::stream::Info};
use bytes::Bytes;
use chain_view::Head;
use order_pool::{OrderPool, PoolConfig};

use crate::{
    config::{ServerConfig, SourceConfig},
    deliver::Deliverer,
    metrics::SourceCounters,
};

pub(crate) fn pool() -> OrderPool {
    OrderPool::new(PoolConfig::default()).expect("a pool")
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
