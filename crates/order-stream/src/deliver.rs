//! From a message to the pool.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use alloy_consensus::Transaction as _;
use alloy_primitives::B256;
use async_nats::{Message, header::NATS_MESSAGE_ID};
use chain_view::{Block, Head};
use order_pool::{
    CancelOutcome, CancelPrivateOutcome, InsertOutcome, Order, OrderPool, PrivateCancellation,
};

use crate::{
    config::Flow,
    metrics::{Delivered, SourceCounters},
    wire::{Record, WireError},
};

/// How long a pool keeps its head while only lower blocks of another chain are told, five blocks of mainnet: a machine whose
/// node is far behind tells them too, and the others tell the next block meanwhile. Then the chain has begun anew.
const NEW_CHAIN_AFTER: Duration = Duration::from_secs(60);

impl From<InsertOutcome> for Delivered {
    fn from(outcome: InsertOutcome) -> Self {
        match outcome {
            InsertOutcome::Added | InsertOutcome::Replaced { .. } | InsertOutcome::Cancelled => {
                Self::Pooled
            }
            InsertOutcome::Known | InsertOutcome::AlreadyRemoved => Self::Known,
            InsertOutcome::Superseded { .. } | InsertOutcome::CancelledPermanently => {
                Self::Superseded
            }
            // In a block, stale, or without room.
            _ => Self::Refused,
        }
    }
}

/// Decodes messages and passes them to the pool, in their order.
#[derive(Debug)]
pub(crate) struct Deliverer {
    pub(crate) pool: OrderPool,
    pub(crate) flow: Flow,
    pub(crate) chain_id: u64,
    pub(crate) heads: bool,
    pub(crate) counters: Arc<SourceCounters>,
    /// The pool's head, and when a head was delivered that found it there for the first time.
    pub(crate) found: Option<(B256, SystemTime)>,
}

impl Deliverer {
    /// One message of the stream.
    pub(crate) fn message(&mut self, message: &Message, now: SystemTime) {
        let delivered = self.deliver(message, now).unwrap_or_else(|error| {
            tracing::warn!(%error, subject = %message.subject, "a malformed message");
            Delivered::Malformed
        });
        self.counters.delivered[delivered as usize].add(1);
    }

    fn deliver(&mut self, message: &Message, now: SystemTime) -> Result<Delivered, WireError> {
        let id = message_id(message).ok_or(WireError::NoId)?;
        match Record::decode(&id, &message.payload, now)? {
            Record::Order(order) => Ok(self.order(Arc::unwrap_or_clone(order))),
            Record::Head(record) => {
                let is_taken = self.heads && self.flow == Flow::Public;
                if !is_taken || self.is_behind(&record.head, now) {
                    return Ok(Delivered::Refused);
                }
                let relation = self.pool.on_head(Block::new(record.head, record.mined));
                Ok(match relation {
                    _ if relation.is_new() => Delivered::Pooled,
                    order_pool::Relation::Repeat => Delivered::Known,
                    _ => Delivered::Refused,
                })
            }
            _ if self.flow != Flow::Private => Ok(Delivered::Refused),
            Record::Cancellation(cancellation) => Ok(match self.pool.cancel_bundle(cancellation) {
                CancelOutcome::Cancelled { .. } => Delivered::Pooled,
                CancelOutcome::Superseded { .. } => Delivered::Superseded,
                _ => Delivered::Known,
            }),
            Record::CancelPrivate(PrivateCancellation { hash, signer, at, holder }) => {
                Ok(match self.pool.cancel_private(&hash, signer, holder, Some(at)) {
                    CancelPrivateOutcome::Cancelled => Delivered::Pooled,
                    CancelPrivateOutcome::Unknown => Delivered::Known,
                    _ => Delivered::Refused,
                })
            }
        }
    }

    /// Whether a head is not to be followed: one that is no higher than the pool's, while the pool knows neither it nor its
    /// parent. The pool would undo all that is higher. The first block of a reorg has a parent that it knows.
    fn is_behind(&mut self, head: &Head, now: SystemTime) -> bool {
        let Some(latest) = self.pool.head() else { return false };
        let found = self.found.filter(|(hash, _)| *hash == latest.hash);
        let (_, since) = *self.found.insert(found.unwrap_or((latest.hash, now)));
        let is_known = |hash| self.pool.block(hash).is_some();
        head.number <= latest.number
            && !is_known(&head.hash)
            && !is_known(&head.parent_hash)
            // A clock that was set back: not yet.
            && now.duration_since(since).unwrap_or_default() < NEW_CHAIN_AFTER
    }

    /// Private orders come by the private stream alone.
    fn order(&self, order: Order) -> Delivered {
        let is_private = self.flow == Flow::Private;
        match order {
            Order::Tx(tx) => {
                let is_other = tx.envelope().chain_id().is_some_and(|id| id != self.chain_id);
                if is_other || (tx.private_terms().is_some() && !is_private) {
                    return Delivered::Refused;
                }
                self.pool.insert_transaction(tx).into()
            }
            Order::Bundle(bundle) if is_private => self.pool.insert_bundle(bundle).into(),
            _ => Delivered::Refused,
        }
    }
}

fn message_id(message: &Message) -> Option<B256> {
    let header = message.headers.as_ref()?.get(NATS_MESSAGE_ID)?.as_str();
    // What follows a hyphen tells the copies of a message from each other that are not duplicates.
    let digits = header.split_once('-').map_or(header, |(digits, _)| digits);
    (digits.len() == 64).then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests;
