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
    Bundle, BundleError, BundleParts, CancelOutcome, CancelPrivateOutcome, Cancellation,
    DEFAULT_TX_RETENTION, Holder, InsertOutcome, Order, OrderPool, PrivateCancellation, Relation,
    Transaction,
};

use crate::{
    config::{Flow, SourceConfig},
    memory::{Key, Memory, Origin},
    metrics::{Delivered, SourceCounters},
    wire::{Decoded, Record, WireError, micros},
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

/// When a message was stored, and what time it is, both by the clock of the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) stored: SystemTime,
    pub(crate) now: SystemTime,
}

/// Decodes messages and passes them to the pool, in their order. All times are those of the server's clock.
#[derive(Debug)]
pub(crate) struct Deliverer {
    pub(crate) pool: OrderPool,
    pub(crate) flow: Flow,
    chain_id: u64,
    heads: bool,
    pub(crate) counters: Arc<SourceCounters>,
    /// What private orders are replaced and cancelled by.
    memory: Memory,
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
        Self {
            pool: pool.clone(),
            flow,
            chain_id,
            heads,
            counters,
            memory: Memory::default(),
            told: VecDeque::new(),
            found: None,
        }
    }

    pub(crate) fn message(&mut self, message: &Message, times: Times) {
        let delivered = self.deliver(message, times).unwrap_or_else(|error| {
            tracing::warn!(%error, subject = %message.subject, "a malformed message");
            Delivered::Malformed
        });
        self.counters.delivered[delivered as usize].add(1);
    }

    fn deliver(&mut self, message: &Message, times: Times) -> Result<Delivered, WireError> {
        let id = message_id(message).ok_or(WireError::NoId)?;
        let Decoded { record, sent, time } = Record::decode(&id, &message.payload, times.stored)?;
        let origin = Origin {
            machine: message.subject.rsplit('.').next().unwrap_or_default(),
            sent,
            time,
            stored: times.stored,
            is_strangers: matches!(holder(&record), Some(Holder::Caller(_))),
        };
        match record {
            Record::Order(order) => self.order(Arc::unwrap_or_clone(order), origin, times),
            Record::Head(record) => {
                let is_taken = self.heads && self.flow == Flow::Public;
                let block = Block::new(record.head, record.mined);
                Ok(if is_taken { self.head(block, times.now) } else { Delivered::Refused })
            }
            _ if self.flow != Flow::Private => Ok(Delivered::Refused),
            Record::Cancellation(cancellation) => self.cancel_bundles(cancellation, origin),
            Record::CancelPrivate(cancellation) => Ok(self.cancel_private(cancellation, origin)),
        }
    }

    fn cancel_bundles(
        &mut self,
        mut cancellation: Cancellation,
        origin: Origin<'_>,
    ) -> Result<Delivered, WireError> {
        let Cancellation { key, holder, .. } = cancellation;
        if cancellation.sent_at.is_none() {
            let chosen = |nonce| self.memory.chosen_nonce(&Key::Bundles(key), nonce, origin);
            cancellation.nonce = cancellation.nonce.map(chosen);
            self.memory.cancel_bundles(&cancellation, origin);
            return Ok(match self.pool.cancel_bundle(cancellation) {
                CancelOutcome::Cancelled { .. } => Delivered::Pooled,
                CancelOutcome::Superseded { .. } => Delivered::Superseded,
                _ => Delivered::Known,
            });
        }
        let time = self.memory.time(Key::Bundles(key), origin);
        cancellation.sent_at = Some(time);
        cancellation.nonce = Some(micros(time));
        self.memory.cancel_bundles(&cancellation, origin);
        // The pool assigns the nonce, above those of all bundles that were sent earlier.
        let empty = BundleParts {
            uuid: Some(key.uuid),
            signer: Some(key.signer),
            first_seen: Some(time),
            holder,
            ..BundleParts::default()
        };
        Ok(self.pool.insert_bundle(Bundle::new(empty)?).into())
    }

    fn cancel_private(
        &mut self,
        cancellation: PrivateCancellation,
        origin: Origin<'_>,
    ) -> Delivered {
        let PrivateCancellation { hash, signer, holder, .. } = cancellation;
        let at = self.memory.time(Key::Private(signer, hash), origin);
        self.memory
            .cancel_private(&PrivateCancellation { cancelled_at: at, ..cancellation }, origin);
        match self.pool.cancel_private(&hash, signer, holder, at) {
            CancelPrivateOutcome::Cancelled => Delivered::Pooled,
            CancelPrivateOutcome::Unknown => Delivered::Known,
            _ => Delivered::Refused,
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
    fn is_old(&self, hash: &B256, times: Times) -> bool {
        let age = times.now.duration_since(times.stored);
        age.is_ok_and(|age| age > DEFAULT_TX_RETENTION) && !self.pool.contains(hash)
    }

    /// Private orders come by the private stream alone.
    fn order(
        &mut self,
        order: Order,
        origin: Origin<'_>,
        times: Times,
    ) -> Result<Delivered, WireError> {
        let is_private = self.flow == Flow::Private;
        match order {
            Order::Tx(tx) => {
                let is_other = tx.envelope().chain_id().is_some_and(|id| id != self.chain_id);
                if is_other || (tx.private_terms().is_some() && !is_private) {
                    return Ok(Delivered::Refused);
                }
                match tx.private_terms() {
                    Some(_) => Ok(self.private_transaction(tx, origin)),
                    None if is_private && self.is_old(tx.hash(), times) => Ok(Delivered::Refused),
                    None => Ok(self.pool.insert_transaction(tx).into()),
                }
            }
            Order::Bundle(bundle) if is_private => Ok(self.bundle(bundle, origin)?),
            _ => Ok(Delivered::Refused),
        }
    }

    fn private_transaction(&mut self, mut tx: Transaction, origin: Origin<'_>) -> Delivered {
        if let Some(terms) = tx.private_terms().copied()
            && let Some(signer) = terms.signer
        {
            let key = Key::Private(signer, *tx.hash());
            let time = self.memory.time(key, origin);
            if self.memory.is_cancelled(&key, None, time) {
                return Delivered::Superseded;
            }
            if time != tx.first_seen() {
                let (recovered, holder) = (tx.recovered().clone(), tx.holder());
                tx = Transaction::private(recovered, terms, time).held_by(holder);
            }
        }
        self.pool.insert_transaction(tx).into()
    }

    fn bundle(&mut self, mut bundle: Bundle, origin: Origin<'_>) -> Result<Delivered, BundleError> {
        let (block, holder) = (bundle.block(), bundle.parts().holder);
        let Some(key) = bundle.key() else { return Ok(self.pool.insert_bundle(bundle).into()) };
        let chosen = bundle.nonce();
        let chosen =
            chosen.map(|nonce| self.memory.chosen_nonce(&Key::Bundles(key), nonce, origin));
        let time = match chosen {
            Some(_) => origin.time,
            None => self.memory.time(Key::Bundles(key), origin),
        };
        if self.memory.is_cancelled(&Key::Bundles(key), chosen, time) {
            return Ok(Delivered::Superseded);
        }
        if time != bundle.first_seen() || chosen != bundle.nonce() {
            let (first_seen, replacement_nonce) = (Some(time), chosen);
            let parts = bundle.parts().clone();
            bundle = Bundle::new(BundleParts { first_seen, replacement_nonce, ..parts })?;
        }
        let delivered = self.pool.insert_bundle(bundle).into();
        if delivered == Delivered::Refused
            && let Some(block) = block
        {
            // Its searcher was told that it has replaced the one before it.
            self.pool.supersede(key, block, chosen.unwrap_or_else(|| micros(time)), holder);
        }
        Ok(delivered)
    }
}

/// Against whom the publisher counts it.
fn holder(record: &Record) -> Option<Holder> {
    match record {
        Record::Order(order) => Some(order.holder()),
        Record::Cancellation(cancellation) => Some(cancellation.holder),
        Record::CancelPrivate(cancellation) => Some(cancellation.holder),
        Record::Head(_) => None,
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
