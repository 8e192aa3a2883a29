//! From a message to the pool.

use std::{
    collections::VecDeque,
    iter::successors,
    sync::Arc,
    time::{Duration, SystemTime},
};

use alloy_consensus::Transaction as _;
use alloy_primitives::B256;
use async_nats::{Message, header::NATS_MESSAGE_ID};
use chain_view::{Block, Head};
use order_pool::{
    CancelOutcome, CancelPrivateOutcome, DEFAULT_TX_RETENTION, InsertOutcome, Order, OrderPool,
    PrivateCancellation, Relation,
};

use crate::{
    config::{Flow, SourceConfig},
    metrics::{Delivered, SourceCounters},
    wire::{Record, WireError},
};

/// How long a pool keeps its head while only lower blocks of another chain are told, five blocks of mainnet: a machine whose
/// node is far behind tells them too, and the others tell the next block meanwhile. Then the chain has begun anew.
const NEW_CHAIN_AFTER: Duration = Duration::from_secs(60);

/// Heads that are remembered, whichever branch they are of: as many slots as a pool remembers, with two branches.
const MAX_TOLD: usize = 128;

/// Most blocks that are taken with a head, itself included, as a pool remembers.
const MAX_BRANCH: usize = 64;

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
    chain_id: u64,
    heads: bool,
    pub(crate) counters: Arc<SourceCounters>,
    /// When the stream has stored the message that is delivered, if that is known.
    pub(crate) stored: Option<SystemTime>,
    /// The latest heads that were told, taken or not, the latest last. They share the hashes with the pool's blocks.
    told: VecDeque<Block>,
    /// The pool's head, and when a head was delivered that found it there for the first time.
    found: Option<(B256, SystemTime)>,
}

impl Deliverer {
    pub(crate) fn new(
        pool: &OrderPool,
        &SourceConfig { flow, chain_id, heads, .. }: &SourceConfig,
        counters: Arc<SourceCounters>,
    ) -> Self {
        let (stored, told, found) = (None, VecDeque::new(), None);
        Self { pool: pool.clone(), flow, chain_id, heads, counters, stored, told, found }
    }

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
            Record::Order(order) => Ok(self.order(Arc::unwrap_or_clone(order), now)),
            Record::Head(record) => {
                let is_taken = self.heads && self.flow == Flow::Public;
                let block = Block::new(record.head, record.mined);
                Ok(if is_taken { self.head(block, now) } else { Delivered::Refused })
            }
            _ if self.flow != Flow::Private => Ok(Delivered::Refused),
            Record::Cancellation(cancellation) => Ok(match self.pool.cancel_bundle(cancellation) {
                CancelOutcome::Cancelled { .. } => Delivered::Pooled,
                CancelOutcome::Superseded { .. } => Delivered::Superseded,
                _ => Delivered::Known,
            }),
            Record::CancelPrivate(PrivateCancellation { hash, signer, at, holder }) => {
                Ok(match self.pool.cancel_private(&hash, signer, holder, at) {
                    CancelPrivateOutcome::Cancelled => Delivered::Pooled,
                    CancelPrivateOutcome::Unknown => Delivered::Known,
                    _ => Delivered::Refused,
                })
            }
        }
    }

    fn head(&mut self, block: Block, now: SystemTime) -> Delivered {
        let branch = self.branch(&block);
        let is_behind = self.is_behind(&block.head, now);
        if !self.told.iter().any(|told| told.head.hash == block.head.hash) {
            self.told.push_back(block);
            if self.told.len() > MAX_TOLD {
                self.told.pop_front();
            }
        }
        let mut relation = None;
        for block in branch.into_iter().rev().filter(|_| !is_behind) {
            relation = Some(self.pool.on_head(block));
        }
        match relation {
            Some(relation) if relation.is_new() => Delivered::Pooled,
            Some(Relation::Repeat) => Delivered::Known,
            _ => Delivered::Refused,
        }
    }

    /// A block, and those before it that the pool does not have, the oldest last, as far as they were told. By the block alone
    /// the pool would forget the chain that it leaves, and then not know the first block of a reorg; and what it undid for
    /// another branch would stay undone.
    fn branch(&self, block: &Block) -> Vec<Block> {
        let is_known = |hash: &B256| self.pool.block(hash).is_some();
        let parent = |Block { head, .. }: &Block| {
            let is_parent = |told: &&Block| {
                told.head.hash == head.parent_hash && told.head.number < head.number
            };
            let is_new = !is_known(&head.hash) && !is_known(&head.parent_hash);
            is_new.then(|| self.told.iter().find(is_parent).cloned())?
        };
        successors(Some(block.clone()), parent).take(MAX_BRANCH).collect()
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

    /// Whether machines have dropped what pools keep for their retention. The private stream still has it, and to a pool that
    /// does not it would be new. Not by when it was first seen: a reorg may have brought it back since.
    fn is_old(&self, hash: &B256, now: SystemTime) -> bool {
        let age = self.stored.and_then(|stored| now.duration_since(stored).ok());
        age.is_some_and(|age| age > DEFAULT_TX_RETENTION) && !self.pool.contains(hash)
    }

    /// Private orders come by the private stream alone.
    fn order(&self, order: Order, now: SystemTime) -> Delivered {
        let is_private = self.flow == Flow::Private;
        match order {
            Order::Tx(tx) => {
                let is_other = tx.envelope().chain_id().is_some_and(|id| id != self.chain_id);
                let is_old =
                    is_private && tx.private_terms().is_none() && self.is_old(tx.hash(), now);
                if is_other || is_old || (tx.private_terms().is_some() && !is_private) {
                    return Delivered::Refused;
                }
                self.pool.insert_transaction(tx).into()
            }
            Order::Bundle(bundle) if is_private => {
                let slot = bundle.key().zip(bundle.block().zip(bundle.nonce()));
                let holder = bundle.parts().holder;
                let delivered = self.pool.insert_bundle(bundle).into();
                if delivered == Delivered::Refused
                    && let Some((key, (block, nonce))) = slot
                {
                    // Its searcher was told that it has replaced the one before it.
                    self.pool.supersede(key, block, nonce, holder);
                }
                delivered
            }
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
