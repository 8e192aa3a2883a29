//! Who holds an order, in which share it counts, and what goes first when a share is full.
//!
//! | order | holder | counts in | when that is full |
//! |---|---|---|---|
//! | transaction that the node announced, or for which the host vouches | nobody | the node's share (`max_txs`, `max_tx_bytes`) | the one with the lowest tip goes, if the new one pays more; one that is too small to help is passed over |
//! | raw transaction, private transaction, bundle | everyone who sent it: the host, a signer that it knows, an IPv4 address, an IPv6 /56, or a signer behind a front | the share of each of them: half of the cap, a tenth, or a thirty-second | its signer with the most loses its last order: the transaction with the lowest tip, the bundle for the latest block |
//! | the same | the same | what an IPv6 /48 (the shares of four callers) or a front (of eight) may have | the holder with the most loses one in the same way |
//! | the same | the same | one half of the cap: callers' or known signers', in each once, however many hold it | the holder with the most loses one in the same way: the order goes for all who have more than the new one's holder, and otherwise stays |
//! | bundle whose block has passed | the same | the same | it goes first, whoever holds it |
//! | bundle for a block before the new one's | the same | the same | it stays; the new one is refused |
//!
//! An order stays until the last of its holders loses it: so nobody can send another one's order
//! first, and take it along when its own share overflows. Its holders lose it when a share of theirs
//! is full; when it expires, is mined, replaced or cancelled it goes for all.

use std::collections::BTreeSet;

use alloy_primitives::{Address, U256};

use super::{
    limits::Limits,
    node_share::{FeeCaps, MAX_EVICTED_TXS},
    room::{Half, HeldOrder, NewClaim},
};
use crate::{
    error::RejectReason,
    holder::Holder,
    order::{Funds, Order, PrivateTerms},
};

/// Most bundles that one insert may evict: a share that is full of bytes has 13 kB for each, so these make
/// room for one of six blobs. With the most transactions, 60 us each.
pub(super) const MAX_EVICTED_BUNDLES: usize = 64;

/// Most claims on orders that have left which one operation ends. They count until then.
const ENDED_PER_STEP: usize = 256;

/// Claims that end together with their order; if there are more, the others end in steps.
const ENDED_AT_ONCE: usize = 16;

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
    /// For each kind that of callers, and that of the host and of signers that it knows.
    halves: [Half; 6],
    /// By holder, with the order and what it was sent as.
    costs: BTreeSet<(Holder, Cost, u64, Kind)>,
    /// Orders that have left, whose claims still count: thousands of addresses may have sent one.
    left: Vec<(usize, u64, Counted, HeldOrder)>,
}

const fn class((kind, holder): &Claim) -> usize {
    2 * *kind as usize + holder.is_known() as usize
}

impl Claims {
    /// Adds a claim that is not there.
    pub(super) fn add(&mut self, seq: u64, counted: &Counted, claim: Claim) {
        let &Counted { rank, signer, bytes, cost } = counted;
        let order = HeldOrder { place: (rank, seq), signer, bytes, holders: Vec::new() };
        self.halves[class(&claim)].insert(seq, claim.1, order);
        if let Some(cost) = cost {
            self.costs.insert((claim.1, cost, seq, claim.0));
        }
    }

    pub(super) fn contains(&self, seq: u64, claim: &Claim) -> bool {
        self.halves[class(claim)].is_held_by(seq, &claim.1)
    }

    /// Who holds an order, as far as so many are wanted: known holders first.
    pub(super) fn holders(&self, seq: u64, most: usize) -> Vec<Claim> {
        let kinds = [Kind::Raw, Kind::Private, Kind::Bundle];
        let halves = [true, false].into_iter().flat_map(|is_known| {
            kinds.map(|kind| (kind, &self.halves[2 * kind as usize + usize::from(is_known)]))
        });
        let held = halves.filter_map(|(kind, half)| Some((kind, half.get(seq)?)));
        held.flat_map(|(kind, order)| order.holders.iter().map(move |holder| (kind, *holder)))
            .take(most)
            .collect()
    }

    /// Ends a claim. Returns whether nobody holds the order any more.
    pub(super) fn end(&mut self, seq: u64, counted: &Counted, claim: &Claim) -> bool {
        self.halves[class(claim)].remove(seq, &claim.1);
        if let Some(cost) = counted.cost {
            self.costs.remove(&(claim.1, cost, seq, claim.0));
        }
        self.halves.iter().all(|half| half.get(seq).is_none())
    }

    /// The order has left. If it has many claims, [`Self::end_some`] ends the others.
    pub(super) fn remove(&mut self, seq: u64, counted: &Counted) {
        for class in 0..self.halves.len() {
            if let Some(order) = self.halves[class].take(seq) {
                self.left.push((class, seq, *counted, order));
                self.end_last(ENDED_AT_ONCE);
            }
        }
    }

    /// Ends some claims on orders that have left.
    pub(super) fn end_some(&mut self) {
        self.end_last(ENDED_PER_STEP);
    }

    /// Ends at most so many claims on orders that have left.
    fn end_last(&mut self, most: usize) {
        for _ in 0..most {
            let Some((class, seq, counted, order)) = self.left.last_mut() else { return };
            if let Some(holder) = order.holders.pop() {
                self.halves[*class].end_claim(order, holder);
                if let Some(cost) = counted.cost {
                    let kind = [Kind::Raw, Kind::Private, Kind::Bundle][*class / 2];
                    self.costs.remove(&(holder, cost, *seq, kind));
                }
            }
            if order.holders.is_empty() {
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

    /// The first bundle for a block before `next`, of those that may go, in a share that is too full
    /// for a new claim.
    pub(super) fn passed_bundle(
        &self,
        new: &NewClaim,
        limits: &Limits,
        next: u64,
        may_go: impl Fn(u64) -> bool,
    ) -> Option<u64> {
        let half = &self.halves[class(&(Kind::Bundle, new.holder))];
        half.passed_bundle(new, &limits.bundles, next, may_go)
    }

    /// Which claims must end so that a new one fits: see [`Half::room_for`].
    pub(super) fn room_for(
        &self,
        kind: Kind,
        new: &NewClaim,
        limits: &Limits,
    ) -> Result<Vec<(u64, Claim)>, RejectReason> {
        let (holder, bytes) = (new.holder, new.bytes);
        let caps = match kind {
            Kind::Raw | Kind::Private => &limits.external_txs,
            Kind::Bundle => &limits.bundles,
        };
        let limit_bytes = caps.of_holder(&holder).bytes;
        if bytes > limit_bytes {
            return Err(RejectReason::TooLarge { size_bytes: bytes, limit_bytes });
        }
        let half = &self.halves[class(&(kind, holder))];
        if let (Kind::Private, Some(sender)) = (kind, new.signer) {
            let limit = limits.max_private_per_sender;
            let count = half.signer_count(&holder, new.signer);
            if count >= limit {
                return Err(RejectReason::SenderFull { sender, count, limit });
            }
        }
        let victims = half.room_for(new, caps)?;
        Ok(victims.into_iter().map(|(seq, holder)| (seq, (kind, holder))).collect())
    }
}

impl Counted {
    /// A claim of this kind on an order that is counted so, for which room is needed. A bundle is
    /// never evicted for one of a later block.
    pub(super) const fn new_claim(
        &self,
        seq: u64,
        (kind, holder): Claim,
        replaced: Option<u64>,
    ) -> NewClaim {
        let &Self { rank, signer, bytes, .. } = self;
        let (lowest_rank, max_evicted) = match kind {
            Kind::Bundle => (rank, MAX_EVICTED_BUNDLES),
            Kind::Raw | Kind::Private => (i128::MIN, MAX_EVICTED_TXS),
        };
        NewClaim { holder, signer, place: (rank, seq), bytes, replaced, lowest_rank, max_evicted }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Thousands of addresses can send one transaction, and hundreds of such transactions leave in
    /// one hold of the lock: to end all claims at once took milliseconds.
    #[test]
    fn a_step_ends_a_bounded_number_of_claims_however_many_hold_an_order() {
        let mut claims = Claims::default();
        let counted = Counted { rank: 0, signer: None, bytes: 1, cost: None };
        let claim = |n: u16| (Kind::Raw, Holder::caller([10, 0, (n >> 8) as u8, n as u8].into()));
        for seq in 0..2 {
            (0..300).for_each(|n| claims.add(seq, &counted, claim(n)));
        }
        claims.remove(0, &counted);
        claims.remove(1, &counted);
        let left = |claims: &Claims| {
            claims.left.iter().map(|(.., order)| order.holders.len()).sum::<usize>()
        };
        for expected in [568, 312, 56, 0] {
            assert_eq!(left(&claims), expected);
            claims.end_some();
        }
        assert_eq!(claims.halves[0].signer_count(&claim(0).1, None), 0);
    }
}
