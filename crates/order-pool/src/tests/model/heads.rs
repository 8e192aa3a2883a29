//! The model's blocks and nonces, and its upkeep.

use super::*;

impl Model {
    pub(super) fn on_head(&mut self, block: Block, replaced: usize) {
        let Block { head, mined: hashes, .. } = block;
        let undone = self.blocks.split_off(self.blocks.len() - replaced);
        let number = head.number;
        let is_gap = self.blocks.last().is_some_and(|last| last.head.hash != head.parent_hash);
        let unproven = if is_gap { std::mem::take(&mut self.blocks) } else { Vec::new() };
        self.may_return.retain(|id| !hashes.contains(id));
        self.blocks.push(BlockModel {
            head,
            mined: hashes.to_vec(),
            raised: BTreeMap::new(),
            removed: Vec::new(),
        });
        if self.blocks.len() > BLOCKS {
            self.blocks.remove(0);
        }
        let mut raised = Vec::new();
        for hash in hashes.iter() {
            // Some blocks contain the id of a bundle, which removes nothing.
            let is_match = |order: &Pooled| order.id == *hash && order.tx.is_some();
            if self.pooled.iter().any(is_match) {
                let order = self.remove(*hash, "Mined");
                raised.extend(
                    order
                        .tx
                        .and_then(|tx| self.raise(self.blocks.len() - 1, tx.sender, tx.nonce + 1)),
                );
                self.blocks.last_mut().expect("just pushed").removed.push(order);
            }
        }
        for hash in hashes.iter() {
            let with_it = |order: &Pooled| order.contents.iter().any(|tx| tx.0 == *hash);
            for id in self.bundles(|order| with_it(order) && self.is_invalid(order)) {
                let order = self.end_bundle(id, "Mined");
                self.blocks.last_mut().expect("just pushed").removed.push(order);
            }
        }
        let too_far = number + MAX_KEPT_AHEAD + 1..=u64::MAX;
        for (reason, blocks) in [("BlockPassed", 0..=number), ("BlockTooFar", too_far)] {
            let bundles = self.pooled.iter().filter(|order| order.tx.is_none());
            let over = bundles.filter(|order| blocks.contains(&order.block.unwrap_or(0)));
            let mut over: Vec<_> = over.map(|order| (order.block, order.seq, order.id)).collect();
            over.sort();
            for (_, _, id) in over {
                self.end_bundle(id, reason);
            }
        }
        self.pass_private(number);
        let gone = || undone.iter().chain(&unproven);
        let mut free: Vec<B256> = gone().flat_map(|block| block.mined.clone()).collect();
        free.extend(gone().flat_map(|block| &block.removed).map(|order| order.id));
        let removed = undone.into_iter().flat_map(|mut block| {
            // First the orders that the block contains, then those it invalidated of known holders.
            block.removed.sort_by_key(|order| {
                let first = order.retained_claims().first().copied();
                let is_known = first.is_none_or(|(holder, _)| is_known(holder));
                let is_mined = block.mined.contains(&order.id);
                (!is_mined, !is_mined && !is_known)
            });
            block.removed
        });
        for order in removed {
            let Some(view) = order.tx else {
                self.reinsert_bundle(order);
                continue;
            };
            let stale = self.next_nonce(view.sender).is_some_and(|next| view.nonce < next);
            let is_here = self.is_mined(&order.id) || self.is_pooled(&order.id);
            let is_withdrawn = self.is_withdrawn(&order);
            let is_timed = order.listed || order.deadline.is_some() || order.public;
            let until = order.until.filter(|block| self.is_ahead(*block, MAX_KEPT_AHEAD));
            let is_valid = (is_timed || until.is_some()) && !is_withdrawn;
            let deadline = is_timed.then_some(self.now + RETENTION);
            if !stale && !is_here && is_valid && !self.reinsert(order, deadline, until) {
                self.rejected += 1;
            }
        }
        for id in free {
            if !self.is_mined(&id) && !self.is_pooled(&id) {
                self.forgotten.push((id, self.accepted.len()));
            }
        }
        self.log.push((head_line(&head), None));
        self.end_stale(self.blocks.len() - 1, &raised);
    }

    pub(super) fn on_nonces(&mut self, block: &B256, sender: u64, next: u64) {
        let Some(index) = self.blocks.iter().position(|b| b.head.hash == *block) else { return };
        let raised = self.raise(index, sender, next);
        self.end_stale(index, raised.as_slice());
    }

    /// Records a nonce that a block raised, and returns it if it raises the sender's known nonce.
    pub(super) fn raise(&mut self, index: usize, sender: u64, next: u64) -> Option<(u64, u64)> {
        let before = self.next_nonce(sender);
        let word = self.blocks[index].raised.entry(sender).or_default();
        *word = next.max(*word);
        before.is_none_or(|known| known < next).then_some((sender, next))
    }

    pub(super) fn end_stale(&mut self, index: usize, raised: &[(u64, u64)]) {
        for (sender, next) in raised {
            let txs = self.pooled.iter().filter_map(|order| Some((order.tx?, order)));
            let mut stale: Vec<_> = txs
                .filter(|(tx, _)| tx.sender == *sender && tx.nonce < *next)
                .map(|(tx, order)| (tx.nonce, order.seq, order.id))
                .collect();
            stale.sort();
            for (_, _, id) in stale {
                let order = self.remove(id, "StaleNonce");
                self.blocks[index].removed.push(order);
            }
        }
        for (sender, next) in raised {
            let with_it = |order: &Pooled| order.contents.iter().any(|tx| tx.1 == *sender);
            let is_over = |order: &Pooled| *next > 0 && with_it(order) && self.is_invalid(order);
            for id in self.bundles(is_over) {
                let order = self.end_bundle(id, "StaleNonce");
                self.blocks[index].removed.push(order);
            }
        }
    }

    pub(super) fn upkeep(&mut self) {
        loop {
            let due = self.pooled.iter().filter(|order| {
                !order.listed && order.deadline.is_some_and(|deadline| deadline <= self.now)
            });
            let first = due.min_by_key(|order| (order.deadline, order.seq));
            if let Some((id, until)) = first.map(|order| (order.id, order.until)) {
                if until.is_some() {
                    self.get_mut(id).deadline = None;
                } else {
                    self.release(id, "Expired");
                }
                continue;
            }
            let over = |_: &_, (since, _): &mut (u64, usize)| *since + RETENTION / 2 <= self.now;
            let over = self.withdrawn.extract_if(.., over).map(|(_, (_, seq))| seq);
            self.ended.extend(over.map(|seq| (seq, self.log.len())));
            match self.idle_keys().first() {
                Some((since, _, slot)) if since + RETENTION / 2 <= self.now => {
                    let slot = *slot;
                    self.forget(slot);
                }
                _ => break,
            }
        }
    }
}
