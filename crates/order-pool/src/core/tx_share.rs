//! The transactions that the node has announced, or whose senders the host has found able to pay,
//! ranked by the tip that they pay at any base fee.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use alloy_primitives::Address;

use super::shares::{MAX_EVICTED_TXS, Size};
use crate::{
    error::RejectReason,
    order::{Order, Transaction},
};

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

/// Transactions that share two caps and are ranked among themselves, by acceptance: that is also
/// the order of expiry, because all have the same retention.
#[derive(Debug)]
pub(crate) struct TxShare {
    txs: BTreeMap<u64, TxEntry>,
    pub(crate) bytes: usize,
    /// All that were accepted before this one are kept until a block.
    due_from: u64,
    caps: Size,
    /// Contains exactly those accepted before [`Self::ranked_below`].
    ranks: Ranks,
    ranked_below: u64,
}

impl TxShare {
    /// One whose caps are the highest numbers is never ranked.
    pub(super) fn new(caps: Size) -> Self {
        let (txs, ranks) = (BTreeMap::new(), Ranks::default());
        Self { txs, bytes: 0, due_from: 0, caps, ranks, ranked_below: 0 }
    }

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

    /// Adds one, which may have been accepted before others that are here if it comes from another
    /// share.
    pub(super) fn insert(&mut self, seq: u64, entry: TxEntry) {
        let size_bytes = entry.order.size_bytes();
        self.bytes += size_bytes;
        self.due_from = self.due_from.min(seq);
        if seq < self.ranked_below {
            self.ranks.insert(entry.fees, seq);
        }
        self.txs.insert(seq, entry);
        self.rank_some(size_bytes);
    }

    pub(super) fn remove(&mut self, seq: u64) -> Option<TxEntry> {
        let entry = self.txs.remove(&seq)?;
        self.bytes -= entry.order.size_bytes();
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
        let (len, caps) = (self.txs.len(), self.caps);
        if len * 2 < caps.count && self.bytes * 2 < caps.bytes {
            return;
        }
        let by_bytes = len as u128 * 8 * size_bytes as u128 / caps.bytes as u128;
        self.rank((len * 8 / caps.count).max(by_bytes as usize) + 2);
    }

    fn rank(&mut self, count: usize) {
        for (seq, entry) in self.txs.range(self.ranked_below..).take(count) {
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
        let caps = self.caps;
        if size_bytes > caps.bytes {
            return Err(RejectReason::TooLarge { size_bytes, limit_bytes: caps.bytes });
        }
        let mut size = Size { count: self.txs.len(), bytes: self.bytes };
        size.add(size_bytes);
        if size.exceeds(&caps).is_none() {
            return Ok(Vec::new());
        }
        // Usually none is left to rank, except in a share that few orders fill.
        self.rank(usize::MAX);
        let mut victims = Vec::new();
        let mut worst = self.ranks.worst_first(base_fee_wei).take(MAX_EVICTED_TXS);
        while size.exceeds(&caps).is_some() {
            let Some((_, seq)) = worst.next().filter(|(tip, _)| *tip < fees.tip(base_fee_wei))
            else {
                let tip_wei = u128::try_from(fees.tip(base_fee_wei)).ok();
                return Err(RejectReason::PaysTooLittle { tip_wei });
            };
            size.take(self.txs[&seq].order.size_bytes());
            victims.push(seq);
        }
        Ok(victims)
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

    /// The tip at a base fee; negative if it cannot pay the base fee, by the missing amount.
    pub(super) fn tip(self, base_fee_wei: u64) -> i128 {
        self.max_tip_wei.min(self.max_fee_wei - i128::from(base_fee_wei))
    }
}

type Rank = (i128, Reverse<u64>);

/// All transactions, ranked twice.
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
        // Each transaction appears twice, first with its true tip; few are ever drawn, so a list is
        // enough.
        let mut drawn = Vec::new();
        std::iter::from_fn(move || {
            loop {
                let (tip, Reverse(seq)) = match (by_tip.peek(), by_fee.peek()) {
                    (Some(tip), Some(fee)) if fee < tip => by_fee.next()?,
                    (Some(_), _) => by_tip.next()?,
                    (None, _) => by_fee.next()?,
                };
                if !drawn.contains(&seq) {
                    drawn.push(seq);
                    return Some((tip, seq));
                }
            }
        })
    }
}
