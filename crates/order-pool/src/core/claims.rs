//! Decides who holds an order, in which share it counts, and what is evicted when a share is full.
//!
//! | order | holder | counts in | when that share is full |
//! |---|---|---|---|
//! | transaction that the node announced, or for which the host vouches | none | the node's share (`max_txs`, `max_tx_bytes`) | the transaction with the lowest tip is evicted if the new one pays more; one that is too small to make room is passed over |
//! | raw transaction, private transaction, bundle | every party that sent it: the host, a signer that the host knows, an IPv4 address, an IPv6 /56, or a signer behind a front | each holder's own share: half of the cap for the host, a tenth for a known signer, a thirty-second for any other holder | the holder loses the lowest-ranked order of the signer of whom it has the most |
//! | the same | the same | the joint share of an IPv6 /48 (four times a caller's) or of a front (eight times) | the holder with the most loses an order in the same way, if it has more than the new order's holder with the new order; or else the next largest |
//! | the same | the same | one half of the cap, once however many hold it: the callers' (addresses, and signers behind fronts), or that of the host and the known signers | the same, but the order is evicted for all its holders, and stays if one of them does not have more than the new order's holder with the new order; then the next one is tried |
//!
//! A share is full by number or by bytes. Of transactions, the lowest tip ranks lowest; of bundles,
//! the latest block; of equal ones, the newest. Orders without a signer count as one signer's. A
//! bundle whose block has passed is removed first, if that makes room; no other bundle is evicted
//! for one for a later block. The new order is refused if it would go first itself, or if nothing
//! else may go.
//!
//! An order stays in the pool until its last holder loses it. So nobody can send another sender's
//! order first and then have it evicted by overflowing a share of their own. A holder loses an
//! order when a share of that holder is full. An order that expires, is mined, replaced or
//! cancelled is removed for all holders.
//!
//! A *claim* is one holder's hold on one order.

use std::collections::BTreeSet;

use alloy_primitives::{Address, U256};

use super::{
    eviction::{Half, HeldOrder, NewClaim},
    limits::Limits,
    node_share::{FeeCaps, MAX_EVICTED_TXS},
};
use crate::{
    error::RejectReason,
    holder::Holder,
    order::{Funds, Order, PrivateTerms},
};

/// The most bundles that one insert evicts. A share that is full of bytes has 13 kB for each
/// bundle, so 64 of them make room for a transaction of six blobs. To evict a bundle with the most
/// transactions takes about 60 us.
pub(super) const MAX_EVICTED_BUNDLES: usize = 64;

/// The most claims on removed orders that one operation releases. A claim counts until it is
/// released.
const RELEASED_PER_STEP: usize = 256;

/// The most claims that are released together with their order. The others are released in steps.
const RELEASED_AT_ONCE: usize = 8;

/// What an order is sent as. Each kind has caps of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Raw,
    Private,
    Bundle,
}

impl Kind {
    /// In the order of their numbers.
    const ALL: [Self; 3] = [Self::Raw, Self::Private, Self::Bundle];

    pub(super) const fn of_tx(terms: Option<&PrivateTerms>) -> Self {
        if terms.is_some() { Self::Private } else { Self::Raw }
    }
}

/// A holder that has sent an order, and the kind of order as which it counts for that holder.
pub(super) type Claim = (Kind, Holder);

/// The most wei that an order may cost the sender of its first transaction: the sender, the nonce
/// of that transaction, and the wei.
type Cost = (Address, u64, U256);

/// The rank and the size with which an order counts for each of its holders.
#[derive(Clone, Copy, Debug)]
pub(super) struct Charge {
    rank: i128,
    /// The signer of a bundle, the sender of a transaction.
    signer: Option<Address>,
    bytes: usize,
    cost: Option<Cost>,
}

/// The charge of an order at this base fee, and the claim of the holder that sent it.
pub(super) fn charge_and_claim(order: &Order, base_fee_wei: u64) -> (Charge, Claim) {
    let (kind, rank, signer) = match order {
        Order::Tx(tx) => {
            let tip_wei = FeeCaps::new(tx).tip(base_fee_wei);
            (Kind::of_tx(tx.private_terms()), tip_wei.saturating_neg(), Some(tx.sender()))
        }
        Order::Bundle(bundle) => {
            (Kind::Bundle, bundle.block().unwrap_or(0).into(), bundle.parts().signer)
        }
    };
    let charge = Charge { rank, signer, bytes: order.size_bytes(), cost: cost_of(order) };
    (charge, (kind, order.holder()))
}

/// The charge of a bundle, which does not depend on the base fee.
pub(super) fn bundle_charge(order: &Order) -> Charge {
    charge_and_claim(order, 0).0
}

/// A bundle may omit its first transaction, or pay for the other transactions. These cost nothing.
fn cost_of(order: &Order) -> Option<Cost> {
    let tx = match order {
        Order::Tx(tx) => tx,
        Order::Bundle(bundle) => bundle.txs().first().filter(|_| !bundle.is_optional_at(0))?,
    };
    Some((tx.sender(), tx.nonce(), tx.max_cost_wei()))
}

/// An order that was removed, some of whose claims still count.
#[derive(Debug)]
struct Removed {
    half_index: usize,
    seq: u64,
    charge: Charge,
    order: HeldOrder,
}

#[derive(Debug, Default)]
pub(crate) struct Claims {
    /// For each kind the callers' half, and the half of the host and of the signers that it knows.
    halves: [Half; 6],
    /// By holder, with the sequence number of the order and its kind.
    costs: BTreeSet<(Holder, Cost, u64, Kind)>,
    /// Thousands of addresses may have sent one order, so its claims are released in steps.
    removed: Vec<Removed>,
}

const fn half_index((kind, holder): &Claim) -> usize {
    2 * *kind as usize + holder.is_known() as usize
}

impl Claims {
    /// Adds a claim that does not exist yet.
    pub(super) fn add(&mut self, seq: u64, charge: &Charge, claim: Claim) {
        let &Charge { rank, signer, bytes, cost } = charge;
        let order = HeldOrder { eviction_key: (rank, seq), signer, bytes, holders: Vec::new() };
        self.halves[half_index(&claim)].insert(seq, claim.1, order);
        if let Some(cost) = cost {
            self.costs.insert((claim.1, cost, seq, claim.0));
        }
    }

    pub(super) fn contains(&self, seq: u64, claim: &Claim) -> bool {
        self.halves[half_index(claim)].is_held_by(seq, &claim.1)
    }

    /// Returns at most `limit` claims on an order, those of known holders first.
    pub(super) fn holders(&self, seq: u64, limit: usize) -> Vec<Claim> {
        let halves = [true, false].into_iter().flat_map(|is_known| {
            Kind::ALL.map(|kind| (kind, &self.halves[2 * kind as usize + usize::from(is_known)]))
        });
        let held = halves.filter_map(|(kind, half)| Some((kind, half.get(seq)?)));
        held.flat_map(|(kind, order)| order.holders.iter().map(move |holder| (kind, *holder)))
            .take(limit)
            .collect()
    }

    /// Removes a claim. Returns whether nobody holds the order any more.
    pub(super) fn remove(&mut self, seq: u64, charge: &Charge, claim: &Claim) -> bool {
        self.halves[half_index(claim)].remove(seq, &claim.1);
        if let Some(cost) = charge.cost {
            self.costs.remove(&(claim.1, cost, seq, claim.0));
        }
        self.halves.iter().all(|half| half.get(seq).is_none())
    }

    /// Removes an order. If it has many claims, [`Self::release_some`] releases most of them later.
    pub(super) fn remove_order(&mut self, seq: u64, charge: &Charge) {
        for half_index in 0..self.halves.len() {
            if let Some(order) = self.halves[half_index].take(seq) {
                self.removed.push(Removed { half_index, seq, charge: *charge, order });
                self.release(RELEASED_AT_ONCE);
            }
        }
    }

    /// Releases some claims on removed orders.
    pub(super) fn release_some(&mut self) {
        self.release(RELEASED_PER_STEP);
    }

    fn release(&mut self, limit: usize) {
        for _ in 0..limit {
            let Some(Removed { half_index, seq, charge, order }) = self.removed.last_mut() else {
                return;
            };
            if let Some(holder) = order.holders.pop() {
                self.halves[*half_index].release(order, holder);
                if let Some(cost) = charge.cost {
                    self.costs.remove(&(holder, cost, *seq, Kind::ALL[*half_index / 2]));
                }
            }
            if order.holders.is_empty() {
                self.removed.pop();
            }
        }
    }

    /// Checks whether the sender of an order can pay for it and for its other orders of the same
    /// holder. Orders that strangers send of a sender do not count. Of each nonce only the dearest
    /// order counts, which takes one look-up.
    pub(crate) fn check_funds(&self, order: &Order, funds: &Funds) -> Result<(), RejectReason> {
        let &Funds { balance_wei, next_nonce, max_nonces_ahead } = funds;
        let Some((sender, nonce, own_wei)) = cost_of(order) else { return Ok(()) };
        let first_of_nonce = |nonce| (order.holder(), (sender, nonce, U256::ZERO), 0, Kind::Raw);
        let last_nonce = next_nonce.saturating_add(u64::from(max_nonces_ahead) + 1);
        let (start, mut end) = (first_of_nonce(next_nonce), first_of_nonce(last_nonce));
        let mut cost_wei = own_wei;
        while let Some(&(_, (_, other, dearest), ..)) = self.costs.range(start..end).next_back() {
            let added = if other == nonce { dearest.saturating_sub(own_wei) } else { dearest };
            cost_wei = cost_wei.saturating_add(added);
            end = first_of_nonce(other);
        }
        if cost_wei > balance_wei {
            return Err(RejectReason::InsufficientFunds { sender, balance_wei, cost_wei });
        }
        Ok(())
    }

    /// Returns bundles whose block is before `next_block` and whose removal makes room for a new
    /// claim: see [`Half::expired_bundles`].
    pub(super) fn expired_bundles(
        &self,
        new: &NewClaim,
        limits: &Limits,
        next_block: u64,
    ) -> Vec<u64> {
        let half = &self.halves[half_index(&(Kind::Bundle, new.holder))];
        half.expired_bundles(new, &limits.bundles, next_block)
    }

    /// Returns the claims that must end so that a new one fits: see [`Half::plan_evictions`].
    pub(super) fn plan_evictions(
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
        let limit_bytes = caps.for_holder(&holder).bytes;
        if bytes > limit_bytes {
            return Err(RejectReason::TooLarge { size_bytes: bytes, limit_bytes });
        }
        let half = &self.halves[half_index(&(kind, holder))];
        if let (Kind::Private, Some(sender)) = (kind, new.signer) {
            let limit = limits.max_private_per_sender;
            let count = half.signer_count(&holder, new.signer);
            if count >= limit {
                return Err(RejectReason::SenderFull { sender, count, limit });
            }
        }
        let victims = half.plan_evictions(new, caps)?;
        Ok(victims.into_iter().map(|(seq, holder)| (seq, (kind, holder))).collect())
    }
}

impl Charge {
    /// A new claim on an order with this charge. A bundle is never evicted for one of a later
    /// block.
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
        let eviction_key = (rank, seq);
        NewClaim { holder, signer, eviction_key, bytes, replaced, lowest_rank, max_evicted }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Thousands of addresses can send one transaction, and hundreds of such transactions can be
    /// removed in one hold of the lock. To release all claims at once took milliseconds.
    #[test]
    fn a_step_releases_a_bounded_number_of_claims() {
        let mut claims = Claims::default();
        let charge = Charge { rank: 0, signer: None, bytes: 1, cost: None };
        let claim = |n: u16| (Kind::Raw, Holder::caller([10, 0, (n >> 8) as u8, n as u8].into()));
        for seq in 0..2 {
            (0..300).for_each(|n| claims.add(seq, &charge, claim(n)));
        }
        claims.remove_order(0, &charge);
        claims.remove_order(1, &charge);
        let left = |claims: &Claims| {
            claims.removed.iter().map(|removed| removed.order.holders.len()).sum::<usize>()
        };
        for expected in [584, 328, 72, 0] {
            assert_eq!(left(&claims), expected);
            claims.release_some();
        }
        assert_eq!(claims.halves[0].signer_count(&claim(0).1, None), 0);
    }
}
