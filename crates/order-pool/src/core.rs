//! The pool without a clock, a lock or a reader: `(operation, now)` in, effects out.

use crate::{
    chain::{Chain, HeadKind},
    config::PoolConfig,
    event::{Head, InsertOutcome, RejectReason, RemoveReason},
    order::{Order, OrderId, Transaction},
    seen::SeenWindow,
    worth::{Ranks, Worth},
};
use alloy_primitives::{Address, B256};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

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
}

/// Where the look-ups look. Cloning shares everything.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    /// Order id to the sequence number of its `Added`.
    pub(crate) by_hash: imbl::GenericHashMap<
        B256,
        u64,
        alloy_primitives::map::DefaultHashBuilder,
        imbl::shared_ptr::DefaultSharedPtr,
    >,
    /// Sender, nonce, sequence number: a sender's transactions in nonce order.
    pub(crate) by_sender: imbl::OrdSet<(Address, u64, u64)>,
}

#[derive(Debug)]
struct TxEntry {
    order: Arc<Order>,
    worth: Worth,
    sender: Address,
    nonce: u64,
    deadline: Duration,
}

/// What an update did, beside its effects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeadUpdate {
    pub(crate) kind: HeadKind,
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
            index: Index::default(),
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

    /// Takes a transaction in, or says why not.
    pub(crate) fn insert_tx(
        &mut self,
        tx: Transaction,
        now: Duration,
        effects: &mut Vec<Effect>,
    ) -> InsertOutcome {
        self.advance(now);
        let hash = *tx.hash();
        if self.index.by_hash.contains_key(&hash) {
            return InsertOutcome::Known;
        }
        // Before the dedupe window: a late announcement of what a block took is worth telling apart.
        if self.chain.is_mined(&hash) {
            return InsertOutcome::Mined;
        }
        let nonce = tx.nonce();
        if let Some(next) = self.chain.next_nonce(&tx.sender())
            && nonce < next
        {
            return InsertOutcome::StaleNonce { nonce, next };
        }
        if self.seen.contains(&hash) {
            return InsertOutcome::Known;
        }
        match self.admit(Arc::new(Order::Tx(tx)), effects) {
            Ok(()) => {
                self.seen.insert(&hash);
                InsertOutcome::Added
            }
            Err(reason) => InsertOutcome::Rejected(reason),
        }
    }

    /// Applies a new head: first its mined hashes, then whatever a reorg un-mined comes back.
    pub(crate) fn on_head(
        &mut self,
        head: Head,
        now: Duration,
        effects: &mut Vec<Effect>,
    ) -> HeadUpdate {
        self.advance(now);
        let kind = self.chain.kind(&head);
        if kind == HeadKind::Same {
            return HeadUpdate { kind, put_back: 0 };
        }
        let (unmined, hashes) = match kind {
            HeadKind::Reorg(depth) => self.chain.undo(depth),
            _ => (Vec::new(), Vec::new()),
        };
        let pooled: Vec<u64> = head
            .mined
            .iter()
            .filter_map(|hash| self.index.by_hash.get(hash).copied())
            .collect();
        self.chain.push(head);
        for seq in pooled {
            if let Some(order) = self.remove_tx(seq, RemoveReason::Mined, effects) {
                self.chain.take(None, order);
            }
        }
        let mut put_back = 0;
        for order in unmined {
            put_back += usize::from(self.put_back(order, effects));
        }
        // What the old blocks mined, the new one does not, and we no longer hold must be fetched
        // anew: it may not be turned away as known.
        for hash in hashes {
            if !self.chain.is_mined(&hash) && !self.index.by_hash.contains_key(&hash) {
                self.seen.forget(&hash);
            }
        }
        HeadUpdate { kind, put_back }
    }

    /// Applies the nonces a block raised. `None` if the block is not one of the recent ones on the
    /// chain, for instance because a reorg took it away meanwhile.
    pub(crate) fn on_nonces(
        &mut self,
        block_hash: B256,
        nonces: impl IntoIterator<Item = (Address, u64)>,
        now: Duration,
        effects: &mut Vec<Effect>,
    ) -> Option<()> {
        self.advance(now);
        let position = self.chain.position(&block_hash)?;
        for (sender, next) in nonces {
            if !self.chain.raise(position, sender, next) {
                continue;
            }
            let stale: Vec<u64> = self
                .index
                .by_sender
                .range((sender, 0, 0)..(sender, next, 0))
                .map(|(_, _, seq)| *seq)
                .collect();
            for seq in stale {
                if let Some(order) = self.remove_tx(seq, RemoveReason::StaleNonce, effects) {
                    self.chain.take(Some(position), order);
                }
            }
        }
        Some(())
    }

    /// Lets go of at most `limit` orders that were kept long enough; says whether more are due.
    pub(crate) fn expire(
        &mut self,
        now: Duration,
        limit: usize,
        effects: &mut Vec<Effect>,
    ) -> bool {
        self.advance(now);
        for _ in 0..limit {
            let Some(seq) = self.next_due() else {
                return false;
            };
            self.remove_tx(seq, RemoveReason::Expired, effects);
        }
        self.next_due().is_some()
    }

    fn next_due(&self) -> Option<u64> {
        self.txs
            .first_key_value()
            .filter(|(_, tx)| tx.deadline <= self.now)
            .map(|(seq, _)| *seq)
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

    /// Puts a transaction in, making room for it if need be. Either everything happens or nothing.
    fn admit(&mut self, order: Arc<Order>, effects: &mut Vec<Effect>) -> Result<(), RejectReason> {
        let Order::Tx(tx) = &*order;
        let worth = Worth::of(tx);
        let size_bytes = order.size_bytes();
        if size_bytes > self.config.max_tx_bytes {
            return Err(RejectReason::TooLarge {
                size_bytes,
                limit_bytes: self.config.max_tx_bytes,
            });
        }
        for seq in self.room_for(worth, size_bytes)? {
            self.remove_tx(seq, RemoveReason::Evicted, effects);
        }
        let (hash, sender, nonce) = (*tx.hash(), tx.sender(), tx.nonce());
        let seq = self.take_seq();
        let deadline = self.now.saturating_add(self.config.tx_retention);
        self.index.by_hash.insert(hash, seq);
        self.index.by_sender.insert((sender, nonce, seq));
        self.ranks.insert(worth, seq);
        self.tx_bytes += size_bytes;
        effects.push(Effect::Added {
            seq,
            order: Arc::clone(&order),
        });
        self.txs.insert(
            seq,
            TxEntry {
                order,
                worth,
                sender,
                nonce,
                deadline,
            },
        );
        Ok(())
    }

    /// Who must go so that an order of this size fits: the worst-paying first, and only such as pay
    /// less than it does.
    fn room_for(&self, worth: Worth, size_bytes: usize) -> Result<Vec<u64>, RejectReason> {
        let base_fee_wei = self.chain.base_fee_next_wei();
        let fits = |count: usize, bytes: usize| {
            count < self.config.max_txs && bytes + size_bytes <= self.config.max_tx_bytes
        };
        let (mut count, mut bytes) = (self.txs.len(), self.tx_bytes);
        let mut victims = Vec::new();
        let mut worst = self
            .ranks
            .worst_first(base_fee_wei)
            .take(MAX_EVICTIONS_PER_INSERT);
        while !fits(count, bytes) {
            match worst.next() {
                Some((tip, seq)) if tip < worth.at(base_fee_wei) => {
                    count -= 1;
                    bytes -= self.txs.get(&seq).map_or(0, |tx| tx.order.size_bytes());
                    victims.push(seq);
                }
                _ => {
                    let tip_wei = u128::try_from(worth.at(base_fee_wei)).ok();
                    return Err(RejectReason::PaysTooLittle { tip_wei });
                }
            }
        }
        Ok(victims)
    }

    fn remove_tx(
        &mut self,
        seq: u64,
        reason: RemoveReason,
        effects: &mut Vec<Effect>,
    ) -> Option<Arc<Order>> {
        let TxEntry {
            order,
            worth,
            sender,
            nonce,
            ..
        } = self.txs.remove(&seq)?;
        let (id, size_bytes) = (order.id(), order.size_bytes());
        self.index.by_hash.remove(id.hash());
        self.index.by_sender.remove(&(sender, nonce, seq));
        self.ranks.remove(worth, seq);
        self.tx_bytes -= size_bytes;
        let at = self.take_seq();
        effects.push(Effect::Removed {
            seq: at,
            added: seq,
            id,
            block: order.block(),
            size_bytes,
            reason,
        });
        Some(order)
    }

    /// Brings back what a reorg un-mined, for a full retention from now: it is pending anew.
    fn put_back(&mut self, order: Arc<Order>, effects: &mut Vec<Effect>) -> bool {
        let Order::Tx(tx) = &*order;
        let stale = self
            .chain
            .next_nonce(&tx.sender())
            .is_some_and(|next| tx.nonce() < next);
        if stale || self.chain.is_mined(tx.hash()) || self.index.by_hash.contains_key(tx.hash()) {
            return false;
        }
        self.admit(order, effects).is_ok()
    }
}

/// How many transactions one insert may push out. A transaction of six blobs (0.8 MB) would need
/// the room of a thousand plain ones: it does not get it, and an insert stays short.
pub(crate) const MAX_EVICTIONS_PER_INSERT: usize = 64;
