//! An execution node's IPC face with a pool and a chain, for tests, benches and the demo.

mod chain;
pub mod cli;
mod config;
mod core;
mod delay;
mod error;
mod framing;
mod load;
mod node;
mod objects;
mod outbox;
mod pool;
pub mod real;
mod rpc;
mod server;
mod shared;
mod stats;
mod tx;
pub mod workload;

pub use chain::Block;
pub use config::{
    DEFAULT_ACCOUNTS, DEFAULT_BLOCK_GAS_LIMIT, DEFAULT_HISTORY_BLOCKS, DEFAULT_MAX_CONNECTIONS,
    DEFAULT_MAX_QUEUED_BYTES, DEFAULT_POOL_LIMIT, DEV_CHAIN_ID, Latency, LoadStart,
    MAX_REQUEST_BYTES, NodeConfig, UnknownRaw,
};
pub use error::{NodeError, TxRefused};
pub use node::{MockNode, Reorg};
pub use stats::Stats;
