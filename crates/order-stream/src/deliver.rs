//! Decodes the messages of a stream and inserts them into the pool, in their sequence.

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
    Bundle, BundleError, BundleParts, CancelOutcome, CancelPrivateOutcome, Cancellation, Holder,
    InsertOutcome, Order, OrderPool, PrivateCancellation, Relation, ReplacementKey, Transaction,
};

use crate::{
    config::{Flow, SourceConfig},
    key_history::{Key, KeyHistory, MessageOrigin},
    metrics::{Delivered, SourceCounters},
    wire::{Decoded, Record, WireError, micros},
};

/// How long a pool keeps its head while machines only publish lower blocks of another chain: five
/// blocks of mainnet. A machine whose node is far behind publishes such blocks too, but the others
/// publish the next block meanwhile. After this time the chain must have been reset.
const NEW_CHAIN_AFTER: Duration = Duration::from_secs(60);

/// How many heads of any branch are remembered: as many slots as a pool remembers, with two
/// branches.
const MAX_RECEIVED_HEADS: usize = 128;

/// How many blocks are applied with a head at most, including the head: as many as a pool
/// remembers.
const MAX_BRANCH_BLOCKS: usize = 64;

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
            // It is in a block, its nonce is stale, or the pool has no room.
            _ => Self::Refused,
        }
    }
}

/// The times of a message, both by the server's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) stored_at: SystemTime,
    pub(crate) now: SystemTime,
}

/// Decodes messages and passes them to the pool, in their sequence. All times are those of the
/// server's clock.
#[derive(Debug)]
pub(crate) struct Deliverer {
    pub(crate) pool: OrderPool,
    pub(crate) flow: Flow,
    chain_id: u64,
    applies_heads: bool,
    pub(crate) counters: Arc<SourceCounters>,
    /// Which private orders were replaced or cancelled.
    key_history: KeyHistory,
    /// The latest heads that were received, whether applied or not, latest last. They share the
    /// hashes with the pool's blocks.
    received_heads: VecDeque<Block>,
    head_since: Option<HeadSince>,
}

/// The pool's head, and since when it is known to be the head.
#[derive(Clone, Copy, Debug)]
struct HeadSince {
    hash: B256,
    since: SystemTime,
}

impl Deliverer {
    pub(crate) fn new(
        pool: &OrderPool,
        config: &SourceConfig,
        counters: Arc<SourceCounters>,
    ) -> Self {
        Self {
            pool: pool.clone(),
            flow: config.flow,
            chain_id: config.chain_id,
            applies_heads: config.heads,
            counters,
            key_history: KeyHistory::default(),
            received_heads: VecDeque::new(),
            head_since: None,
        }
    }

    /// Delivers a message and counts its outcome.
    pub(crate) fn deliver(&mut self, message: &Message, times: Times) {
        let delivered = self.try_deliver(message, times).unwrap_or_else(|error| {
            tracing::warn!(%error, subject = %message.subject, "a malformed message is skipped");
            Delivered::Malformed
        });
        self.counters.delivered[delivered as usize].add(1);
    }

    fn try_deliver(&mut self, message: &Message, times: Times) -> Result<Delivered, WireError> {
        let (id, run) = message_id(message).ok_or(WireError::NoId)?;
        let Decoded { record, publisher_time, stream_time } =
            Record::decode(&id, &message.payload, times.stored_at)?;
        let origin = MessageOrigin {
            machine: message.subject.rsplit('.').next().unwrap_or_default(),
            run,
            publisher_time,
            stream_time,
            stored_at: times.stored_at,
            is_unknown_caller: is_of_unknown_caller(&record),
        };
        match record {
            Record::Order(order) => self.insert_order(Arc::unwrap_or_clone(order), origin),
            Record::Head(record) => {
                if self.applies_heads && self.flow == Flow::Public {
                    Ok(self.apply_head(Block::new(record.head, record.mined), times.now))
                } else {
                    Ok(Delivered::Refused)
                }
            }
            _ if self.flow != Flow::Private => Ok(Delivered::Refused),
            Record::Cancellation(cancellation) => self.cancel_bundles(cancellation, origin),
            Record::CancelPrivate(cancellation) => Ok(self.cancel_private(cancellation, origin)),
        }
    }

    fn cancel_bundles(
        &mut self,
        cancellation: Cancellation,
        origin: MessageOrigin<'_>,
    ) -> Result<Delivered, WireError> {
        if cancellation.sent_at.is_none() {
            Ok(self.cancel_by_chosen_nonce(cancellation, origin))
        } else {
            self.cancel_by_time(cancellation, origin)
        }
    }

    /// Cancels the bundles up to a nonce that the searcher has chosen, or all for ever.
    fn cancel_by_chosen_nonce(
        &mut self,
        mut cancellation: Cancellation,
        origin: MessageOrigin<'_>,
    ) -> Delivered {
        let key = Key::Bundles(cancellation.key);
        cancellation.nonce = cancellation
            .nonce
            .map(|nonce| self.key_history.convert_chosen_nonce(&key, nonce, origin));
        self.key_history.cancel_bundles(&cancellation, origin);
        match self.pool.cancel_bundle(cancellation) {
            CancelOutcome::Cancelled { .. } => Delivered::Pooled,
            CancelOutcome::Superseded { .. } => Delivered::Superseded,
            _ => Delivered::Known,
        }
    }

    /// Cancels the bundles that were sent before the cancellation.
    fn cancel_by_time(
        &mut self,
        mut cancellation: Cancellation,
        origin: MessageOrigin<'_>,
    ) -> Result<Delivered, WireError> {
        let Cancellation { key, holder, .. } = cancellation;
        let time = self.key_history.record_message(Key::Bundles(key), origin);
        cancellation.sent_at = Some(time);
        cancellation.nonce = Some(micros(time));
        self.key_history.cancel_bundles(&cancellation, origin);
        if let Some(delivered) = self.cancel_some_blocks(key, time, holder) {
            return Ok(delivered);
        }
        // The pool assigns a nonce to the empty bundle above those of all bundles that were sent
        // earlier.
        let empty_bundle = BundleParts {
            uuid: Some(key.uuid),
            signer: Some(key.signer),
            first_seen: Some(time),
            holder,
            ..BundleParts::default()
        };
        Ok(self.pool.insert_bundle(Bundle::new(empty_bundle)?).into())
    }

    /// Ends the bundles of a key that were sent before `time`, if another one was sent later. The
    /// pool knows only when a bundle was sent for the first time. Returns `None` if none was sent
    /// later.
    fn cancel_some_blocks(
        &self,
        key: ReplacementKey,
        time: SystemTime,
        holder: Holder,
    ) -> Option<Delivered> {
        let blocks = self.pool.bundle_blocks(&key).into_iter();
        let (later, earlier): (Vec<_>, Vec<_>) =
            blocks.partition(|block| self.key_history.is_sent_after(key, *block, time));
        if later.is_empty() {
            return None;
        }
        for block in earlier {
            self.pool.supersede(key, block, micros(time), holder);
        }
        Some(Delivered::Pooled)
    }

    fn cancel_private(
        &mut self,
        mut cancellation: PrivateCancellation,
        origin: MessageOrigin<'_>,
    ) -> Delivered {
        let PrivateCancellation { hash, signer, holder, .. } = cancellation;
        let key = Key::PrivateTransaction { signer, hash };
        let cancelled_at = self.key_history.record_message(key, origin);
        cancellation.cancelled_at = cancelled_at;
        self.key_history.cancel_private(&cancellation, origin);
        match self.pool.cancel_private(&hash, signer, holder, cancelled_at) {
            CancelPrivateOutcome::Cancelled => Delivered::Pooled,
            CancelPrivateOutcome::Unknown => Delivered::Known,
            _ => Delivered::Refused,
        }
    }

    fn apply_head(&mut self, block: Block, now: SystemTime) -> Delivered {
        let branch = self.missing_branch(&block);
        let is_behind = self.is_behind(&block.head, now);
        let is_received =
            self.received_heads.iter().any(|received| received.head.hash == block.head.hash);
        if !is_received {
            self.received_heads.push_back(block);
            if self.received_heads.len() > MAX_RECEIVED_HEADS {
                self.received_heads.pop_front();
            }
        }
        if is_behind {
            return Delivered::Refused;
        }
        let mut relation = None;
        for block in branch.into_iter().rev() {
            relation = Some(self.pool.on_head(block));
        }
        match relation {
            Some(relation) if relation.is_new() => Delivered::Pooled,
            Some(Relation::Repeat) => Delivered::Known,
            _ => Delivered::Refused,
        }
    }

    /// Returns a block and those ancestors that the pool does not have, the oldest last, as far as
    /// they were received. With the block alone, the pool would forget the chain that it leaves and
    /// then not know the first block of a reorg. What it undid for another branch would stay
    /// undone.
    fn missing_branch(&self, block: &Block) -> Vec<Block> {
        let missing_parent = |block: &Block| self.missing_parent(&block.head);
        successors(Some(block.clone()), missing_parent).take(MAX_BRANCH_BLOCKS).collect()
    }

    /// Returns the parent of a head, if it was received and the pool has neither of the two.
    fn missing_parent(&self, head: &Head) -> Option<Block> {
        if self.pool.block(&head.hash).is_some() || self.pool.block(&head.parent_hash).is_some() {
            return None;
        }
        self.received_heads
            .iter()
            .find(|received| {
                received.head.hash == head.parent_hash && received.head.number < head.number
            })
            .cloned()
    }

    /// Whether a head must not be applied: it is not higher than the pool's head, and the pool
    /// knows neither the head nor its parent. The pool would undo all higher blocks. The pool knows
    /// the parent of the first block of a reorg.
    fn is_behind(&mut self, head: &Head, now: SystemTime) -> bool {
        let Some(pool_head) = self.pool.head() else { return false };
        let since = match self.head_since {
            Some(HeadSince { hash, since }) if hash == pool_head.hash => since,
            _ => now,
        };
        self.head_since = Some(HeadSince { hash: pool_head.hash, since });
        // If the clock was set back, the age counts as zero, and the head is kept for longer.
        let head_age = now.duration_since(since).unwrap_or_default();
        head.number <= pool_head.number
            && self.pool.block(&head.hash).is_none()
            && self.pool.block(&head.parent_hash).is_none()
            && head_age < NEW_CHAIN_AFTER
    }

    /// Inserts an order. Only the private stream may bring private orders.
    fn insert_order(
        &mut self,
        order: Order,
        origin: MessageOrigin<'_>,
    ) -> Result<Delivered, WireError> {
        let is_private_flow = self.flow == Flow::Private;
        match order {
            Order::Tx(tx) => {
                let is_other_chain = tx.envelope().chain_id().is_some_and(|id| id != self.chain_id);
                if is_other_chain || (tx.private_terms().is_some() && !is_private_flow) {
                    return Ok(Delivered::Refused);
                }
                if tx.private_terms().is_some() {
                    return Ok(self.insert_private_transaction(tx, origin));
                }
                Ok(self.pool.insert_transaction(tx).into())
            }
            Order::Bundle(bundle) if is_private_flow => Ok(self.insert_bundle(bundle, origin)?),
            _ => Ok(Delivered::Refused),
        }
    }

    fn insert_private_transaction(
        &mut self,
        mut tx: Transaction,
        origin: MessageOrigin<'_>,
    ) -> Delivered {
        if let Some(terms) = tx.private_terms().copied()
            && let Some(signer) = terms.signer
        {
            let key = Key::PrivateTransaction { signer, hash: *tx.hash() };
            let time = self.key_history.record_message(key, origin);
            if self.key_history.is_cancelled(&key, None, time) {
                return Delivered::Superseded;
            }
            if time != tx.first_seen() {
                let holder = tx.holder();
                tx = Transaction::private(tx.recovered().clone(), terms, time).held_by(holder);
            }
        }
        self.pool.insert_transaction(tx).into()
    }

    fn insert_bundle(
        &mut self,
        mut bundle: Bundle,
        origin: MessageOrigin<'_>,
    ) -> Result<Delivered, BundleError> {
        let Some(replacement_key) = bundle.key() else {
            return Ok(self.pool.insert_bundle(bundle).into());
        };
        let key = Key::Bundles(replacement_key);
        let chosen_nonce =
            bundle.nonce().map(|nonce| self.key_history.convert_chosen_nonce(&key, nonce, origin));
        let mut time = match chosen_nonce {
            Some(_) => origin.stream_time,
            None => self.key_history.record_message(key, origin),
        };
        if self.key_history.is_cancelled(&key, chosen_nonce, time) {
            return Ok(Delivered::Superseded);
        }
        let next = || self.pool.head().map(|head| head.number.saturating_add(1));
        if let Some(block) = bundle.block().or_else(next) {
            let key = Key::BlockBundles(replacement_key, block);
            let recorded =
                self.key_history.record_bundle(key, *bundle.content(), chosen_nonce, time, origin);
            match recorded {
                Some(newest) => time = newest,
                None => return Ok(Delivered::Superseded),
            }
        }
        if time != bundle.first_seen() || chosen_nonce != bundle.nonce() {
            bundle = Bundle::new(BundleParts {
                first_seen: Some(time),
                replacement_nonce: chosen_nonce,
                ..bundle.parts().clone()
            })?;
        }
        let block = bundle.block();
        let holder = bundle.parts().holder;
        let delivered = self.pool.insert_bundle(bundle).into();
        if delivered == Delivered::Refused
            && let Some(block) = block
        {
            // Its searcher was told that it replaced the earlier bundle, so that one must leave.
            let nonce = chosen_nonce.unwrap_or_else(|| micros(time));
            self.pool.supersede(replacement_key, block, nonce, holder);
        }
        Ok(delivered)
    }
}

/// Whether the publisher counts a record against a holder that the host does not know.
fn is_of_unknown_caller(record: &Record) -> bool {
    let holder = match record {
        Record::Order(order) => order.holder(),
        Record::Cancellation(cancellation) => cancellation.holder,
        Record::CancelPrivate(cancellation) => cancellation.holder,
        Record::Head(_) => return false,
    };
    !holder.is_known()
}

/// Returns the message id, and the run of the publisher that is part of a unique id.
fn message_id(message: &Message) -> Option<(B256, &str)> {
    let header = message.headers.as_ref()?.get(NATS_MESSAGE_ID)?.as_str();
    // A suffix after a hyphen makes the id unique for the stream: the run, and a number.
    let (digits, suffix) = header.split_once('-').unwrap_or((header, ""));
    let (run, _) = suffix.rsplit_once('-').unwrap_or_default();
    if digits.len() == 64 { Some((digits.parse().ok()?, run)) } else { None }
}

#[cfg(test)]
mod tests;
