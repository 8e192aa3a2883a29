//! The pooled bundles: by block, by transaction, and by signer.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use alloy_primitives::{Address, B256};

use crate::order::{Bundle, Order};

/// Block (0 if the pool knew no head) and sequence number.
type BlockSeq = (u64, u64);

#[derive(Debug, Default)]
pub(crate) struct BundleIndex {
    /// By acceptance.
    orders: BTreeMap<u64, Arc<Order>>,
    by_block: BTreeSet<BlockSeq>,
    /// By the hashes of the transactions.
    by_tx: BTreeSet<(B256, u64)>,
    /// By the senders of the transactions, and their nonces.
    by_sender: BTreeSet<(Address, u64, u64)>,
    pub(crate) bytes: usize,
}

impl BundleIndex {
    pub(crate) fn len(&self) -> usize {
        self.orders.len()
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
            self.by_tx.insert((*tx.hash(), seq));
            self.by_sender.insert((tx.sender(), tx.nonce(), seq));
        }
        self.bytes += order.size_bytes();
        self.orders.insert(seq, order);
    }

    pub(super) fn remove(&mut self, seq: u64) -> Option<Arc<Order>> {
        let order = self.orders.remove(&seq)?;
        let bundle = order.as_bundle()?;
        let at = (bundle.block().unwrap_or(0), seq);
        self.by_block.remove(&at);
        for tx in bundle.txs() {
            self.by_tx.remove(&(*tx.hash(), seq));
            self.by_sender.remove(&(tx.sender(), tx.nonce(), seq));
        }
        self.bytes -= order.size_bytes();
        Some(order)
    }

    /// The first of those for block `head` or a lower one.
    pub(super) fn first_up_to(&self, head: u64) -> Option<u64> {
        self.by_block.first().filter(|(block, _)| *block <= head).map(|(_, seq)| *seq)
    }

    /// The first of those for a block above `last`.
    pub(super) fn first_above(&self, last: u64) -> Option<u64> {
        let first = last.checked_add(1)?;
        self.by_block.range((first, 0)..).next().map(|(_, seq)| *seq)
    }

    /// The first of those from `from` on that contain a transaction, as accepted.
    pub(super) fn next_with_tx(&self, hash: &B256, from: u64) -> Option<u64> {
        self.by_tx.range((*hash, from)..=(*hash, u64::MAX)).next().map(|(_, seq)| *seq)
    }

    /// The first of those from `from` (nonce, order of acceptance) on that contain a transaction of
    /// the sender below nonce `to`.
    pub(super) fn next_with_nonce_below(
        &self,
        sender: Address,
        to: u64,
        (nonce, seq): (u64, u64),
    ) -> Option<(u64, u64)> {
        let start = (sender, nonce, seq);
        let end = (sender, to, 0);
        let mut found = (start < end).then(|| self.by_sender.range(start..end))?;
        found.next().map(|(_, nonce, seq)| (*nonce, *seq))
    }
}
