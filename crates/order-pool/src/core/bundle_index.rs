//! Finds the pooled bundles that a block or a nonce may invalidate: by block, by transaction, and
//! by sender.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use alloy_primitives::{Address, B256};

use crate::order::{Bundle, Order, Transaction};

#[derive(Debug)]
struct Entry {
    order: Arc<Order>,
    /// If all of its transactions are optional, the index of one that is not obsolete yet.
    watched: Option<usize>,
}

impl Entry {
    /// Returns the transactions that may invalidate the bundle when they become obsolete: the
    /// required ones, or the watched one if all are optional. Otherwise a sender could have all
    /// hundred transactions of a bundle inspected with each block.
    fn watched_txs(&self) -> impl Iterator<Item = &Transaction> {
        let bundle = self.order.as_bundle();
        let all = bundle.map_or(&[][..], Bundle::txs);
        let (watched, required) = match self.watched {
            Some(watched) => (all.get(watched), &[][..]),
            None => (None, all),
        };
        let required = required.iter().enumerate().filter_map(move |(index, tx)| {
            bundle.is_some_and(|bundle| !bundle.is_optional_at(index)).then_some(tx)
        });
        watched.into_iter().chain(required)
    }
}

#[derive(Debug, Default)]
pub(crate) struct BundleIndex {
    /// By sequence number.
    orders: BTreeMap<u64, Entry>,
    /// By block, which is 0 if the pool knew no head.
    by_block: BTreeSet<(u64, u64)>,
    /// By the hashes of the watched transactions.
    by_tx: BTreeSet<(B256, u64)>,
    /// By the senders and nonces of the watched transactions.
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

    /// Adds a bundle. `watched` is the index of its first transaction that is not obsolete.
    pub(super) fn insert(&mut self, seq: u64, order: Arc<Order>, watched: usize) {
        let Some(bundle) = order.as_bundle() else { return };
        let is_optional = (0..bundle.txs().len()).all(|index| bundle.is_optional_at(index));
        self.by_block.insert((bundle.block().unwrap_or(0), seq));
        self.bytes += order.size_bytes();
        self.add(seq, Entry { order, watched: is_optional.then_some(watched) });
    }

    fn add(&mut self, seq: u64, entry: Entry) {
        for tx in entry.watched_txs() {
            self.by_tx.insert((*tx.hash(), seq));
            self.by_sender.insert((tx.sender(), tx.nonce(), seq));
        }
        self.orders.insert(seq, entry);
    }

    fn take(&mut self, seq: u64) -> Option<Entry> {
        let entry = self.orders.remove(&seq)?;
        for tx in entry.watched_txs() {
            self.by_tx.remove(&(*tx.hash(), seq));
            self.by_sender.remove(&(tx.sender(), tx.nonce(), seq));
        }
        Some(entry)
    }

    pub(super) fn remove(&mut self, seq: u64) -> Option<Arc<Order>> {
        let order = self.take(seq)?.order;
        let bundle = order.as_bundle()?;
        self.by_block.remove(&(bundle.block().unwrap_or(0), seq));
        self.bytes -= order.size_bytes();
        Some(order)
    }

    /// Watches another transaction of a bundle, if all of its transactions are optional.
    pub(super) fn watch(&mut self, seq: u64, index: usize) {
        if let Some(Entry { order, watched }) = self.take(seq) {
            self.add(seq, Entry { order, watched: watched.map(|_| index) });
        }
    }

    /// Returns the first bundle for block `head` or a lower one.
    pub(super) fn first_up_to(&self, head: u64) -> Option<u64> {
        self.by_block.first().filter(|(block, _)| *block <= head).map(|(_, seq)| *seq)
    }

    /// Returns the first bundle for a block above `last`.
    pub(super) fn first_above(&self, last: u64) -> Option<u64> {
        let first = last.checked_add(1)?;
        self.by_block.range((first, 0)..).next().map(|(_, seq)| *seq)
    }

    /// Returns the first bundle that watches this transaction.
    pub(super) fn first_with_tx(&self, hash: &B256) -> Option<u64> {
        self.by_tx.range((*hash, 0)..=(*hash, u64::MAX)).next().map(|(_, seq)| *seq)
    }

    /// Returns the first bundle that watches a transaction of the sender below this nonce.
    pub(super) fn first_with_nonce_below(&self, sender: Address, nonce: u64) -> Option<u64> {
        self.by_sender.range((sender, 0, 0)..(sender, nonce, 0)).next().map(|(.., seq)| *seq)
    }
}
