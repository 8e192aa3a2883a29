//! What can fail: a configuration, a start, an order, a reader that is too slow.

use std::io;

use alloy_primitives::{Address, B256, U256};
use uuid::Uuid;

use crate::holder::Holder;

/// An invalid configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A field is below its bound.
    #[error("{field} is {value}, the least is {least}")]
    TooSmall {
        /// The field.
        field: &'static str,
        /// Its value.
        value: usize,
        /// The bound.
        least: usize,
    },
    /// A field is above its bound.
    #[error("{field} is {value}, the most is {most}")]
    TooLarge {
        /// The field.
        field: &'static str,
        /// Its value.
        value: usize,
        /// The bound.
        most: usize,
    },
    /// A duration is zero.
    #[error("{field} is zero, it must be longer")]
    ZeroDuration {
        /// The field.
        field: &'static str,
    },
}

/// A thread could not be started: that of an [`Upkeep`](crate::Upkeep) or of a sink.
#[derive(Debug, thiserror::Error)]
#[error("cannot start a thread of the pool: {source}")]
#[non_exhaustive]
pub struct StartError {
    /// The system's error.
    #[from]
    pub source: io::Error,
}

/// Why an order was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RejectReason {
    /// Its share of the pool is full and everything in it pays more, or too many others would have
    /// to be evicted for it.
    #[error(
        "the pool is full and the order pays too little to replace another (tip {tip_wei:?} wei per gas)"
    )]
    PaysTooLittle {
        /// Its tip per gas at the next block's base fee, in wei; `None` if it cannot pay the base
        /// fee.
        tip_wei: Option<u128>,
    },
    /// The order alone is larger than the pool's limit.
    #[error("the order takes {size_bytes} bytes, the pool holds at most {limit_bytes}")]
    TooLarge {
        /// The order's size.
        size_bytes: usize,
        /// The pool's limit.
        limit_bytes: usize,
    },
    /// Its half of the pool is at a cap, and nobody holds more than its holder would.
    #[error(
        "{count} orders of {bytes} bytes are held, the limits are {limit} orders and {limit_bytes} bytes"
    )]
    Full {
        /// Orders of this kind.
        count: usize,
        /// The cap.
        limit: usize,
        /// Their bytes.
        bytes: usize,
        /// The cap in bytes.
        limit_bytes: usize,
    },
    /// Its holder is at a cap of its own, and has no order that may go for this one.
    #[error(
        "the sender's host holds {count} orders of {bytes} bytes, the limits for one are {limit} orders and {limit_bytes} bytes"
    )]
    HolderFull {
        /// The holder.
        holder: Holder,
        /// Its orders of this kind.
        count: usize,
        /// Its part of the cap.
        limit: usize,
        /// Their bytes.
        bytes: usize,
        /// Its part of the cap in bytes.
        limit_bytes: usize,
    },
    /// Its sender has too many private transactions of the same holder.
    #[error("{sender} has {count} private transactions pooled, the most is {limit}")]
    SenderFull {
        /// The sender.
        sender: Address,
        /// Its private transactions.
        count: usize,
        /// The cap.
        limit: usize,
    },
    /// The sender of its first transaction cannot pay for it and for what external callers have
    /// pooled of the sender.
    #[error(
        "insufficient funds: sender {sender}, balance {balance_wei} wei, cost {cost_wei} wei with its pooled orders"
    )]
    InsufficientFunds {
        /// The sender.
        sender: Address,
        /// Its balance.
        balance_wei: U256,
        /// The most that they cost together.
        cost_wei: U256,
    },
    /// A block contains a transaction of the bundle that may not be omitted.
    #[error("txs[{index}] ({hash}) is in a recent block")]
    TxMined {
        /// Its index.
        index: usize,
        /// Its hash.
        hash: B256,
    },
    /// A block used the nonce of a transaction of the bundle that may not be omitted.
    #[error("txs[{index}] ({hash}) has nonce {nonce}, the sender's next is {next}")]
    TxStale {
        /// Its index.
        index: usize,
        /// Its hash.
        hash: B256,
        /// Its nonce.
        nonce: u64,
        /// The lowest nonce the sender can still use.
        next: u64,
    },
    /// A list in a bundle is too long.
    #[error("{field} has {value} entries, the most is {limit}")]
    TooMany {
        /// The field, as on the wire.
        field: &'static str,
        /// Its length.
        value: usize,
        /// [`MAX_TXS_PER_BUNDLE`](crate::MAX_TXS_PER_BUNDLE).
        limit: usize,
    },
    /// The block it is for has been built.
    #[error("blockNumber is {value}, the lowest that is not built yet is {limit}")]
    BlockPassed {
        /// The block it is for.
        value: u64,
        /// The next block.
        limit: u64,
    },
    /// The block it is for is too far ahead.
    #[error("blockNumber is {value}, the highest that is accepted now is {limit}")]
    BlockTooFar {
        /// The block it is for.
        value: u64,
        /// The head and [`MAX_BLOCKS_AHEAD`](crate::MAX_BLOCKS_AHEAD).
        limit: u64,
    },
}

// The values of the label `reason` of `order_pool_rejected_total`.
load_control::labels_of! {
    RejectReason::ALL {
        PaysTooLittle = "pays_too_little",
        TooLarge = "too_large",
        Full = "full",
        HolderFull = "holder_full",
        SenderFull = "sender_full",
        TxMined = "tx_mined",
        TxStale = "tx_stale",
        TooMany = "too_many",
        BlockPassed = "block_passed",
        BlockTooFar = "block_too_far",
        InsufficientFunds = "insufficient_funds",
    }
}

/// Why the fields do not form a bundle. Every variant names the field as it is on the wire, its
/// value and the limit.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BundleError {
    /// No transactions, and no uuid that would make it a cancellation.
    #[error("txs is empty: at least 1 transaction, or a replacementUuid to cancel, is needed")]
    Empty,
    /// A nonce without a uuid, whose messages it would order.
    #[error("replacementNonce is {nonce} but there is no replacementUuid")]
    NonceWithoutUuid {
        /// The nonce.
        nonce: u64,
    },
    /// Without a signer anyone could replace the bundle.
    #[error("replacementUuid is {uuid} but the request is not signed")]
    UuidWithoutSigner {
        /// The uuid.
        uuid: Uuid,
    },
    /// The bundle could never be valid.
    #[error("minTimestamp is {min_timestamp}, above maxTimestamp {max_timestamp}")]
    TimestampsReversed {
        /// `minTimestamp`.
        min_timestamp: u64,
        /// `maxTimestamp`.
        max_timestamp: u64,
    },
    /// The refund is the whole payment.
    #[error("refundPercent is {value}, the most is {limit}")]
    RefundPercent {
        /// The requested percentage.
        value: u64,
        /// [`MAX_REFUND_PERCENT`](crate::MAX_REFUND_PERCENT).
        limit: u64,
    },
    /// Two names of the same field with different values.
    #[error("uuid is {uuid}, replacementUuid is {replacement_uuid}: they must be equal")]
    TwoUuids {
        /// `uuid`.
        uuid: Uuid,
        /// `replacementUuid`.
        replacement_uuid: Uuid,
    },
    /// Two names of the nonce with different values.
    #[error(
        "replacementNonce is {replacement_nonce}, replacementSeqNumber is {replacement_seq_number}: \
         they must be equal"
    )]
    TwoNonces {
        /// `replacementNonce`.
        replacement_nonce: u64,
        /// `replacementSeqNumber`.
        replacement_seq_number: u64,
    },
    /// The index of the refunded transaction is not one of the bundle's.
    #[error("refundIndex is {value}, the bundle has {txs} transactions")]
    RefundIndex {
        /// `refundIndex`.
        value: u64,
        /// The number of transactions.
        txs: usize,
    },
    /// Two different transactions are named for the refund.
    #[error("refundIndex is {index}, whose transaction is {index_hash}, refundTxHashes is {hash}")]
    TwoRefunds {
        /// `refundIndex`.
        index: u64,
        /// The hash of its transaction.
        index_hash: B256,
        /// The hash in `refundTxHashes`.
        hash: B256,
    },
    /// An unknown version.
    #[error("version is {value}, must be v1 or v2")]
    UnknownVersion {
        /// The value, cut to 32 characters.
        value: String,
    },
    /// A field that a v1 bundle does not have.
    #[error("{field} is not in version v1")]
    NotInVersion {
        /// The field.
        field: &'static str,
    },
    /// A list is too long.
    #[error("{field} has {value} entries, the most is {limit}")]
    TooMany {
        /// The field.
        field: &'static str,
        /// Its length.
        value: usize,
        /// The limit.
        limit: usize,
    },
    /// A transaction that does not decode as a signed pooled transaction.
    #[error("txs[{index}] does not decode as a signed transaction: {source}")]
    Undecodable {
        /// Its index.
        index: usize,
        /// The decoder's error.
        source: alloy_eips::eip2718::Eip2718Error,
    },
    /// A transaction with an invalid signature.
    #[error("txs[{index}] ({hash}) has an invalid signature")]
    Signature {
        /// Its index.
        index: usize,
        /// Its hash.
        hash: B256,
    },
    /// A sidecar that does not match its transaction.
    #[error("txs[{index}] ({hash}): {source}")]
    Sidecar {
        /// Its index.
        index: usize,
        /// Its hash.
        hash: B256,
        /// The mismatch.
        source: SidecarError,
    },
}

/// Why a sidecar does not match its transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SidecarError {
    /// A list has the wrong length.
    #[error("sidecar.{field} has {value} entries, the transaction's blobs need {limit}")]
    Count {
        /// The list: `blobs`, `commitments` or `proofs`.
        field: &'static str,
        /// Its length.
        value: usize,
        /// The required length.
        limit: usize,
    },
    /// A commitment does not hash to the versioned hash in the transaction.
    #[error("sidecar.commitments[{index}] hashes to {value}, blobVersionedHashes has {limit}")]
    Commitment {
        /// The index of the commitment.
        index: usize,
        /// The versioned hash of the commitment.
        value: B256,
        /// The versioned hash in the transaction.
        limit: B256,
    },
    /// A proof does not match its blob and commitment.
    #[error("sidecar.proofs do not prove that the blobs are those of sidecar.commitments")]
    Proof,
}

/// A reader fell behind the log's window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{missed} events left the log before they were read (replay unfinished: {replay_unfinished})"
)]
pub struct Lagged {
    /// The exact number of log events that it missed, including those that do not concern its
    /// block.
    pub missed: u64,
    /// It was still replaying. The rest of the replay follows, as of the oldest event in the log.
    pub replay_unfinished: bool,
}
