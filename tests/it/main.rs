//! The facade's parts together, on the mock node.

mod admission;
mod end_to_end;
mod rpc;

use std::time::{Duration, Instant};

use alloy_primitives::{B256, hex};
use mempool_ingest::{
    FetcherConfig, Ingest, IngestConfig, OrderRpcConfig, PoolConfig, order_pool, txpool_fetcher,
};
use mock_node::{DEV_CHAIN_ID, NodeConfig, workload::Account};
use serde_json::{Value, json};
use testkit::{
    configured, http,
    ingest::{Node, PATIENCE, eventually, settled, socket},
    sign::signed,
};
