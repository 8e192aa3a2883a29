//! The pool's output: events for subscribers, outcomes for callers.

use std::sync::Arc;

use alloy_primitives::{Address, B256};
use chain_view::Head;

use crate::order::{Cancellation, Order, OrderId, ReplacementKey};

/// A change of the pool, as published to subscribers.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// The order is in the pool from here on.
    Added(Arc<Order>),
    /// The order is no longer in the pool.
    Removed {
        /// The order.
        order: Arc<Order>,
        /// Why it was removed.
        reason: RemoveReason,
    },
    /// No bundle of this key with this nonce or a lower one is valid any more, including those that
    /// have not arrived yet. Published to every subscriber, after the removal of the key's pooled
    /// bundles.
    Cancelled(Cancellation),
    /// The cancellation of this key is no longer remembered: a bundle that arrives now is accepted.
    CancellationForgotten(ReplacementKey),
    /// The chain has a new head. Published after everything that its block's hashes changed: a
    /// subscriber that sees head N has seen the removal of N's transactions and of the bundles for
    /// N, and the orders that a reorg put back. Orders that N's nonces make stale are removed
    /// later, when the nonces are known.
    ///
    /// A replay begins with the current head, before the orders; without it if the pool knows no
    /// head yet.
    Head(Arc<Head>),
}

/// An [`Event`] read in place, without touching a reference count that other readers use too.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum EventRef<'a> {
    /// See [`Event::Added`]. Clone the `Arc` to keep the order.
    Added(&'a Arc<Order>),
    /// See [`Event::Removed`].
    Removed {
        /// The order. Clone the `Arc` to keep it.
        order: &'a Arc<Order>,
        /// Why it was removed.
        reason: RemoveReason,
    },
    /// See [`Event::Cancelled`].
    Cancelled(Cancellation),
    /// See [`Event::CancellationForgotten`].
    CancellationForgotten(ReplacementKey),
    /// See [`Event::Head`].
    Head(&'a Arc<Head>),
}

impl EventRef<'_> {
    /// The event as an owned value.
    pub fn to_event(self) -> Event {
        match self {
            Self::Added(order) => Event::Added(Arc::clone(order)),
            Self::Removed { order, reason } => Event::Removed { order: Arc::clone(order), reason },
            Self::Cancelled(cancellation) => Event::Cancelled(cancellation),
            Self::CancellationForgotten(key) => Event::CancellationForgotten(key),
            Self::Head(head) => Event::Head(Arc::clone(head)),
        }
    }
}

impl Event {
    /// The same event, borrowed.
    pub const fn as_ref(&self) -> EventRef<'_> {
        match self {
            Self::Added(order) => EventRef::Added(order),
            Self::Removed { order, reason } => EventRef::Removed { order, reason: *reason },
            Self::Cancelled(cancellation) => EventRef::Cancelled(*cancellation),
            Self::CancellationForgotten(key) => EventRef::CancellationForgotten(*key),
            Self::Head(head) => EventRef::Head(head),
        }
    }
}

/// Why an order left the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RemoveReason {
    /// A block contains it. Of a bundle: a block contains one of its transactions that may not be
    /// omitted, or all of them.
    Mined,
    /// A block raised its sender's nonce above its own. Of a bundle: the same for one of its
    /// transactions that may not be omitted.
    StaleNonce,
    /// Its retention is over.
    Expired,
    /// It paid the least when its share of the pool was full. Of a bundle: a cap was reached, its
    /// signer held the most, and it was that signer's bundle for the latest block.
    Evicted,
    /// Its block, or the last block of a private transaction, is built.
    BlockPassed,
    /// Its block is farther ahead than is accepted: it was inserted before the pool knew the head.
    BlockTooFar,
    /// A bundle with the same key for the same block and a higher nonce arrived. Its `Added`
    /// follows.
    Replaced,
    /// Its signer cancelled it. Of a bundle, the [`Event::Cancelled`] follows.
    Cancelled,
}

/// What a pool knows of an order by its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Standing {
    /// It is in the pool.
    Pooled,
    /// It was removed, and is still in the dedupe window: for good, or because it expired and
    /// [`PoolConfig::expired_pause`](crate::PoolConfig::expired_pause) is not over.
    Removed,
    /// It was evicted, or it expired and the pause is over. It is accepted if it is inserted again
    /// and, when the pool is full, pays more than another.
    MayReturn,
    /// It was never in the pool, or has left the dedupe window.
    Unknown,
}

/// The result of an insert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InsertOutcome {
    /// The order was added, and subscribers are told.
    Added,
    /// The order was added in place of another, and subscribers are told of both.
    Replaced {
        /// The replaced bundle.
        old: OrderId,
    },
    /// The order was an empty bundle with a uuid, which is a cancellation, and it took effect.
    Cancelled,
    /// A bundle of its key for its block, or a cancellation of its key, with the same or a higher
    /// nonce came before. Nothing changed.
    Superseded {
        /// Its nonce.
        nonce: u64,
        /// The highest nonce of its key.
        current: u64,
    },
    /// Its key was cancelled permanently. Nothing changed.
    CancelledPermanently,
    /// It is already in the pool. Nothing changed except its recorded origins
    /// ([`Transaction::second_origin`](crate::Transaction::second_origin)).
    Known,
    /// It was in the pool, was removed for good (not evicted, not expired), and is still in the
    /// dedupe window. Nothing changed.
    AlreadyRemoved,
    /// A recent block contains it. Nothing changed.
    Mined,
    /// A recent block raised the sender's nonce above its own. Nothing changed.
    StaleNonce {
        /// Its nonce.
        nonce: u64,
        /// The lowest nonce the sender can still use.
        next: u64,
    },
    /// It was refused. Nothing changed.
    Rejected(RejectReason),
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
    /// The pool is at its cap of bundles, and no other signer holds more than this one would.
    #[error(
        "the pool holds {count} bundles of {bytes} bytes, its limits are {limit} bundles and {limit_bytes} bytes"
    )]
    BundlesFull {
        /// Bundles in the pool.
        count: usize,
        /// The cap.
        limit: usize,
        /// Their bytes.
        bytes: usize,
        /// The cap in bytes.
        limit_bytes: usize,
    },
    /// Its signer is at its cap, and has no bundle for a later block than this one's.
    #[error(
        "{} {count} bundles of {bytes} bytes, the limits for one are {limit} bundles and {limit_bytes} bytes",
        signer.map_or("those without a signature hold".into(), |signer| format!("{signer} holds"))
    )]
    SignerFull {
        /// The signer; `None` for all unsigned bundles together.
        signer: Option<Address>,
        /// The signer's bundles.
        count: usize,
        /// [`PoolConfig::max_bundles_per_signer`](crate::PoolConfig::max_bundles_per_signer), or
        /// [`PoolConfig::max_unsigned_bundles`](crate::PoolConfig::max_unsigned_bundles).
        limit: usize,
        /// Their bytes.
        bytes: usize,
        /// [`PoolConfig::max_bundle_bytes_per_signer`](crate::PoolConfig::max_bundle_bytes_per_signer).
        limit_bytes: usize,
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
        /// [`PoolConfig::max_txs_per_bundle`](crate::PoolConfig::max_txs_per_bundle).
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
        /// The head and
        /// [`PoolConfig::max_blocks_ahead`](crate::PoolConfig::max_blocks_ahead).
        limit: u64,
    },
}

impl RejectReason {
    /// All values of [`Self::as_str`].
    pub const ALL: [&'static str; 9] = [
        "pays_too_little",
        "too_large",
        "bundles_full",
        "signer_full",
        "tx_mined",
        "tx_stale",
        "too_many",
        "block_passed",
        "block_too_far",
    ];

    /// The value of the label `reason` of `order_pool_rejected_total`.
    pub const fn as_str(&self) -> &'static str {
        Self::ALL[self.index()]
    }

    /// Its index in [`Self::ALL`].
    pub(crate) const fn index(&self) -> usize {
        match self {
            Self::PaysTooLittle { .. } => 0,
            Self::TooLarge { .. } => 1,
            Self::BundlesFull { .. } => 2,
            Self::SignerFull { .. } => 3,
            Self::TxMined { .. } => 4,
            Self::TxStale { .. } => 5,
            Self::TooMany { .. } => 6,
            Self::BlockPassed { .. } => 7,
            Self::BlockTooFar { .. } => 8,
        }
    }
}

/// The result of a cancellation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CancelOutcome {
    /// It took effect, and subscribers are told.
    Cancelled {
        /// How many bundles were removed: at most one for each block.
        removed: usize,
    },
    /// A cancellation of its key with the same or a higher nonce came before, or such a bundle for
    /// every block that has one. Nothing changed.
    Superseded {
        /// Its nonce.
        nonce: u64,
        /// The highest nonce of its key.
        current: u64,
    },
    /// Its key was cancelled permanently before. Nothing changed.
    CancelledPermanently,
}

/// The result of the cancellation of a private transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CancelPrivateOutcome {
    /// It was removed from the pool.
    Cancelled,
    /// The node has announced it, so it can no longer be cancelled. Nothing changed.
    Public,
    /// No pooled private transaction of this signer has this hash. Nothing changed.
    Unknown,
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
    /// It was still replaying, so orders from before its subscription are missing too.
    pub replay_unfinished: bool,
}
