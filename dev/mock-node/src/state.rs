//! The seam for what executes the chain's blocks: the crate `mock-state`. It is not part of this one, because its EVM
//! would be half of what a first `cargo run --example ingest` compiles.

use std::fmt;

use alloy_consensus::{Header, TxEnvelope, transaction::Recovered};
use alloy_primitives::{Address, B256, U256};
use serde_json::Value;

use crate::{chain::FullBlock, config::NodeConfig};

#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ExecutableBlock {
    pub hash: B256,
    pub header: Header,
    /// Without their sidecars.
    pub txs: Vec<Recovered<TxEnvelope>>,
}

impl From<&FullBlock> for ExecutableBlock {
    fn from(block: &FullBlock) -> Self {
        let txs = block.txs.iter().map(|tx| tx.mined.clone());
        Self { hash: block.hash, header: block.header.clone(), txs: txs.collect() }
    }
}

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
    /// Executes a block of the chain. One that does not stand on the newest one undoes those it replaces.
    fn push(&self, block: ExecutableBlock);

    /// The value at a block, as it is answered; `None` when that block's state is not kept.
    fn value(&self, block: &B256, request: StateRequest) -> Option<Value>;
}

/// Makes the state at a genesis block with this hash.
pub type NewState = fn(&NodeConfig, B256) -> Box<dyn Execute>;
