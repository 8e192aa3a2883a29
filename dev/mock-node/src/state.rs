//! The trait through which the chain's blocks are executed: `testkit::state` implements it. It is
//! not part of this crate, because its EVM would be half of what a first `cargo run --example
//! ingest` compiles.

use std::fmt;

use alloy_consensus::{Header, TxEnvelope, transaction::Recovered};
use alloy_primitives::{Address, B256, U256};
use serde_json::Value;

use crate::config::NodeConfig;

/// A request for a part of the state.
#[derive(Clone, Copy, Debug)]
pub enum StateRequest {
    /// In wei.
    Balance(Address),
    Nonce(Address),
    Code(Address),
    /// A word of the storage.
    Slot(Address, U256),
}

/// Executes blocks, and knows the state after each recent one.
pub trait Execute: fmt::Debug + Send + Sync {
    /// Executes a block of the chain, whose header has this hash. If its parent is not the newest
    /// block, the blocks above the parent are undone.
    fn push(&self, hash: B256, header: &Header, txs: Vec<&Recovered<TxEnvelope>>);

    /// The JSON value at a block; `None` if the state of that block is not kept.
    fn value(&self, block: &B256, request: StateRequest) -> Option<Value>;
}

/// Makes the state at a genesis block with this hash.
pub type NewState = fn(&NodeConfig, B256) -> Box<dyn Execute>;
