//! Single transactions: in, out, and from one share to the other.

use std::{sync::Arc, time::Duration};

use chain_view::Taken;

use super::{
    Core, Effect,
    share::{TxEntry, TxShare},
};
use crate::{
    event::{InsertOutcome, RejectReason, RemoveReason},
    order::{Order, Transaction},
    seen::Fate,
    worth::Worth,
};

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
        if let Some(seq) = self.find(&hash) {
            self.came_again(seq, &tx, effects);
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
            return InsertOutcome::AlreadyRemoved;
        }
        match self.pool_tx(Arc::new(order), effects) {
            Ok(()) => {
                self.remember(&hash, fate);
                InsertOutcome::Added
            }
            Err(reason) => InsertOutcome::Rejected(reason),
        }
    }

    /// Notes that a pooled transaction came again. One that an external caller brought, and that the node
    /// announces now, moves to the share of what is public; if nothing there pays less, it stays
    /// where it is.
    fn came_again(&mut self, seq: u64, again: &Transaction, effects: &mut Vec<Effect>) {
        let Some(order) = self.order(seq).map(Arc::clone) else { return };
        let Order::Tx(tx) = &*order else { return };
        tx.came_again(again.origin(), again.first_seen());
        if again.origin().is_external() || self.external.get(seq).is_none() {
            return;
        }
        let base_fee_wei = self.chain.next_base_fee_wei();
        let room = self.public.room_for(Worth::of(tx), order.size_bytes(), base_fee_wei);
        let Ok(victims) = room else { return };
        self.evict(victims, effects);
        if let Some(entry) = self.external.remove(seq) {
            self.public.insert_earlier(seq, entry);
        }
    }

    fn share_of(&mut self, tx: &Transaction) -> &mut TxShare {
        if tx.is_of_node_share() { &mut self.public } else { &mut self.external }
    }

    fn evict(&mut self, victims: Vec<u64>, effects: &mut Vec<Effect>) {
        for seq in victims {
            self.remove_tx(seq, RemoveReason::Evicted, effects);
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
        let base_fee_wei = self.chain.next_base_fee_wei();
        let victims = self.share_of(tx).room_for(worth, order.size_bytes(), base_fee_wei)?;
        self.evict(victims, effects);
        let seq = self.take_seq();
        let deadline = self.now.saturating_add(self.config.tx_retention);
        self.index.insert(tx.hash(), seq);
        self.senders.insert(tx.sender(), tx.nonce(), seq);
        effects.push(Effect::Added { seq, order: Arc::clone(&order) });
        let entry = TxEntry { order: Arc::clone(&order), worth, deadline };
        self.share_of(tx).insert(seq, entry);
        Ok(())
    }

    pub(super) fn remove_tx(
        &mut self,
        seq: u64,
        reason: RemoveReason,
        effects: &mut Vec<Effect>,
    ) -> Option<Arc<Order>> {
        let TxEntry { order, .. } =
            self.public.remove(seq).or_else(|| self.external.remove(seq))?;
        let tx = order.as_tx()?;
        self.index.remove(tx.hash(), seq);
        self.senders.remove(&tx.sender(), tx.nonce(), seq);
        match reason {
            RemoveReason::Evicted => self.seen.evicted(tx.hash()),
            RemoveReason::Expired => {
                let offered_at = self.now.saturating_add(self.config.expired_pause);
                self.seen.expired(tx.hash(), offered_at);
            }
            _ => {}
        }
        let at = self.take_seq();
        effects.push(Effect::Removed { seq: at, added: seq, order: Arc::clone(&order), reason });
        Some(order)
    }

    /// Brings back what a reorg un-mined, for a full retention from now: it is pending anew.
    pub(super) fn put_back(&mut self, order: Arc<Order>, effects: &mut Vec<Effect>) -> bool {
        if self.chain.taken(&order).is_some() || self.find(order.id().hash()).is_some() {
            return false;
        }
        self.pool_tx(order, effects).is_ok()
    }
}
