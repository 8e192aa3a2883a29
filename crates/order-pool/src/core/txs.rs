//! Single transactions: insertion, removal, and the move between shares.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use alloy_primitives::B256;
use chain_view::Taken;

use super::{
    Core, Effect,
    chain::{MAX_TAKEN_CLAIMS, TakenOrder},
    claims::{Claim, Kind, counted},
    keys::micros,
    node_share::FeeCaps,
    pooled_txs::{Retention, TxEntry},
};
use crate::{
    error::RejectReason,
    event::{CancelPrivateOutcome, Event, InsertOutcome, RemoveReason},
    holder::Holder,
    order::{Order, PrivateCancellation, PrivateTerms, Transaction},
    read::SeenState,
};

/// A transaction that is sent again is kept longer if that adds at least this part of the retention:
/// subscribers are told each time.
const LEAST_EXTENSION: u32 = 5;

/// Most transactions of one sender and nonce that are compared, of those that a node lists.
const MAX_SAME_NONCE: usize = 16;

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
        let is_listed = tx.is_listed();
        let seq = self.pool_tx(Arc::new(Order::Tx(tx)), &[])?;
        if is_listed {
            self.list(seq);
        }
        self.remember(&hash, seen);
        Ok(InsertOutcome::Added)
    }

    /// Records that a pooled transaction was inserted again. One from an external caller that the
    /// node announces now moves to the node's share; if nothing there pays less, it stays where it
    /// is.
    fn came_again(&mut self, seq: u64, again: &Transaction) -> Result<(), RejectReason> {
        let Some(order) = self.order(seq).map(Arc::clone) else { return Ok(()) };
        let Order::Tx(tx) = &*order else { return Ok(()) };
        if again.origin().is_external() {
            tx.came_again(again.origin(), again.first_seen());
            return self.hold_tx(seq, again.holder(), again.private_terms());
        }
        if tx.came_again(again.origin(), again.first_seen()) {
            self.tell(Effect::Told(Event::BecamePublic(Arc::clone(&order))));
        }
        let seq = self.move_to_node_share(seq, tx, again);
        if again.is_listed() {
            self.list(seq);
        } else {
            self.keep_for_retention(seq);
        }
        Ok(())
    }

    /// Moves a transaction to the node's share, with the node's envelope if its own has proofs in the
    /// old form. If there is no room it stays as it is. Returns its sequence number, which is another
    /// one after a change of the envelope.
    fn move_to_node_share(&mut self, seq: u64, tx: &Transaction, again: &Transaction) -> u64 {
        let Some(entry) = self.txs.get(seq) else { return seq };
        let is_old = tx.has_old_sidecar() && again.sidecar().is_some() && !again.has_old_sidecar();
        if entry.is_of_node_share && !is_old {
            return seq;
        }
        let fees = entry.fees;
        let order = if is_old {
            Arc::new(Order::Tx(tx.with_envelope(again)))
        } else {
            Arc::clone(&entry.order)
        };
        let base_fee_wei = self.chain.next_base_fee_wei();
        let room = self.node_share.room_for(fees, order.size_bytes(), base_fee_wei, &self.txs);
        let Ok(victims) = room else { return seq };
        for victim in victims.into_iter().filter(|victim| *victim != seq) {
            self.remove_tx(victim, RemoveReason::Evicted);
        }
        if is_old {
            return self.replace_envelope(seq, order);
        }
        if let Some(entry) = self.txs.get_mut(seq) {
            entry.is_of_node_share = true;
            self.claims.remove(seq, &entry.counted);
            self.external.subtract(order.size_bytes());
        }
        self.node_share.insert(seq, fees, order.size_bytes(), &self.txs);
        seq
    }

    /// Puts a transaction of the node's share, with another envelope, in the place of a pooled one.
    fn replace_envelope(&mut self, seq: u64, order: Arc<Order>) -> u64 {
        let Some(mut entry) = self.take_tx(seq) else { return seq };
        self.leave(seq, &entry.order, RemoveReason::Replaced);
        let seq = self.tell(Effect::Added(Event::Added(Arc::clone(&order))));
        self.index.insert(order.id().hash(), seq);
        (entry.order, entry.is_of_node_share) = (Arc::clone(&order), true);
        let fees = entry.fees;
        self.txs.insert(seq, entry);
        self.node_share.insert(seq, fees, order.size_bytes(), &self.txs);
        seq
    }

    /// A node lists a transaction: it is kept until the node lists it no more. Of several with its
    /// sender and nonce that a node has listed, one that pays less in both fees was replaced.
    fn list(&mut self, seq: u64) {
        let Some(entry) = self.txs.get(seq) else { return };
        let (fees, retention) = (entry.fees, entry.retention);
        let Some((sender, nonce)) = entry.order.as_tx().map(|tx| (tx.sender(), tx.nonce())) else {
            return;
        };
        self.txs.keep(seq, Retention { is_listed: true, until: None, ..retention });
        let others = self.txs.with_nonce(sender, nonce).filter(|other| *other != seq);
        let listed = others.filter_map(|other| {
            let entry = self.txs.get(other).filter(|entry| entry.retention.is_listed)?;
            Some((other, entry.fees))
        });
        let (mut replaced, mut is_replaced) = (Vec::new(), false);
        for (other, other_fees) in listed.take(MAX_SAME_NONCE) {
            is_replaced |= fees.are_below(&other_fees);
            replaced.extend(other_fees.are_below(&fees).then_some(other));
        }
        replaced.extend(is_replaced.then_some(seq));
        replaced.into_iter().for_each(|seq| self.unlist(seq));
    }

    fn unlist(&mut self, seq: u64) {
        if let Some(entry) = self.txs.get(seq)
            && entry.retention.is_listed
        {
            let retention = Retention { is_listed: false, ..entry.retention };
            self.txs.keep(seq, retention);
            self.keep_for_retention(seq);
        }
    }

    /// See [`OrderPool::on_listed`](crate::OrderPool::on_listed).
    pub(crate) fn on_listed(&mut self, hashes: &[B256]) {
        for hash in hashes {
            if let Some(seq) = self.find(hash)
                && let Some(entry) = self.txs.get(seq)
                && !entry.retention.is_listed
                && entry.order.as_tx().is_some_and(Transaction::is_public)
            {
                self.list(seq);
            }
        }
    }

    /// See [`OrderPool::on_unlisted`](crate::OrderPool::on_unlisted).
    pub(crate) fn on_unlisted(&mut self, hashes: &[B256]) {
        for hash in hashes {
            if let Some(seq) = self.find(hash) {
                self.unlist(seq);
            }
        }
    }

    /// Keeps a transaction for the retention from now on, if that is longer by a part of it. Returns
    /// whether it is.
    fn keep_for_retention(&mut self, seq: u64) -> bool {
        let Some(retention) = self.txs.get(seq).map(|entry| entry.retention) else { return false };
        let tx_retention = self.limits.options.tx_retention;
        let until = self.now.saturating_add(tx_retention);
        let is_longer = !retention.is_listed
            && retention.until.is_none_or(|before| {
                before.saturating_add(tx_retention / LEAST_EXTENSION) <= until
            });
        if is_longer {
            self.txs.keep(seq, Retention { until: Some(until), ..retention });
        }
        is_longer
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
    /// as long as any of them wants, and never shorter than before.
    fn hold_tx(
        &mut self,
        seq: u64,
        holder: Holder,
        terms: Option<&PrivateTerms>,
    ) -> Result<(), RejectReason> {
        let Some(entry) = self.txs.get(seq) else { return Ok(()) };
        let Some(tx) = entry.order.as_tx() else { return Ok(()) };
        let (order, signer) = (Arc::clone(&entry.order), entry.signer);
        let mut is_news = if entry.is_of_node_share {
            // Nobody is counted for it here. Other pools count one that the host vouches for.
            !tx.is_public() && order.holder() != holder
        } else {
            let counted = entry.counted;
            self.hold(seq, &counted, (Kind::of_tx(terms), holder))?
        };
        if let Some(entry) = self.txs.get_mut(seq) {
            let new_signer = terms.and_then(|terms| terms.signer);
            entry.signer = entry.signer.filter(|own| Some(*own) == new_signer);
            is_news |= entry.signer != signer;
        }
        is_news |= match terms {
            Some(terms) => self.keep_until_block(seq, terms.max_block),
            None => self.keep_for_retention(seq),
        };
        if is_news && !order.as_tx().is_some_and(Transaction::is_public) {
            self.tell(Effect::Told(Event::Held { order, holder, terms: terms.copied() }));
        }
        Ok(())
    }

    /// Keeps a transaction at least until this block, if it is ahead and not too far. Returns whether
    /// that is longer.
    fn keep_until_block(&mut self, seq: u64, block: u64) -> bool {
        let Some(retention) = self.txs.get(seq).map(|entry| entry.retention) else { return false };
        let is_longer = retention.last_block < Some(block)
            && self.check_last_block(block, self.limits.max_blocks_ahead).is_ok();
        if is_longer {
            self.txs.keep(seq, Retention { last_block: Some(block), ..retention });
        }
        is_longer
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
    /// those whose last block is too far ahead ([`Self::last_kept`]), unless something else keeps
    /// them; returns whether more are left.
    pub(crate) fn pass_private(&mut self, limit: usize) -> bool {
        let Some(head) = self.chain.head().map(|head| head.number) else { return false };
        let last = self.last_kept(head);
        for _ in 0..limit {
            let Some((block, seq)) = self.txs.passed(head, last) else { return false };
            let Some(retention) = self.txs.get(seq).map(|entry| entry.retention) else {
                return false;
            };
            if retention.is_listed || retention.until.is_some() {
                self.txs.keep(seq, Retention { last_block: None, ..retention });
            } else {
                let is_passed = block <= head;
                let reason =
                    if is_passed { RemoveReason::BlockPassed } else { RemoveReason::BlockTooFar };
                self.remove_tx(seq, reason);
            }
        }
        true
    }

    /// Removes the first transaction whose time is over, unless it is kept until a block. Returns
    /// whether there was one.
    pub(super) fn expire_tx(&mut self) -> bool {
        let Some(seq) = self.txs.due(self.now) else { return false };
        let retention = self.txs.get(seq).map(|entry| entry.retention).unwrap_or_default();
        if retention.last_block.is_some() {
            self.txs.keep(seq, Retention { until: None, ..retention });
        } else {
            self.remove_tx(seq, RemoveReason::Expired);
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
        let entry = found.and_then(|seq| self.txs.get(seq));
        let is_shared =
            entry.is_none_or(|entry| entry.is_of_node_share || entry.signer != Some(signer));
        if own.is_some() && is_shared {
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

    /// Adds a transaction, and evicts others if necessary, and returns its sequence number. Either
    /// everything happens or nothing. It is held by those who have `claims`, or else by its sender.
    fn pool_tx(&mut self, order: Arc<Order>, claims: &[Claim]) -> Result<u64, RejectReason> {
        let Order::Tx(tx) = &*order else { unreachable!("both callers have a transaction") };
        let (fees, size_bytes) = (FeeCaps::of(tx), order.size_bytes());
        let base_fee_wei = self.chain.next_base_fee_wei();
        let (counted, claim) = counted(&order, base_fee_wei);
        let mut claims = if claims.is_empty() { &[claim] } else { claims };
        let is_of_node_share = tx.is_of_node_share();
        if is_of_node_share {
            let txs = &self.txs;
            for seq in self.node_share.room_for(fees, size_bytes, base_fee_wei, txs)? {
                self.remove_tx(seq, RemoveReason::Evicted);
            }
        } else {
            claims = self.make_room_for_first(&counted, claims)?;
        }
        let seq = self.tell(Effect::Added(Event::Added(Arc::clone(&order))));
        let terms = tx.private_terms();
        let last_block = terms.filter(|_| !tx.is_public()).map(|terms| terms.max_block);
        let until = self.now.saturating_add(self.limits.options.tx_retention);
        let until = last_block.is_none().then_some(until);
        self.index.insert(tx.hash(), seq);
        let entry = TxEntry {
            order: Arc::clone(&order),
            fees,
            counted,
            retention: Retention { is_listed: false, until, last_block },
            signer: terms.and_then(|terms| terms.signer),
            is_of_node_share,
        };
        self.txs.insert(seq, entry);
        if is_of_node_share {
            self.node_share.insert(seq, fees, size_bytes, &self.txs);
        } else {
            self.external.add(size_bytes);
            self.add_claims(seq, &counted, claims);
        }
        Ok(seq)
    }

    /// Removes a transaction for a block, and keeps what a reorg needs to put it back.
    pub(super) fn take_tx_for_block(
        &mut self,
        seq: u64,
        reason: RemoveReason,
    ) -> Option<TakenOrder> {
        let claims = self.claims.holders(seq, MAX_TAKEN_CLAIMS);
        let TxEntry { order, retention, signer, .. } = self.remove_tx(seq, reason)?;
        Some(TakenOrder { order, claims, retention, signer })
    }

    /// Takes a transaction out of everything but the index, without an event.
    fn take_tx(&mut self, seq: u64) -> Option<TxEntry> {
        let entry = self.txs.remove(seq)?;
        let size_bytes = entry.order.size_bytes();
        if entry.is_of_node_share {
            self.node_share.remove(seq, entry.fees, size_bytes);
        } else {
            self.claims.remove(seq, &entry.counted);
            self.external.subtract(size_bytes);
        }
        Some(entry)
    }

    pub(super) fn remove_tx(&mut self, seq: u64, reason: RemoveReason) -> Option<TxEntry> {
        let entry = self.take_tx(seq)?;
        self.leave(seq, &entry.order, reason);
        Some(entry)
    }

    /// Puts back orders that a reorg un-mined, transactions for a full retention from now, because
    /// they are pending anew, and evicts others for them as for new ones. Stops once it has touched `limit`
    /// transactions, those of bundles included, and takes the orders that are done. Returns how many are back,
    /// and why there was no room for others.
    pub(crate) fn put_back(
        &mut self,
        orders: &mut VecDeque<TakenOrder>,
        limit: usize,
    ) -> (u64, Vec<RejectReason>) {
        let (mut count, mut refused, mut touched) = (0, Vec::new(), 0);
        while touched < limit
            && let Some(taken) = orders.pop_front()
        {
            touched += taken.order.txs();
            let before = self.effects.len();
            let is_back = match &*taken.order {
                Order::Tx(_) => self.put_back_tx(&taken),
                Order::Bundle(_) => {
                    // Bundles whose block has passed must not take the room of this one.
                    let are_left = self.sweep();
                    let is_back = self.put_back_bundle(&taken);
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

    fn put_back_tx(&mut self, taken: &TakenOrder) -> Result<bool, RejectReason> {
        let Some(tx) = taken.order.as_tx() else { return Ok(false) };
        // Others may have sent it for later blocks than who sent it first.
        let max_ahead = self.limits.max_blocks_kept();
        let is_ahead = |block: &u64| self.check_last_block(*block, max_ahead).is_ok();
        let last_block = taken.retention.last_block.filter(is_ahead);
        let is_timed = taken.retention.is_listed
            || taken.retention.until.is_some()
            // One that came after its block may have become public since.
            || tx.is_public();
        let may_return = (last_block.is_some() || is_timed)
            && self.chain.taken(tx).is_none()
            && self.find(tx.hash()).is_none()
            // Its signer may have cancelled it while a block contained it.
            && self.private_cancellations.of(tx).is_none();
        if !may_return {
            return Ok(false);
        }
        let seq = self.pool_tx(Arc::clone(&taken.order), &taken.claims)?;
        let until = self.now.saturating_add(self.limits.options.tx_retention);
        let until = is_timed.then_some(until);
        self.txs.keep(seq, Retention { is_listed: false, until, last_block });
        if let Some(entry) = self.txs.get_mut(seq) {
            entry.signer = taken.signer;
        }
        Ok(true)
    }
}
