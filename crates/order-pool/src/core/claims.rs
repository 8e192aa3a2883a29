//! Who holds what external callers sent. An order counts for everyone who sent it, and stays until the
//! last of them loses it: so nobody can send another one's order first, and take it along when its own
//! share overflows.

use std::collections::{BTreeMap, BTreeSet};

use alloy_primitives::{Address, U256};

use super::{
    limits::Limits,
    shares::{MAX_EVICTED_TXS, New, Shares},
    tx_share::FeeCaps,
};
use crate::{
    error::RejectReason,
    holder::Holder,
    order::{BundleParts, Funds, Order, PrivateTerms},
};

/// Most bundles that one insert may evict: a share that is full of bytes has 13 kB for each, so these make
/// room for one of six blobs. With the most transactions, 60 us each.
const MAX_EVICTED_BUNDLES: usize = 64;

/// Most claims on orders that have left which one operation ends. They count until then.
const ENDED_PER_STEP: usize = 256;

/// What an order is sent as: each kind has caps of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Raw,
    Private,
    Bundle,
}

impl Kind {
    pub(super) const fn of_tx(terms: Option<&PrivateTerms>) -> Self {
        if terms.is_some() { Self::Private } else { Self::Raw }
    }
}

/// What an order is sent as, and by whom.
pub(super) type Claim = (Kind, Holder);

/// Of a signer's, the last is evicted first, and of those of the same rank the one accepted last, so
/// that junk evicts no older ones. A transaction ranks by what it pays at the base fee of its
/// acceptance: a fee is only a claim, so it ranks one among those of its holder. A bundle ranks by its
/// block, since what it pays is not known without executing it.
type Place = (i128, u64);

/// What an order may cost the sender of its first transaction: sender, nonce and cost in wei.
type Cost = (Address, u64, U256);

#[derive(Clone, Copy, Debug)]
pub(super) struct Counted {
    rank: i128,
    /// The signer of a bundle, the sender of a transaction.
    signer: Option<Address>,
    bytes: usize,
    cost: Option<Cost>,
}

/// As what an order counts for who has sent it, at this base fee.
pub(super) fn counted(order: &Order, base_fee_wei: u64) -> (Counted, Claim) {
    let (kind, rank, signer) = match order {
        Order::Tx(tx) => {
            let tip_wei = FeeCaps::of(tx).tip(base_fee_wei);
            (Kind::of_tx(tx.private_terms()), tip_wei.saturating_neg(), Some(tx.sender()))
        }
        Order::Bundle(bundle) => {
            (Kind::Bundle, bundle.block().unwrap_or(0).into(), bundle.parts().signer)
        }
    };
    let (bytes, cost) = (order.size_bytes(), cost_of(order));
    (Counted { rank, signer, bytes, cost }, (kind, order.holder()))
}

/// A bundle may do without its first transaction, or pay for the others: then they cost nothing.
fn cost_of(order: &Order) -> Option<Cost> {
    let tx = match order {
        Order::Tx(tx) => tx,
        Order::Bundle(bundle) => {
            bundle.txs().first().filter(|tx| !bundle.is_optional(tx.hash()))?
        }
    };
    Some((tx.sender(), tx.nonce(), tx.max_cost_wei()))
}

#[derive(Debug, Default)]
pub(crate) struct Claims {
    /// For each kind those of callers, and those of the host and of signers that it knows.
    shares: [Shares<Option<Address>, Place>; 6],
    orders: BTreeMap<u64, (Counted, Vec<Claim>)>,
    /// By holder, with the order and what it was sent as.
    costs: BTreeSet<(Holder, Cost, u64, Kind)>,
    /// Those that have left and are still claimed: thousands of addresses may have sent the same one.
    left: Vec<u64>,
}

const fn class((kind, holder): &Claim) -> usize {
    2 * *kind as usize + holder.is_known() as usize
}

fn is_same(one: &Claim, other: &Claim) -> bool {
    #[cfg(test)]
    tests::COMPARED.set(tests::COMPARED.get() + 1);
    one == other
}

impl Claims {
    pub(super) fn insert(&mut self, seq: u64, counted: Counted, claim: Claim) {
        self.orders.insert(seq, (counted, Vec::new()));
        self.add(seq, claim);
    }

    pub(super) fn add(&mut self, seq: u64, claim: Claim) {
        if let Some((Counted { rank, signer, bytes, cost }, claims)) = self.orders.get_mut(&seq) {
            claims.push(claim);
            self.shares[class(&claim)].insert(claim.1, *signer, (*rank, seq), *bytes);
            if let Some(cost) = *cost {
                self.costs.insert((claim.1, cost, seq, claim.0));
            }
        }
    }

    pub(super) fn of(&self, seq: u64) -> &[Claim] {
        self.orders.get(&seq).map_or(&[], |(_, claims)| claims)
    }

    /// The first bundles of a bundle's holder and signer, as far as they are for blocks before `next`.
    pub(super) fn passed_bundles(&self, parts: &BundleParts, next: u64, most: usize) -> Vec<u64> {
        let share = &self.shares[class(&(Kind::Bundle, parts.holder))];
        let bundles = share.items_of(&parts.holder, &parts.signer).take(most);
        bundles.take_while(|(rank, _)| *rank < next.into()).map(|(_, seq)| *seq).collect()
    }

    /// Ends one; returns whether nobody holds the order any more.
    pub(super) fn end(&mut self, seq: u64, claim: &Claim) -> bool {
        let Some((counted, claims)) = self.orders.get_mut(&seq) else { return false };
        // From the back, where [`Self::end_some`] ends them.
        if let Some(at) = claims.iter().rposition(|other| is_same(other, claim)) {
            claims.swap_remove(at);
            let Counted { rank, signer, bytes, cost } = *counted;
            self.shares[class(claim)].remove(claim.1, signer, (rank, seq), bytes);
            if let Some(cost) = cost {
                self.costs.remove(&(claim.1, cost, seq, claim.0));
            }
        }
        claims.is_empty()
    }

    /// The order has left. What claims it has are ended by [`Self::end_some`].
    pub(super) fn remove(&mut self, seq: u64) {
        if self.of(seq).is_empty() {
            self.orders.remove(&seq);
        } else {
            self.left.push(seq);
        }
    }

    /// Ends some claims on orders that have left.
    pub(super) fn end_some(&mut self) {
        for _ in 0..ENDED_PER_STEP {
            let Some(seq) = self.left.last().copied() else { return };
            let last = self.of(seq).last().copied();
            if last.is_none_or(|claim| self.end(seq, &claim)) {
                self.orders.remove(&seq);
                self.left.pop();
            }
        }
    }

    /// Whether the sender of an order can pay for it and for its others of the same holder: what
    /// strangers send of a sender leaves it as much as before. Of each nonce, the dearest counts:
    /// one look-up each.
    pub(crate) fn check_funds(&self, order: &Order, funds: &Funds) -> Result<(), RejectReason> {
        let &Funds { balance_wei, next_nonce, max_nonces_ahead } = funds;
        let Some((sender, nonce, mut cost_wei)) = cost_of(order) else { return Ok(()) };
        let own_wei = cost_wei;
        let to = next_nonce.saturating_add(u64::from(max_nonces_ahead) + 1);
        let at = |nonce| (order.holder(), (sender, nonce, U256::ZERO), 0, Kind::Raw);
        let (start, mut end) = (at(next_nonce), at(to));
        while let Some(&(_, (_, other, dearest), ..)) = self.costs.range(start..end).next_back() {
            let counted = if other == nonce { dearest.saturating_sub(own_wei) } else { dearest };
            cost_wei = cost_wei.saturating_add(counted);
            end = at(other);
        }
        if cost_wei > balance_wei {
            return Err(RejectReason::InsufficientFunds { sender, balance_wei, cost_wei });
        }
        Ok(())
    }

    /// Which claims must end so that a claim on a pooled order fits; none if it is there.
    pub(super) fn room_to_add(
        &self,
        seq: u64,
        claim: &Claim,
        limits: &Limits,
    ) -> Result<Vec<(u64, Claim)>, RejectReason> {
        match self.orders.get(&seq) {
            Some((counted, _)) => self.room_for(seq, counted, claim, None, limits),
            None => Ok(Vec::new()),
        }
    }

    /// Which claims must end so that an order with this sequence number fits, if it replaces `replaced`: see
    /// [`Shares::room_for`]. A bundle is never evicted for one of a later block.
    pub(super) fn room_for(
        &self,
        seq: u64,
        &Counted { rank, signer, bytes, .. }: &Counted,
        claim: &Claim,
        replaced: Option<u64>,
        limits: &Limits,
    ) -> Result<Vec<(u64, Claim)>, RejectReason> {
        let &(kind, holder) = claim;
        let (own, all) = match kind {
            Kind::Raw => (limits.raw_txs, limits.raw_txs),
            Kind::Private => (limits.private_txs.of_holder(&holder), limits.private_txs.half),
            Kind::Bundle => (limits.bundles.of_holder(&holder), limits.bundles.half),
        };
        if bytes > own.bytes {
            return Err(RejectReason::TooLarge { size_bytes: bytes, limit_bytes: own.bytes });
        }
        let share = &self.shares[class(claim)];
        if let (Kind::Private, Some(sender)) = (kind, signer) {
            let limit = limits.max_private_per_sender;
            let count = share.of_signer(&holder, &signer).count;
            if count >= limit {
                return Err(RejectReason::SenderFull { sender, count, limit });
            }
        }
        let replaced = replaced.and_then(|old| Some((old, self.orders.get(&old)?)));
        let replaced = replaced.map(|(old, (counted, claims))| {
            let of_own = claims.iter().filter(|other| *other == claim).count();
            let of_all = claims.iter().filter(|other| class(other) == class(claim)).count();
            ((counted.rank, old), [of_own, of_all], counted.bytes)
        });
        let bytes_of = |(_, seq): &Place| self.orders.get(seq).map_or(0, |(order, _)| order.bytes);
        let max_evicted = if kind == Kind::Bundle { MAX_EVICTED_BUNDLES } else { MAX_EVICTED_TXS };
        let from = (if kind == Kind::Bundle { rank } else { i128::MIN }, 0);
        let new = New { holder, signer, item: (rank, seq), from, bytes, max_evicted };
        let victims = share.room_for(&new, replaced, own, all, bytes_of)?;
        Ok(victims.into_iter().map(|(holder, (_, seq))| (seq, (kind, holder))).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::config::PoolConfig;

    thread_local! {
        pub(super) static COMPARED: Cell<usize> = const { Cell::new(0) };
    }

    /// Thousands of addresses can send one transaction, and hundreds of such transactions leave in one
    /// hold of the lock. To end 256 of 18,000 claims on one took 9 ms: each was looked for from the front.
    #[test]
    fn however_many_hold_an_order_a_step_ends_no_more_claims_than_it_may() {
        let mut claims = Claims::default();
        let counted = Counted { rank: 0, signer: None, bytes: 1, cost: None };
        let by = |n: u16| (Kind::Raw, Holder::caller([10, 0, (n >> 8) as u8, n as u8].into()));
        let left = |claims: &Claims| claims.orders.values().map(|(_, of)| of.len()).sum::<usize>();
        for seq in 0..2 {
            claims.insert(seq, counted, by(0));
            (1..300).for_each(|n| claims.add(seq, by(n)));
        }
        claims.remove(0);
        claims.remove(1);
        for expected in [600 - 256, 600 - 512, 0] {
            claims.end_some();
            assert_eq!(left(&claims), expected);
        }
        assert_eq!(COMPARED.get(), 600, "each is found at once");
        assert!(claims.orders.is_empty() && claims.left.is_empty());
        let limits = Limits::from(PoolConfig::default());
        assert_eq!(claims.room_for(2, &counted, &by(0), None, &limits), Ok(Vec::new()));
    }
}
