//! Decides which transactions the node's share evicts: at a cap the one with the lowest tip,
//! whatever the base fee is. The share has the transactions that the node announced, or for which
//! the host vouches.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    iter,
};

use super::{pooled_txs::PooledTxs, usage::Size};
use crate::{error::RejectReason, order::Transaction};

/// The most transactions that one insert evicts, which takes about two milliseconds. To make room
/// for a transaction of six blobs (0.83 MB), each of them must have 1.6 kB. A share that is full of
/// bytes has 2.7 kB for each transaction that it may have, so enough of them are large enough.
pub(super) const MAX_EVICTED_TXS: usize = 512;

/// The ranks of the [`PooledTxs`] with `is_of_node_share`.
#[derive(Debug)]
pub(crate) struct NodeShare {
    pub(crate) size: Size,
    caps: Size,
    /// By size class: a transaction of six blobs needs the room of large ones, and the search must
    /// not have to pass the small ones that pay less. Contains exactly the transactions of the
    /// share with a sequence number below [`Self::ranked_below`].
    ranks: BTreeMap<u32, Ranks>,
    ranked_below: u64,
}

/// Returns the size class. There are two for each power of two, the second one from 1.5 times the
/// power on.
const fn size_class(bytes: usize) -> u32 {
    let bytes = if bytes < 2 { 2 } else { bytes };
    let log = bytes.ilog2();
    2 * log + (bytes >> (log - 1) & 1) as u32
}

impl NodeShare {
    pub(super) const fn new(caps: Size) -> Self {
        let size = Size { count: 0, bytes: 0 };
        Self { size, caps, ranks: BTreeMap::new(), ranked_below: 0 }
    }

    /// Counts a pooled transaction. One that moves here from another share may have been accepted
    /// before others of this share.
    pub(super) fn insert(&mut self, seq: u64, fees: FeeCaps, bytes: usize, txs: &PooledTxs) {
        self.size.add(bytes);
        if seq < self.ranked_below {
            self.ranks.entry(size_class(bytes)).or_default().insert(fees, seq);
        }
        self.rank_some(bytes, txs);
    }

    pub(super) fn remove(&mut self, seq: u64, fees: FeeCaps, bytes: usize) {
        self.size.subtract(bytes);
        if seq < self.ranked_below
            && let Some(ranks) = self.ranks.get_mut(&size_class(bytes))
        {
            ranks.remove(fees, seq);
        }
    }

    /// Ranks are only needed at a cap, and cost as much as the rest of an insert. So nothing is
    /// ranked below half of either cap. Above that, each insert ranks eight times the fraction of
    /// the share that it fills. So all transactions are ranked well before the share is full, and
    /// no single insert ranks them all.
    fn rank_some(&mut self, bytes: usize, txs: &PooledTxs) {
        let (Size { count, bytes: total_bytes }, caps) = (self.size, self.caps);
        if count * 2 < caps.count && total_bytes * 2 < caps.bytes {
            return;
        }
        let by_bytes = count as u128 * 8 * bytes as u128 / caps.bytes as u128;
        self.rank((count * 8 / caps.count).max(by_bytes as usize) + 2, txs);
    }

    fn rank(&mut self, limit: usize, txs: &PooledTxs) {
        for (seq, entry) in txs.iter_from(self.ranked_below).take(limit) {
            if entry.is_of_node_share {
                let class = size_class(entry.order.size_bytes());
                self.ranks.entry(class).or_default().insert(entry.fees, seq);
            }
            self.ranked_below = seq + 1;
        }
    }

    /// Returns the transactions that must be evicted so that one of this size fits: those with the
    /// lowest tip first, and only those that pay less. One that is smaller than a
    /// [`MAX_EVICTED_TXS`]th of the missing bytes is passed over, because as many as may be evicted
    /// would not make room.
    pub(super) fn plan_evictions(
        &mut self,
        fees: FeeCaps,
        size_bytes: usize,
        base_fee_wei: u64,
        txs: &PooledTxs,
    ) -> Result<Vec<u64>, RejectReason> {
        let caps = self.caps;
        if size_bytes > caps.bytes {
            return Err(RejectReason::TooLarge { size_bytes, limit_bytes: caps.bytes });
        }
        let mut size = self.size;
        size.add(size_bytes);
        if size.exceeds(&caps).is_none() {
            return Ok(Vec::new());
        }
        // Usually all are ranked already, except in a share that few transactions fill.
        self.rank(usize::MAX, txs);
        let least_bytes = size.bytes.saturating_sub(caps.bytes).div_ceil(MAX_EVICTED_TXS);
        // The first class without transactions that are smaller.
        let least_class = match least_bytes {
            0 => 0,
            bytes => size_class(bytes - 1) + 1,
        };
        let mut victims = Vec::new();
        let mut worst = self.worst_first(least_class, base_fee_wei).take(MAX_EVICTED_TXS);
        while size.exceeds(&caps).is_some() {
            let Some((_, seq)) = worst.next().filter(|(tip, _)| *tip < fees.tip(base_fee_wei))
            else {
                let tip_wei = u128::try_from(fees.tip(base_fee_wei)).ok();
                return Err(RejectReason::PaysTooLittle { tip_wei });
            };
            size.subtract(txs.get(seq).map_or(0, |entry| entry.order.size_bytes()));
            victims.push(seq);
        }
        Ok(victims)
    }

    /// Returns tip and sequence number, the lowest tip first, of the transactions in this size
    /// class and above.
    fn worst_first(
        &self,
        least_class: u32,
        base_fee_wei: u64,
    ) -> impl Iterator<Item = (i128, u64)> {
        let classes = self.ranks.range(least_class..);
        let mut classes: Vec<_> =
            classes.map(|(_, ranks)| ranks.worst_first(base_fee_wei).peekable()).collect();
        iter::from_fn(move || {
            let worst = |ranks: &mut iter::Peekable<_>| {
                ranks.peek().map(|&(tip, seq): &(i128, u64)| (tip, Reverse(seq)))
            };
            let first = classes.iter_mut().filter_map(|ranks| Some((worst(ranks)?, ranks)));
            first.min_by_key(|(worst, _)| *worst)?.1.next()
        })
    }
}

/// The most that a transaction pays per gas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FeeCaps {
    max_fee_wei: i128,
    max_tip_wei: i128,
}

impl FeeCaps {
    pub(super) fn new(tx: &Transaction) -> Self {
        // 2^127 wei is more ether than exists.
        let clamp = |wei: u128| i128::try_from(wei).unwrap_or(i128::MAX);
        // A tip above the fee cap is never paid. The gas limit is ignored, because claiming a high
        // one costs nothing.
        let max_fee_wei = clamp(tx.max_fee_wei());
        Self { max_fee_wei, max_tip_wei: clamp(tx.max_tip_wei()).min(max_fee_wei) }
    }

    /// Whether both fees are lower, as they must be for a node to replace a transaction.
    pub(super) const fn are_below(&self, other: &Self) -> bool {
        self.max_fee_wei < other.max_fee_wei && self.max_tip_wei < other.max_tip_wei
    }

    /// Returns the tip at a base fee. It is negative, by the missing amount, if the transaction
    /// cannot pay the base fee.
    pub(super) fn tip(self, base_fee_wei: u64) -> i128 {
        self.max_tip_wei.min(self.max_fee_wei - i128::from(base_fee_wei))
    }
}

type Rank = (i128, Reverse<u64>);

/// The transactions of one size class, ranked twice.
///
/// A tip is `min(max_tip, max_fee - base_fee)`. So the lowest tip of all is the lower one of the
/// lowest `max_tip`, and the lowest `max_fee` less the base fee. That takes two sorted sets, which
/// no head reorders. Among equals the transaction accepted last is ranked worst, so that junk
/// evicts no older ones.
#[derive(Debug, Default)]
pub(super) struct Ranks {
    by_tip: BTreeSet<Rank>,
    by_fee: BTreeSet<Rank>,
}

impl Ranks {
    pub(super) fn insert(&mut self, fees: FeeCaps, seq: u64) {
        self.by_tip.insert((fees.max_tip_wei, Reverse(seq)));
        self.by_fee.insert((fees.max_fee_wei, Reverse(seq)));
    }

    pub(super) fn remove(&mut self, fees: FeeCaps, seq: u64) {
        self.by_tip.remove(&(fees.max_tip_wei, Reverse(seq)));
        self.by_fee.remove(&(fees.max_fee_wei, Reverse(seq)));
    }

    /// Returns tip and sequence number, the lowest tip first.
    pub(super) fn worst_first(&self, base_fee_wei: u64) -> impl Iterator<Item = (i128, u64)> {
        let base_fee_wei = i128::from(base_fee_wei);
        let mut by_tip = self.by_tip.iter().copied().peekable();
        let mut by_fee =
            self.by_fee.iter().map(move |(fee, seq)| (fee - base_fee_wei, *seq)).peekable();
        // Each transaction appears twice, first with its true tip.
        let mut drawn = BTreeSet::new();
        iter::from_fn(move || {
            loop {
                let (tip, Reverse(seq)) = match (by_tip.peek(), by_fee.peek()) {
                    (Some(tip), Some(fee)) if fee < tip => by_fee.next()?,
                    (Some(_), _) => by_tip.next()?,
                    (None, _) => by_fee.next()?,
                };
                if drawn.insert(seq) {
                    return Some((tip, seq));
                }
            }
        })
    }
}
