//! The model's bundles.

use super::*;

impl Model {
    pub(super) fn is_obsolete(&self, (hash, sender, _): &(B256, u64, bool)) -> bool {
        self.is_mined(hash) || self.next_nonce(*sender).is_some_and(|next| next > 0)
    }

    /// Whether blocks made a required transaction of a bundle obsolete, or all of its transactions.
    pub(super) fn is_invalid(&self, order: &Pooled) -> bool {
        order.contents.iter().any(|tx| !tx.2 && self.is_obsolete(tx))
            || order.contents.iter().all(|tx| self.is_obsolete(tx))
    }

    /// Removes a bundle, and leaves its key without one.
    pub(super) fn end_bundle(&mut self, id: B256, reason: &str) -> Pooled {
        let order = self.remove(id, reason);
        if matches!(reason, "Evicted" | "BlockTooFar" | "BlockPassed") {
            self.may_return.insert(id);
        }
        if let Some(slot) = Self::slot_of(&order) {
            self.idle(slot);
            self.forget_excess(self.slot(slot).holder);
        }
        order
    }

    /// Returns the pooled bundles that match, in the order of acceptance.
    pub(super) fn bundles(&self, is: impl Fn(&Pooled) -> bool) -> Vec<B256> {
        let found = self.pooled.iter().filter(|order| order.tx.is_none() && is(order));
        let mut found: Vec<_> = found.map(|order| (order.seq, order.id)).collect();
        found.sort();
        found.into_iter().map(|(_, id)| id).collect()
    }

    /// Returns the block of a bundle. A bundle without one is for the next block.
    pub(super) fn settled_block(&self, order: &Pooled) -> Option<u64> {
        order.block.or(self.head_number().map(|head| head + 1))
    }

    pub(super) fn insert_bundle(
        &mut self,
        mut order: Pooled,
        nonce: Option<u64>,
        settled: B256,
    ) -> &'static str {
        let content = order.content;
        let block = self.settled_block(&order).unwrap_or(0);
        let slot = order.key.map(|key| (key, Some(block)));
        let old = slot.and_then(|slot| self.of_slot(slot));
        let is_same = |other: &Pooled| Some(other.id) == old && other.content == content;
        if let Some(same) = self.pooled.iter().find(|other| is_same(other)).map(|same| same.id) {
            return self.hold_bundle(same, &order);
        }
        if let Some(key) = order.key.filter(|_| order.contents.is_empty()) {
            return self.cancel_by_bundle(key, nonce, order.sent_at, order.holder);
        }
        let assign_nonce = |key| self.assign_nonce(key, block, nonce, order.sent_at);
        let nonce = match order.key.map(assign_nonce).transpose() {
            Ok(nonce) => nonce,
            Err((why, numbers)) => {
                self.superseded = numbers;
                return why;
            }
        };
        if order.block.is_some_and(|block| !self.is_ahead(block, MAX_AHEAD))
            || self.is_invalid(&order)
        {
            return "Rejected";
        }
        if let Some(slot) = slot.filter(|slot| !self.keys.contains_key(slot))
            && self.head_number().is_none()
            && self.keys.keys().filter(|other| other.0 == slot.0 && other.1.is_some()).count()
                >= MAX_AHEAD as usize
        {
            return "Rejected";
        }
        order.block = self.settled_block(&order);
        order.id = settled;
        order.nonce = nonce;
        let id = settled;
        if self.is_pooled(&id) {
            return self.hold_bundle(id, &order);
        }
        if self.was_accepted(&id) && !self.may_return.contains(&id) {
            return "AlreadyRemoved";
        }
        let claim = order.claim();
        let Ok(victims) = self.victims(&order, claim, old) else { return "Rejected" };
        self.evict(victims);
        if let Some(old) = old {
            self.remove(old, "Replaced");
        }
        if let Some(slot) = slot {
            let all = self.keys.get_mut(&(slot.0, None));
            if let Some((all, seq)) = all.and_then(|all| all.tombstone.take().map(|seq| (all, seq)))
            {
                self.ended.push((seq, self.log.len()));
                all.idle_since = Some(self.now);
            }
            self.fill(slot, &order);
        }
        self.accept(id);
        order.holders = vec![claim];
        self.add(order);
        if old.is_some() { "Replaced" } else { "Added" }
    }

    /// Puts back a bundle that a reorg made valid again.
    pub(super) fn reinsert_bundle(&mut self, mut order: Pooled) {
        let slot = Self::slot_of(&order);
        order.sent_at = slot.and_then(|slot| self.slot(slot).sent_at);
        let is_latest = slot.is_none_or(|slot| {
            let (own, all) = (self.slot(slot), self.slot((slot.0, None)));
            self.of_slot(slot).is_none()
                && !all.is_final
                && all.nonce < order.nonce
                && (own.nonce.is_none() || own.nonce == order.nonce)
        });
        if order.block.is_none_or(|block| self.is_ahead(block, MAX_KEPT_AHEAD))
            && is_latest
            && !self.is_invalid(&order)
            && !self.is_pooled(&order.id)
        {
            let Some(claims) = self.room_for_first(&order, order.retained_claims()) else {
                self.rejected += 1;
                return;
            };
            if let Some(slot) = slot {
                self.fill(slot, &order);
            }
            self.add_with_claims(order, &claims);
        }
    }
}
