//! The pooled bundles: by block, by transaction, and by signer.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use alloy_primitives::{Address, B256};

use super::{limits::Limits, shares::Shares, tx_share::MAX_EVICTIONS_PER_INSERT};
use crate::{
    error::RejectReason,
    order::{Bundle, Order},
};

/// Block (0 if the pool knew no head) and sequence number: the greatest is evicted first.
type BlockSeq = (u64, u64);

/// The signer of a bundle; all unsigned ones share `None`.
type Holder = Option<Address>;

#[derive(Debug, Default)]
pub(super) struct BundleIndex {
    /// By acceptance.
    orders: BTreeMap<u64, Arc<Order>>,
    by_block: BTreeSet<BlockSeq>,
    /// By the hashes of the transactions.
    by_tx: HashMap<B256, Vec<u64>>,
    /// By the senders of the transactions, and their nonces.
    by_sender: BTreeSet<(Address, u64, u64)>,
    /// The one for the farthest block is evicted first; of one block, the one accepted last.
    shares: Shares<Holder, BlockSeq>,
    bytes: usize,
}

impl BundleIndex {
    pub(super) fn len(&self) -> usize {
        self.orders.len()
    }

    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) const fn shares(&self) -> &Shares<Holder, BlockSeq> {
        &self.shares
    }

    pub(super) fn get(&self, seq: u64) -> Option<&Arc<Order>> {
        self.orders.get(&seq)
    }

    pub(super) fn bundle(&self, seq: u64) -> Option<&Bundle> {
        self.get(seq)?.as_bundle()
    }

    pub(super) fn insert(&mut self, seq: u64, order: Arc<Order>) {
        let Some(bundle) = order.as_bundle() else { return };
        let at = (bundle.block().unwrap_or(0), seq);
        self.by_block.insert(at);
        for tx in bundle.txs() {
            self.by_tx.entry(*tx.hash()).or_default().push(seq);
            self.by_sender.insert((tx.sender(), tx.nonce(), seq));
        }
        self.shares.insert(bundle.parts().signer, at, order.size_bytes());
        self.bytes += order.size_bytes();
        self.orders.insert(seq, order);
    }

    pub(super) fn remove(&mut self, seq: u64) -> Option<Arc<Order>> {
        let order = self.orders.remove(&seq)?;
        let bundle = order.as_bundle()?;
        let at = (bundle.block().unwrap_or(0), seq);
        self.by_block.remove(&at);
        for tx in bundle.txs() {
            if let Some(seqs) = self.by_tx.get_mut(tx.hash()) {
                seqs.retain(|other| *other != seq);
                if seqs.is_empty() {
                    self.by_tx.remove(tx.hash());
                }
            }
            self.by_sender.remove(&(tx.sender(), tx.nonce(), seq));
        }
        self.shares.remove(bundle.parts().signer, at, order.size_bytes());
        self.bytes -= order.size_bytes();
        Some(order)
    }

    /// Those for block `head` or a lower one, by block.
    pub(super) fn up_to(&self, head: u64) -> Vec<u64> {
        self.by_block.range(..=(head, u64::MAX)).map(|(_, seq)| *seq).collect()
    }

    /// Those for a block above `last`, by block.
    pub(super) fn above(&self, last: u64) -> Vec<u64> {
        let Some(first) = last.checked_add(1) else { return Vec::new() };
        self.by_block.range((first, 0)..).map(|(_, seq)| *seq).collect()
    }

    /// Those that contain a transaction, as accepted.
    pub(super) fn with_tx(&self, hash: &B256) -> Vec<u64> {
        let mut seqs = self.by_tx.get(hash).cloned().unwrap_or_default();
        // A bundle may contain it twice.
        seqs.dedup();
        seqs
    }

    /// Those that contain a transaction of the sender below nonce `to`, as accepted.
    pub(super) fn with_nonce_below(&self, sender: Address, to: u64) -> Vec<u64> {
        let range = self.by_sender.range((sender, 0, 0)..(sender, to, 0));
        let seqs: BTreeSet<u64> = range.map(|(_, _, seq)| *seq).collect();
        seqs.into_iter().collect()
    }

    /// Which bundles must be evicted so that this one fits, if it replaces `replaced`.
    ///
    /// A signer above its cap loses its own bundles for later blocks than this one's. If the total
    /// is above its cap, the signer with the most of the exhausted resource, this bundle included,
    /// loses its bundle for the latest block; among equals, the signer with the bundle for the
    /// latest block. What a bundle pays is not known without executing it.
    pub(super) fn room_for(
        &self,
        bundle: &Bundle,
        size_bytes: usize,
        replaced: Option<u64>,
        limits: &Limits,
    ) -> Result<Vec<u64>, RejectReason> {
        let signer = bundle.parts().signer;
        let new = (bundle.block().unwrap_or(0), u64::MAX);
        let replaced = replaced.and_then(|seq| Some((seq, self.get(seq)?)));
        let replaced_bytes = replaced.map_or(0, |(_, order)| order.size_bytes());
        let mut plan = Plan {
            index: self,
            replaced: replaced.map(|(seq, _)| seq),
            victims: Vec::new(),
            count: self.len() - usize::from(replaced.is_some()),
            bytes: self.bytes - replaced_bytes,
            own_count: self.shares.count(&signer) - usize::from(replaced.is_some()),
            own_bytes: self.shares.bytes(&signer) - replaced_bytes,
        };
        let own_limit = match signer {
            Some(_) => limits.max_bundles_per_signer,
            None => limits.max_unsigned_bundles,
        };
        let own_limit_bytes = limits.max_bundle_bytes_per_signer;
        let (limit, limit_bytes) = (limits.options.max_bundles, limits.options.max_bundle_bytes);
        let is_over_own = |plan: &Plan<'_>| {
            plan.own_count >= own_limit || plan.own_bytes + size_bytes > own_limit_bytes
        };
        if !plan.evict(signer, Some(new), &is_over_own, signer) {
            return Err(RejectReason::SignerFull {
                signer,
                count: self.shares.count(&signer),
                limit: own_limit,
                bytes: self.shares.bytes(&signer),
                limit_bytes: own_limit_bytes,
            });
        }
        let is_over =
            |plan: &Plan<'_>| plan.count >= limit || plan.bytes + size_bytes > limit_bytes;
        if is_over(&plan) {
            let (most, own) = match plan.count >= limit {
                true => (self.shares.most_items(), plan.own_count + 1),
                false => (self.shares.most_bytes(), plan.own_bytes + size_bytes),
            };
            let last = plan.last_first(signer).next();
            let own = (own, last.unwrap_or(new).max(new));
            let largest = most.filter(|most| *most > own);
            let holder = largest.and_then(|(_, (_, seq))| self.bundle(seq));
            let holder = holder.map_or(signer, |bundle| bundle.parts().signer);
            let beyond = (holder == signer).then_some(new);
            if !plan.evict(holder, beyond, &is_over, signer) {
                return Err(RejectReason::BundlesFull {
                    count: self.len(),
                    limit,
                    bytes: self.bytes,
                    limit_bytes,
                });
            }
        }
        Ok(plan.victims)
    }
}

/// The remaining totals while room is made.
struct Plan<'a> {
    index: &'a BundleIndex,
    replaced: Option<u64>,
    victims: Vec<u64>,
    count: usize,
    bytes: usize,
    own_count: usize,
    own_bytes: usize,
}

impl Plan<'_> {
    /// The remaining bundles of a holder, the first to evict first.
    fn last_first(&self, holder: Holder) -> impl Iterator<Item = BlockSeq> {
        let is_left =
            |(_, seq): &BlockSeq| Some(*seq) != self.replaced && !self.victims.contains(seq);
        self.index.shares.last_first(holder).filter(is_left)
    }

    /// Evicts bundles of a holder (only those beyond an entry, if one is given) until enough is
    /// free. Returns whether it is.
    fn evict(
        &mut self,
        holder: Holder,
        beyond: Option<BlockSeq>,
        is_over: &dyn Fn(&Self) -> bool,
        own: Holder,
    ) -> bool {
        while is_over(self) {
            let next = self.last_first(holder).next();
            let next = next.filter(|at| beyond.is_none_or(|beyond| *at > beyond));
            let Some((_, seq)) = next.filter(|_| self.victims.len() < MAX_EVICTIONS_PER_INSERT)
            else {
                return false;
            };
            let size_bytes = self.index.get(seq).map_or(0, |order| order.size_bytes());
            self.victims.push(seq);
            self.count -= 1;
            self.bytes -= size_bytes;
            if holder == own {
                self.own_count -= 1;
                self.own_bytes -= size_bytes;
            }
        }
        true
    }
}
