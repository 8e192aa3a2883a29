//! The pool's logic without clock, lock or readers: `(operation, now)` in, effects out. It is compared
//! with a naive model after every step of random sequences.
//!
//! - **Shares** ([`tx_share`], [`bundle_index`], [`shares`], [`limits`]): transactions that the node
//!   announced and those that external callers sent are capped and ranked separately, since claiming a
//!   high fee costs nothing. A private transaction counts as sent by an external caller, and is removed
//!   after its last block instead of by its age. Bundles and remembered keys are counted by signer, and
//!   at a cap the largest holder loses one, so a signer's flood displaces that signer's own.
//! - **Ranks** ([`ranks`]): two sorted sets, by tip and by fee cap. The worst-paying transaction is the
//!   lesser of their first elements at any base fee, so no head reorders them. They exist only while a
//!   share is more than half full; each insert adds some of the transactions, so that they are complete
//!   before the share is full.
//! - **Heads** ([`chain`]): the cost is proportional to the block; its hashes and nonces are looked up,
//!   and the pool is not scanned. The orders that a block removed are kept until they are too old or too
//!   large, and a reorg puts them back.
//! - **Keys** ([`keys`]): which message of a replacement key is valid. A bundle replaces the one with the
//!   same key for the same block, as in rbuilder, because searchers send one uuid for several blocks; a
//!   cancellation covers all of them.

mod bundle_index;
mod bundles;
mod chain;
mod keys;
mod limits;
mod ranks;
mod senders;
mod shares;
mod signers;
mod tx_share;
mod txs;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use alloy_primitives::{Address, B256};
use chain_view::{Block, Head, NonceUpdate, Relation};

pub(crate) use self::limits::Limits;
use self::{
    bundle_index::BundleIndex,
    chain::{Chain, Change},
    keys::Keys,
    senders::Senders,
    tx_share::TxShare,
};
pub use self::{keys::MAX_UNKNOWN_CANCELLATIONS_PER_SIGNER, signers::SignerStats};
use crate::{
    event::RemoveReason,
    order::{Cancellation, Order, ReplacementKey},
    read::{Index, SeenWindow},
};

/// A change to publish to readers. Its sequence number is that of its event in the log.
#[derive(Clone, Debug)]
pub(crate) enum Effect {
    Added {
        seq: u64,
        order: Arc<Order>,
    },
    Removed {
        seq: u64,
        /// The sequence number of its `Added`.
        added: u64,
        order: Arc<Order>,
        reason: RemoveReason,
    },
    Cancelled {
        seq: u64,
        cancellation: Cancellation,
    },
    CancellationForgotten {
        seq: u64,
        key: ReplacementKey,
    },
    /// Comes after all effects of its block's hashes.
    Head {
        seq: u64,
        head: Head,
    },
    /// Has no event of its own: a subscriber that joins after event `at` need not be told of the
    /// cancellation any more.
    CancellationEnded {
        /// The sequence number of its `Cancelled`.
        added: u64,
        /// The event that ended it, which follows.
        at: u64,
    },
}

impl Effect {
    /// The sequence number of its event, or of the one that follows.
    pub(crate) const fn seq(&self) -> u64 {
        match self {
            Self::Added { seq, .. }
            | Self::Removed { seq, .. }
            | Self::Cancelled { seq, .. }
            | Self::CancellationForgotten { seq, .. }
            | Self::Head { seq, .. }
            | Self::CancellationEnded { at: seq, .. } => *seq,
        }
    }
}

/// The sizes of the core's parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CoreLevels {
    pub(crate) txs: usize,
    pub(crate) tx_bytes: usize,
    /// Included in `txs`.
    pub(crate) external_txs: usize,
    /// Included in `tx_bytes`.
    pub(crate) external_tx_bytes: usize,
    pub(crate) bundles: usize,
    pub(crate) bundle_bytes: usize,
    pub(crate) keys: usize,
}

/// The result of a head, beside its effects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeadApplied {
    pub(crate) relation: Relation,
    pub(crate) put_back: usize,
}

#[derive(Debug)]
pub(crate) struct Core {
    limits: Limits,
    next_seq: u64,
    now: Duration,
    /// Transactions that the node has announced.
    public: TxShare,
    /// Transactions that external callers sent and the node has not announced. Ranked separately:
    /// their fees are only a claim, while the node has checked that its senders can pay.
    external: TxShare,
    /// Transactions that are kept until a block, by that block and acceptance.
    private: BTreeSet<(u64, u64)>,
    bundles: BundleIndex,
    keys: Keys,
    index: Index,
    senders: Senders,
    seen: SeenWindow,
    chain: Chain,
}

impl Core {
    pub(crate) fn new(limits: Limits) -> Self {
        let options = &limits.options;
        let orders = [options.max_txs, options.max_external_txs, options.max_bundles];
        Self {
            next_seq: 0,
            now: Duration::ZERO,
            public: TxShare::new(options.max_txs, options.max_tx_bytes),
            external: TxShare::new(options.max_external_txs, options.max_external_tx_bytes),
            private: BTreeSet::new(),
            bundles: BundleIndex::default(),
            keys: Keys::new(
                limits.cancellation_retention,
                options.max_cancellations,
                limits.max_cancellations_per_signer,
            ),
            index: Index::new(orders.into_iter().fold(0, usize::saturating_add)),
            senders: Senders::default(),
            seen: SeenWindow::new(limits.dedupe_window),
            chain: Chain::new(limits.recent_blocks, limits.max_unmine_bytes),
            limits,
        }
    }

    pub(crate) const fn index(&self) -> &Index {
        &self.index
    }

    pub(crate) const fn seen(&self) -> &SeenWindow {
        &self.seen
    }

    pub(crate) fn levels(&self) -> CoreLevels {
        let (public, external, bundles) = (&self.public, &self.external, &self.bundles);
        CoreLevels {
            txs: public.len() + external.len(),
            tx_bytes: public.bytes() + external.bytes(),
            external_txs: external.len(),
            external_tx_bytes: external.bytes(),
            bundles: bundles.len(),
            bundle_bytes: bundles.bytes(),
            keys: self.keys.len(),
        }
    }

    /// The pooled transactions of a sender, in nonce order.
    pub(crate) fn of_sender(&self, sender: &Address) -> Vec<Arc<Order>> {
        let seqs = self.senders.of(sender, 0, None);
        seqs.into_iter().filter_map(|seq| self.order(seq).cloned()).collect()
    }

    /// Applies a new head: first its mined hashes, then the orders that a reorg un-mined are put
    /// back. The event of the head comes last.
    pub(crate) fn on_head(
        &mut self,
        block: Block,
        now: Duration,
        effects: &mut Vec<Effect>,
    ) -> HeadApplied {
        self.advance(now);
        let (head, mined) = (block.head, Arc::clone(&block.mined));
        let Change { relation, untaken, free } = self.chain.push(block);
        if !relation.is_new() {
            return HeadApplied { relation, put_back: 0 };
        }
        for hash in mined.iter() {
            if let Some(seq) = self.find(hash)
                && let Some(order) = self.remove_tx(seq, RemoveReason::Mined, effects)
            {
                self.chain.take(&head, order);
            }
            self.seen.mined(hash);
            for seq in self.bundles.with_tx(hash) {
                self.end_bundle_if_taken(seq, &head, RemoveReason::Mined, effects);
            }
        }
        self.pass_block(head.number, effects);
        self.pass_private(head.number, effects);
        let mut put_back = 0;
        for order in untaken {
            put_back += usize::from(match &*order {
                Order::Tx(_) => self.put_back(order, effects),
                Order::Bundle(_) => self.put_back_bundle(order, effects),
            });
        }
        // Transactions that the replaced blocks contained, the new one does not, and the pool no
        // longer holds must be fetched again: they must not be refused as known.
        for hash in free {
            if !self.chain.is_mined(&hash) && self.find(&hash).is_none() {
                self.seen.forget(&hash);
            }
        }
        let seq = self.take_seq();
        effects.push(Effect::Head { seq, head });
        HeadApplied { relation, put_back }
    }

    /// Applies the nonces that a block raised. `None` if the block is not one of the recent ones,
    /// for instance because a reorg undid it meanwhile.
    pub(crate) fn on_nonces(
        &mut self,
        block_hash: B256,
        updates: impl IntoIterator<Item = NonceUpdate>,
        now: Duration,
        effects: &mut Vec<Effect>,
    ) -> Option<()> {
        self.advance(now);
        let head = self.chain.head_of(&block_hash)?;
        for update in updates {
            if !self.chain.raise(&block_hash, update) {
                continue;
            }
            let NonceUpdate { sender, next_nonce, .. } = update;
            for seq in self.senders.of(&sender, 0, Some(next_nonce)) {
                if let Some(order) = self.remove_tx(seq, RemoveReason::StaleNonce, effects) {
                    self.chain.take(&head, order);
                }
            }
            for seq in self.bundles.with_nonce_below(sender, next_nonce) {
                self.end_bundle_if_taken(seq, &head, RemoveReason::StaleNonce, effects);
            }
        }
        Some(())
    }

    /// Removes at most `limit` transactions and keys whose retention is over, and marks expired
    /// orders whose pause is over as offerable; returns whether more are due.
    pub(crate) fn expire(
        &mut self,
        now: Duration,
        limit: usize,
        effects: &mut Vec<Effect>,
    ) -> bool {
        self.advance(now);
        for _ in 0..limit {
            if self.seen.offer_due(self.now) {
            } else if let Some(seq) = self.next_due() {
                self.remove_tx(seq, RemoveReason::Expired, effects);
            } else if !self.forget_due_key(effects) {
                return false;
            }
        }
        self.next_due().is_some() || self.keys.is_due(self.now) || self.seen.is_due(self.now)
    }

    /// The sequence number of the order with this hash.
    fn find(&self, hash: &B256) -> Option<u64> {
        self.index.table().find(hash, |seq| (self.order(seq)?.id().hash() == hash).then_some(seq))
    }

    fn order(&self, seq: u64) -> Option<&Arc<Order>> {
        let tx = || self.public.get(seq).or_else(|| self.external.get(seq));
        tx().or_else(|| self.bundles.get(seq))
    }

    fn next_due(&mut self) -> Option<u64> {
        let due = [&mut self.public, &mut self.external].map(|share| share.next_due(self.now));
        due.into_iter().flatten().min()
    }

    /// Keeps the time monotonic, even if the caller's clock is not.
    fn advance(&mut self, now: Duration) {
        self.now = self.now.max(now);
    }

    const fn take_seq(&mut self) -> u64 {
        let seq = self.next_seq;
        self.next_seq += 1;
        seq
    }
}
