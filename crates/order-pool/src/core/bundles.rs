//! Bundles: inserted, replaced, cancelled, removed with their block.

use std::sync::Arc;

use alloy_primitives::B256;
use chain_view::{Head, Taken};

use super::{
    Core, Effect, Ended,
    chain::{MAX_TAKEN_CLAIMS, TakenOrder},
    claims::{Claim, Kind, counted},
    keys::{KeyState, Slot, micros},
    pooled_txs::Retention,
};
use crate::{
    config::MAX_TXS_PER_BUNDLE,
    error::RejectReason,
    event::{CancelOutcome, Event, InsertOutcome, RemoveReason},
    holder::Holder,
    order::{Bundle, Cancellation, Order, ReplacementKey},
    read::SeenState,
};

impl Core {
    /// Inserts a bundle, or returns why not. An empty one with a uuid is a cancellation.
    pub(crate) fn insert_bundle(
        &mut self,
        mut bundle: Bundle,
    ) -> Result<InsertOutcome, InsertOutcome> {
        self.sweep();
        let next = self.chain.head().map_or(0, |head| head.number.saturating_add(1));
        let holder = bundle.parts().holder;
        let slot = bundle.key().map(|key| (key, Some(bundle.block().unwrap_or(next))));
        let known = |core: &Self| slot.map(|slot| core.keys.with_cancellations(&slot));
        let state = known(self).unwrap_or_default();
        let pooled = state.bundle.and_then(|seq| self.bundles.bundle(seq));
        if let Some(seq) = state.bundle
            && pooled.is_some_and(|pooled| pooled.content() == bundle.content())
        {
            return self.hold_bundle(seq, holder);
        }
        if bundle.txs().is_empty()
            && let Some(key) = bundle.key()
        {
            return self.cancel_by_bundle(key, &bundle);
        }
        let sent_at = micros(bundle.first_seen());
        let nonce = slot.map(|_| state.nonce_of(bundle.nonce(), sent_at)).transpose()?;
        let sent_at = bundle.nonce().is_none().then_some(sent_at);
        let block = self.check_bundle(&bundle, self.limits.max_blocks_ahead)?;
        if let Some(slot) = &slot {
            self.check_key(slot)?;
        }
        bundle.settle(block, nonce);
        let id = *bundle.id();
        if let Some(seq) = self.find(&id) {
            return self.hold_bundle(seq, holder);
        }
        let seen = self.seen.table.state(&id);
        if seen == Some(SeenState::Known) {
            return Err(InsertOutcome::AlreadyRemoved);
        }
        let order = Order::Bundle(bundle);
        let (counted, claim) = counted(&order, 0);
        self.make_room(self.next_seq, &counted, claim, state.bundle)?;
        // The state of this key may have been forgotten to make room for the keys of the evicted
        // bundles.
        let state = known(self).unwrap_or_default();
        let old = state.bundle.and_then(|seq| self.take_bundle(seq, RemoveReason::Replaced));
        if let Some((key, _)) = slot {
            self.end_cancellation(key);
        }
        self.add_bundle(Arc::new(order), sent_at, &[claim]);
        self.remember(&id, seen);
        Ok(old.map_or(InsertOutcome::Added, |old| InsertOutcome::Replaced { old: old.id() }))
    }

    fn hold_bundle(&mut self, seq: u64, holder: Holder) -> Result<InsertOutcome, InsertOutcome> {
        let Some(order) = self.order(seq).map(Arc::clone) else {
            return Ok(InsertOutcome::Known);
        };
        if self.hold(seq, &counted(&order, 0).0, (Kind::Bundle, holder))? {
            self.tell(Effect::Told(Event::Held { order, holder, terms: None }));
        }
        Ok(InsertOutcome::Known)
    }

    /// Cancels messages up to a nonce; without one, permanently. Publishes that, unless too many
    /// cancellations of unknown keys were published.
    pub(crate) fn cancel_bundle(&mut self, cancellation: Cancellation) -> CancelOutcome {
        let Cancellation { key, nonce, holder, sent_at } = cancellation;
        let sent_at = sent_at.map(micros);
        let all = self.keys.get(&(key, None));
        if all.is_final {
            return CancelOutcome::CancelledPermanently;
        }
        let blocks = self.keys.blocks_of(&key);
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
            let taken = state.bundle.and_then(|seq| self.take_bundle(seq, RemoveReason::Cancelled));
            removed += usize::from(taken.is_some());
            // The cancellation already implies it.
            self.keys.forget(*slot);
        }
        let mut published = all.published;
        if self.keys.publishes(&key, &holder, !blocks.is_empty(), self.now) {
            self.effects.extend(published.map(Effect::CancellationEnded));
            published = Some(self.tell(Effect::Added(Event::Cancelled(cancellation))));
        }
        let all =
            KeyState { nonce: nonce.or(all.nonce), sent_at, is_final, published, holder, ..all };
        self.keys.set((key, None), all, self.now);
        self.forget_excess_keys(&holder);
        CancelOutcome::Cancelled { removed }
    }

    /// An empty bundle cancels earlier ones; without a nonce, all that were not sent later.
    fn cancel_by_bundle(
        &mut self,
        key: ReplacementKey,
        bundle: &Bundle,
    ) -> Result<InsertOutcome, InsertOutcome> {
        let holder = bundle.parts().holder;
        let (nonce, sent_at) = match bundle.nonce() {
            Some(nonce) => (nonce, None),
            // It gets one of its own, above the highest of these.
            None => {
                let sent_at = micros(bundle.first_seen());
                let all = self.keys.get(&(key, None));
                let states = self.keys.blocks_of(&key).into_iter().map(|(_, state)| state);
                let earlier = states.chain([all]).filter(|state| !state.is_later_than(sent_at));
                let nonce = earlier.map(|state| state.nonce).max().flatten();
                let highest = KeyState { nonce, is_final: all.is_final, ..KeyState::default() };
                (highest.nonce_of(None, sent_at)?, Some(bundle.first_seen()))
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

    /// One step of [`Self::sweep`]: the next bundle that an ended transaction may end. It leaves
    /// the bundles of that transaction: it is removed, or watches another one.
    pub(super) fn sweep_ended(&mut self, by: Head, ended: Ended) {
        let recent = &self.chain.recent;
        let (next, is_so, reason) = match ended {
            Ended::Mined(hash) => {
                (self.bundles.first_with_tx(&hash), recent.is_mined(&hash), RemoveReason::Mined)
            }
            Ended::Stale(sender, to) => {
                let next = self.bundles.first_with_nonce_below(sender, to);
                (next, recent.next_nonce(&sender) >= Some(to), RemoveReason::StaleNonce)
            }
        };
        // If the block was undone meanwhile, the one that replaced it has its own. If it has come back, it has not
        // raised the nonce again yet: nothing has taken the bundle, and it would be the next one for ever.
        let Some(seq) = next.filter(|_| is_so && recent.block(&by.hash).is_some()) else {
            self.ended.pop_front();
            return;
        };
        let Some(bundle) = self.bundles.bundle(seq) else { return };
        if self.taken(bundle).is_none() {
            let left = self.first_left(bundle).unwrap_or(0);
            self.bundles.watch(seq, left);
        } else {
            let claims = self.claims.holders(seq, MAX_TAKEN_CLAIMS);
            if let Some(order) = self.end_bundle(seq, reason) {
                let (retention, signer) = (Retention::default(), None);
                self.chain.take_ended(&by, TakenOrder { order, claims, retention, signer });
            }
        }
    }

    /// The first of its transactions that no block has and whose nonce is not used.
    fn first_left(&self, bundle: &Bundle) -> Option<usize> {
        bundle.txs().iter().position(|tx| self.chain.taken(tx).is_none())
    }

    /// The transaction because of which a bundle cannot go into any block: the first mined or stale
    /// one that may not be omitted, or the first of all if all are mined or stale.
    pub(super) fn taken(&self, bundle: &Bundle) -> Option<(usize, Taken)> {
        let mut first = None;
        let mut left = false;
        for (index, tx) in bundle.txs().iter().enumerate() {
            match self.chain.taken(tx) {
                None => left = true,
                Some(taken) if !bundle.is_optional(tx.hash()) => return Some((index, taken)),
                Some(taken) => first = first.or(Some((index, taken))),
            }
        }
        first.filter(|_| !left)
    }

    /// Removes a bundle, and remembers the nonce of its key, so that a late message with a lower
    /// nonce has no effect. One with the same nonce is taken or refused as one without a key.
    pub(super) fn end_bundle(&mut self, seq: u64, reason: RemoveReason) -> Option<Arc<Order>> {
        let order = self.take_bundle(seq, reason)?;
        if let Some(slot) = order.as_bundle().and_then(slot_of) {
            let state = KeyState { bundle: None, ..self.keys.get(&slot) };
            self.keys.set(slot, state, self.now);
            self.forget_excess_keys(&state.holder);
        }
        Some(order)
    }

    /// Ends what a message of a key replaces for a block, without the message: what is late and has a lower nonce has no
    /// effect. The message itself may come again, and find room, or after a reorg.
    pub(crate) fn supersede(&mut self, slot: Slot, nonce: u64, holder: Holder) {
        let state = self.keys.get(&slot);
        if state.nonce < Some(nonce) {
            state.bundle.and_then(|seq| self.take_bundle(seq, RemoveReason::Replaced));
            let state = KeyState { nonce: Some(nonce), holder, ..KeyState::default() };
            self.keys.set(slot, state, self.now);
            self.forget_excess_keys(&holder);
        }
    }

    /// Puts back a bundle that a reorg has freed, unless another took its place, or is refused for want of
    /// room. Returns whether it is back.
    pub(super) fn put_back_bundle(&mut self, taken: &TakenOrder) -> Result<bool, RejectReason> {
        let TakenOrder { order, claims, .. } = taken;
        let Order::Bundle(bundle) = &**order else { unreachable!("its caller has a bundle") };
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
        let (counted, claim) = counted(order, 0);
        let claims = if claims.is_empty() { &[claim] } else { &claims[..] };
        let claims = self.make_room_for_first(&counted, claims)?;
        let sent_at = slot.and_then(|slot| self.keys.get(&slot).sent_at);
        self.add_bundle(Arc::clone(order), sent_at, claims);
        Ok(true)
    }

    /// Called after a key of this holder lost its bundle.
    fn forget_excess_keys(&mut self, holder: &Holder) {
        while let Some(((key, _), state)) = self.keys.forget_excess(holder) {
            self.publish_forgotten(key, &state);
        }
    }

    pub(super) fn publish_forgotten(&mut self, key: ReplacementKey, state: &KeyState) {
        if let Some(added) = state.published {
            self.effects.push(Effect::CancellationEnded(added));
            self.tell(Effect::Told(Event::CancellationForgotten(key)));
        }
    }

    /// A cancellation removes the bundles of all blocks of a key at once. They are few, because no block is
    /// far ahead of the head; while there is none, they are counted.
    fn check_key(&self, slot: &Slot) -> Result<(), RejectReason> {
        if self.chain.head().is_some() {
            return Ok(());
        }
        let slots = self.keys.blocks_of(&slot.0);
        let (value, limit) = (slots.len(), self.limits.max_blocks_ahead as usize);
        if value < limit || slots.iter().any(|(other, _)| other == slot) {
            return Ok(());
        }
        Err(RejectReason::TooMany { field: "replacementUuid", value, limit })
    }

    /// The checks that depend on the pool. Returns the bundle's block, if it is known.
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
        let Some((index, taken)) = self.taken(bundle) else { return Ok(block) };
        let (hash, nonce) = (*bundle.txs()[index].hash(), bundle.txs()[index].nonce());
        Err(match taken {
            Taken::StaleNonce { next_nonce: next } => {
                RejectReason::TxStale { index, hash, nonce, next }
            }
            _ => RejectReason::TxMined { index, hash },
        })
    }

    /// Adds a bundle with its block and its nonce; `sent_at` is that of a message that came without
    /// one.
    fn add_bundle(&mut self, order: Arc<Order>, sent_at: Option<u64>, claims: &[Claim]) {
        let Some(bundle) = order.as_bundle() else { unreachable!("both callers have a bundle") };
        let seq = self.tell(Effect::Added(Event::Added(Arc::clone(&order))));
        self.index.insert(bundle.id(), seq);
        self.add_claims(seq, &counted(&order, 0).0, claims);
        if let Some(slot) = slot_of(bundle) {
            let (nonce, bundle, holder) = (bundle.nonce(), Some(seq), order.holder());
            let state = KeyState { nonce, sent_at, bundle, holder, ..KeyState::default() };
            self.keys.set(slot, state, self.now);
        }
        let left = self.first_left(bundle).unwrap_or(0);
        self.bundles.insert(seq, order, left);
    }

    /// Removes a bundle from everything but its key.
    fn take_bundle(&mut self, seq: u64, reason: RemoveReason) -> Option<Arc<Order>> {
        let order = self.bundles.remove(seq)?;
        self.claims.remove(seq, &counted(&order, 0).0);
        self.leave(seq, &order, reason);
        Some(order)
    }

    /// A bundle of the key is valid again, so new subscribers need not be told of its cancellation.
    fn end_cancellation(&mut self, key: ReplacementKey) {
        let all = self.keys.get(&(key, None));
        if let Some(added) = all.published {
            self.effects.push(Effect::CancellationEnded(added));
            self.keys.set((key, None), KeyState { published: None, ..all }, self.now);
        }
    }
}

/// The slot of a pooled bundle among those of its key.
fn slot_of(bundle: &Bundle) -> Option<Slot> {
    bundle.key().map(|key| (key, Some(bundle.block().unwrap_or(0))))
}
