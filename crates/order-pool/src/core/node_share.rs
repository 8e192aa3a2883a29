//! The share of what the node announced, or for whose senders the host vouches: at a cap the
//! transaction with the lowest tip goes, whatever the base fee is.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    iter,
};

use super::{pooled_txs::PooledTxs, usage::Size};
use crate::{error::RejectReason, order::Transaction};

/// Most transactions that one insert may evict, in about two milliseconds. Room for one of six blobs
/// (0.83 MB) is 1.6 kB of each; a share that is full of bytes has 2.7 kB for each transaction that it
/// may have, so it always has enough that are large enough.
pub(super) const MAX_EVICTED_TXS: usize = 512;

/// The transactions of the node's share, which are [`PooledTxs`] with `is_of_node_share`, ranked.
#[derive(Debug)]
pub(crate) struct NodeShare {
    pub(crate) size: Size,
    caps: Size,
    /// By class of sizes: a transaction of six blobs needs the room of large ones, and must
    /// not have to pass the small ones that pay less. Contains exactly those of the share that were
    /// accepted before [`Self::ranked_below`].
    ranks: BTreeMap<u32, Ranks>,
    ranked_below: u64,
}

/// Two classes for each power of two, from it and from half more: an exact bound would need a search.
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

    /// Counts a transaction, which is pooled already. It may have been accepted before others of the
    /// share if it comes from another one.
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
    /// the share that it fills: all are ranked well before the share is full, and no single insert
    /// ranks them all.
    fn rank_some(&mut self, bytes: usize, txs: &PooledTxs) {
        let (Size { count, bytes: total_bytes }, caps) = (self.size, self.caps);
        if count * 2 < caps.count && total_bytes * 2 < caps.bytes {
            return;
        }
        let by_bytes = count as u128 * 8 * bytes as u128 / caps.bytes as u128;
        self.rank((count * 8 / caps.count).max(by_bytes as usize) + 2, txs);
    }

    fn rank(&mut self, most: usize, txs: &PooledTxs) {
        for (seq, entry) in txs.accepted_from(self.ranked_below).take(most) {
            if entry.is_of_node_share {
                let class = size_class(entry.order.size_bytes());
                self.ranks.entry(class).or_default().insert(entry.fees, seq);
            }
            self.ranked_below = seq + 1;
        }
    }

    /// Which transactions must be evicted so that one of this size fits: those with the lowest tip
    /// first, and only those that pay less. One that is smaller than a [`MAX_EVICTED_TXS`]th of the
    /// missing bytes is passed over: so many of these would not make room.
    pub(super) fn room_for(
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
        // Usually none is left to rank, except in a share that few orders fill.
        self.rank(usize::MAX, txs);
        let least_bytes = size.bytes.saturating_sub(caps.bytes).div_ceil(MAX_EVICTED_TXS);
        // The first class that has no smaller ones.
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

    /// Tip and sequence number, the lowest tip first, of those in a class of sizes or above.
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
    pub(super) fn of(tx: &Transaction) -> Self {
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

    /// The tip at a base fee; negative if it cannot pay the base fee, by the missing amount.
    pub(super) fn tip(self, base_fee_wei: u64) -> i128 {
        self.max_tip_wei.min(self.max_fee_wei - i128::from(base_fee_wei))
    }
}

type Rank = (i128, Reverse<u64>);

/// The transactions of one class of sizes, ranked twice.
///
/// A tip is `min(max_tip, max_fee - base_fee)`, so the least tip of all is the lesser of the least
/// `max_tip` and the least `max_fee` less the base fee: two sorted sets that no head ever reorders.
/// Among equals the one accepted last is ranked worst, so that junk does not evict older ones.
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

    /// Tip and sequence number, the worst first.
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
