//! Ranks transactions by the tip that they pay at any base fee, without sorting again when it changes.

use std::{cmp::Reverse, collections::BTreeSet};

use crate::order::Transaction;

/// The most that a transaction pays per gas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FeeCaps {
    max_fee_wei: i128,
    max_tip_wei: i128,
}

impl FeeCaps {
    pub(crate) fn of(tx: &Transaction) -> Self {
        // 2^127 wei is more ether than exists.
        let clamp = |wei: u128| i128::try_from(wei).unwrap_or(i128::MAX);
        // A tip above the fee cap is never paid. The gas limit is ignored, because claiming a high
        // one costs nothing.
        let max_fee_wei = clamp(tx.max_fee_wei());
        Self { max_fee_wei, max_tip_wei: clamp(tx.max_tip_wei()).min(max_fee_wei) }
    }

    /// The tip at a base fee; negative if it cannot pay the base fee, by the missing amount.
    pub(crate) fn tip(self, base_fee_wei: u64) -> i128 {
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
pub(crate) struct Ranks {
    by_tip: BTreeSet<Rank>,
    by_fee: BTreeSet<Rank>,
}

impl Ranks {
    pub(crate) fn insert(&mut self, fees: FeeCaps, seq: u64) {
        self.by_tip.insert((fees.max_tip_wei, Reverse(seq)));
        self.by_fee.insert((fees.max_fee_wei, Reverse(seq)));
    }

    pub(crate) fn remove(&mut self, fees: FeeCaps, seq: u64) {
        self.by_tip.remove(&(fees.max_tip_wei, Reverse(seq)));
        self.by_fee.remove(&(fees.max_fee_wei, Reverse(seq)));
    }

    /// Tip and sequence number, the worst first.
    pub(crate) fn worst_first(&self, base_fee_wei: u64) -> impl Iterator<Item = (i128, u64)> {
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
