#![doc = include_str!("../README.md")]

mod base_fee;
mod block;
mod recent;

pub use self::{
    base_fee::next_base_fee_wei,
    block::{Block, BlockNonces, Head, NonceUpdate},
    recent::{MAX_RECENT_HASHES, ObsoleteReason, Pushed, RecentBlocks, Relation},
};

use alloy_consensus::{EthereumTxEnvelope, TxEip4844WithSidecar};
use alloy_eips::eip7594::BlobTransactionSidecarVariant;

/// A transaction in the form in which a node's pool holds and propagates it: legacy, 2930, 1559,
/// 7702, and 4844 with its sidecar in the EIP-4844 form (a proof per blob) or the EIP-7594 form
/// (cell proofs).
pub type PooledTransaction =
    EthereumTxEnvelope<TxEip4844WithSidecar<BlobTransactionSidecarVariant>>;
