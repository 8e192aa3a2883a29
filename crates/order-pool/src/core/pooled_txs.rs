//! The pooled transactions, and until when each is kept: while a node lists it, until a time, and
//! until a block, whichever is the longest. Nothing shortens that but the end of the listing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use alloy_primitives::Address;

use super::{claims::Counted, node_share::FeeCaps};
use crate::order::Order;

/// What keeps a transaction. It is over when nothing does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Retention {
    /// An audited node lists it. Its end sets `until`.
    pub(super) is_listed: bool,
    /// A time, of what the node announced, or a caller sent as a raw transaction.
    pub(super) until: Option<Duration>,
    /// The last block for which a caller sent it as a private one.
    pub(super) last_block: Option<u64>,
}

#[derive(Clone, Debug)]
pub(super) struct TxEntry {
    pub(super) order: Arc<Order>,
    pub(super) fees: FeeCaps,
    pub(super) counted: Counted,
    pub(super) retention: Retention,
    /// The signer of all who sent it as a private one; `None` if one of them is another's, or raw.
    pub(super) signer: Option<Address>,
    /// In the node's share; the others are counted for their holders.
    pub(super) is_of_node_share: bool,
}

#[derive(Debug, Default)]
pub(crate) struct PooledTxs {
    /// By acceptance.
    entries: BTreeMap<u64, TxEntry>,
    /// By sender, nonce and acceptance. Not a hash table: to grow one with 100,000 senders took 4 ms.
    by_sender: BTreeSet<(Address, u64, u64)>,
    /// Those that no node lists and that are kept until a time.
    by_time: BTreeSet<(Duration, u64)>,
    /// Those that are kept until a block.
    by_block: BTreeSet<(u64, u64)>,
    bytes: usize,
}

impl PooledTxs {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn get(&self, seq: u64) -> Option<&TxEntry> {
        self.entries.get(&seq)
    }

    /// For changes of all but the retention: see [`Self::keep`].
    pub(super) fn get_mut(&mut self, seq: u64) -> Option<&mut TxEntry> {
        self.entries.get_mut(&seq)
    }

    pub(super) fn accepted_from(&self, seq: u64) -> impl Iterator<Item = (u64, &TxEntry)> {
        self.entries.range(seq..).map(|(seq, entry)| (*seq, entry))
    }

    pub(super) fn insert(&mut self, seq: u64, entry: TxEntry) {
        if let Some(tx) = entry.order.as_tx() {
            self.by_sender.insert((tx.sender(), tx.nonce(), seq));
        }
        self.bytes += entry.order.size_bytes();
        self.list(seq, &entry.retention);
        self.entries.insert(seq, entry);
    }

    pub(super) fn remove(&mut self, seq: u64) -> Option<TxEntry> {
        let entry = self.entries.remove(&seq)?;
        if let Some(tx) = entry.order.as_tx() {
            self.by_sender.remove(&(tx.sender(), tx.nonce(), seq));
        }
        self.bytes -= entry.order.size_bytes();
        self.unlist(seq, &entry.retention);
        Some(entry)
    }

    /// Sets how long a transaction is kept.
    pub(super) fn keep(&mut self, seq: u64, retention: Retention) {
        let Some(entry) = self.entries.get_mut(&seq) else { return };
        let before = std::mem::replace(&mut entry.retention, retention);
        if before != retention {
            self.unlist(seq, &before);
            self.list(seq, &retention);
        }
    }

    fn list(&mut self, seq: u64, retention: &Retention) {
        if let Some(until) = retention.until.filter(|_| !retention.is_listed) {
            self.by_time.insert((until, seq));
        }
        if let Some(block) = retention.last_block {
            self.by_block.insert((block, seq));
        }
    }

    fn unlist(&mut self, seq: u64, retention: &Retention) {
        if let Some(until) = retention.until {
            self.by_time.remove(&(until, seq));
        }
        if let Some(block) = retention.last_block {
            self.by_block.remove(&(block, seq));
        }
    }

    /// The first whose time is over, though it may be kept until a block.
    pub(super) fn due(&self, now: Duration) -> Option<u64> {
        self.by_time.first().filter(|(until, _)| *until <= now).map(|(_, seq)| *seq)
    }

    /// The first whose last block is `head` or a lower one, or else the last whose last block is
    /// above `highest`.
    pub(super) fn passed(&self, head: u64, highest: u64) -> Option<(u64, u64)> {
        let passed = self.by_block.first().filter(|(block, _)| *block <= head);
        let too_far = || self.by_block.last().filter(|(block, _)| *block > highest);
        passed.or_else(too_far).copied()
    }

    /// The first of a sender's below a nonce.
    pub(super) fn first_below(&self, sender: Address, nonce: u64) -> Option<u64> {
        let below = (sender, 0, 0)..(sender, nonce, 0);
        self.by_sender.range(below).next().map(|(.., seq)| *seq)
    }

    /// All with this sender and nonce.
    pub(super) fn with_nonce(&self, sender: Address, nonce: u64) -> impl Iterator<Item = u64> {
        let range = (sender, nonce, 0)..=(sender, nonce, u64::MAX);
        self.by_sender.range(range).map(|(.., seq)| *seq)
    }
}
