//! Decides everything that the pool does, without clock, lock or readers: an operation and the time
//! in, effects out. A test compares it with a naive model after every step of random sequences.
//!
//! - **Shares** ([`claims`] has the rules as a table; [`eviction`], [`usage`], [`limits`]): the
//!   orders of external callers are capped apart from the transactions that the node announced,
//!   since to claim a high fee costs nothing. They are counted by holder, then by signer, so a
//!   flood displaces orders of its own.
//! - **Ranks** ([`node_share`]): the worst-paying transaction that the node announced is evicted,
//!   and no head reorders the ranks.
//! - **Retention** ([`pooled_txs`]): what keeps a transaction, and when that is over.
//! - **Heads** ([`chain`]): the cost is proportional to the block, because its hashes and nonces
//!   are looked up and the pool is not scanned. A reorg puts back what the undone blocks had
//!   removed.
//! - **Keys** ([`keys`], [`private_cancellations`]): which message of a replacement key is valid,
//!   and which private transactions were cancelled.

mod bundle_index;
mod bundles;
mod chain;
mod claims;
mod eviction;
mod keys;
mod limits;
mod node_share;
mod pooled_txs;
mod private_cancellations;
mod quota;
mod txs;
mod usage;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use alloy_primitives::{Address, B256};
use chain_view::{Head, NonceUpdate};

#[cfg(all(test, not(loom)))]
pub(crate) use self::limits::ShareCaps;
pub use self::quota::{MAX_UNKNOWN_CANCELLATIONS, MAX_UNKNOWN_CANCELLATIONS_OF_SIGNER};
use self::{
    bundle_index::BundleIndex,
    chain::Chain,
    claims::{Charge, Claim, Claims, Kind, bundle_charge},
    keys::Keys,
    node_share::NodeShare,
    pooled_txs::PooledTxs,
    private_cancellations::PrivateCancellations,
};
pub(crate) use self::{chain::Change, limits::Limits, usage::Size};
use crate::{
    error::RejectReason,
    event::{Event, RemoveReason},
    order::Order,
    read::{Index, SeenState, SeenWindow},
};

/// The most invalidations without a bundle that one step takes off the queue. Each takes two
/// look-ups.
const MAX_ENDED_INVALIDATIONS: usize = 64;

/// A change to publish to readers. Each of the first three is an event with the next sequence
/// number.
#[derive(Clone, Debug)]
pub(crate) enum Effect {
    /// An order or a cancellation. Replays show it until it is removed or has ended.
    Added(Event),
    /// An event that no replay shows.
    Transient(Event),
    Removed {
        /// The sequence number of the order's `Added`.
        added: u64,
        order: Arc<Order>,
        reason: RemoveReason,
    },
    /// Replays from the next event on do not show the cancellation with this sequence number.
    CancellationEnded(u64),
    /// As [`Self::CancellationEnded`], of the cancellation of a private transaction that is no
    /// longer remembered.
    PrivateCancellationForgotten(u64),
}

/// A change by a block that may have made bundles invalid.
#[derive(Clone, Copy, Debug)]
enum Invalidation {
    Mined(B256),
    /// All transactions of the sender below this nonce.
    Stale {
        sender: Address,
        next_nonce: u64,
    },
}

#[derive(Debug)]
pub(crate) struct Core {
    limits: Limits,
    /// The sequence number of the next event.
    pub(crate) next_seq: u64,
    /// The number of sources that feed the pool.
    pub(crate) feeds: usize,
    now: Duration,
    /// The changes of the current operation, which its caller publishes.
    pub(crate) effects: Vec<Effect>,
    pub(crate) txs: PooledTxs,
    /// The transactions that the node has announced, or for which the host vouches.
    node_share: NodeShare,
    /// The size of all other transactions. Their claims are capped: their fees are only a claim,
    /// while the node has checked that the senders of its own can pay.
    pub(crate) external: Size,
    pub(crate) claims: Claims,
    pub(crate) bundles: BundleIndex,
    pub(crate) keys: Keys,
    private_cancellations: PrivateCancellations,
    pub(crate) index: Index,
    pub(crate) seen: SeenWindow,
    pub(crate) chain: Chain,
    /// What [`Self::sweep`] has to do, each with the head of the block that caused it.
    invalidations: VecDeque<(Head, Invalidation)>,
}

impl Core {
    pub(crate) fn new(limits: Limits) -> Self {
        let options = &limits.options;
        let external = options.max_external_txs.saturating_mul(2);
        let orders = [options.max_txs, external, options.max_bundles];
        Self {
            next_seq: 0,
            feeds: 0,
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
            private_cancellations: PrivateCancellations::new(
                limits.cancellation_retention,
                limits.private_cancellations,
            ),
            index: Index::new(orders.into_iter().fold(0, usize::saturating_add)),
            seen: SeenWindow::new(limits.dedupe_window),
            chain: Chain::new(limits.recent_blocks),
            invalidations: VecDeque::new(),
            limits,
        }
    }

    /// Removes the transactions that the head's block contains.
    ///
    /// [`Self::sweep`] removes the bundles that contain them, and [`Self::remove_stale`] the
    /// transactions with their nonces. Nobody else reports these nonces to a builder without a
    /// node.
    pub(crate) fn remove_mined(
        &mut self,
        head: &Head,
        mined: &[B256],
        raised: &mut VecDeque<NonceUpdate>,
    ) {
        for hash in mined {
            if let Some(seq) = self.find(hash)
                && let Some(removed) = self.remove_tx_for_block(seq, RemoveReason::Mined)
            {
                if let Some(tx) = removed.order.as_tx() {
                    let used = NonceUpdate::new(tx.sender(), tx.nonce().saturating_add(1));
                    let is_news = self.chain.recent.raise(&head.hash, used) == Some(true);
                    raised.extend(is_news.then_some(used));
                }
                self.chain.retain_mined(head, removed);
            }
            // A transaction that was evicted or has expired is not accepted again.
            self.seen.set(hash, SeenState::Known);
            if self.bundles.first_with_tx(hash).is_some() {
                self.invalidations.push_back((*head, Invalidation::Mined(*hash)));
            }
        }
    }

    /// See [`OrderPool::on_chain_reset`](crate::OrderPool::on_chain_reset).
    pub(crate) fn reset_chain(&mut self) {
        self.chain = Chain::new(self.limits.recent_blocks);
        self.invalidations.clear();
        self.seen.let_all_return();
    }

    /// Forgets transactions that undone blocks contained, that the new block does not contain, and
    /// that are not in the pool. They must be fetched again, and not be refused as known.
    pub(crate) fn forget_undone(&mut self, hashes: &[B256]) {
        for hash in hashes {
            if !self.chain.recent.is_mined(hash) && self.find(hash).is_none() {
                self.seen.forget(hash);
            }
        }
    }

    /// Records the nonces that a block raised. Returns the block's head and the updates for
    /// [`Self::remove_stale`], or `None` if the block is not one of the recent ones, for instance
    /// because a reorg undid it meanwhile.
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
    /// updates that are done off the queue. [`Self::sweep`] removes the bundles that contain such
    /// nonces.
    pub(crate) fn remove_stale(
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
                if let Some(removed) = self.remove_tx_for_block(seq, RemoveReason::StaleNonce) {
                    self.chain.retain_invalidated(head, removed);
                }
                continue;
            }
            if self.bundles.first_with_nonce_below(sender, next_nonce).is_some() {
                self.invalidations.push_back((*head, Invalidation::Stale { sender, next_nonce }));
            }
            raised.pop_front();
        }
    }

    /// Removes one bundle that a block has made invalid, or whose block has passed or is above
    /// [`Self::last_kept_block`]. Returns whether more may be left. Readers do not find a bundle
    /// whose block has passed.
    ///
    /// It is one, because inserts wait for this. With the most transactions that a bundle may have,
    /// it takes about 60 us. A bundle whose transactions are all optional may get another watched
    /// transaction instead, which is one step too.
    pub(crate) fn sweep(&mut self) -> bool {
        let Some(head) = self.chain.head().map(|head| head.number) else { return false };
        let last = self.last_kept_block(head);
        for _ in 0..MAX_ENDED_INVALIDATIONS {
            let Some((head, invalidation)) = self.invalidations.front().copied() else { break };
            if self.sweep_invalidation(head, invalidation) {
                return true;
            }
        }
        if !self.invalidations.is_empty() {
            return true;
        } else if let Some(seq) = self.bundles.first_up_to(head) {
            self.remove_bundle(seq, RemoveReason::BlockPassed);
        } else if let Some(seq) = self.bundles.first_above(last) {
            self.remove_bundle(seq, RemoveReason::BlockTooFar);
        } else {
            return false;
        }
        true
    }

    /// Removes at most `limit` transactions, cancellations and keys whose retention is over.
    /// Returns whether more may be due.
    pub(crate) fn expire(&mut self, limit: usize) -> bool {
        for _ in 0..limit {
            if self.expire_tx() {
                continue;
            }
            if let Some(seq) = self.private_cancellations.forget_due(self.now) {
                self.effects.push(Effect::PrivateCancellationForgotten(seq));
            } else if let Some(((key, _), state)) = self.keys.forget_due(self.now) {
                self.publish_forgotten(key, &state);
            } else {
                return false;
            }
        }
        true
    }

    /// Starts an operation at this time. The pool's time stays monotonic, even if the caller's
    /// clock is not.
    pub(crate) fn begin(&mut self, now: Duration) {
        self.now = self.now.max(now);
        self.claims.release_some();
    }

    /// Returns the last block for which an order is kept.
    ///
    /// It is higher than the last block for which an order is accepted, because a reorg begins with
    /// a lower head: an order that was accepted with the higher head is not too far ahead once the
    /// new branch is as long. Orders for later blocks were accepted while the pool knew no head.
    const fn last_kept_block(&self, head: u64) -> u64 {
        head.saturating_add(self.limits.max_blocks_kept())
    }

    fn find(&self, hash: &B256) -> Option<u64> {
        self.index.table.find(hash, |seq| (self.order(seq)?.id().hash() == hash).then_some(seq))
    }

    fn order(&self, seq: u64) -> Option<&Arc<Order>> {
        self.txs.get(seq).map(|entry| &entry.order).or_else(|| self.bundles.get(seq))
    }

    /// Adds a holder to a pooled order. Returns whether the claim is new.
    fn add_holder(
        &mut self,
        seq: u64,
        charge: &Charge,
        claim: Claim,
    ) -> Result<bool, RejectReason> {
        if self.claims.contains(seq, &claim) {
            return Ok(false);
        }
        self.make_room(seq, charge, claim, None)?;
        self.claims.add(seq, charge, claim);
        Ok(true)
    }

    /// Ends other claims so that a new one fits, on the order with this sequence number, which may
    /// replace `replaced`. If there is not enough room it ends none, except that it removes bundles
    /// whose block has passed: these go first, and do not wait for upkeep.
    fn make_room(
        &mut self,
        seq: u64,
        charge: &Charge,
        claim: Claim,
        replaced: Option<u64>,
    ) -> Result<(), RejectReason> {
        let mut new = charge.new_claim(seq, claim, replaced);
        if let (Kind::Bundle, Some(head)) = (claim.0, self.chain.head().copied()) {
            let next_block = head.number.saturating_add(1);
            let expired = self.claims.expired_bundles(&new, &self.limits, next_block);
            new.max_evicted -= expired.len();
            expired.into_iter().for_each(|seq| self.remove_expired(seq, &head));
        }
        for (seq, claim) in self.claims.plan_evictions(claim.0, &new, &self.limits)? {
            self.end_claim(seq, &claim);
        }
        Ok(())
    }

    /// Makes room for the first of these claims on a new order for which there is room. Returns
    /// that claim and those after it.
    fn make_room_for_first<'a>(
        &mut self,
        charge: &Charge,
        mut claims: &'a [Claim],
    ) -> Result<&'a [Claim], RejectReason> {
        loop {
            let [claim, others @ ..] = claims else { return Ok(claims) };
            match self.make_room(self.next_seq, charge, *claim, None) {
                Ok(()) => return Ok(claims),
                Err(reason) if others.is_empty() => return Err(reason),
                Err(_) => claims = others,
            }
        }
    }

    /// Adds the first of these claims on an order, and each of the others for which there is room
    /// without an eviction.
    fn add_claims(&mut self, seq: u64, charge: &Charge, claims: &[Claim]) {
        for (index, claim) in claims.iter().enumerate() {
            let new = charge.new_claim(seq, *claim, None);
            let has_room = || {
                let plan = self.claims.plan_evictions(claim.0, &new, &self.limits);
                plan.is_ok_and(|victims| victims.is_empty())
            };
            if index == 0 || has_room() {
                self.claims.add(seq, charge, *claim);
            }
        }
    }

    /// Ends a claim, and evicts the order if nobody holds it any more.
    fn end_claim(&mut self, seq: u64, claim: &Claim) {
        let charge = match self.txs.get(seq) {
            Some(entry) => entry.charge,
            None => match self.bundles.get(seq) {
                Some(order) => bundle_charge(order),
                None => return,
            },
        };
        if !self.claims.remove(seq, &charge, claim) {
            return;
        }
        match claim.0 {
            Kind::Bundle => _ = self.remove_bundle(seq, RemoveReason::Evicted),
            Kind::Raw | Kind::Private => _ = self.remove_tx(seq, RemoveReason::Evicted),
        }
    }

    /// Removes an order from the index, records whether it may be inserted again, and publishes its
    /// removal.
    fn publish_removal(&mut self, seq: u64, order: &Arc<Order>, reason: RemoveReason) {
        let id = order.id();
        self.index.remove(id.hash(), seq);
        match reason {
            // The state of its key refuses the bundle, and once that is forgotten, the dedupe
            // window.
            RemoveReason::Cancelled if order.as_bundle().is_some() => {}
            // A private transaction may be sent again, by its sender or by the node. A bundle whose
            // block has passed is refused for that, unless a reorg has lowered the head.
            RemoveReason::Evicted
            | RemoveReason::Expired
            | RemoveReason::BlockPassed
            | RemoveReason::BlockTooFar
            | RemoveReason::Cancelled => self.seen.set(id.hash(), SeenState::MayReturn),
            _ => {}
        }
        self.publish(Effect::Removed { added: seq, order: Arc::clone(order), reason });
    }

    /// Queues an effect that is an event. Returns the event's sequence number.
    pub(crate) fn publish(&mut self, effect: Effect) -> u64 {
        self.effects.push(effect);
        let seq = self.next_seq;
        self.next_seq += 1;
        seq
    }
}
