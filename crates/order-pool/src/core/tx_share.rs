//! The transactions that the node has announced, or whose senders the host has found able to pay.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use alloy_primitives::Address;

use super::{
    ranks::{FeeCaps, Ranks},
    shares::MAX_EVICTED_TXS,
};
use crate::{error::RejectReason, order::Order};

/// How long a transaction is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    Time(Duration),
    /// Until this block is the head: see [`Core::private`](super::Core).
    Block(u64),
}

#[derive(Clone, Debug)]
pub(super) struct TxEntry {
    pub(super) order: Arc<Order>,
    pub(super) fees: FeeCaps,
    pub(super) until: Until,
    /// The signer of all who sent it as a private one; `None` if one of them is another's, or raw.
    pub(super) signer: Option<Address>,
}

/// Transactions by acceptance, which is also the order of expiry, because all have the same retention.
#[derive(Debug, Default)]
pub(crate) struct TxList {
    txs: BTreeMap<u64, TxEntry>,
    /// All that were accepted before this one are kept until a block.
    due_from: u64,
    pub(crate) bytes: usize,
}

impl TxList {
    pub(crate) fn len(&self) -> usize {
        self.txs.len()
    }

    pub(super) fn get(&self, seq: u64) -> Option<&TxEntry> {
        self.txs.get(&seq)
    }

    /// The one accepted first, if its retention is over.
    pub(super) fn next_due(&mut self, now: Duration) -> Option<u64> {
        // Each transaction that is kept until a block is skipped once.
        for (seq, tx) in self.txs.range(self.due_from..) {
            match tx.until {
                Until::Time(due) => return (due <= now).then_some(*seq),
                Until::Block(_) => self.due_from = *seq + 1,
            }
        }
        None
    }

    /// Someone else sent it too.
    pub(super) fn set_signer(&mut self, seq: u64, signer: Option<Address>) {
        if let Some(entry) = self.txs.get_mut(&seq) {
            entry.signer = entry.signer.filter(|own| Some(*own) == signer);
        }
    }

    pub(super) fn set_until(&mut self, seq: u64, until: Until) {
        if let Some(entry) = self.txs.get_mut(&seq) {
            entry.until = until;
            self.due_from = self.due_from.min(seq);
        }
    }

    pub(super) fn insert(&mut self, seq: u64, entry: TxEntry) {
        self.bytes += entry.order.size_bytes();
        self.due_from = self.due_from.min(seq);
        self.txs.insert(seq, entry);
    }

    pub(super) fn remove(&mut self, seq: u64) -> Option<TxEntry> {
        let entry = self.txs.remove(&seq)?;
        self.bytes -= entry.order.size_bytes();
        Some(entry)
    }
}

/// The node's transactions, which share two caps and are ranked among themselves.
#[derive(Debug)]
pub(crate) struct TxShare {
    pub(crate) list: TxList,
    /// Contains exactly those accepted before [`Self::ranked_below`].
    ranks: Ranks,
    ranked_below: u64,
    max_txs: usize,
    max_bytes: usize,
}

impl TxShare {
    pub(super) fn new(max_txs: usize, max_bytes: usize) -> Self {
        let (list, ranks) = (TxList::default(), Ranks::default());
        Self { list, ranks, ranked_below: 0, max_txs, max_bytes }
    }

    /// Adds one, which may have been accepted before others that are here if it comes from another
    /// share.
    pub(super) fn insert(&mut self, seq: u64, entry: TxEntry) {
        let size_bytes = entry.order.size_bytes();
        if seq < self.ranked_below {
            self.ranks.insert(entry.fees, seq);
        }
        self.list.insert(seq, entry);
        self.rank_some(size_bytes);
    }

    pub(super) fn remove(&mut self, seq: u64) -> Option<TxEntry> {
        let entry = self.list.remove(seq)?;
        if seq < self.ranked_below {
            self.ranks.remove(entry.fees, seq);
        }
        Some(entry)
    }

    /// Ranks are only needed at a cap, and cost as much as the rest of an insert. So nothing is
    /// ranked below half of either cap. Above that, each insert ranks eight times the fraction of
    /// the share that it fills: all are ranked well before the share is full, and no single insert
    /// ranks them all.
    fn rank_some(&mut self, size_bytes: usize) {
        let len = self.list.len();
        if len * 2 < self.max_txs && self.list.bytes * 2 < self.max_bytes {
            return;
        }
        let by_bytes = len as u128 * 8 * size_bytes as u128 / self.max_bytes as u128;
        self.rank((len * 8 / self.max_txs).max(by_bytes as usize) + 2);
    }

    fn rank(&mut self, count: usize) {
        for (seq, entry) in self.list.txs.range(self.ranked_below..).take(count) {
            self.ranks.insert(entry.fees, *seq);
            self.ranked_below = *seq + 1;
        }
    }

    /// Which ones must be evicted so that an order of this size fits: the worst-paying first, and
    /// only those that pay less than it.
    pub(super) fn room_for(
        &mut self,
        fees: FeeCaps,
        size_bytes: usize,
        base_fee_wei: u64,
    ) -> Result<Vec<u64>, RejectReason> {
        if size_bytes > self.max_bytes {
            return Err(RejectReason::TooLarge { size_bytes, limit_bytes: self.max_bytes });
        }
        let (mut count, mut bytes) = (self.list.len(), self.list.bytes);
        let (max_txs, max_bytes) = (self.max_txs, self.max_bytes);
        let fits = |count: usize, bytes: usize| count < max_txs && bytes + size_bytes <= max_bytes;
        if fits(count, bytes) {
            return Ok(Vec::new());
        }
        // Usually none is left to rank, except in a share that few orders fill.
        self.rank(usize::MAX);
        let mut victims = Vec::new();
        let mut worst = self.ranks.worst_first(base_fee_wei).take(MAX_EVICTED_TXS);
        while !fits(count, bytes) {
            match worst.next() {
                Some((tip, seq)) if tip < fees.tip(base_fee_wei) => {
                    count -= 1;
                    bytes -= self.list.get(seq).map_or(0, |tx| tx.order.size_bytes());
                    victims.push(seq);
                }
                _ => {
                    let tip_wei = u128::try_from(fees.tip(base_fee_wei)).ok();
                    return Err(RejectReason::PaysTooLittle { tip_wei });
                }
            }
        }
        Ok(victims)
    }
}
