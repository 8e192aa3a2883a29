//! What can go wrong with the mock node itself.

use std::io;

use alloy_primitives::B256;

/// A failure of the node or of the caller that drives it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The socket, a thread or the runtime could not be created.
    #[error("cannot start the node's {part}: {source}")]
    Start {
        part: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A transaction that the pool does not take.
    #[error(transparent)]
    Refused(#[from] TxRefused),
    /// A hash that the node does not hold.
    #[error("the node holds no transaction {hash}")]
    UnknownTransaction { hash: B256 },
    /// A reorg deeper than the chain that is kept.
    #[error(
        "a reorg of depth {depth} needs that many blocks above the oldest kept, there are {available}"
    )]
    ReorgTooDeep {
        depth: usize,
        /// Blocks that can be undone.
        available: usize,
    },
}

/// Why the pool does not take a transaction. The texts are those that reth and geth answer with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TxRefused {
    /// The bytes are no transaction.
    #[error("failed to decode signed transaction: {reason}")]
    Undecodable { reason: String },
    /// The signature belongs to nobody.
    #[error("invalid transaction signature")]
    BadSignature,
    /// Signed for another chain.
    #[error("invalid chain ID: transaction has {has}, node has {expected}")]
    WrongChain { has: u64, expected: u64 },
    /// The very same transaction is in the pool.
    #[error("already known")]
    AlreadyKnown,
    /// The chain has passed this nonce.
    #[error("nonce too low: next nonce {expected}, tx nonce {has}")]
    NonceTooLow {
        has: u64,
        /// The lowest that is still possible.
        expected: u64,
    },
    /// Only for a block's own transactions: a nonce before it is missing.
    #[error("nonce too high: next nonce {expected}, tx nonce {has}")]
    NonceTooHigh {
        has: u64,
        /// The only one that can be mined.
        expected: u64,
    },
    /// Another transaction has this sender and nonce and pays about as much.
    #[error("replacement transaction underpriced")]
    Underpriced { stays: B256 },
    /// A blob transaction in the form that stands in blocks.
    #[error("missing blob sidecar")]
    MissingSidecar,
    /// The pool holds as much as it may.
    #[error("txpool is full: {limit} transactions")]
    Full { limit: usize },
}
