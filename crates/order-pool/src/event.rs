//! What the pool tells: events to subscribers, outcomes to those who insert.

use std::sync::Arc;

use alloy_primitives::{Address, B256};
use chain_view::Head;

use crate::{
    bundle::{Cancellation, ReplacementKey},
    order::{Order, OrderId},
};

/// A change of the pool, as subscribers see it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// The order is in the pool from here on.
    Added(Arc<Order>),
    /// The order is no longer in the pool.
    Removed {
        /// The order.
        order: Arc<Order>,
        /// Why it went.
        reason: RemoveReason,
    },
    /// No bundle of this key up to this nonce counts any more, also none that is still on its way.
    /// Told after the removal of the key's bundle, if it was pooled, and to every subscriber.
    Cancelled(Cancellation),
    /// The cancellation of this key is no longer remembered: a bundle that arrives now counts.
    CancellationForgotten(ReplacementKey),
    /// The chain has a new head. Told after everything that its block's hashes changed: whoever sees
    /// the head of N has seen the removal of what N contains and of the bundles that were for N, and
    /// what a reorg brought back. What N's nonces make stale is removed later, when they are known.
    ///
    /// A new subscriber, and one that starts anew, is told the head of that moment before the
    /// orders; nothing is if the pool knows no head yet.
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
        /// Why it went.
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
    /// The event as a value of its own.
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
    /// A block contains it. Of a bundle: a block contains a transaction that it cannot do without, or all
    /// of them.
    Mined,
    /// A block raised its sender's nonce past its own. Of a bundle: that of such a transaction.
    StaleNonce,
    /// It was kept for as long as its kind is kept.
    Expired,
    /// It paid the least when its share of the pool was full. Of a bundle: its signer held the most when
    /// there were too many, and of the signer's it was for the latest block.
    Evicted,
    /// The block it was for has been built; of a private transaction, the last one.
    BlockPassed,
    /// The block it is for is farther ahead than is accepted: it came before the pool knew the head.
    BlockTooFar,
    /// A bundle of the same key for the same block with a higher nonce came. Its `Added` follows.
    Replaced,
    /// Whoever sent it cancelled it. Of a bundle, the [`Event::Cancelled`] follows.
    Cancelled,
}

/// What a pool knows of an order, by its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Standing {
    /// It is in the pool.
    Pooled,
    /// It was removed, and is still in the dedupe window: for good, or because it expired and the pause
    /// of [`PoolConfig::expired_pause`](crate::PoolConfig::expired_pause) lasts.
    Removed,
    /// It was evicted, or expired before that pause. It comes back if it is handed in again and, when
    /// the pool is full, pays more than another.
    MayReturn,
    /// It never was here, or left the dedupe window.
    Unknown,
}

/// What became of an order that was handed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InsertOutcome {
    /// It is in the pool now and subscribers are told.
    Added,
    /// It is in the pool now in the place of another, and subscribers are told of both.
    Replaced {
        /// The bundle that left.
        old: OrderId,
    },
    /// It was an empty bundle with a uuid: a cancellation, and it took effect.
    Cancelled,
    /// A bundle of its key for its block, or a cancellation of its key, with the same or a higher nonce came
    /// before. Nothing changed.
    Superseded {
        /// Its nonce.
        nonce: u64,
        /// The highest nonce of its key.
        current: u64,
    },
    /// Its key was cancelled permanently. Nothing changed.
    CancelledPermanently,
    /// It is in the pool already. Nothing changed but what is known of its origins
    /// ([`Transaction::second_origin`](crate::Transaction::second_origin)).
    Known,
    /// It was in the pool and left it for good (not evicted, not expired), and is still in the dedupe
    /// window. Nothing changed.
    AlreadyRemoved,
    /// A recent block contains it. Nothing changed.
    Mined,
    /// A recent block raised the sender past it. Nothing changed.
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
    /// Its share of the pool is full and everything in it pays more, or the order needs the room of too
    /// many others.
    #[error(
        "the pool is full and the order pays too little to take another's place (tip {tip_wei:?} wei per gas)"
    )]
    PaysTooLittle {
        /// What it pays per gas at the next block's base fee; `None` if not even the base fee.
        tip_wei: Option<u128>,
    },
    /// It alone is larger than the pool may grow.
    #[error("the order takes {size_bytes} bytes, the pool holds at most {limit_bytes}")]
    TooLarge {
        /// What it takes.
        size_bytes: usize,
        /// What the pool may hold.
        limit_bytes: usize,
    },
    /// The pool holds as many bundles as it may, and none of them goes for this one: nobody holds more
    /// than its signer would.
    #[error(
        "the pool holds {count} bundles of {bytes} bytes, its limits are {limit} bundles and {limit_bytes} bytes"
    )]
    BundlesFull {
        /// Bundles held.
        count: usize,
        /// The most that may be.
        limit: usize,
        /// What they take.
        bytes: usize,
        /// The most they may take.
        limit_bytes: usize,
    },
    /// Its signer holds as many bundles as one may, none of them for a later block than this one.
    #[error(
        "{} {count} bundles of {bytes} bytes, the limits for one are {limit} bundles and {limit_bytes} bytes",
        signer.map_or("those without a signature hold".into(), |signer| format!("{signer} holds"))
    )]
    SignerFull {
        /// Who; `None` for all without a signature together.
        signer: Option<Address>,
        /// Bundles they hold.
        count: usize,
        /// [`PoolConfig::max_bundles_per_signer`](crate::PoolConfig::max_bundles_per_signer), or
        /// [`PoolConfig::max_unsigned_bundles`](crate::PoolConfig::max_unsigned_bundles).
        limit: usize,
        /// What these take.
        bytes: usize,
        /// [`PoolConfig::max_bundle_bytes_per_signer`](crate::PoolConfig::max_bundle_bytes_per_signer).
        limit_bytes: usize,
    },
    /// A block contains a transaction of the bundle that may not be left out.
    #[error("txs[{index}] ({hash}) is in a recent block")]
    TxMined {
        /// Its place.
        index: usize,
        /// Its hash.
        hash: B256,
    },
    /// A block used the nonce of a transaction of the bundle that may not be left out.
    #[error("txs[{index}] ({hash}) has nonce {nonce}, the sender's next is {next}")]
    TxStale {
        /// Its place.
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
    /// All texts of [`Self::as_str`].
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

    /// Its text in the metrics: the `reason` of `order_pool_rejected_total`.
    pub const fn as_str(&self) -> &'static str {
        Self::ALL[self.index()]
    }

    /// Its place in [`Self::ALL`].
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

/// What became of a cancellation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CancelOutcome {
    /// It counts, and subscribers are told.
    Cancelled {
        /// How many bundles left for it: at most one for each block.
        removed: usize,
    },
    /// A cancellation of its key with the same or a higher nonce came before, or such a bundle for each of
    /// the blocks for which there are any. Nothing changed.
    Superseded {
        /// Its nonce.
        nonce: u64,
        /// The highest nonce of its key.
        current: u64,
    },
    /// Its key was cancelled permanently before. Nothing changed.
    CancelledPermanently,
}

/// What became of the cancellation of a private transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CancelPrivateOutcome {
    /// It has left the pool.
    Cancelled,
    /// The node has announced it, so it can no longer be cancelled. Nothing changed.
    Public,
    /// No pooled private transaction of this signer has this hash. Nothing changed.
    Unknown,
}

/// A reader fell out of the log's window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{missed} events left the log before they were read (replay unfinished: {replay_unfinished})"
)]
pub struct Lagged {
    /// How many events of the log it did not see, exactly. Events that do not concern its block
    /// are counted too.
    pub missed: u64,
    /// It was still replaying, so orders that were there before it subscribed are missing too.
    pub replay_unfinished: bool,
}
