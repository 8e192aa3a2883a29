//! Which claims end so that one more fits into its half.

use std::collections::{BTreeMap, BTreeSet};

use alloy_primitives::Address;

use super::{
    limits::Division,
    usage::{Measure, Size, Usage},
};
use crate::{error::RejectReason, holder::Holder};

/// Of a signer's orders, the last is evicted first, and of those of the same rank the one accepted
/// last, so that junk evicts no older ones. A transaction ranks by the tip that it pays at the base
/// fee of its acceptance: a fee is only a claim, so it ranks a transaction among those of its holder.
/// A bundle ranks by its block, since nobody knows what it pays without executing it.
pub(super) type Place = (i128, u64);

/// Most holders of an order that lose it together, so that the search for room is bounded: an order
/// with more is passed over.
const MAX_HOLDERS: usize = 16;

/// Most claims that end together with those of others, at a microsecond each.
const MAX_ENDED_CLAIMS: usize = 2_048;

/// Most orders with several holders that are looked at for one claim: each costs up to
/// [`MAX_HOLDERS`] look-ups.
const MAX_SHARED_ORDERS: usize = 512;

/// An order that at least one holder of the half has sent.
#[derive(Clone, Debug)]
pub(super) struct HeldOrder {
    pub(super) place: Place,
    /// The signer of a bundle, the sender of a transaction.
    pub(super) signer: Option<Address>,
    pub(super) bytes: usize,
    pub(super) holders: Vec<Holder>,
}

/// What callers hold of one kind of orders, or what the host and the signers that it knows hold.
#[derive(Debug, Default)]
pub(crate) struct Half {
    orders: BTreeMap<u64, HeldOrder>,
    /// Of the orders, each counted once.
    size: Size,
    /// Of the claims.
    usage: Usage<Option<Address>, Place>,
}

/// A claim for which room is needed.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewClaim {
    pub(super) holder: Holder,
    pub(super) signer: Option<Address>,
    pub(super) place: Place,
    pub(super) bytes: usize,
    /// A pooled order that goes for it.
    pub(super) replaced: Option<u64>,
    /// Orders of other signers with a lower rank are not evicted for it.
    pub(super) lowest_rank: i128,
    pub(super) max_evicted: usize,
}

impl Half {
    pub(super) fn get(&self, seq: u64) -> Option<&HeldOrder> {
        self.orders.get(&seq)
    }

    pub(super) fn signer_count(&self, holder: &Holder, signer: Option<Address>) -> usize {
        self.usage.signer_size(holder, &signer).count
    }

    pub(super) fn is_held_by(&self, seq: u64, holder: &Holder) -> bool {
        let held = |order: &HeldOrder| {
            let signers = &self.usage.holders.get(holder)?.signers;
            signers.get(&order.signer)?.items.get(&order.place)
        };
        self.orders.get(&seq).and_then(held).is_some()
    }

    /// Adds a claim that is not there, to an order whose other claims are in `order.holders`.
    pub(super) fn insert(&mut self, seq: u64, holder: Holder, order: HeldOrder) {
        self.usage.insert(holder, order.signer, order.place, order.bytes);
        let size = &mut self.size;
        let held = self.orders.entry(seq).or_insert_with(|| {
            size.add(order.bytes);
            HeldOrder { holders: Vec::new(), ..order }
        });
        held.holders.push(holder);
    }

    /// Takes an order out. Its claims still count: [`Self::end_claim`] ends each.
    pub(super) fn take(&mut self, seq: u64) -> Option<HeldOrder> {
        let order = self.orders.remove(&seq)?;
        self.size.subtract(order.bytes);
        Some(order)
    }

    /// Ends a claim on an order that was taken out.
    pub(super) fn end_claim(&mut self, order: &HeldOrder, holder: Holder) {
        self.usage.remove(holder, order.signer, order.place, order.bytes);
    }

    /// Ends a claim, if it is there.
    pub(super) fn remove(&mut self, seq: u64, holder: &Holder) {
        let Some(order) = self.orders.get_mut(&seq) else { return };
        let Some(index) = order.holders.iter().position(|other| other == holder) else { return };
        order.holders.remove(index);
        self.usage.remove(*holder, order.signer, order.place, order.bytes);
        if order.holders.is_empty() {
            self.size.subtract(order.bytes);
            self.orders.remove(&seq);
        }
    }

    /// The first bundle for a block before `next` in the first share that is too full for the claim.
    pub(super) fn passed_bundle(
        &self,
        new: &NewClaim,
        caps: &Division,
        next: u64,
        may_go: impl Fn(u64) -> bool,
    ) -> Option<u64> {
        const MAX_LOOKED_AT: usize = 256;
        let room = Room::new(self, new);
        let last = (i128::from(next), 0);
        let first =
            |seqs: &mut dyn Iterator<Item = u64>| seqs.take(MAX_LOOKED_AT).find(|seq| may_go(*seq));
        let own = caps.of_holder(&new.holder);
        let network = new.holder.network();
        if room.own.exceeds(&own).is_some() {
            let held = self.usage.holders.get(&new.holder)?;
            first(&mut held.items.range(..last).map(|(_, seq)| *seq))
        } else if room.network.exceeds(&caps.of_network(network)).is_some() {
            let held = self.usage.networks.get(&network?)?;
            let end = (last, Holder::Host);
            first(&mut held.items.range(..end).map(|((_, seq), _)| *seq))
        } else if room.all.exceeds(&caps.half).is_some() {
            // The holders are few, or each has little.
            let holders = self.usage.holders.values().take(MAX_LOOKED_AT);
            let firsts = holders.filter_map(|held| held.items.range(..last).next());
            first(&mut firsts.map(|(_, seq)| *seq))
        } else {
            None
        }
    }

    /// Which claims must end so that a new one fits. At a holder's own cap, its signer with the most
    /// (the new order included) loses its last order. At the cap of a network and of the half, the
    /// holder with the most loses one in the same way. In the half an order counts once, so it goes
    /// for all its holders, if each has more than the new claim's holder.
    pub(super) fn room_for(
        &self,
        new: &NewClaim,
        caps: &Division,
    ) -> Result<Vec<(u64, Holder)>, RejectReason> {
        let own_caps = caps.of_holder(&new.holder);
        let network = new.holder.network();
        let network_caps = caps.of_network(network);
        let mut room = Room::new(self, new);
        if let Some(measure) = room.own.exceeds(&own_caps)
            && !room.evict(new.holder, measure, Scope::Holder(own_caps))
        {
            let (holder, Size { count, bytes }) = (new.holder, self.usage.holder_size(&new.holder));
            let Size { count: limit, bytes: limit_bytes } = own_caps;
            return Err(RejectReason::HolderFull { holder, count, limit, bytes, limit_bytes });
        }
        if let (Some(measure), Some(network)) = (room.network.exceeds(&network_caps), network) {
            let by_size = self.usage.networks.get(&network).map(|held| &held.by_size);
            let largest = by_size.and_then(|by_size| by_size.by(measure).last());
            let holder = room.larger(measure, largest);
            if !room.evict(holder, measure, Scope::Network(network_caps)) {
                return Err(full(self.usage.network_size(network), network_caps));
            }
        }
        if let Some(measure) = room.all.exceeds(&caps.half) {
            let holder = room.larger(measure, self.usage.by_size.by(measure).last());
            if !room.evict(holder, measure, Scope::Half(caps.half)) {
                return Err(full(self.size, caps.half));
            }
        }
        if room.claims > caps.claims {
            let largest = self.usage.by_size.by(Measure::Count).last();
            let holder = room.larger(Measure::Count, largest);
            if !room.evict(holder, Measure::Count, Scope::Claims(caps.claims)) {
                let limit = Size { count: caps.claims, ..caps.half };
                return Err(full(self.usage.total, limit));
            }
        }
        Ok(room.victims)
    }
}

const fn full(size: Size, caps: Size) -> RejectReason {
    let (Size { count, bytes }, Size { count: limit, bytes: limit_bytes }) = (size, caps);
    RejectReason::Full { count, limit, bytes, limit_bytes }
}

/// The share that is too full, with its caps.
#[derive(Clone, Copy, Debug)]
enum Scope {
    Holder(Size),
    Network(Size),
    Half(Size),
    Claims(usize),
}

/// What would be held, as claims are chosen to end. The new claim is counted.
struct Room<'a> {
    half: &'a Half,
    new: &'a NewClaim,
    own_signer: Size,
    own: Size,
    network: Size,
    all: Size,
    claims: usize,
    /// In the order in which they were chosen.
    victims: Vec<(u64, Holder)>,
    chosen: BTreeSet<(u64, Holder)>,
    /// How many more orders may be chosen, and how many more with several holders may be looked at.
    orders_left: usize,
    shared_left: usize,
}

impl<'a> Room<'a> {
    fn new(half: &'a Half, new: &'a NewClaim) -> Self {
        let NewClaim { holder, signer, place, bytes, .. } = *new;
        let usage = &half.usage;
        let network = holder.network();
        let mut room = Self {
            half,
            new,
            own_signer: usage.signer_size(&holder, &signer),
            own: usage.holder_size(&holder),
            network: network.map_or_else(Size::default, |network| usage.network_size(network)),
            all: half.size,
            claims: usage.total.count + 1,
            victims: Vec::new(),
            chosen: BTreeSet::new(),
            orders_left: new.max_evicted,
            shared_left: MAX_SHARED_ORDERS,
        };
        for size in [&mut room.own_signer, &mut room.own, &mut room.network] {
            size.add(bytes);
        }
        if !half.orders.contains_key(&place.1) {
            room.all.add(bytes);
        }
        if let Some(old) = new.replaced.and_then(|seq| half.orders.get(&seq)) {
            room.all.subtract(old.bytes);
            room.claims -= old.holders.len();
            for other in &old.holders {
                if *other == holder {
                    room.own.subtract(old.bytes);
                    if old.signer == signer {
                        room.own_signer.subtract(old.bytes);
                    }
                }
                if network.is_some() && other.network() == network {
                    room.network.subtract(old.bytes);
                }
            }
        }
        room
    }

    /// The largest holder, if it has more than the new claim's; or else that one.
    fn larger(&self, measure: Measure, largest: Option<&(usize, Holder)>) -> Holder {
        let larger = largest.filter(|(size, _)| *size > self.own.part(measure));
        larger.map_or(self.new.holder, |(_, holder)| *holder)
    }

    fn is_over(&self, scope: Scope) -> bool {
        match scope {
            Scope::Holder(caps) => self.own.exceeds(&caps).is_some(),
            Scope::Network(caps) => self.network.exceeds(&caps).is_some(),
            Scope::Half(caps) => self.all.exceeds(&caps).is_some(),
            Scope::Claims(limit) => self.claims > limit,
        }
    }

    /// Whether so many bytes are too few to help: all that may still be evicted would not make room
    /// if each had as few.
    fn is_too_small(&self, bytes: usize, scope: Scope) -> bool {
        let (size, caps) = match scope {
            Scope::Holder(caps) => (self.own, caps),
            Scope::Network(caps) => (self.network, caps),
            Scope::Half(caps) => (self.all, caps),
            Scope::Claims(_) => return false,
        };
        bytes.saturating_mul(self.orders_left) < size.bytes.saturating_sub(caps.bytes)
    }

    /// Chooses claims of a holder until enough is free. Returns whether it is.
    fn evict(&mut self, holder: Holder, measure: Measure, scope: Scope) -> bool {
        let half = self.half;
        let Some(held) = half.usage.holders.get(&holder) else { return !self.is_over(scope) };
        let is_own = holder == self.new.holder;
        let own = held.signers.get(&self.new.signer).filter(|_| is_own);
        let is_kept = |place: &&Place| Some(place.1) != self.new.replaced;
        let own_last = own.and_then(|own| own.items.keys().rev().find(is_kept));
        let own_last = own_last.copied().unwrap_or(self.new.place).max(self.new.place);
        for &(size, (last, signer)) in held.by_size.by(measure).iter().rev() {
            if !self.is_over(scope) {
                break;
            }
            if is_own && signer == self.new.signer {
                continue;
            }
            // From here on the signer of the new order has the most.
            let own_size = self.own_signer.part(measure);
            if is_own && (size, last) <= (own_size, own_last) {
                break;
            }
            let mut left = size;
            for (place, bytes) in held.signers[&signer].items.iter().rev() {
                let is_done = !self.is_over(scope) || is_own && left < own_size;
                if is_done || place.0 < self.new.lowest_rank {
                    break;
                }
                if self.end(holder, measure, *place, *bytes, scope) {
                    left -= if measure == Measure::Count { 1 } else { *bytes };
                }
            }
        }
        for (place, bytes) in own.into_iter().flat_map(|own| own.items.iter().rev()) {
            if !self.is_over(scope) || *place <= self.new.place {
                break;
            }
            self.end(holder, measure, *place, *bytes, scope);
        }
        !self.is_over(scope)
    }

    /// Chooses the claim of a holder on an order, and in the half those of all others on it; not if
    /// that would not help, or if one of the others has no more than the new claim's holder. Returns
    /// whether it is chosen.
    fn end(
        &mut self,
        holder: Holder,
        measure: Measure,
        (_, seq): Place,
        bytes: usize,
        scope: Scope,
    ) -> bool {
        let is_protected = Some(seq) == self.new.replaced || seq == self.new.place.1;
        if is_protected
            || self.orders_left == 0
            || self.is_too_small(bytes, scope)
            || self.chosen.contains(&(seq, holder))
        {
            return false;
        }
        let holders = &self.half.orders[&seq].holders;
        let others = || holders.iter().filter(|other| **other != holder);
        if let Scope::Half(_) = scope {
            if holders.len() > 1 {
                let has_more = |other: &Holder| {
                    self.half.usage.holder_size(other).part(measure) > self.own.part(measure)
                };
                if self.shared_left == 0
                    || holders.len() > MAX_HOLDERS
                    || self.victims.len() + holders.len() > MAX_ENDED_CLAIMS
                {
                    return false;
                }
                self.shared_left -= 1;
                if !others().all(has_more) {
                    return false;
                }
            }
            holders.iter().for_each(|holder| self.push(*holder, seq, bytes));
            self.all.subtract(bytes);
        } else {
            self.push(holder, seq, bytes);
            let is_chosen = |other: &Holder| self.chosen.contains(&(seq, *other));
            if holders.len() <= MAX_HOLDERS && others().all(is_chosen) {
                self.all.subtract(bytes);
            }
        }
        self.orders_left -= 1;
        true
    }

    fn push(&mut self, holder: Holder, seq: u64, bytes: usize) {
        if !self.chosen.insert((seq, holder)) {
            return;
        }
        self.victims.push((seq, holder));
        self.claims -= 1;
        if holder == self.new.holder {
            self.own.subtract(bytes);
        }
        let network = self.new.holder.network();
        if network.is_some() && holder.network() == network {
            self.network.subtract(bytes);
        }
    }
}
