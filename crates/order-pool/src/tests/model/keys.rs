//! The model's replacement keys.

use super::*;

impl Model {
    /// Returns the nonce of a key's message, or why the message has no effect.
    pub(super) fn assign_nonce(
        &self,
        key: usize,
        block: u64,
        nonce: Option<u64>,
        sent_at: Option<u64>,
    ) -> Result<u64, Refused> {
        let [all, own] = [None, Some(block)].map(|block| self.slot((key, block)));
        let highest = if all.nonce >= own.nonce { &all } else { &own };
        // Its bundle was removed, and not cancelled.
        let may_return = own.nonce > all.nonce && self.of_slot((key, Some(block))).is_none();
        match (nonce, highest.nonce) {
            _ if all.is_final => Err(("CancelledPermanently", [None; 2])),
            (Some(nonce), Some(current)) if nonce == current && may_return => Ok(nonce),
            (Some(nonce), Some(current)) if nonce <= current => {
                Err(("Superseded", [Some(nonce), highest.nonce]))
            }
            (Some(nonce), _) => Ok(nonce),
            (None, _) if highest.sent_at > sent_at => Err(("Superseded", [sent_at, highest.nonce])),
            (None, current) => Ok(sent_at.max(current.map(|current| current + 1)).unwrap_or(0)),
        }
    }

    pub(super) fn slot(&self, slot: KeySlot) -> KeyModel {
        self.keys.get(&slot).cloned().unwrap_or_default()
    }

    /// Returns the slot of a bundle that has a key.
    pub(super) fn slot_of(order: &Pooled) -> Option<KeySlot> {
        order.key.map(|key| (key, Some(order.block.unwrap_or(0))))
    }

    /// Sets the bundle of a slot.
    pub(super) fn fill(&mut self, slot: KeySlot, &Pooled { nonce, sent_at, holder, .. }: &Pooled) {
        self.keys.insert(slot, KeyModel { nonce, sent_at, holder, ..KeyModel::default() });
    }

    /// Returns the pooled bundle of a key for a block.
    pub(super) fn of_slot(&self, slot: KeySlot) -> Option<B256> {
        let mut pooled = self.pooled.iter();
        pooled.find(|order| Self::slot_of(order) == Some(slot)).map(|order| order.id)
    }

    pub(super) fn idle(&mut self, slot: KeySlot) {
        if self.of_slot(slot).is_none() {
            self.keys.entry(slot).or_default().idle_since = Some(self.now);
        }
    }

    pub(super) fn cancel(
        &mut self,
        key: usize,
        nonce: Option<u64>,
        sent_at: Option<u64>,
        holder: Holder,
    ) -> &'static str {
        let all = self.slot((key, None));
        if all.is_final {
            return "CancelledPermanently";
        }
        let blocks = self.keys.range((key, Some(0))..=(key, Some(u64::MAX)));
        let blocks: Vec<_> = blocks.map(|(slot, state)| (*slot, state.nonce)).collect();
        let lowest = blocks.iter().map(|(_, nonce)| *nonce).min().flatten();
        if nonce.is_some() && nonce <= all.nonce.max(lowest) {
            self.superseded = [nonce, all.nonce.max(lowest)];
            return "Superseded";
        }
        for (slot, of_block) in blocks {
            if nonce.is_none() || of_block < nonce {
                if let Some(id) = self.of_slot(slot) {
                    self.remove(id, "Cancelled");
                }
                self.keys.remove(&slot);
            }
        }
        let state = self.keys.entry((key, None)).or_default();
        state.nonce = nonce.or(state.nonce);
        state.sent_at = sent_at;
        state.is_final |= nonce.is_none();
        state.holder = holder;
        let before = state.tombstone.replace(self.log.len());
        self.ended.extend(before.map(|seq| (seq, self.log.len())));
        let published = if state.is_final { None } else { state.nonce };
        self.log.push((format!("x{key} {published:?}"), None));
        self.idle((key, None));
        self.forget_excess(holder);
        "Cancelled"
    }

    /// Applies a bundle without transactions, which cancels those up to its nonce. Without a nonce
    /// it cancels all that were not sent later.
    pub(super) fn cancel_by_bundle(
        &mut self,
        key: usize,
        nonce: Option<u64>,
        sent_at: Option<u64>,
        holder: Holder,
    ) -> &'static str {
        let slots = self.keys.range((key, None)..=(key, Some(u64::MAX)));
        let earlier = slots.filter(|(_, state)| state.sent_at <= sent_at);
        let above = earlier.filter_map(|(_, state)| Some(state.nonce? + 1)).max();
        self.cancel(key, nonce.or(above.max(sent_at)), sent_at, holder)
    }

    pub(super) fn idle_keys(&self) -> Vec<(u64, ReplacementKey, KeySlot)> {
        let idle = self.keys.iter().filter(|(slot, _)| self.of_slot(**slot).is_none());
        let since = |state: &KeyModel| state.idle_since.expect("it is idle");
        let mut idle: Vec<_> =
            idle.map(|(slot, state)| (since(state), key(slot.0), *slot)).collect();
        idle.sort();
        idle
    }

    pub(super) fn forget(&mut self, slot: KeySlot) {
        let state = self.keys.remove(&slot).expect("it is known");
        if let Some(seq) = state.tombstone {
            self.ended.push((seq, self.log.len()));
            self.log.push((format!("f{}", slot.0), None));
        }
    }

    /// Forgets keys while a holder has too many: of the holder, or else of the largest one, the
    /// oldest key of the signer with the most.
    pub(super) fn forget_excess(&mut self, holder: Holder) {
        loop {
            let idle = self.idle_keys();
            let holder_of = |slot: KeySlot| self.slot(slot).holder;
            let class: Vec<_> = idle
                .iter()
                .filter(|(_, _, slot)| is_known(holder_of(*slot)) == is_known(holder))
                .collect();
            let held_by =
                |holder| class.iter().filter(move |(_, _, slot)| holder_of(*slot) == holder);
            let holders = || class.iter().map(|(_, _, slot)| holder_of(*slot));
            let near = || holders().filter(|other| network(*other) == network(holder));
            let size = |holder: &Holder| (held_by(*holder).count(), *holder);
            let loser = if held_by(holder).count() > KEYS.for_holder(holder) {
                holder
            } else if near().count() > KEYS.for_network(holder) {
                near().max_by_key(size).expect("not empty")
            } else if class.len() > KEYS.half {
                holders().max_by_key(size).expect("not empty")
            } else {
                return;
            };
            let count = |signer| held_by(loser).filter(|(_, key, _)| key.signer == signer).count();
            let oldest = |signer| held_by(loser).find(|(_, key, _)| key.signer == signer).copied();
            let signers = held_by(loser).map(|(_, key, _)| key.signer);
            let most = signers.max_by_key(|signer| {
                let (since, key, slot) = oldest(*signer).expect("it has one");
                (count(*signer), std::cmp::Reverse((since, key, slot.1)), *signer)
            });
            let (_, _, slot) = *oldest(most.expect("not empty")).expect("it has one");
            self.forget(slot);
        }
    }
}
