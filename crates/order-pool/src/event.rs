//! The pool's output: events for subscribers, outcomes for callers.

use std::sync::Arc;

use chain_view::Head;

use crate::{
    error::RejectReason,
    holder::Holder,
    order::{Cancellation, Order, OrderId, PrivateCancellation, PrivateTerms, ReplacementKey},
};

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
    /// The node has announced a transaction that external callers had sent and that is in the pool. A replay has its
    /// `Added` alone; [`Transaction::is_public`](crate::Transaction::is_public) tells.
    BecamePublic(Arc<Order>),
    /// An order of external callers that is in the pool was sent by another one too, or again with other terms, and is
    /// kept for it as well. A replay has the `Added` alone.
    Held {
        /// The order, with the holder and the terms of who sent it first.
        order: Arc<Order>,
        /// Who sent it now.
        holder: Holder,
        /// The terms on which it was sent now, of a private transaction.
        terms: Option<PrivateTerms>,
    },
    /// No bundle of this key with this nonce or a lower one is valid any more, including those that
    /// have not arrived yet. Published to every subscriber, after the removal of the key's pooled
    /// bundles.
    Cancelled(Cancellation),
    /// This private transaction, as its signer has sent it until then, is not valid any more, here or
    /// in another pool. Published to every subscriber, after the removal of the transaction if it
    /// was pooled.
    CancelledPrivate(PrivateCancellation),
    /// The cancellation of this key is no longer remembered: a bundle that arrives now is accepted.
    CancellationForgotten(ReplacementKey),
    /// The chain has a new head. A subscriber that sees head N has seen the removal of N's
    /// transactions, the orders that a reorg put back, and the removal of up to 64 bundles that are
    /// over: those for N, and those that cannot do without what N contains. If there are more, the
    /// others are removed after it, so a bundle's block decides. Of private transactions that are over,
    /// 256 are removed before it, and the others at once after it, as are the transactions whose nonces
    /// the mined orders used. What N's other nonces make stale is removed when these are known.
    ///
    /// A replay begins with the current head, before the orders; without it if the pool knows no
    /// head yet.
    Head(Arc<Head>),
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
    /// Of a blob transaction: the node has announced it with cell proofs, and its `Added` with these
    /// follows. Of a bundle: one with the same key for the same block and a higher nonce arrived; its
    /// `Added` follows, unless the pool does not take it: see [`OrderPool::supersede`](crate::OrderPool::supersede).
    Replaced,
    /// Its signer cancelled it. Of a bundle, the [`Event::Cancelled`] follows.
    Cancelled,
}

/// What a pool knows of an order by its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OrderStatus {
    /// It is in the pool.
    Pooled,
    /// It was removed for good, and is still in the dedupe window.
    Removed,
    /// It was evicted, or it expired, or its block has passed, which a reorg may undo. It is accepted if it is inserted again and, when the pool is full, pays more than another.
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
    /// nonce came before, with the same one unless the pool has refused or removed that; of a
    /// message without a nonce: one that was sent later, and `nonce` is its time, in
    /// microseconds since the Unix epoch. Of a private transaction: its signer cancelled it after it arrived, and the
    /// numbers are both times, in microseconds since the Unix epoch. Nothing changed.
    Superseded {
        /// Its nonce.
        nonce: u64,
        /// The highest nonce of its key.
        current: u64,
    },
    /// Its key was cancelled permanently. Nothing changed.
    CancelledPermanently,
    /// It is already in the pool. Nothing changed except its recorded origins
    /// ([`Transaction::second_origin`](crate::Transaction::second_origin)) and who holds it, of which subscribers are told.
    Known,
    /// It was in the pool, was removed for good (not evicted, not expired, not as its block has
    /// passed), and is still in the dedupe window. Nothing changed.
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

impl From<RejectReason> for InsertOutcome {
    fn from(reason: RejectReason) -> Self {
        Self::Rejected(reason)
    }
}

/// As the outcome of a bundle that is a cancellation.
impl From<CancelOutcome> for InsertOutcome {
    fn from(outcome: CancelOutcome) -> Self {
        match outcome {
            CancelOutcome::Cancelled { .. } => Self::Cancelled,
            CancelOutcome::Superseded { nonce, current } => Self::Superseded { nonce, current },
            CancelOutcome::CancelledPermanently => Self::CancelledPermanently,
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
    /// The node has announced it, or another caller sent it too, so it can no longer be cancelled.
    /// Nothing changed.
    Public,
    /// No pooled private transaction of this signer has this hash, or it was sent later than it was
    /// cancelled. Subscribers are told, since another pool may have it, unless
    /// [`MAX_UNKNOWN_CANCELLATIONS`](crate::MAX_UNKNOWN_CANCELLATIONS) of this caller or
    /// signer are remembered.
    Unknown,
}
