//! Bundles: in, replaced, cancelled, out with their block.

use std::{sync::Arc, time::Duration};

use alloy_primitives::B256;
use chain_view::{Head, Taken};

use super::{Core, Effect};
use crate::{
    bundle::{Bundle, ReplacementKey},
    event::{CancelOutcome, InsertOutcome, RejectReason, RemoveReason},
    keys::{KeyState, Superseded, cancellation},
    order::{Order, OrderId},
    seen::Fate,
};

impl Core {
    /// Takes a bundle in, or says why not. An empty one with a uuid is a cancellation.
    pub(crate) fn insert_bundle(
        &mut self,
        mut bundle: Bundle,
        now: Duration,
        effects: &mut Vec<Effect>,
    ) -> InsertOutcome {
        self.advance(now);
        let key = bundle.key();
        let state = key.map(|key| self.keys.get(&key)).unwrap_or_default();
        let pooled = state.bundle.and_then(|seq| self.bundles.bundle(seq));
        if pooled.is_some_and(|pooled| pooled.content() == bundle.content()) {
            return InsertOutcome::Known;
        }
        let nonce = match key.map(|_| state.place(bundle.nonce())).transpose() {
            Ok(nonce) => nonce,
            Err(Superseded::Permanently) => return InsertOutcome::CancelledPermanently,
            Err(Superseded::By { nonce, current }) => {
                return InsertOutcome::Superseded { nonce, current };
            }
        };
        if bundle.txs().is_empty()
            && let Some(key) = key
        {
            let state = KeyState { nonce, ..state };
            self.entomb(key, state, effects);
            return InsertOutcome::Cancelled;
        }
        let block = match self.check_bundle(&bundle) {
            Ok(block) => block,
            Err(reason) => return InsertOutcome::Rejected(reason),
        };
        bundle.settle(block, nonce);
        let id = *bundle.id();
        if self.find(&id).is_some() {
            return InsertOutcome::Known;
        }
        let fate = self.seen.fate(&id);
        if fate == Some(Fate::Known) {
            return InsertOutcome::AlreadyRemoved;
        }
        let order = Order::Bundle(bundle);
        let victims = match self.room_for(&order, state.bundle) {
            Ok(victims) => victims,
            Err(reason) => return InsertOutcome::Rejected(reason),
        };
        self.evict_bundles(victims, effects);
        // What was remembered of this key may have had to go for the keys of these.
        let state = key.map(|key| self.keys.get(&key)).unwrap_or_default();
        let old =
            state.bundle.and_then(|seq| self.take_bundle(seq, RemoveReason::Replaced, effects));
        self.end_tombstone(&state, effects);
        let seq = self.add_bundle(Arc::new(order), effects);
        if let Some(key) = key {
            let state = KeyState { nonce, bundle: Some(seq), tombstone: None, seen: true, ..state };
            self.keys.set(key, state, self.now);
        }
        self.remember(&id, fate);
        old.map_or(InsertOutcome::Added, |old| InsertOutcome::Replaced { old: old.id() })
    }

    /// Cancels what came up to a nonce; permanently without one.
    pub(crate) fn cancel_bundle(
        &mut self,
        key: ReplacementKey,
        nonce: Option<u64>,
        now: Duration,
        effects: &mut Vec<Effect>,
    ) -> CancelOutcome {
        self.advance(now);
        let state = self.keys.get(&key);
        let state = match nonce.map(|nonce| state.place(Some(nonce))).transpose() {
            Err(Superseded::By { nonce, current }) => {
                return CancelOutcome::Superseded { nonce, current };
            }
            _ if state.is_final => return CancelOutcome::CancelledPermanently,
            Err(Superseded::Permanently) => return CancelOutcome::CancelledPermanently,
            Ok(None) => KeyState { is_final: true, ..state },
            Ok(nonce) => KeyState { nonce, ..state },
        };
        CancelOutcome::Cancelled { removed: self.entomb(key, state, effects) }
    }

    /// Remembers an order that was taken in. `fate` is what was known of it before.
    pub(super) fn remember(&mut self, id: &B256, fate: Option<Fate>) {
        if fate.is_some() {
            // Its place in the window is that of its return.
            self.seen.forget(id);
        }
        self.seen.insert(id);
    }

    /// Removes the bundles that cannot go into a block above `head` any more, and those for a block that
    /// is too far above it: they came while the pool knew no head, or a lower one followed.
    pub(super) fn pass_block(&mut self, head: u64, effects: &mut Vec<Effect>) {
        for seq in self.bundles.up_to(head) {
            self.end_bundle(seq, RemoveReason::BlockPassed, effects);
        }
        for seq in self.bundles.above(head.saturating_add(self.config.max_blocks_ahead)) {
            self.end_bundle(seq, RemoveReason::BlockTooFar, effects);
        }
    }

    /// Removes a bundle that blocks have taken: that contains a transaction which may not be left out and
    /// that a block contains or whose nonce is used, or none of the others.
    pub(super) fn end_bundle_if_taken(
        &mut self,
        seq: u64,
        head: &Head,
        reason: RemoveReason,
        effects: &mut Vec<Effect>,
    ) {
        let taken = self.bundles.bundle(seq).is_some_and(|bundle| self.taken(bundle).is_some());
        if taken && let Some(order) = self.end_bundle(seq, reason, effects) {
            self.chain.take(head, order);
        }
    }

    /// The transaction for which a bundle cannot go into any block: the first of those that blocks took
    /// and that may not be left out, or the first of all if they took all.
    fn taken(&self, bundle: &Bundle) -> Option<(usize, Taken)> {
        let mut first = None;
        let mut left = false;
        for (index, tx) in bundle.txs().iter().enumerate() {
            match self.chain.taken_tx(tx) {
                None => left = true,
                Some(taken) if !bundle.is_optional(tx.hash()) => return Some((index, taken)),
                Some(taken) => first = first.or(Some((index, taken))),
            }
        }
        first.filter(|_| !left)
    }

    /// Takes a bundle out, and remembers the nonce of its key: a late message of a lower one still does
    /// not count.
    fn end_bundle(
        &mut self,
        seq: u64,
        reason: RemoveReason,
        effects: &mut Vec<Effect>,
    ) -> Option<Arc<Order>> {
        let order = self.take_bundle(seq, reason, effects)?;
        if let Some(key) = order.as_bundle().and_then(Bundle::key) {
            self.keys.set(key, KeyState { bundle: None, ..self.keys.get(&key) }, self.now);
            self.forget_excess_keys(&key, effects);
        }
        Some(order)
    }

    fn evict_bundles(&mut self, victims: Vec<u64>, effects: &mut Vec<Effect>) {
        for seq in victims {
            self.end_bundle(seq, RemoveReason::Evicted, effects);
        }
    }

    /// Brings a bundle back that blocks had taken and a reorg has freed, if nothing came in its place.
    pub(super) fn put_back_bundle(&mut self, order: Arc<Order>, effects: &mut Vec<Effect>) -> bool {
        let Order::Bundle(bundle) = &*order else { unreachable!("its caller has a bundle") };
        let key = bundle.key();
        let state = key.map(|key| self.keys.get(&key)).unwrap_or_default();
        let is_latest = key.is_none()
            || (state.bundle.is_none()
                && !state.is_final
                && state.tombstone.is_none()
                && state.nonce.is_none_or(|nonce| bundle.nonce() == Some(nonce)));
        let may_return = is_latest
            && self.check_bundle(bundle).is_ok()
            && self.find(bundle.id()).is_none()
            && self.room_for(&order, None).is_ok_and(|victims| victims.is_empty());
        if !may_return {
            return false;
        }
        let nonce = bundle.nonce();
        let seq = self.add_bundle(Arc::clone(&order), effects);
        if let Some(key) = key {
            let state = KeyState { nonce, bundle: Some(seq), seen: true, ..state };
            self.keys.set(key, state, self.now);
        }
        true
    }

    pub(super) fn forget_due_key(&mut self, effects: &mut Vec<Effect>) -> bool {
        let due = self.keys.forget_due(self.now);
        due.is_some_and(|(key, state)| {
            self.tell_forgotten(key, &state, effects);
            true
        })
    }

    /// After a key of this signer lost its bundle.
    fn forget_excess_keys(&mut self, key: &ReplacementKey, effects: &mut Vec<Effect>) {
        while let Some((key, state)) = self.keys.forget_excess(&key.signer) {
            self.tell_forgotten(key, &state, effects);
        }
    }

    fn tell_forgotten(&mut self, key: ReplacementKey, state: &KeyState, effects: &mut Vec<Effect>) {
        if state.tombstone.is_some() {
            self.end_tombstone(state, effects);
            let seq = self.take_seq();
            effects.push(Effect::CancellationForgotten { seq, key });
        }
    }

    /// What depends on the pool. Returns the block it is for, if that can be said.
    fn check_bundle(&self, bundle: &Bundle) -> Result<Option<u64>, RejectReason> {
        let config = &self.config;
        let parts = bundle.parts();
        let lists = [
            ("txs", parts.txs.len()),
            ("revertingTxHashes", parts.reverting_tx_hashes.len()),
            ("droppingTxHashes", parts.dropping_tx_hashes.len()),
        ];
        for (field, value) in lists {
            if value > config.max_txs_per_bundle {
                let limit = config.max_txs_per_bundle;
                return Err(RejectReason::TooMany { field, value, limit });
            }
        }
        let head = self.chain.head().map(|head| head.number);
        let block = match (head, bundle.block()) {
            (None, block) => block,
            (Some(head), None) => Some(head.saturating_add(1)),
            (Some(head), Some(value)) if value <= head => {
                return Err(RejectReason::BlockPassed { value, limit: head.saturating_add(1) });
            }
            (Some(head), Some(value)) if value - head > config.max_blocks_ahead => {
                let limit = head.saturating_add(config.max_blocks_ahead);
                return Err(RejectReason::BlockTooFar { value, limit });
            }
            (Some(_), Some(block)) => Some(block),
        };
        let size_bytes = bundle.size_bytes() + crate::order::ORDER_OVERHEAD_BYTES;
        if size_bytes > config.max_bundle_bytes {
            let limit_bytes = config.max_bundle_bytes;
            return Err(RejectReason::TooLarge { size_bytes, limit_bytes });
        }
        match self.taken(bundle) {
            None => Ok(block),
            Some((index, taken)) => {
                let (hash, nonce) = (*bundle.txs()[index].hash(), bundle.txs()[index].nonce());
                Err(match taken {
                    Taken::StaleNonce { next_nonce: next } => {
                        RejectReason::TxStale { index, hash, nonce, next }
                    }
                    _ => RejectReason::TxMined { index, hash },
                })
            }
        }
    }

    /// Which bundles must go so that this one fits, if it takes the place of `replaced`.
    fn room_for(&self, order: &Order, replaced: Option<u64>) -> Result<Vec<u64>, RejectReason> {
        let Some(bundle) = order.as_bundle() else { unreachable!("all callers have a bundle") };
        self.bundles.room_for(bundle, order.size_bytes(), replaced, &self.config)
    }

    fn add_bundle(&mut self, order: Arc<Order>, effects: &mut Vec<Effect>) -> u64 {
        let seq = self.take_seq();
        self.index.insert(order.id().hash(), seq);
        effects.push(Effect::Added { seq, order: Arc::clone(&order) });
        self.bundles.insert(seq, order);
        seq
    }

    /// Takes a bundle out of everything but its key.
    fn take_bundle(
        &mut self,
        seq: u64,
        reason: RemoveReason,
        effects: &mut Vec<Effect>,
    ) -> Option<Arc<Order>> {
        let order = self.bundles.remove(seq)?;
        let id = order.id();
        self.index.remove(id.hash(), seq);
        if matches!(reason, RemoveReason::Evicted | RemoveReason::BlockTooFar) {
            self.seen.evicted(id.hash());
        }
        let at = self.take_seq();
        effects.push(Effect::Removed { seq: at, added: seq, order: Arc::clone(&order), reason });
        Some(order)
    }

    /// Makes a cancellation count: the key's bundle goes, and everyone is told, unless it is one of many
    /// of keys that nobody knows.
    fn entomb(
        &mut self,
        key: ReplacementKey,
        state: KeyState,
        effects: &mut Vec<Effect>,
    ) -> Option<OrderId> {
        let removed =
            state.bundle.and_then(|seq| self.take_bundle(seq, RemoveReason::Cancelled, effects));
        let mut state = KeyState { bundle: None, ..state };
        if self.keys.tells(&key, &state, self.now) {
            self.end_tombstone(&state, effects);
            let seq = self.take_seq();
            effects.push(Effect::Cancelled { seq, cancellation: cancellation(key, &state) });
            state = KeyState { tombstone: Some(seq), seen: false, ..state };
        }
        self.keys.set(key, state, self.now);
        self.forget_excess_keys(&key, effects);
        removed.map(|order| order.id())
    }

    fn end_tombstone(&self, state: &KeyState, effects: &mut Vec<Effect>) {
        if let Some(added) = state.tombstone {
            effects.push(Effect::TombstoneEnded { added, at: self.next_seq });
        }
    }
}
