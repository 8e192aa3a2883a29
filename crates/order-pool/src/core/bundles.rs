//! Bundles: in, replaced, cancelled, out with their block.

use std::{sync::Arc, time::Duration};

use super::{Core, Effect};
use crate::{
    bundle::{Bundle, ReplacementKey},
    event::{CancelOutcome, InsertOutcome, RejectReason, RemoveReason},
    keys::{KeyState, Superseded, cancellation},
    order::{Order, OrderId},
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
        let pooled = state.bundle.and_then(|seq| self.bundles.get(&seq)?.as_bundle());
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
        let block = match self.check_bundle(&bundle, &state) {
            Ok(block) => block,
            Err(reason) => return InsertOutcome::Rejected(reason),
        };
        bundle.settle(block, nonce);
        let id = *bundle.id();
        if self.find(&id).is_some() || self.seen.fate(&id).is_some() {
            return InsertOutcome::Known;
        }
        let old =
            state.bundle.and_then(|seq| self.take_bundle(seq, RemoveReason::Replaced, effects));
        self.end_tombstone(&state, effects);
        let seq = self.add_bundle(bundle, effects);
        if let Some(key) = key {
            let state = KeyState { nonce, bundle: Some(seq), tombstone: None, ..state };
            self.keys.set(key, state, self.now);
        }
        self.seen.insert(&id);
        old.map_or(InsertOutcome::Added, |old| InsertOutcome::Replaced { old })
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

    /// Removes the bundles that cannot go into a block above `head` any more.
    pub(super) fn pass_block(&mut self, head: u64, effects: &mut Vec<Effect>) {
        let passed: Vec<u64> =
            self.bundles_by_block.range(..=(head, u64::MAX)).map(|(_, seq)| *seq).collect();
        for seq in passed {
            let key = self.bundles.get(&seq).and_then(|order| order.as_bundle()?.key());
            self.take_bundle(seq, RemoveReason::BlockPassed, effects);
            if let Some(key) = key {
                // The key's nonce is remembered: a late message of a lower one still does not count.
                let state = KeyState { bundle: None, ..self.keys.get(&key) };
                self.keys.set(key, state, self.now);
            }
        }
        self.forget_excess_keys(effects);
    }

    pub(super) fn forget_due_key(&mut self, effects: &mut Vec<Effect>) -> bool {
        let due = self.keys.forget_due(self.now);
        due.is_some_and(|(key, state)| {
            self.tell_forgotten(key, &state, effects);
            true
        })
    }

    fn forget_excess_keys(&mut self, effects: &mut Vec<Effect>) {
        while let Some((key, state)) = self.keys.forget_excess() {
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
    fn check_bundle(&self, bundle: &Bundle, state: &KeyState) -> Result<Option<u64>, RejectReason> {
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
        let replaced = state.bundle.and_then(|seq| self.bundles.get(&seq));
        let count = self.bundles.len() - usize::from(replaced.is_some());
        let bytes = self.bundle_bytes - replaced.map_or(0, |order| order.size_bytes());
        if count >= config.max_bundles || bytes + size_bytes > config.max_bundle_bytes {
            return Err(RejectReason::BundlesFull {
                count: self.bundles.len(),
                limit: config.max_bundles,
                bytes: self.bundle_bytes,
                limit_bytes: config.max_bundle_bytes,
            });
        }
        Ok(block)
    }

    fn add_bundle(&mut self, bundle: Bundle, effects: &mut Vec<Effect>) -> u64 {
        let seq = self.take_seq();
        self.index.insert(bundle.id(), seq);
        self.bundles_by_block.insert((bundle.block().unwrap_or(0), seq));
        let order = Arc::new(Order::Bundle(bundle));
        self.bundle_bytes += order.size_bytes();
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
    ) -> Option<OrderId> {
        let order = self.bundles.remove(&seq)?;
        let (id, size_bytes, block) = (order.id(), order.size_bytes(), order.block());
        self.index.remove(id.hash(), seq);
        self.bundles_by_block.remove(&(block.unwrap_or(0), seq));
        self.bundle_bytes -= size_bytes;
        let at = self.take_seq();
        effects.push(Effect::Removed { seq: at, added: seq, id, block, size_bytes, reason });
        Some(id)
    }

    /// Makes a cancellation count: the key's bundle goes, and everyone is told.
    fn entomb(
        &mut self,
        key: ReplacementKey,
        state: KeyState,
        effects: &mut Vec<Effect>,
    ) -> Option<OrderId> {
        let removed =
            state.bundle.and_then(|seq| self.take_bundle(seq, RemoveReason::Cancelled, effects));
        self.end_tombstone(&state, effects);
        let seq = self.take_seq();
        effects.push(Effect::Cancelled { seq, cancellation: cancellation(key, &state) });
        let state = KeyState { bundle: None, tombstone: Some(seq), ..state };
        self.keys.set(key, state, self.now);
        self.forget_excess_keys(effects);
        removed
    }

    fn end_tombstone(&self, state: &KeyState, effects: &mut Vec<Effect>) {
        if let Some(added) = state.tombstone {
            effects.push(Effect::TombstoneEnded { added, at: self.next_seq });
        }
    }
}
