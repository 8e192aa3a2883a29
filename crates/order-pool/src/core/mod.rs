//! The pool's logic without clock, lock or readers: `(operation, now)` in, effects out. It is compared
//! with a naive model after every step of random sequences.
//!
//! - **Shares** ([`claims`], [`shares`], [`limits`]): what external callers sent is capped apart from
//!   what the node announced, since claiming a high fee costs nothing. It is counted by holder, then by
//!   signer, so a flood displaces its own.
//! - **Ranks** ([`tx_share`]): of what the node announced the worst-paying is evicted, and no head reorders
//!   it.
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
mod private_cancellations;
mod shares;
mod tx_share;
mod txs;

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use alloy_primitives::{Address, B256};
use chain_view::{Head, NonceUpdate};

pub use self::keys::{MAX_UNKNOWN_CANCELLATIONS, MAX_UNKNOWN_CANCELLATIONS_OF_SIGNER};
use self::{
    bundle_index::BundleIndex,
    chain::Chain,
    claims::{Claim, Claims, Kind},
    keys::Keys,
    private_cancellations::PrivateCancellations,
    tx_share::TxShare,
};
pub(crate) use self::{chain::Change, limits::Limits, shares::Size};
#[cfg(all(test, not(loom)))]
pub(crate) use self::{keys::micros, limits::Division};
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
    /// Transactions that the node has announced.
    pub(crate) public: TxShare,
    /// Transactions that external callers sent and the node has not announced. Capped by their
    /// claims: their fees are only a claim, while the node has checked that its senders can pay.
    pub(crate) external: TxShare,
    pub(crate) claims: Claims,
    /// Transactions that are kept until a block, by that block and acceptance.
    private: BTreeSet<(u64, u64)>,
    pub(crate) bundles: BundleIndex,
    pub(crate) keys: Keys,
    private_cancellations: PrivateCancellations,
    pub(crate) index: Index,
    /// The transactions by sender, nonce and acceptance. Not a hash table: to grow one with 100,000 senders took 4 ms.
    senders: BTreeSet<(Address, u64, u64)>,
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
            public: TxShare::new(Size { count: options.max_txs, bytes: options.max_tx_bytes }),
            external: TxShare::new(Size { count: usize::MAX, bytes: usize::MAX }),
            claims: Claims::default(),
            private: BTreeSet::new(),
            bundles: BundleIndex::default(),
            keys: Keys::new(limits.cancellation_retention, limits.keys),
            private_cancellations: PrivateCancellations::new(limits.private_cancellations),
            index: Index::new(orders.into_iter().fold(0, usize::saturating_add)),
            senders: BTreeSet::new(),
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
                && let Some(order) = self.remove_tx(seq, RemoveReason::Mined)
            {
                if let Some(tx) = order.as_tx() {
                    let used = NonceUpdate::new(tx.sender(), tx.nonce().saturating_add(1));
                    let is_news = self.chain.recent.raise(&head.hash, used) == Some(true);
                    raised.extend(is_news.then_some(used));
                }
                self.chain.mined.take(head, order);
            }
            // One that had been evicted or had expired is not accepted again.
            self.seen.set(hash, SeenState::Known);
            if self.bundles.first_with_tx(hash).is_some() {
                self.ended.push_back((*head, Ended::Mined(*hash)));
            }
        }
    }

    /// Forgets transactions that undone blocks contained, the new one does not, and the pool does
    /// not hold: they must be fetched again, and not be refused as known.
    pub(crate) fn free(&mut self, hashes: &[B256]) {
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
            let stale = (sender, 0, 0)..(sender, next_nonce, 0);
            if let Some(&(.., seq)) = self.senders.range(stale).next() {
                if let Some(order) = self.remove_tx(seq, RemoveReason::StaleNonce) {
                    self.chain.ended.take(head, order);
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

    /// Removes at most `limit` transactions and keys whose retention is over, and marks expired
    /// orders whose pause is over as offerable; returns whether more may be due.
    pub(crate) fn expire(&mut self, limit: usize) -> bool {
        for _ in 0..limit {
            if self.seen.offer_due(self.now) {
            } else if let Some(seq) = self.next_due() {
                self.remove_tx(seq, RemoveReason::Expired);
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
        let tx = || self.public.get(seq).or_else(|| self.external.get(seq));
        tx().map(|tx| &tx.order).or_else(|| self.bundles.get(seq))
    }

    fn next_due(&mut self) -> Option<u64> {
        let due = [self.public.next_due(self.now), self.external.next_due(self.now)];
        due.into_iter().flatten().min()
    }

    /// Lets someone hold a pooled order too. Returns whether that is new.
    fn hold(&mut self, seq: u64, claim: Claim) -> Result<bool, RejectReason> {
        if self.claims.of(seq).contains(&claim) {
            return Ok(false);
        }
        let victims = self.claims.room_to_add(seq, &claim, &self.limits)?;
        self.claims.add(seq, claim);
        self.end_claims(victims);
        Ok(true)
    }

    /// Evicts orders that nobody holds any more.
    fn end_claims(&mut self, victims: Vec<(u64, Claim)>) {
        for (seq, claim) in victims {
            if !self.claims.end(seq, &claim) {
                continue;
            }
            match claim.0 {
                Kind::Bundle => self.end_bundle(seq, RemoveReason::Evicted),
                Kind::Raw | Kind::Private => self.remove_tx(seq, RemoveReason::Evicted),
            };
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
            | RemoveReason::BlockPassed
            | RemoveReason::BlockTooFar
            | RemoveReason::Cancelled => self.seen.set(id.hash(), SeenState::MayReturn),
            RemoveReason::Expired => {
                let offered_at = self.now.saturating_add(self.limits.expired_pause);
                self.seen.expired(id.hash(), offered_at);
            }
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
