//! The pool's logic without clock, lock or readers: `(operation, now)` in, effects out. It is compared
//! with a naive model after every step of random sequences.
//!
//! - **Shares** ([`claims`] has the rules as a table; [`room`], [`usage`], [`limits`]): what external
//!   callers sent is capped apart from what the node announced, since claiming a high fee costs
//!   nothing. It is counted by holder, then by signer, so a flood displaces its own.
//! - **Ranks** ([`node_share`]): of what the node announced the worst-paying is evicted, and no head
//!   reorders it.
//! - **Retention** ([`pooled_txs`]): what keeps a transaction, and when that is over.
//! - **Heads** ([`chain`]): the cost is proportional to the block; its hashes and nonces are looked up,
//!   and the pool is not scanned. A reorg puts back what the blocks had removed.
//! - **Keys** ([`keys`], [`private_cancellations`]): which message of a replacement key is valid, and which
//!   private transactions were cancelled.

mod bundle_index;
mod bundles;
mod chain;
mod claims;
mod keys;
mod limits;
mod node_share;
mod pooled_txs;
mod private_cancellations;
mod room;
mod txs;
mod usage;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use alloy_primitives::{Address, B256};
use chain_view::{Head, NonceUpdate};

pub use self::keys::{MAX_UNKNOWN_CANCELLATIONS, MAX_UNKNOWN_CANCELLATIONS_OF_SIGNER};
#[cfg(all(test, not(loom)))]
pub(crate) use self::limits::Division;
use self::{
    bundle_index::BundleIndex,
    chain::Chain,
    claims::{Claim, Claims, Counted, Kind, counted},
    keys::Keys,
    node_share::NodeShare,
    pooled_txs::PooledTxs,
    private_cancellations::PrivateCancellations,
};
pub(crate) use self::{chain::Change, keys::micros, limits::Limits, usage::Size};
use crate::{
    error::RejectReason,
    event::{Event, RemoveReason},
    order::Order,
    read::{Index, SeenState, SeenWindow},
};

/// Most bundles that one step removes because they are over: with the most transactions that a bundle
/// may have, about 60 us each, a quarter of a millisecond, for which inserts wait.
const SWEPT_PER_STEP: usize = 4;

/// A change to publish to readers. The first three have an event each, with the next sequence number.
#[derive(Clone, Debug)]
pub(crate) enum Effect {
    /// An order, or a cancellation: replays show it until it is removed or has ended.
    Added(Event),
    /// What no replay shows.
    Told(Event),
    Removed {
        /// The sequence number of its `Added`.
        added: u64,
        order: Arc<Order>,
        reason: RemoveReason,
    },
    /// A subscriber that joins after the event that follows need not be told of the cancellation any
    /// more. Holds the sequence number of its event.
    CancellationEnded(u64),
    /// The same, of a cancellation of a private transaction that is not remembered any more.
    PrivateCancellationForgotten(u64),
}

/// What a block has ended for the bundles that contain it.
#[derive(Clone, Copy, Debug)]
enum Ended {
    Mined(B256),
    /// All of the sender below this nonce.
    Stale(Address, u64),
}

#[derive(Debug)]
pub(crate) struct Core {
    limits: Limits,
    /// The sequence number of the next event.
    pub(crate) next_seq: u64,
    now: Duration,
    /// What readers are to be told: taken after each operation.
    pub(crate) effects: Vec<Effect>,
    pub(crate) txs: PooledTxs,
    /// The transactions that the node has announced, or for which the host vouches.
    node_share: NodeShare,
    /// The size of the others. Capped by their claims: their fees are only a claim, while the node
    /// has checked that its senders can pay.
    pub(crate) external: Size,
    pub(crate) claims: Claims,
    pub(crate) bundles: BundleIndex,
    pub(crate) keys: Keys,
    private_cancellations: PrivateCancellations,
    pub(crate) index: Index,
    pub(crate) seen: SeenWindow,
    pub(crate) chain: Chain,
    /// For [`Self::sweep`], each with the block that has ended it.
    ended: VecDeque<(Head, Ended)>,
}

impl Core {
    pub(crate) fn new(limits: Limits) -> Self {
        let options = &limits.options;
        let external = options.max_external_txs.saturating_mul(2);
        let orders = [options.max_txs, external, options.max_bundles];
        Self {
            next_seq: 0,
            now: Duration::ZERO,
            effects: Vec::new(),
            txs: PooledTxs::default(),
            node_share: NodeShare::new(Size {
                count: options.max_txs,
                bytes: options.max_tx_bytes,
            }),
            external: Size::default(),
            claims: Claims::default(),
            bundles: BundleIndex::default(),
            keys: Keys::new(limits.cancellation_retention, limits.keys),
            private_cancellations: PrivateCancellations::new(limits.private_cancellations),
            index: Index::new(orders.into_iter().fold(0, usize::saturating_add)),
            seen: SeenWindow::new(limits.dedupe_window),
            chain: Chain::new(limits.recent_blocks),
            ended: VecDeque::new(),
            limits,
        }
    }

    /// Removes the transactions that the head's block contains. The bundles that contain them are
    /// left to [`Self::sweep`], and to [`Self::end_stale`] what has their nonces, which nobody else tells a builder that
    /// has no node.
    pub(crate) fn mine(&mut self, head: &Head, mined: &[B256], raised: &mut VecDeque<NonceUpdate>) {
        for hash in mined {
            if let Some(seq) = self.find(hash)
                && let Some(taken) = self.take_tx_for_block(seq, RemoveReason::Mined)
            {
                if let Some(tx) = taken.order.as_tx() {
                    let used = NonceUpdate::new(tx.sender(), tx.nonce().saturating_add(1));
                    let is_news = self.chain.recent.raise(&head.hash, used) == Some(true);
                    raised.extend(is_news.then_some(used));
                }
                self.chain.take_mined(head, taken);
            }
            // One that had been evicted or had expired is not accepted again.
            self.seen.set(hash, SeenState::Known);
            if self.bundles.first_with_tx(hash).is_some() {
                self.ended.push_back((*head, Ended::Mined(*hash)));
            }
        }
    }

    /// See [`OrderPool::on_chain_reset`](crate::OrderPool::on_chain_reset).
    pub(crate) fn reset_chain(&mut self) {
        self.chain = Chain::new(self.limits.recent_blocks);
        self.ended.clear();
        self.seen.let_all_return();
    }

    /// Forgets transactions that undone blocks contained, the new one does not, and the pool does
    /// not hold: they must be fetched again, and not be refused as known.
    pub(crate) fn forget(&mut self, hashes: &[B256]) {
        for hash in hashes {
            if !self.chain.recent.is_mined(hash) && self.find(hash).is_none() {
                self.seen.forget(hash);
            }
        }
    }

    /// Records the nonces that a block raised. Returns the block's head and what
    /// [`Self::end_stale`] has to do; `None` if the block is not one of the recent ones, for
    /// instance because a reorg undid it meanwhile.
    pub(crate) fn raise_nonces(
        &mut self,
        block_hash: B256,
        mut updates: Vec<NonceUpdate>,
    ) -> Option<(Head, VecDeque<NonceUpdate>)> {
        let head = self.chain.recent.block(&block_hash)?.head;
        updates.retain(|update| self.chain.recent.raise(&block_hash, *update) == Some(true));
        Some((head, updates.into()))
    }

    /// Removes at most `limit` transactions that raised nonces have made stale, and takes the
    /// updates that are done. The bundles that contain such nonces are left to [`Self::sweep`].
    pub(crate) fn end_stale(
        &mut self,
        head: &Head,
        raised: &mut VecDeque<NonceUpdate>,
        limit: usize,
    ) {
        for _ in 0..limit {
            let Some(NonceUpdate { sender, next_nonce, .. }) = raised.front().copied() else {
                return;
            };
            if let Some(seq) = self.txs.first_below(sender, next_nonce) {
                if let Some(taken) = self.take_tx_for_block(seq, RemoveReason::StaleNonce) {
                    self.chain.take_ended(head, taken);
                }
                continue;
            }
            if self.bundles.first_with_nonce_below(sender, next_nonce).is_some() {
                self.ended.push_back((*head, Ended::Stale(sender, next_nonce)));
            }
            raised.pop_front();
        }
    }

    /// Removes at most [`SWEPT_PER_STEP`] bundles that blocks have made impossible, and those for a block that
    /// has passed or is too far above the head ([`Self::last_kept`]); returns whether more are left. Readers do not find a bundle whose block has passed.
    pub(crate) fn sweep(&mut self) -> bool {
        let Some(head) = self.chain.head().map(|head| head.number) else { return false };
        let last = self.last_kept(head);
        for _ in 0..SWEPT_PER_STEP {
            if let Some((by, ended)) = self.ended.front().copied() {
                self.sweep_ended(by, ended);
            } else if let Some(seq) = self.bundles.first_up_to(head) {
                self.end_bundle(seq, RemoveReason::BlockPassed);
            } else if let Some(seq) = self.bundles.first_above(last) {
                self.end_bundle(seq, RemoveReason::BlockTooFar);
            } else {
                return false;
            }
        }
        true
    }

    /// Removes at most `limit` transactions and keys whose retention is over; returns whether more may
    /// be due.
    pub(crate) fn expire(&mut self, limit: usize) -> bool {
        for _ in 0..limit {
            if self.expire_tx() {
            } else if let Some(told) = self.private_cancellations.forget_due(self.now) {
                self.effects.push(Effect::PrivateCancellationForgotten(told));
            } else if let Some(((key, _), state)) = self.keys.forget_due(self.now) {
                self.publish_forgotten(key, &state);
            } else {
                return false;
            }
        }
        true
    }

    /// Called before each operation, with the time. It stays monotonic, even if the caller's clock is not.
    pub(crate) fn begin(&mut self, now: Duration) {
        self.now = self.now.max(now);
        self.claims.end_some();
    }

    /// The last block for which an order is kept: more than is accepted, because a reorg begins with a lower head, and what
    /// was accepted with the higher one before is not too far ahead once the new branch is as long. What is later was
    /// accepted while the pool knew no head.
    const fn last_kept(&self, head: u64) -> u64 {
        head.saturating_add(self.limits.max_blocks_kept())
    }

    fn find(&self, hash: &B256) -> Option<u64> {
        self.index.table.find(hash, |seq| (self.order(seq)?.id().hash() == hash).then_some(seq))
    }

    fn order(&self, seq: u64) -> Option<&Arc<Order>> {
        self.txs.get(seq).map(|entry| &entry.order).or_else(|| self.bundles.get(seq))
    }

    /// Lets someone hold a pooled order too. Returns whether that is new.
    fn hold(&mut self, seq: u64, counted: &Counted, claim: Claim) -> Result<bool, RejectReason> {
        if self.claims.contains(seq, &claim) {
            return Ok(false);
        }
        self.make_room(seq, counted, claim, None)?;
        self.claims.add(seq, counted, claim);
        Ok(true)
    }

    /// Ends other claims so that a new one, on the order with this sequence number, fits if it
    /// replaces `replaced`. Either that or nothing, but for bundles whose block has passed: they go
    /// first, and do not wait for upkeep.
    fn make_room(
        &mut self,
        seq: u64,
        counted: &Counted,
        claim: Claim,
        replaced: Option<u64>,
    ) -> Result<(), RejectReason> {
        let mut new = counted.new_claim(seq, claim, replaced);
        if let (Kind::Bundle, Some(head)) = (claim.0, self.chain.head()) {
            let next = head.number.saturating_add(1);
            while new.max_evicted > 0 {
                // A reorg puts back what a block has taken: that waits for its turn.
                let may_go = |other| {
                    Some(other) != replaced
                        && other != seq
                        && self.bundles.bundle(other).is_some_and(|it| self.taken(it).is_none())
                };
                let passed = self.claims.passed_bundle(&new, &self.limits, next, may_go);
                let Some(passed) = passed else { break };
                self.end_bundle(passed, RemoveReason::BlockPassed);
                new.max_evicted -= 1;
            }
        }
        for (seq, claim) in self.claims.room_for(claim.0, &new, &self.limits)? {
            self.end_claim(seq, &claim);
        }
        Ok(())
    }

    /// Makes room for the first claim on a new order for which there is some. Returns that one and
    /// those after it.
    fn make_room_for_first<'a>(
        &mut self,
        counted: &Counted,
        mut claims: &'a [Claim],
    ) -> Result<&'a [Claim], RejectReason> {
        loop {
            let [claim, others @ ..] = claims else { return Ok(claims) };
            match self.make_room(self.next_seq, counted, *claim, None) {
                Ok(()) => return Ok(claims),
                Err(reason) if others.is_empty() => return Err(reason),
                Err(_) => claims = others,
            }
        }
    }

    /// Adds the first of these claims on an order, and each of the others for which there is room
    /// without an eviction.
    fn add_claims(&mut self, seq: u64, counted: &Counted, claims: &[Claim]) {
        for (index, claim) in claims.iter().enumerate() {
            let new = counted.new_claim(seq, *claim, None);
            let has_room = || {
                self.claims.room_for(claim.0, &new, &self.limits).is_ok_and(|ends| ends.is_empty())
            };
            if index == 0 || has_room() {
                self.claims.add(seq, counted, *claim);
            }
        }
    }

    /// Ends a claim, and evicts the order if nobody holds it any more.
    fn end_claim(&mut self, seq: u64, claim: &Claim) {
        let counted = match self.txs.get(seq) {
            Some(entry) => entry.counted,
            None => match self.bundles.get(seq) {
                Some(order) => counted(order, 0).0,
                None => return,
            },
        };
        if !self.claims.end(seq, &counted, claim) {
            return;
        }
        match claim.0 {
            Kind::Bundle => _ = self.end_bundle(seq, RemoveReason::Evicted),
            Kind::Raw | Kind::Private => _ = self.remove_tx(seq, RemoveReason::Evicted),
        }
    }

    /// The end of an order: where it is no longer found, whether it may return, and its event.
    fn leave(&mut self, seq: u64, order: &Arc<Order>, reason: RemoveReason) {
        let id = order.id();
        self.index.remove(id.hash(), seq);
        match reason {
            // The state of its key refuses it, and once that is forgotten, that it is known.
            RemoveReason::Cancelled if order.as_bundle().is_some() => {}
            // A private transaction may be sent again, by its sender or by the node. A bundle whose block has passed
            // is refused for that, unless a reorg has lowered the head.
            RemoveReason::Evicted
            | RemoveReason::Expired
            | RemoveReason::BlockPassed
            | RemoveReason::BlockTooFar
            | RemoveReason::Cancelled => self.seen.set(id.hash(), SeenState::MayReturn),
            _ => {}
        }
        self.tell(Effect::Removed { added: seq, order: Arc::clone(order), reason });
    }

    /// Returns the sequence number of its event.
    pub(crate) fn tell(&mut self, effect: Effect) -> u64 {
        self.effects.push(effect);
        let seq = self.next_seq;
        self.next_seq += 1;
        seq
    }
}
