//! The errors of the mock node itself, and the refusals of its pool.

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
    #[error("a reorg of {depth} blocks is too deep: {available} blocks can be undone")]
    ReorgTooDeep { depth: usize, available: usize },
}

/// The reason why the pool refuses a transaction. The texts are those of reth and geth.
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
    /// A lower nonce of the sender is missing. Only for transactions that a test mines.
    #[error("nonce too high: next nonce {expected}, tx nonce {has}")]
    NonceTooHigh { has: u64, expected: u64 },
    /// Another transaction with this sender and nonce pays about as much, and is kept.
    #[error("replacement transaction underpriced")]
    Underpriced { existing: B256 },
    /// A blob transaction in the form of blocks, without its sidecar.
    #[error("missing blob sidecar")]
    MissingSidecar,
    #[error("txpool is full: {limit} transactions")]
    Full { limit: usize },
}
