//! The pool's output: events for subscribers, and outcomes for callers.

use std::{sync::Arc, time::SystemTime};

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
    /// The order is in the pool from now on.
    Added(Arc<Order>),
    /// The order is no longer in the pool.
    Removed {
        /// The order.
        order: Arc<Order>,
        /// Why it was removed.
        reason: RemoveReason,
    },
    /// The node has announced a pooled transaction that external callers had sent. A replay has
    /// only the transaction's `Added`; [`Transaction::is_public`](crate::Transaction::is_public)
    /// tells the rest.
    BecamePublic(Arc<Order>),
    /// A pooled order of an external caller has another holder, new terms or a later time: another
    /// caller sent it too, a caller sent it again with other terms, or the signer of a private
    /// transaction or of a bundle with a uuid and no nonce sent it again. A replay has only the
    /// order's `Added`.
    Held {
        /// The order, with the holder and the terms of the caller that sent it first.
        order: Arc<Order>,
        /// The holder that sent it now.
        holder: Holder,
        /// The terms on which it was sent now, if it was sent as a private transaction.
        terms: Option<PrivateTerms>,
        /// When it was sent now, by the clock of
        /// [`Transaction::first_seen`](crate::Transaction::first_seen).
        sent_at: SystemTime,
    },
    /// No bundle of this key with this nonce or a lower one is valid any more, including bundles
    /// that have not arrived yet. Published to every subscriber, after the removal of the key's
    /// pooled bundles.
    Cancelled(Cancellation),
    /// A private transaction that this signer has sent until now is not valid any more, in this
    /// pool or another one. Published to every subscriber, after the removal of the transaction if
    /// it was pooled.
    CancelledPrivate(PrivateCancellation),
    /// The cancellation of this key is no longer remembered: a bundle that arrives now is accepted.
    CancellationForgotten(ReplacementKey),
    /// The chain has a new head, block N. Before this event come
    ///
    /// - the removal of N's transactions,
    /// - the orders that a reorg put back,
    /// - the removal of up to 16 bundles that are for N, or that require a transaction of N.
    ///   Further ones are removed after this event, so a reader must compare a bundle's block
    ///   itself,
    /// - the removal of up to 256 private transactions whose last block is N.
    ///
    /// Right after it come the removals of the other such private transactions, and of the
    /// transactions whose nonces the mined orders used. Transactions that N's other nonces make
    /// stale are removed when these nonces are known.
    ///
    /// A replay begins with the current head, before the orders, unless the pool knows no head yet.
    Head(Arc<Head>),
    /// The last source of pending transactions has ended, see [`OrderPool::feed`]: nothing brings
    /// the node's transactions and heads into the pool any more. The orders stay, and external
    /// callers may add others.
    ///
    /// A replay has this event after the head, unless another source has started since; the event
    /// may then come a second time.
    ///
    /// [`OrderPool::feed`]: crate::OrderPool::feed
    FeedEnded,
}

/// Why an order left the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RemoveReason {
    /// A block contains the order. For a bundle: a block contains one of its required transactions,
    /// or all of its transactions.
    Mined,
    /// A block raised the sender's nonce above the transaction's. For a bundle: a block did so for
    /// one of its required transactions.
    StaleNonce,
    /// The order's retention is over.
    Expired,
    /// The transaction paid the least when its share of the pool was full. For a bundle: a cap was
    /// reached, its signer held the most, and it was that signer's bundle for the latest block.
    Evicted,
    /// The bundle's block, or the last block of the private transaction, has been built.
    BlockPassed,
    /// The order's block is farther ahead than is accepted. It was inserted before the pool knew
    /// the head.
    BlockTooFar,
    /// For a bundle: one with the same key, for the same block, with a higher nonce arrived. Its
    /// `Added` follows, unless the pool refuses it: see
    /// [`OrderPool::supersede`](crate::OrderPool::supersede). For a blob transaction: the node has
    /// announced it with cell proofs, and its `Added` with these follows.
    Replaced,
    /// The order's signer cancelled it. For a bundle, [`Event::Cancelled`] follows.
    Cancelled,
}

/// What a pool knows about an order by its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OrderStatus {
    /// The order is in the pool.
    Pooled,
    /// The order was removed for good, and is still in the dedupe window.
    Removed,
    /// The order was evicted, it expired, its signer cancelled it, or its block has passed, which a
    /// reorg may undo. It may be accepted if it is inserted again: if it was not cancelled since it
    /// was sent and, when the pool is full, pays more than another order.
    MayReturn,
    /// The order was never in the pool, or has left the dedupe window.
    Unknown,
}

/// The result of an insert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InsertOutcome {
    /// The order was added, and subscribers are notified.
    Added,
    /// The order was added in place of another, and subscribers are notified of both.
    Replaced {
        /// The replaced bundle.
        old: OrderId,
    },
    /// The order was an empty bundle with a uuid, which is a cancellation, and took effect.
    Cancelled,
    /// Another message was valid instead, and nothing changed.
    ///
    /// - A bundle of its key for its block, or a cancellation of its key, with the same or a higher
    ///   nonce came before. A bundle with the same nonce that the pool has refused or removed does
    ///   not count.
    /// - The bundle has no nonce, and a message of its key was sent later. Then `nonce` is the
    ///   bundle's time, in microseconds since the Unix epoch.
    /// - Its signer cancelled the private transaction after it arrived. Then both numbers are
    ///   times, in microseconds since the Unix epoch.
    Superseded {
        /// The message's nonce.
        nonce: u64,
        /// The highest nonce of its key.
        current: u64,
    },
    /// The bundle's key was cancelled permanently. Nothing changed.
    CancelledPermanently,
    /// The order is already in the pool. Only its recorded origins
    /// ([`Transaction::second_origin`](crate::Transaction::second_origin)), its retention and its
    /// holders may have changed. If its retention or its holders have, subscribers receive
    /// [`Event::Held`].
    Known,
    /// The order was in the pool, was removed for good (it was not evicted and did not expire), and
    /// is still in the dedupe window. Nothing changed.
    AlreadyRemoved,
    /// A recent block contains it. Nothing changed.
    Mined,
    /// A recent block raised the sender's nonce above its own. Nothing changed.
    StaleNonce {
        /// The transaction's nonce.
        nonce: u64,
        /// The lowest nonce that the sender can still use.
        next: u64,
    },
    /// The order was refused. Nothing changed.
    Rejected(RejectReason),
}

impl From<RejectReason> for InsertOutcome {
    fn from(reason: RejectReason) -> Self {
        Self::Rejected(reason)
    }
}

/// The outcome of an empty bundle, which is a cancellation.
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
    /// The cancellation took effect, and subscribers are notified.
    Cancelled {
        /// The number of removed bundles: at most one for each block.
        removed: usize,
    },
    /// A cancellation of the key with the same or a higher nonce came before, or all bundles of the
    /// key have such a nonce. Nothing changed.
    Superseded {
        /// The cancellation's nonce.
        nonce: u64,
        /// The highest nonce of the key.
        current: u64,
    },
    /// The key was cancelled permanently before. Nothing changed.
    CancelledPermanently,
}

/// The result of the cancellation of a private transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CancelPrivateOutcome {
    /// The transaction was removed from the pool.
    Cancelled,
    /// The node has announced the transaction, or another caller sent it too, so it can no longer
    /// be cancelled. Nothing changed.
    Public,
    /// No pooled private transaction of this signer has this hash, or it was sent later than it was
    /// cancelled. Subscribers receive [`Event::CancelledPrivate`], since another pool may have the
    /// transaction, unless the caller has used up its
    /// [`MAX_UNKNOWN_CANCELLATIONS`](crate::MAX_UNKNOWN_CANCELLATIONS).
    Unknown,
}
