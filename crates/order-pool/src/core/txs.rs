//! Single transactions: in, out, and who goes when the pool is full.

use std::{sync::Arc, time::Duration};

use chain_view::Taken;

use super::{Core, Effect, TxEntry};
use crate::{
    event::{InsertOutcome, RejectReason, RemoveReason},
    order::{Order, Transaction},
    seen::Fate,
    worth::Worth,
};

/// How many transactions one insert may push out. A transaction of six blobs (0.8 MB) would need
/// the room of a thousand plain ones: it does not get it, and an insert stays short.
pub(crate) const MAX_EVICTIONS_PER_INSERT: usize = 64;

impl Core {
    /// Takes a transaction in, or says why not.
    pub(crate) fn insert_tx(
        &mut self,
        tx: Transaction,
        now: Duration,
        effects: &mut Vec<Effect>,
    ) -> InsertOutcome {
        self.advance(now);
        let (hash, nonce) = (*tx.hash(), tx.nonce());
        if self.find(&hash).is_some() {
            return InsertOutcome::Known;
        }
        let order = Order::Tx(tx);
        // Before the dedupe window: a late announcement of what a block took is worth telling apart.
        match self.chain.taken(&order) {
            None => {}
            Some(Taken::StaleNonce { next_nonce: next }) => {
                return InsertOutcome::StaleNonce { nonce, next };
            }
            Some(_) => return InsertOutcome::Mined,
        }
        let fate = self.seen.fate(&hash);
        if fate == Some(Fate::Known) {
            return InsertOutcome::Known;
        }
        match self.pool_tx(Arc::new(order), effects) {
            Ok(()) => {
                if fate.is_some() {
                    // Its place in the window is that of its return.
                    self.seen.forget(&hash);
                }
                self.seen.insert(&hash);
                InsertOutcome::Added
            }
            Err(reason) => InsertOutcome::Rejected(reason),
        }
    }

    /// Puts a transaction in, making room for it if need be. Either everything happens or nothing.
    fn pool_tx(
        &mut self,
        order: Arc<Order>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), RejectReason> {
        let Order::Tx(tx) = &*order else { unreachable!("both callers have a transaction") };
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
        self.index.insert(&hash, seq);
        self.index.insert_sender(sender, nonce, seq);
        self.ranks.insert(worth, seq);
        self.tx_bytes += size_bytes;
        effects.push(Effect::Added { seq, order: Arc::clone(&order) });
        self.txs.insert(seq, TxEntry { order, worth, sender, nonce, deadline });
        Ok(())
    }

    /// Who must go so that an order of this size fits: the worst-paying first, and only such as pay
    /// less than it does.
    fn room_for(&self, worth: Worth, size_bytes: usize) -> Result<Vec<u64>, RejectReason> {
        let base_fee_wei = self.chain.next_base_fee_wei();
        let fits = |count: usize, bytes: usize| {
            count < self.config.max_txs && bytes + size_bytes <= self.config.max_tx_bytes
        };
        let (mut count, mut bytes) = (self.txs.len(), self.tx_bytes);
        let mut victims = Vec::new();
        let mut worst = self.ranks.worst_first(base_fee_wei).take(MAX_EVICTIONS_PER_INSERT);
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

    pub(super) fn remove_tx(
        &mut self,
        seq: u64,
        reason: RemoveReason,
        effects: &mut Vec<Effect>,
    ) -> Option<Arc<Order>> {
        let TxEntry { order, worth, sender, nonce, .. } = self.txs.remove(&seq)?;
        let (id, size_bytes) = (order.id(), order.size_bytes());
        self.index.remove(id.hash(), seq);
        self.index.remove_sender(sender, nonce, seq);
        self.ranks.remove(worth, seq);
        self.tx_bytes -= size_bytes;
        match reason {
            RemoveReason::Evicted => self.seen.evicted(id.hash()),
            RemoveReason::Expired => {
                let offered_at = self.now.saturating_add(self.config.expired_pause);
                self.seen.expired(id.hash(), offered_at);
            }
            _ => {}
        }
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
    pub(super) fn put_back(&mut self, order: Arc<Order>, effects: &mut Vec<Effect>) -> bool {
        let is_tx = matches!(&*order, Order::Tx(_));
        if !is_tx || self.chain.taken(&order).is_some() || self.find(order.id().hash()).is_some() {
            return false;
        }
        self.pool_tx(order, effects).is_ok()
    }
}
