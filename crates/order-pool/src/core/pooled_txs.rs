//! Decides until when each pooled transaction is kept: while a node lists it, until a time, or
//! until a block, whichever is the longest. Only the end of the listing shortens that.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, SystemTime},
};

use alloy_primitives::Address;

use super::{claims::Charge, node_share::FeeCaps};
use crate::order::Order;

/// What keeps a transaction in the pool. Its retention is over when nothing does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Retention {
    /// A node whose pool is compared with this one lists it. The end of that sets `until`.
    pub(super) is_listed: bool,
    /// The time until which it is kept, if the node announced it or a caller sent it as a raw
    /// transaction.
    pub(super) until: Option<Duration>,
    /// The last block for which a caller sent it as a private transaction.
    pub(super) last_block: Option<u64>,
}

#[derive(Clone, Debug)]
pub(super) struct TxEntry {
    pub(super) order: Arc<Order>,
    pub(super) fees: FeeCaps,
    pub(super) charge: Charge,
    pub(super) retention: Retention,
    /// The signer of all requests that sent it, as a private transaction; `None` if the requests
    /// had different signers, or if one of them sent it as a raw transaction.
    pub(super) signer: Option<Address>,
    /// When that signer sent it last.
    pub(super) sent_at: SystemTime,
    /// Whether it counts in the node's share, and not in those of its holders.
    pub(super) is_of_node_share: bool,
}

#[derive(Debug, Default)]
pub(crate) struct PooledTxs {
    /// By sequence number.
    entries: BTreeMap<u64, TxEntry>,
    /// By sender, nonce and sequence number. It is no hash table, because to grow one with 100,000
    /// senders took 4 ms.
    by_sender: BTreeSet<(Address, u64, u64)>,
    /// The transactions that no node lists and that are kept until a time.
    by_time: BTreeSet<(Duration, u64)>,
    /// The transactions that are kept until a block.
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

    /// For changes of everything but the retention: see [`Self::set_retention`].
    pub(super) fn get_mut(&mut self, seq: u64) -> Option<&mut TxEntry> {
        self.entries.get_mut(&seq)
    }

    /// Returns the transactions from a sequence number on.
    pub(super) fn iter_from(&self, seq: u64) -> impl Iterator<Item = (u64, &TxEntry)> {
        self.entries.range(seq..).map(|(seq, entry)| (*seq, entry))
    }

    pub(super) fn insert(&mut self, seq: u64, entry: TxEntry) {
        if let Some(tx) = entry.order.as_tx() {
            self.by_sender.insert((tx.sender(), tx.nonce(), seq));
        }
        self.bytes += entry.order.size_bytes();
        self.schedule(seq, &entry.retention);
        self.entries.insert(seq, entry);
    }

    pub(super) fn remove(&mut self, seq: u64) -> Option<TxEntry> {
        let entry = self.entries.remove(&seq)?;
        if let Some(tx) = entry.order.as_tx() {
            self.by_sender.remove(&(tx.sender(), tx.nonce(), seq));
        }
        self.bytes -= entry.order.size_bytes();
        self.unschedule(seq, &entry.retention);
        Some(entry)
    }

    pub(super) fn set_retention(&mut self, seq: u64, retention: Retention) {
        let Some(entry) = self.entries.get_mut(&seq) else { return };
        let before = std::mem::replace(&mut entry.retention, retention);
        if before != retention {
            self.unschedule(seq, &before);
            self.schedule(seq, &retention);
        }
    }

    /// Records when its retention ends.
    fn schedule(&mut self, seq: u64, retention: &Retention) {
        if let Some(until) = retention.until.filter(|_| !retention.is_listed) {
            self.by_time.insert((until, seq));
        }
        if let Some(block) = retention.last_block {
            self.by_block.insert((block, seq));
        }
    }

    fn unschedule(&mut self, seq: u64, retention: &Retention) {
        if let Some(until) = retention.until {
            self.by_time.remove(&(until, seq));
        }
        if let Some(block) = retention.last_block {
            self.by_block.remove(&(block, seq));
        }
    }

    /// Returns the first transaction whose time is over, though it may be kept until a block.
    pub(super) fn due(&self, now: Duration) -> Option<u64> {
        self.by_time.first().filter(|(until, _)| *until <= now).map(|(_, seq)| *seq)
    }

    /// Returns the last block and the sequence number of a transaction whose last block has passed
    /// or is too far ahead: the one with the lowest last block up to `head`, or, if there is none,
    /// the one with the highest last block above `highest`.
    pub(super) fn expired_by_block(&self, head: u64, highest: u64) -> Option<(u64, u64)> {
        let passed = self.by_block.first().filter(|(block, _)| *block <= head);
        let too_far = || self.by_block.last().filter(|(block, _)| *block > highest);
        passed.or_else(too_far).copied()
    }

    /// Returns the first transaction of a sender below a nonce.
    pub(super) fn first_below(&self, sender: Address, nonce: u64) -> Option<u64> {
        let below = (sender, 0, 0)..(sender, nonce, 0);
        self.by_sender.range(below).next().map(|(.., seq)| *seq)
    }

    /// Returns all transactions with this sender and nonce.
    pub(super) fn with_nonce(&self, sender: Address, nonce: u64) -> impl Iterator<Item = u64> {
        let range = (sender, nonce, 0)..=(sender, nonce, u64::MAX);
        self.by_sender.range(range).map(|(.., seq)| *seq)
    }
}
