//! Decides which bundles enter, and which a message of their key, a block or a cancellation
//! removes.

use std::{sync::Arc, time::SystemTime};

use alloy_primitives::B256;
use chain_view::{Head, ObsoleteReason};

use super::{
    Core, Effect, Invalidation,
    chain::{MAX_RETAINED_CLAIMS, RemovedOrder},
    claims::{Claim, Kind, bundle_charge, charge_and_claim},
    keys::{KeyState, Slot},
    pooled_txs::Retention,
};
use crate::{
    arrival::unix_micros,
    config::MAX_TXS_PER_BUNDLE,
    error::RejectReason,
    event::{CancelOutcome, Event, InsertOutcome, RemoveReason},
    holder::Holder,
    order::{Bundle, Cancellation, Order, ReplacementKey},
    read::SeenState,
};

impl Core {
    /// Inserts a bundle, or returns why not. An empty bundle with a uuid is a cancellation.
    pub(crate) fn insert_bundle(
        &mut self,
        mut bundle: Bundle,
    ) -> Result<InsertOutcome, InsertOutcome> {
        self.sweep();
        let next = self.chain.head().map_or(0, |head| head.number.saturating_add(1));
        let (holder, first_seen) = (bundle.parts().holder, bundle.first_seen());
        let slot = bundle.key().map(|key| (key, Some(bundle.block().unwrap_or(next))));
        let state = self.merged_state(slot);
        let pooled = state.bundle.and_then(|seq| self.bundles.bundle(seq));
        if let Some(seq) = state.bundle
            && pooled.is_some_and(|pooled| pooled.content() == bundle.content())
        {
            // A replacement or a cancellation may have been sent in between to another machine.
            let is_later = slot.is_some()
                && bundle.nonce().is_none()
                && pooled.is_some_and(|pooled| pooled.first_seen() < first_seen);
            return self.add_bundle_holder(seq, holder, first_seen, is_later);
        }
        if bundle.txs().is_empty()
            && let Some(key) = bundle.key()
        {
            return self.cancel_by_bundle(key, &bundle);
        }
        let sent_at = unix_micros(first_seen);
        let nonce = slot.map(|_| state.assign_nonce(bundle.nonce(), sent_at)).transpose()?;
        let sent_at = bundle.nonce().is_none().then_some(sent_at);
        let block = self.check_bundle(&bundle, self.limits.max_blocks_ahead)?;
        if let Some(slot) = &slot {
            self.check_key(slot)?;
        }
        bundle.settle(block, nonce);
        let id = *bundle.id();
        if let Some(seq) = self.find(&id) {
            return self.add_bundle_holder(seq, holder, first_seen, false);
        }
        let seen = self.seen.table.state(&id);
        if seen == Some(SeenState::Known) {
            return Err(InsertOutcome::AlreadyRemoved);
        }
        let order = Order::Bundle(bundle);
        let (charge, claim) = charge_and_claim(&order, 0);
        self.make_room(self.next_seq, &charge, claim, state.bundle)?;
        // The state of this key may have been forgotten to make room for the keys of the evicted
        // bundles.
        let state = self.merged_state(slot);
        let old = state.bundle.and_then(|seq| self.detach_bundle(seq, RemoveReason::Replaced));
        if let Some((key, _)) = slot {
            self.end_cancellation(key);
        }
        self.add_bundle(Arc::new(order), sent_at, &[claim]);
        self.remember(&id, seen);
        Ok(old.map_or(InsertOutcome::Added, |old| InsertOutcome::Replaced { old: old.id() }))
    }

    /// Returns the state of a slot, combined with that of the key's cancellations.
    fn merged_state(&self, slot: Option<Slot>) -> KeyState {
        slot.map(|slot| self.keys.merged_with_cancellations(&slot)).unwrap_or_default()
    }

    fn add_bundle_holder(
        &mut self,
        seq: u64,
        holder: Holder,
        sent_at: SystemTime,
        is_later: bool,
    ) -> Result<InsertOutcome, InsertOutcome> {
        let Some(order) = self.order(seq).map(Arc::clone) else {
            return Ok(InsertOutcome::Known);
        };
        if self.add_holder(seq, &bundle_charge(&order), (Kind::Bundle, holder))? || is_later {
            let held = Event::Held { order, holder, terms: None, sent_at };
            self.publish(Effect::Transient(held));
        }
        Ok(InsertOutcome::Known)
    }

    /// Cancels the messages of a key up to a nonce; without a nonce, permanently. Publishes the
    /// cancellation, unless too many cancellations of unknown keys were published.
    pub(crate) fn cancel_bundle(&mut self, cancellation: Cancellation) -> CancelOutcome {
        let Cancellation { key, nonce, holder, sent_at } = cancellation;
        let sent_at = sent_at.map(unix_micros);
        let all = self.keys.get(&(key, None));
        if all.is_final {
            return CancelOutcome::CancelledPermanently;
        }
        let blocks = self.keys.block_slots(&key);
        if let Some(nonce) = nonce {
            // The cancellation must be above the last one, and above the bundle of at least one
            // block.
            let lowest = blocks.iter().filter_map(|(_, state)| state.nonce).min();
            if let Some(current) = all.nonce.max(lowest).filter(|current| nonce <= *current) {
                return CancelOutcome::Superseded { nonce, current };
            }
        }
        let is_final = nonce.is_none();
        let mut removed = 0;
        for (slot, state) in &blocks {
            if !is_final && state.nonce >= nonce {
                continue;
            }
            let bundle =
                state.bundle.and_then(|seq| self.detach_bundle(seq, RemoveReason::Cancelled));
            removed += usize::from(bundle.is_some());
            // The state of the key's cancellations covers this slot from now on.
            self.keys.forget(*slot);
        }
        let mut published = all.published;
        if self.keys.may_publish(&key, &holder, !blocks.is_empty(), self.now) {
            self.effects.extend(published.map(Effect::CancellationEnded));
            published = Some(self.publish(Effect::Added(Event::Cancelled(cancellation))));
        }
        let nonce = nonce.or(all.nonce);
        let state = KeyState { nonce, sent_at, is_final, published, holder, ..all };
        self.keys.set((key, None), state, self.now);
        self.forget_excess_keys(&holder);
        CancelOutcome::Cancelled { removed }
    }

    /// Applies an empty bundle, which cancels the key's earlier messages. Without a nonce it
    /// cancels all that were not sent later.
    fn cancel_by_bundle(
        &mut self,
        key: ReplacementKey,
        bundle: &Bundle,
    ) -> Result<InsertOutcome, InsertOutcome> {
        let holder = bundle.parts().holder;
        let (nonce, sent_at) = match bundle.nonce() {
            Some(nonce) => (nonce, None),
            // Its nonce is above the highest of the messages that were not sent later.
            None => {
                let sent_at = unix_micros(bundle.first_seen());
                let all = self.keys.get(&(key, None));
                let states = self.keys.block_slots(&key).into_iter().map(|(_, state)| state);
                let earlier = states.chain([all]).filter(|state| !state.is_later_than(sent_at));
                let nonce = earlier.map(|state| state.nonce).max().flatten();
                let highest = KeyState { nonce, is_final: all.is_final, ..KeyState::default() };
                (highest.assign_nonce(None, sent_at)?, Some(bundle.first_seen()))
            }
        };
        Ok(self.cancel_bundle(Cancellation { key, nonce: Some(nonce), holder, sent_at }).into())
    }

    /// Remembers an accepted order. `seen` is its earlier state.
    pub(super) fn remember(&mut self, id: &B256, seen: Option<SeenState>) {
        if seen.is_some() {
            // It gets a new position in the window.
            self.seen.forget(id);
        }
        self.seen.insert(id);
    }

    /// One step of [`Self::sweep`]: removes the next bundle that watches an obsolete transaction,
    /// or lets it watch another one. If no such bundle is left, takes the invalidation off the
    /// queue and returns false.
    pub(super) fn sweep_invalidation(&mut self, head: Head, invalidation: Invalidation) -> bool {
        let recent = &self.chain.recent;
        let (next, is_valid, reason) = match invalidation {
            Invalidation::Mined(hash) => {
                (self.bundles.first_with_tx(&hash), recent.is_mined(&hash), RemoveReason::Mined)
            }
            Invalidation::Stale { sender, next_nonce } => {
                let next = self.bundles.first_with_nonce_below(sender, next_nonce);
                let is_valid = recent.next_nonce(&sender) >= Some(next_nonce);
                (next, is_valid, RemoveReason::StaleNonce)
            }
        };
        // If the block was undone meanwhile, the block that replaced it has invalidations of its
        // own. If it was undone and has returned, its nonces are not raised again yet: the bundle
        // is still valid, and would be the next one for ever.
        let Some(seq) = next.filter(|_| is_valid && recent.block(&head.hash).is_some()) else {
            self.invalidations.pop_front();
            return false;
        };
        let Some(bundle) = self.bundles.bundle(seq) else { return false };
        if self.first_obsolete(bundle).is_none() {
            let index = self.first_valid_tx(bundle).unwrap_or(0);
            self.bundles.watch(seq, index);
        } else {
            self.remove_invalid(seq, reason, &head);
        }
        true
    }

    /// Removes a bundle that a block has made invalid, and keeps it in case a reorg undoes `head`.
    fn remove_invalid(&mut self, seq: u64, reason: RemoveReason, head: &Head) {
        let claims = self.claims.holders(seq, MAX_RETAINED_CLAIMS);
        if let Some(order) = self.remove_bundle(seq, reason) {
            let (retention, signer) = (Retention::default(), None);
            let removed = RemovedOrder { order, claims, retention, signer };
            self.chain.retain_invalidated(head, removed);
        }
    }

    /// Removes a bundle whose block is `head` or a lower one, before [`Self::sweep`] does. If a
    /// block has also made it invalid, it is kept, as there. A reorg that could put it back undoes
    /// `head` too, because its block must be ahead.
    pub(super) fn remove_expired(&mut self, seq: u64, head: &Head) {
        let obsolete = self.bundles.bundle(seq).and_then(|bundle| self.first_obsolete(bundle));
        match obsolete {
            None => _ = self.remove_bundle(seq, RemoveReason::BlockPassed),
            Some((_, ObsoleteReason::StaleNonce { .. })) => {
                self.remove_invalid(seq, RemoveReason::StaleNonce, head);
            }
            Some(_) => self.remove_invalid(seq, RemoveReason::Mined, head),
        }
    }

    /// Returns the index of the first transaction that is in no recent block and whose nonce is not
    /// used.
    fn first_valid_tx(&self, bundle: &Bundle) -> Option<usize> {
        bundle.txs().iter().position(|tx| self.chain.obsolete_reason(tx).is_none())
    }

    /// Returns the transaction that keeps a bundle out of every block, if there is one: the first
    /// obsolete one that is required, or the very first one if all are obsolete.
    pub(super) fn first_obsolete(&self, bundle: &Bundle) -> Option<(usize, ObsoleteReason)> {
        let mut first = None;
        let mut has_valid = false;
        for (index, tx) in bundle.txs().iter().enumerate() {
            match self.chain.obsolete_reason(tx) {
                None => has_valid = true,
                Some(reason) if !bundle.is_optional_at(index) => return Some((index, reason)),
                Some(reason) => first = first.or(Some((index, reason))),
            }
        }
        first.filter(|_| !has_valid)
    }

    /// Removes a bundle, and remembers the nonce of its key, so that a late message with a lower
    /// nonce has no effect. A message with the same nonce is accepted or refused like one without a
    /// key.
    pub(super) fn remove_bundle(&mut self, seq: u64, reason: RemoveReason) -> Option<Arc<Order>> {
        let order = self.detach_bundle(seq, reason)?;
        if let Some(slot) = order.as_bundle().and_then(slot_of) {
            let state = KeyState { bundle: None, ..self.keys.get(&slot) };
            self.keys.set(slot, state, self.now);
            self.forget_excess_keys(&state.holder);
        }
        Some(order)
    }

    /// Removes the bundle that a message of its key replaces for a block, without that message. A
    /// late message with a lower nonce has no effect. The message itself may be sent again, and may
    /// find room then, or be valid after a reorg.
    pub(crate) fn supersede(&mut self, slot: Slot, nonce: u64, holder: Holder) {
        let state = self.keys.get(&slot);
        if state.nonce < Some(nonce) {
            state.bundle.and_then(|seq| self.detach_bundle(seq, RemoveReason::Replaced));
            let state = KeyState { nonce: Some(nonce), holder, ..KeyState::default() };
            self.keys.set(slot, state, self.now);
            self.forget_excess_keys(&holder);
        }
    }

    /// See [`OrderPool::bundle_blocks`](crate::OrderPool::bundle_blocks).
    pub(crate) fn bundle_blocks(&self, key: &ReplacementKey) -> Vec<u64> {
        let slots = self.keys.block_slots(key).into_iter();
        slots.filter_map(|((_, block), _)| block).collect()
    }

    /// Puts back a bundle that a reorg made valid again, unless a later message of its key replaced
    /// it. Returns whether it is back.
    ///
    /// # Errors
    /// There is no room for it.
    pub(super) fn reinsert_bundle(&mut self, removed: &RemovedOrder) -> Result<bool, RejectReason> {
        let RemovedOrder { order, claims, .. } = removed;
        let Order::Bundle(bundle) = &**order else { unreachable!("the caller has a bundle") };
        let slot = slot_of(bundle);
        let is_latest = slot.is_none_or(|slot| {
            let (own, all) = (self.keys.get(&slot), self.keys.get(&(slot.0, None)));
            own.bundle.is_none()
                && own.nonce.is_none_or(|nonce| bundle.nonce() == Some(nonce))
                && !all.is_final
                && all.nonce < bundle.nonce()
        });
        let is_possible = self.check_bundle(bundle, self.limits.max_blocks_kept()).is_ok();
        if !is_latest || !is_possible || self.find(bundle.id()).is_some() {
            return Ok(false);
        }
        let (charge, claim) = charge_and_claim(order, 0);
        let claims = if claims.is_empty() { &[claim] } else { &claims[..] };
        let claims = self.make_room_for_first(&charge, claims)?;
        let sent_at = slot.and_then(|slot| self.keys.get(&slot).sent_at);
        self.add_bundle(Arc::clone(order), sent_at, claims);
        Ok(true)
    }

    /// Forgets keys without a bundle while this holder has too many.
    fn forget_excess_keys(&mut self, holder: &Holder) {
        while let Some(((key, _), state)) = self.keys.forget_excess(holder) {
            self.publish_forgotten(key, &state);
        }
    }

    pub(super) fn publish_forgotten(&mut self, key: ReplacementKey, state: &KeyState) {
        if let Some(added) = state.published {
            self.effects.push(Effect::CancellationEnded(added));
            self.publish(Effect::Transient(Event::CancellationForgotten(key)));
        }
    }

    /// Checks that a key does not have bundles for too many blocks. A cancellation removes all of
    /// them at once. They are few if there is a head, because no block is far ahead of it. Without
    /// a head they are counted.
    fn check_key(&self, slot: &Slot) -> Result<(), RejectReason> {
        if self.chain.head().is_some() {
            return Ok(());
        }
        let slots = self.keys.block_slots(&slot.0);
        let (value, limit) = (slots.len(), self.limits.max_blocks_ahead as usize);
        if value < limit || slots.iter().any(|(other, _)| other == slot) {
            return Ok(());
        }
        Err(RejectReason::TooMany { field: "replacementUuid", value, limit })
    }

    /// Makes the checks that depend on the pool. Returns the bundle's block, if it is known.
    fn check_bundle(&self, bundle: &Bundle, max_ahead: u64) -> Result<Option<u64>, RejectReason> {
        let parts = bundle.parts();
        let lists = [
            ("txs", parts.txs.len()),
            ("revertingTxHashes", parts.reverting_tx_hashes.len()),
            ("droppingTxHashes", parts.dropping_tx_hashes.len()),
        ];
        for (field, value) in lists {
            if value > MAX_TXS_PER_BUNDLE {
                let limit = MAX_TXS_PER_BUNDLE;
                return Err(RejectReason::TooMany { field, value, limit });
            }
        }
        let next = || self.chain.head().map(|head| head.number.saturating_add(1));
        let block = bundle.block().or_else(next);
        block.map_or(Ok(()), |block| self.check_last_block(block, max_ahead))?;
        let Some((index, reason)) = self.first_obsolete(bundle) else { return Ok(block) };
        let (hash, nonce) = (*bundle.txs()[index].hash(), bundle.txs()[index].nonce());
        Err(match reason {
            ObsoleteReason::StaleNonce { next_nonce: next } => {
                RejectReason::TxStale { index, hash, nonce, next }
            }
            _ => RejectReason::TxMined { index, hash },
        })
    }

    /// Adds a bundle that has its block and its nonce. `sent_at` is the time of a message that came
    /// without a nonce.
    fn add_bundle(&mut self, order: Arc<Order>, sent_at: Option<u64>, claims: &[Claim]) {
        let Some(bundle) = order.as_bundle() else { unreachable!("both callers have a bundle") };
        let seq = self.publish(Effect::Added(Event::Added(Arc::clone(&order))));
        self.index.insert(bundle.id(), seq);
        self.add_claims(seq, &bundle_charge(&order), claims);
        if let Some(slot) = slot_of(bundle) {
            let (nonce, bundle, holder) = (bundle.nonce(), Some(seq), order.holder());
            let state = KeyState { nonce, sent_at, bundle, holder, ..KeyState::default() };
            self.keys.set(slot, state, self.now);
        }
        let watched = self.first_valid_tx(bundle).unwrap_or(0);
        self.bundles.insert(seq, order, watched);
    }

    /// Removes a bundle from everything but its key.
    fn detach_bundle(&mut self, seq: u64, reason: RemoveReason) -> Option<Arc<Order>> {
        let order = self.bundles.remove(seq)?;
        self.claims.remove_order(seq, &bundle_charge(&order));
        self.publish_removal(seq, &order, reason);
        Some(order)
    }

    /// Hides the cancellation of a key from new subscribers, because a bundle of the key is valid
    /// again.
    fn end_cancellation(&mut self, key: ReplacementKey) {
        let all = self.keys.get(&(key, None));
        if let Some(added) = all.published {
            self.effects.push(Effect::CancellationEnded(added));
            self.keys.set((key, None), KeyState { published: None, ..all }, self.now);
        }
    }
}

/// Returns the slot of a pooled bundle among those of its key.
fn slot_of(bundle: &Bundle) -> Option<Slot> {
    bundle.key().map(|key| (key, Some(bundle.block().unwrap_or(0))))
}
