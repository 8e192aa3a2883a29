//! The crate's errors: of a configuration, a start, an order, and a reader that is too slow.

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

/// The thread of an [`Upkeep`](crate::Upkeep) or of a sink could not be started.
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
    /// The order's share of the pool is full and everything in it pays more, or too many others
    /// would have to be evicted for it.
    #[error(
        "the pool is full and the order pays too little to replace another (tip {tip_wei:?} wei per gas)"
    )]
    PaysTooLittle {
        /// The order's tip per gas at the next block's base fee, in wei; `None` if it cannot pay
        /// the base fee.
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
    /// The order's half of the pool is at a cap, and no holder with more than the order's holder
    /// has one that may be evicted for it.
    #[error(
        "the pool's half for such callers has {count} orders of {bytes} bytes, the limits are {limit} orders and {limit_bytes} bytes"
    )]
    Full {
        /// The number of orders of this kind.
        count: usize,
        /// The cap on that number.
        limit: usize,
        /// The bytes of these orders.
        bytes: usize,
        /// The cap on these bytes.
        limit_bytes: usize,
    },
    /// The order's holder is at a cap of its own, and has no order that may be evicted for this
    /// one.
    #[error(
        "this caller has {count} orders of {bytes} bytes in the pool, the limits for one caller are {limit} orders and {limit_bytes} bytes"
    )]
    HolderFull {
        /// The holder.
        holder: Holder,
        /// The number of its orders of this kind.
        count: usize,
        /// Its share of the cap.
        limit: usize,
        /// The bytes of these orders.
        bytes: usize,
        /// Its share of the cap in bytes.
        limit_bytes: usize,
    },
    /// The same holder has sent too many private transactions of this sender.
    #[error("{sender} has {count} private transactions pooled, the most is {limit}")]
    SenderFull {
        /// The sender.
        sender: Address,
        /// The number of its private transactions.
        count: usize,
        /// The cap.
        limit: usize,
    },
    /// The sender of the order's first transaction cannot pay for the order and for the sender's
    /// other orders of the same holder.
    #[error(
        "insufficient funds: sender {sender}, balance {balance_wei} wei, cost {cost_wei} wei with its pooled orders"
    )]
    InsufficientFunds {
        /// The sender.
        sender: Address,
        /// Its balance.
        balance_wei: U256,
        /// The most that these orders cost together, in wei.
        cost_wei: U256,
    },
    /// A block contains a required transaction of the bundle.
    #[error("txs[{index}] ({hash}) is in a recent block")]
    TxMined {
        /// Its index.
        index: usize,
        /// Its hash.
        hash: B256,
    },
    /// A block used the nonce of a required transaction of the bundle.
    #[error("txs[{index}] ({hash}) has nonce {nonce}, the sender's next is {next}")]
    TxStale {
        /// Its index.
        index: usize,
        /// Its hash.
        hash: B256,
        /// Its nonce.
        nonce: u64,
        /// The lowest nonce that the sender can still use.
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
    /// The block that the order is for has been built.
    #[error("blockNumber is {value}, the lowest that is not built yet is {limit}")]
    BlockPassed {
        /// The block that the order is for.
        value: u64,
        /// The next block.
        limit: u64,
    },
    /// The block that the order is for is too far ahead.
    #[error("blockNumber is {value}, the highest that is accepted now is {limit}")]
    BlockTooFar {
        /// The block that the order is for.
        value: u64,
        /// The head plus [`MAX_BLOCKS_AHEAD`](crate::MAX_BLOCKS_AHEAD).
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
    /// The bundle has no transactions, and no uuid that would make it a cancellation.
    #[error("txs is empty: at least 1 transaction, or a replacementUuid to cancel, is needed")]
    Empty,
    /// The bundle has a nonce but no uuid whose messages the nonce would order.
    #[error("replacementNonce is {nonce} but there is no replacementUuid")]
    NonceWithoutUuid {
        /// The nonce.
        nonce: u64,
    },
    /// The bundle has a uuid but no signer, so anyone could replace it.
    #[error("replacementUuid is {uuid} but the request is not signed")]
    UuidWithoutSigner {
        /// The uuid.
        uuid: Uuid,
    },
    /// The timestamps exclude each other, so the bundle could never be valid.
    #[error("minTimestamp is {min_timestamp}, above maxTimestamp {max_timestamp}")]
    TimestampsReversed {
        /// `minTimestamp`.
        min_timestamp: u64,
        /// `maxTimestamp`.
        max_timestamp: u64,
    },
    /// The refund is the whole payment or more.
    #[error("refundPercent is {value}, the most is {limit}")]
    RefundPercent {
        /// The requested percentage.
        value: u64,
        /// [`MAX_REFUND_PERCENT`](crate::MAX_REFUND_PERCENT).
        limit: u64,
    },
    /// The two names of the uuid have different values.
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
    /// The lists of storage slots do not belong to the contracts one to one.
    #[error(
        "targetSlots has {lists} lists, must have none or one for each of {addresses} targetAddresses"
    )]
    TargetSlots {
        /// The number of lists in `targetSlots`.
        lists: usize,
        /// The number of `targetAddresses`.
        addresses: usize,
    },
    /// The version is unknown.
    #[error("version is {value}, must be v1 or v2")]
    UnknownVersion {
        /// The value, truncated to 32 characters.
        value: String,
    },
    /// The field does not exist in a v1 bundle.
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
    /// A transaction does not decode as a signed pooled transaction.
    #[error("txs[{index}] does not decode as a signed transaction: {source}")]
    Undecodable {
        /// Its index.
        index: usize,
        /// The decoder's error.
        source: alloy_eips::eip2718::Eip2718Error,
    },
    /// A transaction has an invalid signature.
    #[error("txs[{index}] ({hash}) has an invalid signature")]
    Signature {
        /// Its index.
        index: usize,
        /// Its hash.
        hash: B256,
    },
    /// A sidecar does not match its transaction.
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

/// A reader fell behind by more than the log holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{missed} events left the log before they were read (replay unfinished: {replay_unfinished})"
)]
pub struct Lagged {
    /// The exact number of events that the reader missed, including those that do not concern its
    /// block.
    pub missed: u64,
    /// Whether the reader was still replaying. The rest of the replay follows, as of the oldest
    /// event in the log.
    pub replay_unfinished: bool,
}
