//! The pool without a clock, a lock or a reader: `(operation, now)` in, effects out.

mod bundles;
mod txs;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use alloy_primitives::{Address, B256};
use chain_view::{Block, Head, NonceUpdate, Relation};

use crate::{
    bundle::{Cancellation, ReplacementKey},
    chain::{Chain, Change},
    config::PoolConfig,
    event::RemoveReason,
    index::Index,
    keys::Keys,
    order::{Order, OrderId},
    seen::SeenWindow,
    worth::{Ranks, Worth},
};

/// A change that readers must be told of. Its sequence number is that of its event in the log.
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
        id: OrderId,
        block: Option<u64>,
        size_bytes: usize,
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
    /// No event of its own: whoever subscribes after event `at` need not be told of the
    /// cancellation any more.
    TombstoneEnded {
        /// The sequence number of its `Cancelled`.
        added: u64,
        /// The event that ended it, which follows.
        at: u64,
    },
}

#[derive(Debug)]
struct TxEntry {
    order: Arc<Order>,
    worth: Worth,
    sender: Address,
    nonce: u64,
    deadline: Duration,
}

/// What a head did, beside its effects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeadApplied {
    pub(crate) relation: Relation,
    pub(crate) put_back: usize,
}

#[derive(Debug)]
pub(crate) struct Core {
    config: PoolConfig,
    next_seq: u64,
    now: Duration,
    /// By acceptance, which is also the order of their deadlines: the retention is one for all.
    txs: BTreeMap<u64, TxEntry>,
    ranks: Ranks,
    tx_bytes: usize,
    /// By acceptance.
    bundles: BTreeMap<u64, Arc<Order>>,
    /// Block (0 if the pool knew no head) and acceptance.
    bundles_by_block: BTreeSet<(u64, u64)>,
    bundle_bytes: usize,
    keys: Keys,
    index: Index,
    seen: SeenWindow,
    chain: Chain,
}

impl Core {
    pub(crate) fn new(config: PoolConfig) -> Self {
        Self {
            next_seq: 0,
            now: Duration::ZERO,
            txs: BTreeMap::new(),
            ranks: Ranks::default(),
            tx_bytes: 0,
            bundles: BTreeMap::new(),
            bundles_by_block: BTreeSet::new(),
            bundle_bytes: 0,
            keys: Keys::new(config.cancellation_retention, config.max_cancellations),
            index: Index::new(config.max_txs.saturating_add(config.max_bundles), config.max_txs),
            seen: SeenWindow::new(config.dedupe_window),
            chain: Chain::new(config.recent_blocks, config.max_unmine_bytes),
            config,
        }
    }

    pub(crate) const fn index(&self) -> &Index {
        &self.index
    }

    pub(crate) const fn seen(&self) -> &SeenWindow {
        &self.seen
    }

    pub(crate) fn tx_count(&self) -> usize {
        self.txs.len()
    }

    pub(crate) const fn tx_bytes(&self) -> usize {
        self.tx_bytes
    }

    pub(crate) fn bundle_count(&self) -> usize {
        self.bundles.len()
    }

    pub(crate) const fn bundle_bytes(&self) -> usize {
        self.bundle_bytes
    }

    pub(crate) fn key_count(&self) -> usize {
        self.keys.len()
    }

    /// Applies a new head: first its mined hashes, then whatever a reorg un-mined comes back. The
    /// head itself is told last.
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
        }
        self.pass_block(head.number, effects);
        let mut put_back = 0;
        for order in untaken {
            put_back += usize::from(self.put_back(order, effects));
        }
        // What the old blocks took, the new one does not contain, and we no longer hold must be
        // fetched anew: it may not be turned away as known.
        for hash in free {
            if !self.chain.is_mined(&hash) && self.find(&hash).is_none() {
                self.seen.forget(&hash);
            }
        }
        let seq = self.take_seq();
        effects.push(Effect::Head { seq, head });
        HeadApplied { relation, put_back }
    }

    /// Applies the nonces a block raised. `None` if the block is not one of the recent ones on the
    /// chain, for instance because a reorg undid it meanwhile.
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
            for seq in self.index.table().of_sender(sender, 0, Some(next_nonce)) {
                if let Some(order) = self.remove_tx(seq, RemoveReason::StaleNonce, effects) {
                    self.chain.take(&head, order);
                }
            }
        }
        Some(())
    }

    /// Removes at most `limit` transactions and keys that were kept long enough, and offers again what
    /// expired long enough ago; says whether more are due.
    pub(crate) fn expire(
        &mut self,
        now: Duration,
        limit: usize,
        effects: &mut Vec<Effect>,
    ) -> bool {
        self.advance(now);
        for _ in 0..limit {
            if let Some(seq) = self.next_due() {
                self.remove_tx(seq, RemoveReason::Expired, effects);
            } else if !self.forget_due_key(effects) && !self.seen.offer_due(self.now) {
                return false;
            }
        }
        self.next_due().is_some() || self.keys.is_due(self.now) || self.seen.is_due(self.now)
    }

    /// The order with this hash, by acceptance.
    fn find(&self, hash: &B256) -> Option<u64> {
        self.index.table().find(hash, |seq| {
            let tx = || self.txs.get(&seq).map(|tx| &tx.order);
            let order = tx().or_else(|| self.bundles.get(&seq))?;
            (order.id().hash() == hash).then_some(seq)
        })
    }

    fn next_due(&self) -> Option<u64> {
        self.txs.first_key_value().filter(|(_, tx)| tx.deadline <= self.now).map(|(seq, _)| *seq)
    }

    /// Time does not run backwards here, whatever the caller's clock does.
    fn advance(&mut self, now: Duration) {
        self.now = self.now.max(now);
    }

    const fn take_seq(&mut self) -> u64 {
        let seq = self.next_seq;
        self.next_seq += 1;
        seq
    }
}
