//! Decides which transactions enter, in which share they count, and when one is removed.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, SystemTime},
};

use alloy_primitives::B256;
use chain_view::ObsoleteReason;

use super::{
    Core, Effect,
    chain::{MAX_RETAINED_CLAIMS, RemovedOrder},
    claims::{Claim, Kind, charge_and_claim},
    node_share::FeeCaps,
    pooled_txs::{Retention, TxEntry},
};
use crate::{
    arrival::unix_micros,
    error::RejectReason,
    event::{CancelPrivateOutcome, Event, InsertOutcome, RemoveReason},
    holder::Holder,
    order::{Order, PrivateCancellation, PrivateTerms, Transaction},
    read::SeenState,
};

/// A transaction that is sent again is kept longer only if that adds at least
/// `tx_retention / EXTENSION_DIVISOR` (a fifth), because subscribers are notified each time.
const EXTENSION_DIVISOR: u32 = 5;

/// The most transactions of one sender and nonce that are compared, of those that a node lists.
const MAX_SAME_NONCE: usize = 16;

/// The number of transactions as which some steps of a reinsertion count: to remove an expired
/// bundle, and to look for room among all signers of a holder. Each takes a tenth of a
/// millisecond.
const SLOW_STEP_TXS: usize = 64;

impl Core {
    pub(crate) fn insert_tx(&mut self, tx: Transaction) -> Result<InsertOutcome, InsertOutcome> {
        let (hash, nonce) = (*tx.hash(), tx.nonce());
        if let Some(seq) = self.find(&hash) {
            self.insert_duplicate(seq, &tx)?;
            return Ok(InsertOutcome::Known);
        }
        // Before the dedupe window, so that late announcements of mined transactions are counted
        // separately.
        match self.chain.obsolete_reason(&tx) {
            None => {}
            Some(ObsoleteReason::StaleNonce { next_nonce: next }) => {
                return Err(InsertOutcome::StaleNonce { nonce, next });
            }
            Some(_) => {
                self.chain.retain_late(tx);
                return Err(InsertOutcome::Mined);
            }
        }
        let seen = self.seen.table.state(&hash);
        if seen == Some(SeenState::Known) {
            return Err(InsertOutcome::AlreadyRemoved);
        }
        if let Some(cancelled_at) = self.private_cancellations.cancelled_at(&tx) {
            let [nonce, current] = [tx.first_seen(), cancelled_at].map(unix_micros);
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

    /// Records that a pooled transaction was inserted again. A transaction of an external caller
    /// that the node announces now moves to the node's share; if there is no room, it stays where
    /// it is.
    fn insert_duplicate(&mut self, seq: u64, again: &Transaction) -> Result<(), RejectReason> {
        let Some(order) = self.order(seq).map(Arc::clone) else { return Ok(()) };
        let Order::Tx(tx) = &*order else { return Ok(()) };
        if again.origin().is_external() {
            tx.record_repeat(again.origin(), again.first_seen());
            let sent_at = again.first_seen();
            return self.add_claim_to_tx(seq, again.holder(), again.private_terms(), sent_at);
        }
        if tx.record_repeat(again.origin(), again.first_seen()) {
            self.publish(Effect::Transient(Event::BecamePublic(Arc::clone(&order))));
        }
        let seq = self.move_to_node_share(seq, tx, again);
        if again.is_listed() {
            self.list(seq);
        } else {
            self.keep_for_retention(seq);
        }
        Ok(())
    }

    /// Moves a transaction to the node's share. If its blobs have proofs in the EIP-4844 form, the
    /// node's envelope replaces its own. If there is no room it stays unchanged. Returns its
    /// sequence number, which changes with the envelope.
    fn move_to_node_share(&mut self, seq: u64, tx: &Transaction, again: &Transaction) -> u64 {
        let Some(entry) = self.txs.get(seq) else { return seq };
        let is_old = tx.has_older_sidecar_than(again);
        if entry.is_of_node_share && !is_old {
            return seq;
        }
        let fees = entry.fees;
        let order = if is_old {
            Arc::new(Order::Tx(tx.with_envelope(again)))
        } else {
            Arc::clone(&entry.order)
        };
        let size_bytes = order.size_bytes();
        let base_fee_wei = self.chain.next_base_fee_wei();
        let plan = self.node_share.plan_evictions(fees, size_bytes, base_fee_wei, &self.txs);
        let Ok(victims) = plan else { return seq };
        for victim in victims.into_iter().filter(|victim| *victim != seq) {
            self.remove_tx(victim, RemoveReason::Evicted);
        }
        if is_old {
            return self.replace_envelope(seq, order);
        }
        if let Some(entry) = self.txs.get_mut(seq) {
            entry.is_of_node_share = true;
            self.claims.remove_order(seq, &entry.charge);
            self.external.subtract(size_bytes);
        }
        self.node_share.insert(seq, fees, size_bytes, &self.txs);
        seq
    }

    /// Removes a pooled transaction and adds it again as `order`, in the node's share: the same
    /// signed transaction with the sidecar that the node announced. Returns its new sequence
    /// number.
    fn replace_envelope(&mut self, seq: u64, order: Arc<Order>) -> u64 {
        let Some(mut entry) = self.detach_tx(seq) else { return seq };
        self.publish_removal(seq, &entry.order, RemoveReason::Replaced);
        let seq = self.publish(Effect::Added(Event::Added(Arc::clone(&order))));
        self.index.insert(order.id().hash(), seq);
        entry.order = Arc::clone(&order);
        entry.is_of_node_share = true;
        let fees = entry.fees;
        self.txs.insert(seq, entry);
        self.node_share.insert(seq, fees, order.size_bytes(), &self.txs);
        seq
    }

    /// Keeps a transaction that a node lists until the node no longer lists it. Of several listed
    /// transactions with its sender and nonce, the node has replaced one that pays less in both
    /// fees.
    fn list(&mut self, seq: u64) {
        let Some(entry) = self.txs.get(seq) else { return };
        let (fees, retention) = (entry.fees, entry.retention);
        let Some((sender, nonce)) = entry.order.as_tx().map(|tx| (tx.sender(), tx.nonce())) else {
            return;
        };
        self.txs.set_retention(seq, Retention { is_listed: true, until: None, ..retention });
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
            self.txs.set_retention(seq, retention);
            self.keep_for_retention(seq);
        }
    }

    /// Notes for at most `limit` transactions from sequence number `begin` to `end` that no node
    /// lists them. Returns where the next ones begin.
    pub(crate) fn unlist_from(&mut self, begin: u64, end: u64, limit: usize) -> Option<u64> {
        let some = self.txs.iter_from(begin).map(|(seq, _)| seq).take(limit);
        let some: Vec<u64> = some.take_while(|seq| *seq < end).collect();
        some.iter().for_each(|seq| self.unlist(*seq));
        some.last().map(|seq| seq + 1)
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

    /// Keeps a transaction until `tx_retention` from now, if no node lists it, and if that is later
    /// than before by at least a fifth of `tx_retention`. A transaction that a node lists is kept
    /// until it is unlisted. Returns whether the transaction is kept longer than before.
    fn keep_for_retention(&mut self, seq: u64) -> bool {
        let Some(retention) = self.txs.get(seq).map(|entry| entry.retention) else { return false };
        let tx_retention = self.limits.options.tx_retention;
        let until = self.now.saturating_add(tx_retention);
        let is_longer = !retention.is_listed
            && retention.until.is_none_or(|before| {
                before.saturating_add(tx_retention / EXTENSION_DIVISOR) <= until
            });
        if is_longer {
            self.txs.set_retention(seq, Retention { until: Some(until), ..retention });
        }
        is_longer
    }

    /// See [`OrderPool::add_holder`](crate::OrderPool::add_holder).
    pub(crate) fn add_tx_holder(
        &mut self,
        hash: &B256,
        holder: Holder,
        terms: Option<&PrivateTerms>,
        sent_at: SystemTime,
    ) -> Result<InsertOutcome, InsertOutcome> {
        let seq = self.find(hash).ok_or(InsertOutcome::AlreadyRemoved)?;
        self.add_claim_to_tx(seq, holder, terms, sent_at)?;
        Ok(InsertOutcome::Known)
    }

    /// Adds a caller to the holders of a pooled transaction; with `terms` it sends the transaction
    /// as a private one. The transaction is kept for as long as any of its holders wants, and never
    /// shorter than before.
    fn add_claim_to_tx(
        &mut self,
        seq: u64,
        holder: Holder,
        terms: Option<&PrivateTerms>,
        sent_at: SystemTime,
    ) -> Result<(), RejectReason> {
        let Some(entry) = self.txs.get(seq) else { return Ok(()) };
        let Some(tx) = entry.order.as_tx() else { return Ok(()) };
        let (order, signer) = (Arc::clone(&entry.order), entry.signer);
        let mut is_news = if entry.is_of_node_share {
            // It counts for nobody here, but other pools count a transaction that this host vouches
            // for.
            !tx.is_public() && order.holder() != holder
        } else {
            let charge = entry.charge;
            self.add_holder(seq, &charge, (Kind::of_tx(terms), holder))?
        };
        if let Some(entry) = self.txs.get_mut(seq) {
            let new_signer = terms.and_then(|terms| terms.signer);
            entry.signer = entry.signer.filter(|own| Some(*own) == new_signer);
            is_news |= entry.signer != signer;
            // A cancellation that was sent in between, perhaps to another machine, does not cancel
            // it.
            if entry.signer.is_some() && entry.sent_at < sent_at {
                entry.sent_at = sent_at;
                is_news = true;
            }
        }
        is_news |= match terms {
            Some(terms) => self.keep_until_block(seq, terms.max_block),
            None => self.keep_for_retention(seq),
        };
        if is_news && !order.as_tx().is_some_and(Transaction::is_public) {
            let held = Event::Held { order, holder, terms: terms.copied(), sent_at };
            self.publish(Effect::Transient(held));
        }
        Ok(())
    }

    /// Keeps a transaction at least until this block, if the block is ahead and not too far.
    /// Returns whether that is longer than before.
    fn keep_until_block(&mut self, seq: u64, block: u64) -> bool {
        let Some(retention) = self.txs.get(seq).map(|entry| entry.retention) else { return false };
        let is_longer = retention.last_block < Some(block)
            && self.check_last_block(block, self.limits.max_blocks_ahead).is_ok();
        if is_longer {
            self.txs.set_retention(seq, Retention { last_block: Some(block), ..retention });
        }
        is_longer
    }

    fn check_terms(&self, tx: &Transaction, max_ahead: u64) -> Result<(), RejectReason> {
        let terms = tx.private_terms().filter(|_| !tx.is_public());
        terms.map_or(Ok(()), |terms| self.check_last_block(terms.max_block, max_ahead))
    }

    /// Checks that the only block of a bundle, or the last block of a private transaction, is ahead
    /// of the head, by at most `max_ahead`.
    pub(super) fn check_last_block(&self, value: u64, max_ahead: u64) -> Result<(), RejectReason> {
        let Some(head) = self.chain.head().map(|head| head.number) else { return Ok(()) };
        if value <= head {
            return Err(RejectReason::BlockPassed { value, limit: head.saturating_add(1) });
        }
        let limit = head.saturating_add(max_ahead);
        if value > limit { Err(RejectReason::BlockTooFar { value, limit }) } else { Ok(()) }
    }

    /// Removes at most `limit` private transactions whose last block is the head or a lower one, or
    /// is above [`Self::last_kept_block`], unless something else keeps them. Returns whether more
    /// are left.
    pub(crate) fn expire_private(&mut self, limit: usize) -> bool {
        let Some(head) = self.chain.head().map(|head| head.number) else { return false };
        let highest = self.last_kept_block(head);
        for _ in 0..limit {
            let Some((block, seq)) = self.txs.expired_by_block(head, highest) else { return false };
            let Some(retention) = self.txs.get(seq).map(|entry| entry.retention) else {
                return false;
            };
            if retention.is_listed || retention.until.is_some() {
                self.txs.set_retention(seq, Retention { last_block: None, ..retention });
            } else if block <= head {
                self.remove_tx(seq, RemoveReason::BlockPassed);
            } else {
                self.remove_tx(seq, RemoveReason::BlockTooFar);
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
            self.txs.set_retention(seq, Retention { until: None, ..retention });
        } else {
            self.remove_tx(seq, RemoveReason::Expired);
        }
        true
    }

    /// Removes a private transaction on request of its signer, and remembers the cancellation for
    /// the retention less its `age`. Otherwise the old cancellations of a replayed stream would
    /// take the room of new ones.
    pub(crate) fn cancel_private(
        &mut self,
        cancellation: PrivateCancellation,
        age: Duration,
    ) -> CancelPrivateOutcome {
        let PrivateCancellation { hash, signer, cancelled_at, .. } = cancellation;
        let found = self.find(&hash);
        let tx = found.and_then(|seq| self.order(seq)).and_then(|order| order.as_tx());
        if tx.is_some_and(Transaction::is_public) {
            return CancelPrivateOutcome::Public;
        }
        let is_own = |terms: &PrivateTerms| terms.signer == Some(signer);
        let own = tx.filter(|tx| tx.private_terms().is_some_and(is_own));
        let entry = found.and_then(|seq| self.txs.get(seq));
        let is_sent_later = entry.is_some_and(|entry| entry.sent_at > cancelled_at);
        // Another caller sent it too.
        let is_shared = entry.is_none_or(|entry| entry.signer != Some(signer));
        if own.is_some() && is_shared {
            return CancelPrivateOutcome::Public;
        }
        // A transaction that was sent again after the cancellation stays.
        let cancelled = found.filter(|_| own.is_some() && !is_sent_later);
        if let Some(seq) = cancelled {
            self.remove_tx(seq, RemoveReason::Cancelled);
        }
        let is_pooled = cancelled.is_some();
        let left = self.limits.cancellation_retention.saturating_sub(age);
        let now = self.now;
        if !left.is_zero() && self.private_cancellations.admits(&cancellation, is_pooled, now) {
            let forget_at = self.now.saturating_add(left);
            let (replaced, forgotten) =
                self.private_cancellations.add(cancellation, self.next_seq, forget_at);
            self.effects.extend(replaced.map(Effect::CancellationEnded));
            self.publish(Effect::Added(Event::CancelledPrivate(cancellation)));
            // The forgotten one may be this one, if the others are forgotten later.
            self.effects.extend(forgotten.map(Effect::PrivateCancellationForgotten));
        }
        if is_pooled { CancelPrivateOutcome::Cancelled } else { CancelPrivateOutcome::Unknown }
    }

    /// Adds a transaction, evicting others if necessary, and returns its sequence number. Either
    /// everything happens or nothing. The holders of `claims` hold it, or the one that sent it if
    /// there are none.
    fn pool_tx(&mut self, order: Arc<Order>, claims: &[Claim]) -> Result<u64, RejectReason> {
        let Order::Tx(tx) = &*order else { unreachable!("both callers have a transaction") };
        let (fees, size_bytes) = (FeeCaps::new(tx), order.size_bytes());
        let base_fee_wei = self.chain.next_base_fee_wei();
        let (charge, claim) = charge_and_claim(&order, base_fee_wei);
        let mut claims = if claims.is_empty() { &[claim] } else { claims };
        let is_of_node_share = tx.is_of_node_share();
        if is_of_node_share {
            let txs = &self.txs;
            for seq in self.node_share.plan_evictions(fees, size_bytes, base_fee_wei, txs)? {
                self.remove_tx(seq, RemoveReason::Evicted);
            }
        } else {
            claims = self.make_room_for_first(&charge, claims)?;
        }
        let seq = self.publish(Effect::Added(Event::Added(Arc::clone(&order))));
        let terms = tx.private_terms();
        let last_block = terms.filter(|_| !tx.is_public()).map(|terms| terms.max_block);
        let until = self.now.saturating_add(self.limits.options.tx_retention);
        let until = last_block.is_none().then_some(until);
        self.index.insert(tx.hash(), seq);
        let entry = TxEntry {
            order: Arc::clone(&order),
            fees,
            charge,
            retention: Retention { is_listed: false, until, last_block },
            signer: terms.and_then(|terms| terms.signer),
            sent_at: tx.first_seen(),
            is_of_node_share,
        };
        self.txs.insert(seq, entry);
        if is_of_node_share {
            self.node_share.insert(seq, fees, size_bytes, &self.txs);
        } else {
            self.external.add(size_bytes);
            self.add_claims(seq, &charge, claims);
        }
        Ok(seq)
    }

    /// Removes a transaction for a block, and returns what is needed to put it back after a reorg.
    pub(super) fn remove_tx_for_block(
        &mut self,
        seq: u64,
        reason: RemoveReason,
    ) -> Option<RemovedOrder> {
        let claims = self.claims.holders(seq, MAX_RETAINED_CLAIMS);
        let TxEntry { order, retention, signer, .. } = self.remove_tx(seq, reason)?;
        Some(RemovedOrder { order, claims, retention, signer })
    }

    /// Removes a transaction from everything but the index, without an event.
    fn detach_tx(&mut self, seq: u64) -> Option<TxEntry> {
        let entry = self.txs.remove(seq)?;
        let size_bytes = entry.order.size_bytes();
        if entry.is_of_node_share {
            self.node_share.remove(seq, entry.fees, size_bytes);
        } else {
            self.claims.remove_order(seq, &entry.charge);
            self.external.subtract(size_bytes);
        }
        Some(entry)
    }

    pub(super) fn remove_tx(&mut self, seq: u64, reason: RemoveReason) -> Option<TxEntry> {
        let entry = self.detach_tx(seq)?;
        self.publish_removal(seq, &entry.order, reason);
        Some(entry)
    }

    /// Puts back orders that a reorg un-mined, evicting others as a new order would. Transactions
    /// are kept for a full retention from now, because they are pending anew.
    ///
    /// Stops once it has touched `limit` transactions, those of bundles included, and takes the
    /// orders that are done off the queue. Returns how many are back, and why there was no room for
    /// others.
    pub(crate) fn reinsert(
        &mut self,
        orders: &mut VecDeque<RemovedOrder>,
        limit: usize,
    ) -> (u64, Vec<RejectReason>) {
        let (mut count, mut refused, mut touched) = (0, Vec::new(), 0);
        while touched < limit
            && let Some(removed) = orders.pop_front()
        {
            touched += removed.order.tx_count();
            let before = self.effects.len();
            let result = match &*removed.order {
                Order::Tx(_) => self.reinsert_tx(&removed),
                Order::Bundle(_) => {
                    // An expired bundle is removed first, so that it takes no room.
                    let are_left = self.sweep();
                    let result = self.reinsert_bundle(&removed);
                    touched += if are_left || result.is_err() { SLOW_STEP_TXS } else { 0 };
                    result
                }
            };
            match result {
                Ok(is_back) => count += u64::from(is_back),
                Err(reason) => refused.push(reason),
            }
            for effect in &self.effects[before..] {
                if let Effect::Removed { order, .. } = effect {
                    touched += order.tx_count();
                }
            }
        }
        (count, refused)
    }

    fn reinsert_tx(&mut self, removed: &RemovedOrder) -> Result<bool, RejectReason> {
        let Some(tx) = removed.order.as_tx() else { return Ok(false) };
        // Its last block may be farther ahead than the terms of the first sender say, because
        // others sent it for later blocks.
        let max_ahead = self.limits.max_blocks_kept();
        let is_ahead = |block: &u64| self.check_last_block(*block, max_ahead).is_ok();
        let last_block = removed.retention.last_block.filter(is_ahead);
        let is_timed = removed.retention.is_listed
            || removed.retention.until.is_some()
            // One that arrived after its block may have become public since.
            || tx.is_public();
        let is_valid = (last_block.is_some() || is_timed)
            && self.chain.obsolete_reason(tx).is_none()
            && self.find(tx.hash()).is_none()
            // Its signer may have cancelled it while a block contained it.
            && self.private_cancellations.cancelled_at(tx).is_none();
        if !is_valid {
            return Ok(false);
        }
        let seq = self.pool_tx(Arc::clone(&removed.order), &removed.claims)?;
        let until = self.now.saturating_add(self.limits.options.tx_retention);
        let until = is_timed.then_some(until);
        self.txs.set_retention(seq, Retention { is_listed: false, until, last_block });
        if let Some(entry) = self.txs.get_mut(seq) {
            entry.signer = removed.signer;
        }
        Ok(true)
    }
}
