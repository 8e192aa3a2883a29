//! The pooled bundles: by block, by transaction, and by signer.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use alloy_primitives::{Address, B256};

use crate::order::{Bundle, Order, Transaction};

#[derive(Debug)]
struct Entry {
    order: Arc<Order>,
    /// If it may go without any of its transactions, the index of one that has not ended.
    watched: Option<usize>,
}

impl Entry {
    /// The transactions whose end may end the bundle: those that may not be omitted; if there are none, the watched one.
    /// All of a hundred would be looked at with each block, as often as their sender likes.
    fn ending(&self) -> impl Iterator<Item = &Transaction> {
        let bundle = self.order.as_bundle();
        let all = bundle.map_or(&[][..], Bundle::txs);
        let (watched, required) = match self.watched {
            Some(watched) => (all.get(watched), &[][..]),
            None => (None, all),
        };
        let is_required =
            move |tx: &&Transaction| bundle.is_some_and(|it| !it.is_optional(tx.hash()));
        watched.into_iter().chain(required.iter().filter(is_required))
    }
}

#[derive(Debug, Default)]
pub(crate) struct BundleIndex {
    /// By acceptance.
    orders: BTreeMap<u64, Entry>,
    /// By block, 0 if the pool knew no head.
    by_block: BTreeSet<(u64, u64)>,
    /// By the hashes of the transactions that may end them.
    by_tx: BTreeSet<(B256, u64)>,
    /// By the senders of these transactions, and their nonces.
    by_sender: BTreeSet<(Address, u64, u64)>,
    pub(crate) bytes: usize,
}

impl BundleIndex {
    pub(crate) fn len(&self) -> usize {
        self.orders.len()
    }

    pub(super) fn get(&self, seq: u64) -> Option<&Arc<Order>> {
        self.orders.get(&seq).map(|entry| &entry.order)
    }

    pub(super) fn bundle(&self, seq: u64) -> Option<&Bundle> {
        self.get(seq)?.as_bundle()
    }

    /// `left` is the index of its first transaction that has not ended.
    pub(super) fn insert(&mut self, seq: u64, order: Arc<Order>, left: usize) {
        let Some(bundle) = order.as_bundle() else { return };
        let is_optional = bundle.txs().iter().all(|tx| bundle.is_optional(tx.hash()));
        let at = (bundle.block().unwrap_or(0), seq);
        self.by_block.insert(at);
        self.bytes += order.size_bytes();
        self.add(seq, Entry { order, watched: is_optional.then_some(left) });
    }

    fn add(&mut self, seq: u64, entry: Entry) {
        for tx in entry.ending() {
            self.by_tx.insert((*tx.hash(), seq));
            self.by_sender.insert((tx.sender(), tx.nonce(), seq));
        }
        self.orders.insert(seq, entry);
    }

    fn take(&mut self, seq: u64) -> Option<Entry> {
        let entry = self.orders.remove(&seq)?;
        for tx in entry.ending() {
            self.by_tx.remove(&(*tx.hash(), seq));
            self.by_sender.remove(&(tx.sender(), tx.nonce(), seq));
        }
        Some(entry)
    }

    pub(super) fn remove(&mut self, seq: u64) -> Option<Arc<Order>> {
        let order = self.take(seq)?.order;
        let bundle = order.as_bundle()?;
        let at = (bundle.block().unwrap_or(0), seq);
        self.by_block.remove(&at);
        self.bytes -= order.size_bytes();
        Some(order)
    }

    /// The first of its transactions that has not ended may be another one now.
    pub(super) fn watch(&mut self, seq: u64, left: usize) {
        if let Some(Entry { order, watched }) = self.take(seq) {
            self.add(seq, Entry { order, watched: watched.map(|_| left) });
        }
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

    /// The first that a transaction may end.
    pub(super) fn first_with_tx(&self, hash: &B256) -> Option<u64> {
        self.by_tx.range((*hash, 0)..=(*hash, u64::MAX)).next().map(|(_, seq)| *seq)
    }

    /// The first that a transaction of the sender below nonce `to` may end.
    pub(super) fn first_with_nonce_below(&self, sender: Address, to: u64) -> Option<u64> {
        self.by_sender.range((sender, 0, 0)..(sender, to, 0)).next().map(|(.., seq)| *seq)
    }
}
