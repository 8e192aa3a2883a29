//! Decides which claims end so that a new one fits into its half of a cap. A claim says that a
//! holder has sent an order.

use std::collections::{BTreeMap, BTreeSet};

use alloy_primitives::Address;

use super::{
    limits::ShareCaps,
    usage::{HolderUsage, Measure, Size, Usage},
};
use crate::{error::RejectReason, holder::Holder};

/// An order's rank and its sequence number. Of a signer's orders, the one with the highest key is
/// evicted first. Of orders with equal ranks that is the one accepted last, so that junk evicts no
/// older order.
///
/// The rank of a transaction is the negative tip that it pays at the base fee of its acceptance, so
/// the lowest tip is evicted first. It is compared only with transactions of the same holder,
/// because anyone may promise a high fee. The rank of a bundle is its block, since nobody knows
/// what it pays without executing it.
pub(super) type EvictionKey = (i128, u64);

/// The most holders of an order that is evicted for all of them. An order with more holders is
/// skipped, so that the search is bounded.
const MAX_HOLDERS: usize = 16;

/// The most claims that end for one new claim, if some of them are on orders with several holders.
/// Each costs a microsecond.
const MAX_ENDED_CLAIMS: usize = 2_048;

/// The most orders with several holders that are inspected for one claim and stay. Each costs up to
/// [`MAX_HOLDERS`] look-ups.
const MAX_SHARED_ORDERS: usize = 256;

/// The most orders and signers that are inspected for one claim, at less than a microsecond each.
/// They are more than one caller may have. A refused order changes nothing, so its sender may send
/// it again at once.
const MAX_INSPECTED: usize = 1_024;

/// The most holders whose orders are inspected for one claim, beginning with the largest.
const MAX_LARGEST_HOLDERS: usize = 16;

/// The most bundles of past blocks that one pass over a share inspects for one claim.
const MAX_INSPECTED_EXPIRED: usize = 512;

/// An order that at least one holder of the half has sent.
#[derive(Clone, Debug)]
pub(super) struct HeldOrder {
    pub(super) eviction_key: EvictionKey,
    /// The signer of a bundle, the sender of a transaction.
    pub(super) signer: Option<Address>,
    pub(super) bytes: usize,
    pub(super) holders: Vec<Holder>,
}

/// One of the two halves of a cap, and its orders: those of callers, or those of the host and the
/// signers that it knows.
#[derive(Debug, Default)]
pub(crate) struct Half {
    /// By sequence number.
    orders: BTreeMap<u64, HeldOrder>,
    eviction_keys: BTreeSet<EvictionKey>,
    /// The size of the orders. An order with several holders counts once.
    size: Size,
    /// The claims by holder and signer. An order counts once for each of its holders.
    usage: Usage<Option<Address>, EvictionKey>,
    /// The number of claims in `usage` on orders that [`Self::take`] removed.
    unreleased: usize,
}

/// A claim that needs room.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewClaim {
    pub(super) holder: Holder,
    pub(super) signer: Option<Address>,
    pub(super) eviction_key: EvictionKey,
    pub(super) bytes: usize,
    /// The pooled order that the new one replaces.
    pub(super) replaced: Option<u64>,
    /// Orders of other signers with a lower rank are not evicted for it.
    pub(super) lowest_rank: i128,
    pub(super) max_evicted: usize,
}

impl Half {
    pub(super) fn get(&self, seq: u64) -> Option<&HeldOrder> {
        self.orders.get(&seq)
    }

    /// Returns the number of a signer's orders that a holder has.
    pub(super) fn signer_count(&self, holder: &Holder, signer: Option<Address>) -> usize {
        let held = self.usage.holders.get(holder).and_then(|held| held.signers.get(&signer));
        let keys = held.into_iter().flat_map(|signer| signer.items.keys());
        keys.filter(|(_, seq)| self.orders.contains_key(seq)).count()
    }

    pub(super) fn is_held_by(&self, seq: u64, holder: &Holder) -> bool {
        self.orders.get(&seq).is_some_and(|order| {
            let held = self.usage.holders.get(holder);
            let signer = held.and_then(|held| held.signers.get(&order.signer));
            signer.is_some_and(|signer| signer.items.contains_key(&order.eviction_key))
        })
    }

    /// Adds a claim that does not exist yet, to an order whose other claims are in `order.holders`.
    pub(super) fn insert(&mut self, seq: u64, holder: Holder, order: HeldOrder) {
        self.usage.insert(holder, order.signer, order.eviction_key, order.bytes);
        let (size, eviction_keys) = (&mut self.size, &mut self.eviction_keys);
        let held = self.orders.entry(seq).or_insert_with(|| {
            size.add(order.bytes);
            eviction_keys.insert(order.eviction_key);
            HeldOrder { holders: Vec::new(), ..order }
        });
        held.holders.push(holder);
    }

    /// Removes an order. Its claims stay in the usage until [`Self::release`] is called for each.
    pub(super) fn take(&mut self, seq: u64) -> Option<HeldOrder> {
        let order = self.orders.remove(&seq)?;
        self.eviction_keys.remove(&order.eviction_key);
        self.size.subtract(order.bytes);
        self.unreleased += order.holders.len();
        Some(order)
    }

    /// Releases a claim on an order that [`Self::take`] removed.
    pub(super) fn release(&mut self, order: &HeldOrder, holder: Holder) {
        self.usage.remove(holder, order.signer, order.eviction_key, order.bytes);
        self.unreleased -= 1;
    }

    /// Removes a claim, if it exists.
    pub(super) fn remove(&mut self, seq: u64, holder: &Holder) {
        let Some(order) = self.orders.get_mut(&seq) else { return };
        let Some(index) = order.holders.iter().position(|other| other == holder) else { return };
        order.holders.remove(index);
        self.usage.remove(*holder, order.signer, order.eviction_key, order.bytes);
        if order.holders.is_empty() {
            self.size.subtract(order.bytes);
            self.eviction_keys.remove(&order.eviction_key);
            self.orders.remove(&seq);
        }
    }

    /// Returns the sequence numbers of bundles whose block is before `next_block` and whose removal
    /// makes room for the claim in the holder's share, in that of its network, and in the half.
    /// They are removed for all of their holders. Live orders are evicted if they do not suffice.
    pub(super) fn expired_bundles(
        &self,
        new: &NewClaim,
        caps: &ShareCaps,
        next_block: u64,
    ) -> Vec<u64> {
        let mut plan = EvictionPlan::new(self, new);
        let mut expired = Vec::new();
        // The rank of a bundle is its block.
        let end = (i128::from(next_block), 0);
        if let Some(held) = self.usage.holders.get(&new.holder) {
            let keys = held.items.range(..end).copied();
            plan.choose_expired(keys, Scope::Holder(caps.for_holder(&new.holder)), &mut expired);
        }
        let network = new.holder.network();
        if let Some(held) = network.and_then(|network| self.usage.networks.get(&network)) {
            // `Holder::Host` is the lowest holder.
            let keys = held.items.range(..(end, Holder::Host)).map(|(key, _)| *key);
            plan.choose_expired(keys, Scope::Network(caps.for_network(network)), &mut expired);
        }
        let keys = self.eviction_keys.range(..end).copied();
        plan.choose_expired(keys, Scope::Half(caps.half), &mut expired);
        expired
    }

    /// Returns the claims that must end so that a new one fits.
    ///
    /// At a holder's own cap, its signer with the most (the new order included) loses its last
    /// order. At the cap of a network and of the half, the holder with the most loses one in the
    /// same way; if it has none that may be evicted, the next largest holder does. The half counts
    /// an order once, so there the order goes for all its holders, if each of them has more than
    /// the new claim's holder.
    pub(super) fn plan_evictions(
        &self,
        new: &NewClaim,
        caps: &ShareCaps,
    ) -> Result<Vec<(u64, Holder)>, RejectReason> {
        let own_caps = caps.for_holder(&new.holder);
        let network = new.holder.network();
        let network_caps = caps.for_network(network);
        let mut plan = EvictionPlan::new(self, new);
        if self.unreleased > 0 && plan.own.exceeds(&own_caps).is_some() {
            plan.discount_own();
        }
        if let Some(measure) = plan.own.exceeds(&own_caps)
            && !plan.evict(new.holder, measure, Scope::Holder(own_caps))
        {
            let Size { count, bytes } = self.usage.holder_size(&new.holder);
            let Size { count: limit, bytes: limit_bytes } = own_caps;
            let holder = new.holder;
            return Err(RejectReason::HolderFull { holder, count, limit, bytes, limit_bytes });
        }
        if let (Some(measure), Some(network)) = (plan.network.exceeds(&network_caps), network) {
            let by_size = self.usage.networks.get(&network).map(|held| held.by_size.by(measure));
            let by_size = by_size.into_iter().flatten().rev();
            if !plan.evict_largest(by_size, measure, Scope::Network(network_caps)) {
                return Err(full(self.usage.network_size(network), network_caps));
            }
        }
        if let Some(measure) = plan.all.exceeds(&caps.half) {
            let by_size = self.usage.by_size.by(measure).iter().rev();
            if !plan.evict_largest(by_size, measure, Scope::Half(caps.half)) {
                return Err(full(self.size, caps.half));
            }
        }
        if plan.claims > caps.claims {
            let by_size = self.usage.by_size.by(Measure::Count).iter().rev();
            if !plan.evict_largest(by_size, Measure::Count, Scope::Claims(caps.claims)) {
                let limit = Size { count: caps.claims, ..caps.half };
                return Err(full(self.usage.total, limit));
            }
        }
        Ok(plan.victims)
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

/// The claims chosen to end so far, and the sizes that would be left with the new claim.
struct EvictionPlan<'a> {
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
    /// The size of each holder's claims in `chosen`.
    ended: BTreeMap<Holder, Size>,
    /// How many more orders may be chosen.
    orders_left: usize,
    /// How many more orders and signers may be inspected.
    inspections_left: usize,
    /// How many more orders with several holders may be inspected and stay.
    shared_left: usize,
    #[cfg(test)]
    inspected: usize,
}

impl<'a> EvictionPlan<'a> {
    fn new(half: &'a Half, new: &'a NewClaim) -> Self {
        let NewClaim { holder, signer, eviction_key, bytes, .. } = *new;
        let usage = &half.usage;
        let network = holder.network();
        let mut plan = Self {
            half,
            new,
            own_signer: usage.signer_size(&holder, &signer),
            own: usage.holder_size(&holder),
            network: network.map_or_else(Size::default, |network| usage.network_size(network)),
            all: half.size,
            claims: usage.total.count + 1,
            victims: Vec::new(),
            chosen: BTreeSet::new(),
            ended: BTreeMap::new(),
            orders_left: new.max_evicted,
            inspections_left: MAX_INSPECTED,
            shared_left: MAX_SHARED_ORDERS,
            #[cfg(test)]
            inspected: 0,
        };
        for size in [&mut plan.own_signer, &mut plan.own, &mut plan.network] {
            size.add(bytes);
        }
        if !half.orders.contains_key(&eviction_key.1) {
            plan.all.add(bytes);
        }
        if let Some(old) = new.replaced.and_then(|seq| half.orders.get(&seq)) {
            plan.all.subtract(old.bytes);
            plan.claims -= old.holders.len();
            for other in &old.holders {
                if *other == holder {
                    plan.own.subtract(old.bytes);
                    if old.signer == signer {
                        plan.own_signer.subtract(old.bytes);
                    }
                }
                if network.is_some() && other.network() == network {
                    plan.network.subtract(old.bytes);
                }
            }
        }
        plan
    }

    /// Subtracts the claims of the new claim's holder on removed orders, which are not released
    /// yet.
    fn discount_own(&mut self) {
        let Some(held) = self.half.usage.holders.get(&self.new.holder) else { return };
        for (signer, usage) in &held.signers {
            for ((_, seq), bytes) in &usage.items {
                if !self.half.orders.contains_key(seq) {
                    self.discount(self.new.holder, *seq, *bytes);
                    if *signer == self.new.signer {
                        self.own_signer.subtract(*bytes);
                    }
                }
            }
        }
    }

    /// Chooses orders that are removed for all of their holders until there is enough room: first
    /// those that are not too small, and then the others. Each is inspected at most twice.
    fn choose_expired(
        &mut self,
        keys: impl Iterator<Item = EvictionKey> + Clone,
        scope: Scope,
        expired: &mut Vec<u64>,
    ) {
        for may_be_small in [false, true] {
            for (_, seq) in keys.clone().take(MAX_INSPECTED_EXPIRED) {
                if !self.is_over(scope) || self.orders_left == 0 {
                    return;
                }
                // One that was removed, and whose claims are not released yet, takes no room.
                let Some(order) = self.half.orders.get(&seq) else { continue };
                if self.is_protected(seq)
                    || expired.contains(&seq)
                    || !may_be_small && self.is_too_small(order.bytes, scope)
                {
                    continue;
                }
                // An order with many holders is only searched for the claim of the new one.
                let new_holder = [self.new.holder];
                let holders = if order.holders.len() > MAX_HOLDERS {
                    if self.half.is_held_by(seq, &new_holder[0]) { &new_holder[..] } else { &[] }
                } else {
                    &order.holders[..]
                };
                for holder in holders {
                    self.discount(*holder, seq, order.bytes);
                }
                self.all.subtract(order.bytes);
                self.orders_left -= 1;
                expired.push(seq);
            }
        }
    }

    fn is_protected(&self, seq: u64) -> bool {
        Some(seq) == self.new.replaced || seq == self.new.eviction_key.1
    }

    /// Chooses claims of the largest holder until there is enough room. If its claims do not
    /// suffice, continues with the next largest holders that have more than the new claim's holder,
    /// and at last with that holder itself. Returns whether there is enough room.
    fn evict_largest<'b>(
        &mut self,
        by_size: impl Iterator<Item = &'b (usize, Holder)>,
        measure: Measure,
        scope: Scope,
    ) -> bool {
        let own_size = self.own.part(measure);
        let larger = by_size.take_while(|(size, _)| *size > own_size).take(MAX_LARGEST_HOLDERS);
        larger.map(|(_, holder)| *holder).any(|holder| self.evict(holder, measure, scope))
            || self.evict(self.new.holder, measure, scope)
    }

    fn is_over(&self, scope: Scope) -> bool {
        match scope {
            Scope::Holder(caps) => self.own.exceeds(&caps).is_some(),
            Scope::Network(caps) => self.network.exceeds(&caps).is_some(),
            Scope::Half(caps) => self.all.exceeds(&caps).is_some(),
            Scope::Claims(limit) => self.claims > limit,
        }
    }

    /// Whether an order of this size is too small to help: even if as many orders of this size were
    /// evicted as may still be evicted, there would not be enough room.
    fn is_too_small(&self, bytes: usize, scope: Scope) -> bool {
        let (size, caps) = match scope {
            Scope::Holder(caps) => (self.own, caps),
            Scope::Network(caps) => (self.network, caps),
            Scope::Half(caps) => (self.all, caps),
            Scope::Claims(_) => return false,
        };
        bytes.saturating_mul(self.orders_left) < size.bytes.saturating_sub(caps.bytes)
    }

    /// Whether a holder would be left with more than the new claim's holder.
    fn has_more(&self, holder: &Holder, measure: Measure) -> bool {
        let ended = self.ended.get(holder).map_or(0, |ended| ended.part(measure));
        let left = self.half.usage.holder_size(holder).part(measure) - ended;
        left > self.own.part(measure)
    }

    /// Counts an inspection. Returns whether it is one of the first [`MAX_INSPECTED`].
    const fn inspect(&mut self) -> bool {
        if self.inspections_left == 0 {
            return false;
        }
        self.inspections_left -= 1;
        true
    }

    /// Chooses claims of a holder until there is enough room, or until the new claim's holder would
    /// have as much. Returns whether there is enough room.
    fn evict(&mut self, holder: Holder, measure: Measure, scope: Scope) -> bool {
        let half = self.half;
        let held = half.usage.holders.get(&holder);
        let has_any = |held: &&HolderUsage<_, EvictionKey>| {
            held.items.last().is_some_and(|last| last.0 >= self.new.lowest_rank)
        };
        let Some(held) = held.filter(has_any) else { return !self.is_over(scope) };
        let is_own = holder == self.new.holder;
        let is_done =
            |plan: &Self| !plan.is_over(scope) || !is_own && !plan.has_more(&holder, measure);
        let own_signer = held.signers.get(&self.new.signer).filter(|_| is_own);
        let is_not_replaced = |key: &&EvictionKey| Some(key.1) != self.new.replaced;
        let own_last = own_signer
            .and_then(|signer| signer.items.keys().rev().find(is_not_replaced))
            .map_or(self.new.eviction_key, |last| self.new.eviction_key.max(*last));
        for &(size, (last, signer)) in held.by_size.by(measure).iter().rev() {
            if is_done(self) || self.inspections_left == 0 {
                break;
            }
            #[cfg(test)]
            {
                self.inspected += 1;
            }
            if is_own && signer == self.new.signer {
                continue;
            }
            // From here on the signer of the new order has the most.
            let own_size = self.own_signer.part(measure);
            if is_own && (size, last) <= (own_size, own_last) {
                break;
            }
            // None of the orders from here on has more bytes.
            if measure == Measure::Bytes && self.is_too_small(size, scope) {
                break;
            }
            if last.0 < self.new.lowest_rank {
                if !self.inspect() {
                    break;
                }
                continue;
            }
            let mut left = size;
            for (key, bytes) in held.signers[&signer].items.iter().rev() {
                let is_kept = key.0 < self.new.lowest_rank || is_own && left < own_size;
                if is_done(self) || is_kept || !self.inspect() {
                    break;
                }
                if self.choose(holder, measure, *key, *bytes, scope) {
                    left -= if measure == Measure::Count { 1 } else { *bytes };
                }
            }
        }
        for (key, bytes) in own_signer.into_iter().flat_map(|own| own.items.iter().rev()) {
            if !self.is_over(scope) || *key <= self.new.eviction_key || !self.inspect() {
                break;
            }
            self.choose(holder, measure, *key, *bytes, scope);
        }
        !self.is_over(scope)
    }

    /// Chooses the claim of a holder on an order, and in the half all other claims on it too.
    /// Chooses nothing if that would not help, or if one of the other holders does not have more
    /// than the new claim's holder. Returns whether it chose the claim.
    fn choose(
        &mut self,
        holder: Holder,
        measure: Measure,
        (_, seq): EvictionKey,
        bytes: usize,
        scope: Scope,
    ) -> bool {
        if self.is_protected(seq)
            || self.orders_left == 0
            || self.is_too_small(bytes, scope)
            || self.chosen.contains(&(seq, holder))
        {
            return false;
        }
        let Some(HeldOrder { holders, .. }) = self.half.orders.get(&seq) else {
            // The order was removed, so this claim takes no room.
            return self.discount(holder, seq, bytes);
        };
        let others = || holders.iter().filter(|other| **other != holder);
        if let Scope::Half(_) = scope {
            if holders.len() > 1 {
                let has_more = |other: &Holder| self.has_more(other, measure);
                if self.shared_left == 0
                    || holders.len() > MAX_HOLDERS
                    || self.victims.len() + holders.len() > MAX_ENDED_CLAIMS
                {
                    return false;
                }
                if !others().all(has_more) {
                    self.shared_left -= 1;
                    return false;
                }
            }
            holders.iter().for_each(|holder| self.push_victim(*holder, seq, bytes));
            self.all.subtract(bytes);
        } else {
            self.push_victim(holder, seq, bytes);
            let is_chosen = |other: &Holder| self.chosen.contains(&(seq, *other));
            if holders.len() <= MAX_HOLDERS && others().all(is_chosen) {
                self.all.subtract(bytes);
            }
        }
        self.orders_left -= 1;
        true
    }

    fn push_victim(&mut self, holder: Holder, seq: u64, bytes: usize) {
        if self.discount(holder, seq, bytes) {
            self.victims.push((seq, holder));
        }
    }

    /// Subtracts a claim from the sizes. Returns whether it was not subtracted before.
    fn discount(&mut self, holder: Holder, seq: u64, bytes: usize) -> bool {
        if !self.chosen.insert((seq, holder)) {
            return false;
        }
        self.claims -= 1;
        self.ended.entry(holder).or_default().add(bytes);
        if holder == self.new.holder {
            self.own.subtract(bytes);
        }
        let network = self.new.holder.network();
        if network.is_some() && holder.network() == network {
            self.network.subtract(bytes);
        }
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const HOLDERS: u8 = 16;
    const SIGNERS: u16 = 625;

    fn holder(n: u8) -> Holder {
        Holder::caller([10, 0, 0, n].into())
    }

    fn insert(half: &mut Half, rank: i128, holder: Holder, signer: u16) {
        let seq = half.orders.len() as u64;
        let signer = Some(Address::left_padding_from(&signer.to_be_bytes()));
        let order =
            HeldOrder { eviction_key: (rank, seq), signer, bytes: 1_000, holders: Vec::new() };
        half.insert(seq, holder, order);
    }

    /// Returns a half full of orders of rank 40, each of another signer of its holder.
    fn full_half() -> Half {
        let mut half = Half::default();
        for n in 0..HOLDERS {
            (0..SIGNERS).for_each(|signer| insert(&mut half, 40, holder(n), signer));
        }
        half
    }

    /// Returns how many orders and signers a search inspects that finds no room for a new order.
    fn inspected(half: &Half, lowest_rank: i128) -> usize {
        let new = NewClaim {
            holder: holder(100),
            signer: None,
            eviction_key: (lowest_rank, u64::MAX),
            bytes: 1_000,
            replaced: None,
            lowest_rank,
            max_evicted: 64,
        };
        let cap = Size { count: half.size.count, bytes: usize::MAX };
        let by_size = half.usage.by_size.by(Measure::Count).iter().rev();
        let mut plan = EvictionPlan::new(half, &new);
        assert!(!plan.evict_largest(by_size, Measure::Count, Scope::Half(cap)));
        plan.inspected
    }

    /// One address could send bundles for a later block than all others again and again. Each was
    /// refused after a look-up of every signer of every holder under the writer's lock.
    #[test]
    fn a_refused_bundle_is_compared_with_few_others() {
        assert_eq!(inspected(&full_half(), 41), 0, "no holder has one that may be evicted");
        let mut half = full_half();
        for n in 0..HOLDERS {
            // Each holder has one that may not be evicted, because a small holder has it too.
            let seq = half.orders.len() as u64;
            insert(&mut half, 50, holder(n), SIGNERS);
            let order = half.orders[&seq].clone();
            half.insert(seq, holder(200 + n), order);
        }
        let inspected = inspected(&half, 41);
        assert!(inspected <= MAX_INSPECTED, "{inspected}");
    }
}
