//! Single transactions: insertion, removal, and the move between shares.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use alloy_primitives::B256;
use chain_view::Taken;

use super::{
    Core, Effect,
    claims::{Kind, counted},
    keys::micros,
    tx_share::{FeeCaps, TxEntry, Until},
};
use crate::{
    error::RejectReason,
    event::{CancelPrivateOutcome, Event, InsertOutcome, RemoveReason},
    holder::Holder,
    order::{Order, PrivateCancellation, PrivateTerms, Transaction},
    read::SeenState,
};

/// For how many more blocks a private transaction is kept after it has become public: at 12 s each,
/// as long as [`DEFAULT_TX_RETENTION`](crate::DEFAULT_TX_RETENTION).
const PUBLIC_BLOCKS: u64 = 5;

/// As so many transactions counts, where bundles are put back, to remove some that are over, and to look for room
/// among all signers of a holder: a tenth of a millisecond.
const SLOW: usize = 64;

impl Core {
    pub(crate) fn insert_tx(&mut self, tx: Transaction) -> Result<InsertOutcome, InsertOutcome> {
        let (hash, nonce) = (*tx.hash(), tx.nonce());
        if let Some(seq) = self.find(&hash) {
            self.came_again(seq, &tx)?;
            return Ok(InsertOutcome::Known);
        }
        // Before the dedupe window, so that late announcements of mined transactions are counted
        // separately.
        match self.chain.taken(&tx) {
            None => {}
            Some(Taken::StaleNonce { next_nonce: next }) => {
                return Err(InsertOutcome::StaleNonce { nonce, next });
            }
            Some(_) => {
                self.chain.take_late(tx);
                return Err(InsertOutcome::Mined);
            }
        }
        let seen = self.seen.table.state(&hash);
        if seen == Some(SeenState::Known) {
            return Err(InsertOutcome::AlreadyRemoved);
        }
        if let Some(cancelled) = self.private_cancellations.of(&tx) {
            let [nonce, current] = [tx.first_seen(), cancelled].map(micros);
            return Err(InsertOutcome::Superseded { nonce, current });
        }
        self.check_terms(&tx, self.limits.max_blocks_ahead)?;
        self.pool_tx(Arc::new(Order::Tx(tx)))?;
        self.remember(&hash, seen);
        Ok(InsertOutcome::Added)
    }

    /// Records that a pooled transaction was inserted again. One from an external caller that the
    /// node announces now moves to the node's share; if nothing there pays less, it stays where it
    /// is.
    fn came_again(&mut self, seq: u64, again: &Transaction) -> Result<(), RejectReason> {
        let Some(order) = self.order(seq).map(Arc::clone) else { return Ok(()) };
        let Order::Tx(tx) = &*order else { return Ok(()) };
        if tx.came_again(again.origin(), again.first_seen()) {
            self.tell(Effect::Told(Event::BecamePublic(Arc::clone(&order))));
        }
        if again.origin().is_external() {
            return self.hold_tx(seq, again.holder(), again.private_terms());
        }
        if self.external.get(seq).is_none() {
            return Ok(());
        }
        self.keep_until(seq, self.public_until(), false);
        let base_fee_wei = self.chain.next_base_fee_wei();
        let room = self.public.room_for(FeeCaps::of(tx), order.size_bytes(), base_fee_wei);
        if let Ok(victims) = room {
            self.evict(victims);
            if let Some(entry) = self.remove_external(seq) {
                self.public.insert(seq, entry);
            }
        }
        Ok(())
    }

    /// See [`OrderPool::hold`](crate::OrderPool::hold).
    pub(crate) fn hold_again(
        &mut self,
        hash: &B256,
        holder: Holder,
        terms: Option<&PrivateTerms>,
    ) -> Result<InsertOutcome, InsertOutcome> {
        let seq = self.find(hash).ok_or(InsertOutcome::AlreadyRemoved)?;
        self.hold_tx(seq, holder, terms)?;
        Ok(InsertOutcome::Known)
    }

    /// Lets another caller hold a pooled transaction too; with `terms` as a private one. It is kept
    /// as long as any of them wants.
    fn hold_tx(
        &mut self,
        seq: u64,
        holder: Holder,
        terms: Option<&PrivateTerms>,
    ) -> Result<(), RejectReason> {
        let Some(before) = self.external.get(seq).cloned() else {
            // Vouched for, and so of the node's share: other pools count it for who has sent it.
            if let Some(order) = self.order(seq).map(Arc::clone)
                && order.holder() != holder
                && order.as_tx().is_some_and(|tx| !tx.is_public())
            {
                self.tell(Effect::Told(Event::Held { order, holder, terms: terms.copied() }));
            }
            return Ok(());
        };
        let is_new = self.hold(seq, (Kind::of_tx(terms), holder))?;
        self.external.set_signer(seq, terms.and_then(|terms| terms.signer));
        let max_ahead = self.limits.max_blocks_ahead;
        match terms {
            Some(terms) if self.check_last_block(terms.max_block, max_ahead).is_err() => {}
            Some(terms) => self.keep_until(seq, terms.max_block, true),
            // As long as a new one, if it is known until when that is.
            None => self.keep_until(seq, self.public_until(), self.chain.head().is_some()),
        }
        let is_as_before =
            |after: &TxEntry| (after.until, after.signer) == (before.until, before.signer);
        if is_new || !self.external.get(seq).is_some_and(is_as_before) {
            let (order, terms) = (before.order, terms.copied());
            self.tell(Effect::Told(Event::Held { order, holder, terms }));
        }
        Ok(())
    }

    fn public_until(&self) -> u64 {
        self.chain.head().map_or(0, |head| head.number).saturating_add(PUBLIC_BLOCKS)
    }

    /// Keeps a transaction at least until this block, if it is kept until one or is now to be.
    fn keep_until(&mut self, seq: u64, block: u64, by_block: bool) {
        let block = match self.external.get(seq).map(|entry| entry.until) {
            Some(Until::Block(before)) if before < block => {
                self.private.remove(&(before, seq));
                block
            }
            // Also as long as one that is not private.
            Some(Until::Time(_)) if by_block => block.max(self.public_until()),
            _ => return,
        };
        self.private.insert((block, seq));
        self.external.set_until(seq, Until::Block(block));
    }

    fn check_terms(&self, tx: &Transaction, max_ahead: u64) -> Result<(), RejectReason> {
        let terms = tx.private_terms().filter(|_| !tx.is_public());
        terms.map_or(Ok(()), |terms| self.check_last_block(terms.max_block, max_ahead))
    }

    /// Whether the only block of a bundle, or the last one of a private transaction, is ahead, and not too far: of what a
    /// reorg frees, as far as pooled orders are kept.
    pub(super) fn check_last_block(&self, value: u64, max_ahead: u64) -> Result<(), RejectReason> {
        let Some(head) = self.chain.head().map(|head| head.number) else { return Ok(()) };
        if value <= head {
            return Err(RejectReason::BlockPassed { value, limit: head.saturating_add(1) });
        }
        let limit = head.saturating_add(max_ahead);
        if value > limit { Err(RejectReason::BlockTooFar { value, limit }) } else { Ok(()) }
    }

    /// Removes at most `limit` private transactions whose last block is the head or a lower one, and
    /// those whose last block is too far ahead ([`Self::last_kept`]); returns whether more are left.
    pub(crate) fn pass_private(&mut self, limit: usize) -> bool {
        let Some(head) = self.chain.head().map(|head| head.number) else { return false };
        let last = self.last_kept(head);
        for _ in 0..limit {
            let passed = self.private.first().filter(|(block, _)| *block <= head);
            let too_far = || self.private.last().filter(|(block, _)| *block > last);
            let Some((block, seq)) = passed.or_else(too_far).copied() else { return false };
            let order = self.order(seq).and_then(|order| order.as_tx());
            let reason = match order.is_some_and(Transaction::is_public) {
                _ if block > last => RemoveReason::BlockTooFar,
                true => RemoveReason::Expired,
                false => RemoveReason::BlockPassed,
            };
            self.private.remove(&(block, seq));
            self.remove_tx(seq, reason);
        }
        true
    }

    /// Removes a private transaction on request of its signer, and remembers the cancellation for what its `age` leaves of the
    /// retention: those of a stream that is replayed would take the room of new ones.
    pub(crate) fn cancel_private(
        &mut self,
        cancellation: PrivateCancellation,
        age: Duration,
    ) -> CancelPrivateOutcome {
        let PrivateCancellation { hash, signer, .. } = cancellation;
        let found = self.find(&hash);
        let tx = found.and_then(|seq| self.order(seq)).and_then(|order| order.as_tx());
        if tx.is_some_and(Transaction::is_public) {
            return CancelPrivateOutcome::Public;
        }
        let is_own = |terms: &PrivateTerms| terms.signer == Some(signer);
        let own = tx.filter(|tx| tx.private_terms().is_some_and(is_own));
        let entry = found.and_then(|seq| self.external.get(seq));
        if own.is_some() && entry.is_none_or(|entry| entry.signer != Some(signer)) {
            return CancelPrivateOutcome::Public;
        }
        let cancelled = found.filter(|_| own.is_some_and(|tx| tx.first_seen() <= cancellation.at));
        if let Some(seq) = cancelled {
            self.remove_tx(seq, RemoveReason::Cancelled);
        }
        let left = self.limits.cancellation_retention.saturating_sub(age);
        if !left.is_zero() && self.private_cancellations.admits(&cancellation, cancelled.is_some())
        {
            let forget_at = self.now.saturating_add(left);
            let (replaced, forgotten) = self.private_cancellations.add(
                cancellation,
                self.next_seq,
                forget_at,
                cancelled.is_some(),
            );
            self.effects.extend(replaced.map(Effect::CancellationEnded));
            self.tell(Effect::Added(Event::CancelledPrivate(cancellation)));
            // It may be this one, if the others were cancelled later.
            self.effects.extend(forgotten.map(Effect::PrivateCancellationForgotten));
        }
        if cancelled.is_some() {
            CancelPrivateOutcome::Cancelled
        } else {
            CancelPrivateOutcome::Unknown
        }
    }

    fn evict(&mut self, victims: Vec<u64>) {
        for seq in victims {
            self.remove_tx(seq, RemoveReason::Evicted);
        }
    }

    /// Adds a transaction, and evicts others if necessary. Either everything happens or nothing.
    fn pool_tx(&mut self, order: Arc<Order>) -> Result<(), RejectReason> {
        let Order::Tx(tx) = &*order else { unreachable!("both callers have a transaction") };
        let fees = FeeCaps::of(tx);
        let base_fee_wei = self.chain.next_base_fee_wei();
        let (counted, claim) = counted(&order, base_fee_wei);
        if tx.is_of_node_share() {
            let victims = self.public.room_for(fees, order.size_bytes(), base_fee_wei)?;
            self.evict(victims);
        } else {
            let victims =
                self.claims.room_for(self.next_seq, &counted, &claim, None, &self.limits)?;
            self.end_claims(victims);
        }
        let seq = self.tell(Effect::Added(Event::Added(Arc::clone(&order))));
        let until = match tx.private_terms() {
            Some(terms) if !tx.is_public() => {
                self.private.insert((terms.max_block, seq));
                Until::Block(terms.max_block)
            }
            _ => Until::Time(self.now.saturating_add(self.limits.options.tx_retention)),
        };
        self.index.insert(tx.hash(), seq);
        self.senders.insert((tx.sender(), tx.nonce(), seq));
        let signer = tx.private_terms().and_then(|terms| terms.signer);
        let entry = TxEntry { order: Arc::clone(&order), fees, until, signer };
        if tx.is_of_node_share() {
            self.public.insert(seq, entry);
        } else {
            self.claims.insert(seq, counted, claim);
            self.external.insert(seq, entry);
        }
        Ok(())
    }

    fn remove_external(&mut self, seq: u64) -> Option<TxEntry> {
        let entry = self.external.remove(seq)?;
        self.claims.remove(seq);
        Some(entry)
    }

    pub(super) fn remove_tx(&mut self, seq: u64, reason: RemoveReason) -> Option<Arc<Order>> {
        let TxEntry { order, until, .. } =
            self.public.remove(seq).or_else(|| self.remove_external(seq))?;
        if let Until::Block(block) = until {
            self.private.remove(&(block, seq));
        }
        let tx = order.as_tx()?;
        self.senders.remove(&(tx.sender(), tx.nonce(), seq));
        self.leave(seq, &order, reason);
        Some(order)
    }

    /// Puts back orders that a reorg un-mined, transactions for a full retention from now, because
    /// they are pending anew, and evicts others for them as for new ones. Stops once it has touched `limit`
    /// transactions, those of bundles included, and takes the orders that are done. Returns how many are back,
    /// and why there was no room for others.
    pub(crate) fn put_back(
        &mut self,
        orders: &mut VecDeque<Arc<Order>>,
        limit: usize,
    ) -> (u64, Vec<RejectReason>) {
        let (mut count, mut refused, mut touched) = (0, Vec::new(), 0);
        while touched < limit
            && let Some(order) = orders.pop_front()
        {
            touched += order.txs();
            let before = self.effects.len();
            let is_back = match &*order {
                Order::Tx(_) => self.put_back_tx(order),
                Order::Bundle(_) => {
                    // What is over must not take the room of this one.
                    let are_left = self.sweep();
                    let is_back = self.put_back_bundle(order);
                    touched += if are_left || is_back.is_err() { SLOW } else { 0 };
                    is_back
                }
            };
            match is_back {
                Ok(is_back) => count += u64::from(is_back),
                Err(reason) => refused.push(reason),
            }
            for effect in &self.effects[before..] {
                if let Effect::Removed { order, .. } = effect {
                    touched += order.txs();
                }
            }
        }
        (count, refused)
    }

    fn put_back_tx(&mut self, order: Arc<Order>) -> Result<bool, RejectReason> {
        let may_return = order.as_tx().is_some_and(|tx| {
            self.check_terms(tx, self.limits.max_blocks_kept()).is_ok()
                && self.chain.taken(tx).is_none()
                && self.find(tx.hash()).is_none()
                // Its signer may have cancelled it while a block contained it.
                && self.private_cancellations.of(tx).is_none()
        });
        may_return.then(|| self.pool_tx(order)).transpose().map(|pooled| pooled.is_some())
    }
}
