//! What can go wrong with the mock node itself.

use std::io;

use alloy_primitives::B256;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    #[error("cannot start the node's socket: {0}")]
    Start(#[from] io::Error),
    #[error(transparent)]
    Refused(#[from] TxRefused),
    #[error("the node holds no transaction {hash}")]
    UnknownTransaction { hash: B256 },
    #[error("a reorg of {depth} blocks, of which {available} can be undone")]
    ReorgTooDeep { depth: usize, available: usize },
}

/// Why the pool does not take a transaction. The texts are those that reth and geth answer with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TxRefused {
    #[error("failed to decode signed transaction: {reason}")]
    Undecodable { reason: String },
    #[error("invalid transaction signature")]
    BadSignature,
    #[error("invalid chain ID: transaction has {has}, node has {expected}")]
    WrongChain { has: u64, expected: u64 },
    #[error("already known")]
    AlreadyKnown,
    #[error("nonce too low: next nonce {expected}, tx nonce {has}")]
    NonceTooLow { has: u64, expected: u64 },
    /// Only for a block's own transactions: a nonce before it is missing.
    #[error("nonce too high: next nonce {expected}, tx nonce {has}")]
    NonceTooHigh { has: u64, expected: u64 },
    /// Another transaction has this sender and nonce and pays about as much.
    #[error("replacement transaction underpriced")]
    Underpriced { stays: B256 },
    /// A blob transaction in the form that stands in blocks.
    #[error("missing blob sidecar")]
    MissingSidecar,
    #[error("txpool is full: {limit} transactions")]
    Full { limit: usize },
}
