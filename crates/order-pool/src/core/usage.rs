//! How much each holder has, each network, and each signer of a holder: at a cap only the largest loses.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use alloy_primitives::Address;

use super::limits::Division;
use crate::holder::{Holder, Network};

/// Which part of a [`Size`] is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    Count,
    Bytes,
}

/// A number of orders and their bytes: an amount that is held, or a cap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) count: usize,
    pub(crate) bytes: usize,
}

impl Size {
    pub(crate) const UNLIMITED: Self = Self { count: usize::MAX, bytes: usize::MAX };

    pub(super) const fn part(&self, measure: Measure) -> usize {
        match measure {
            Measure::Count => self.count,
            Measure::Bytes => self.bytes,
        }
    }

    pub(super) const fn add(&mut self, bytes: usize) {
        self.count += 1;
        self.bytes += bytes;
    }

    pub(super) const fn subtract(&mut self, bytes: usize) {
        self.count -= 1;
        self.bytes -= bytes;
    }

    /// Which of the caps it exceeds, if any.
    pub(crate) const fn exceeds(&self, caps: &Self) -> Option<Measure> {
        if self.count > caps.count {
            Some(Measure::Count)
        } else if self.bytes > caps.bytes {
            Some(Measure::Bytes)
        } else {
            None
        }
    }
}

/// Keys by their size, the largest last: by count, and by bytes.
#[derive(Debug)]
pub(super) struct BySize<T>([BTreeSet<(usize, T)>; 2]);

impl<T> Default for BySize<T> {
    fn default() -> Self {
        Self([BTreeSet::new(), BTreeSet::new()])
    }
}

impl<T: Ord + Copy> BySize<T> {
    pub(super) const fn by(&self, measure: Measure) -> &BTreeSet<(usize, T)> {
        &self.0[measure as usize]
    }

    fn insert(&mut self, size: Size, key: T) {
        self.0[0].insert((size.count, key));
        self.0[1].insert((size.bytes, key));
    }

    fn remove(&mut self, size: Size, key: T) {
        self.0[0].remove(&(size.count, key));
        self.0[1].remove(&(size.bytes, key));
    }

    /// Moves a key from one size to another; with no orders it is not listed.
    fn replace(&mut self, before: Size, after: Size, key: T) {
        self.remove(before, key);
        if after.count > 0 {
            self.insert(after, key);
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Insert,
    Remove,
}

impl Change {
    const fn apply(self, size: &mut Size, bytes: usize) {
        match self {
            Self::Insert => size.add(bytes),
            Self::Remove => size.subtract(bytes),
        }
    }
}

#[derive(Debug)]
pub(super) struct SignerUsage<I> {
    size: Size,
    /// Each item with its bytes. The last one is evicted first.
    pub(super) items: BTreeMap<I, usize>,
}

#[derive(Debug)]
pub(super) struct HolderUsage<S, I> {
    size: Size,
    pub(super) signers: BTreeMap<S, SignerUsage<I>>,
    /// The last item of each signer, and the signer.
    pub(super) by_size: BySize<(I, S)>,
    /// The items of all signers.
    pub(super) items: BTreeSet<I>,
}

#[derive(Debug)]
pub(super) struct NetworkUsage<I> {
    size: Size,
    pub(super) by_size: BySize<Holder>,
    pub(super) items: BTreeSet<(I, Holder)>,
}

/// The items of all holders that share a cap. Without a hash table, whose growth would move all
/// entries at once.
#[derive(Debug)]
pub(crate) struct Usage<S, I> {
    pub(super) total: Size,
    pub(super) holders: BTreeMap<Holder, HolderUsage<S, I>>,
    pub(super) by_size: BySize<Holder>,
    pub(super) networks: BTreeMap<Network, NetworkUsage<I>>,
}

impl<S, I> Default for Usage<S, I> {
    fn default() -> Self {
        Self {
            total: Size::default(),
            holders: BTreeMap::new(),
            by_size: BySize::default(),
            networks: BTreeMap::new(),
        }
    }
}

impl<S: Copy + Ord, I: Copy + Ord> Usage<S, I> {
    /// Adds an item that is not there.
    pub(crate) fn insert(&mut self, holder: Holder, signer: S, item: I, bytes: usize) {
        self.change(holder, signer, item, bytes, Change::Insert);
    }

    /// Removes an item that is there.
    pub(crate) fn remove(&mut self, holder: Holder, signer: S, item: I, bytes: usize) {
        self.change(holder, signer, item, bytes, Change::Remove);
    }

    /// Changes the items of a signer, and all sizes that contain them.
    fn change(&mut self, holder: Holder, signer: S, item: I, bytes: usize, change: Change) {
        change.apply(&mut self.total, bytes);
        let held = self.holders.entry(holder).or_insert_with(|| HolderUsage {
            size: Size::default(),
            signers: BTreeMap::new(),
            by_size: BySize::default(),
            items: BTreeSet::new(),
        });
        let before = held.size;
        change.apply(&mut held.size, bytes);
        let after = held.size;
        let of_signer = held
            .signers
            .entry(signer)
            .or_insert_with(|| SignerUsage { size: Size::default(), items: BTreeMap::new() });
        if let Some((last, _)) = of_signer.items.last_key_value() {
            held.by_size.remove(of_signer.size, (*last, signer));
        }
        change.apply(&mut of_signer.size, bytes);
        match change {
            Change::Insert => {
                of_signer.items.insert(item, bytes);
                held.items.insert(item);
            }
            Change::Remove => {
                of_signer.items.remove(&item);
                held.items.remove(&item);
            }
        }
        match of_signer.items.last_key_value() {
            Some((last, _)) => held.by_size.insert(of_signer.size, (*last, signer)),
            None => _ = held.signers.remove(&signer),
        }
        if after.count == 0 {
            self.holders.remove(&holder);
        }
        self.by_size.replace(before, after, holder);
        let Some(name) = holder.network() else { return };
        let network = self.networks.entry(name).or_insert_with(|| NetworkUsage {
            size: Size::default(),
            by_size: BySize::default(),
            items: BTreeSet::new(),
        });
        change.apply(&mut network.size, bytes);
        network.by_size.replace(before, after, holder);
        match change {
            Change::Insert => _ = network.items.insert((item, holder)),
            Change::Remove => _ = network.items.remove(&(item, holder)),
        }
        if network.size.count == 0 {
            self.networks.remove(&name);
        }
    }

    pub(crate) fn holder_size(&self, holder: &Holder) -> Size {
        self.holders.get(holder).map_or_else(Size::default, |held| held.size)
    }

    pub(crate) fn network_size(&self, network: Network) -> Size {
        self.networks.get(&network).map_or_else(Size::default, |network| network.size)
    }

    pub(crate) fn signer_size(&self, holder: &Holder, signer: &S) -> Size {
        let held = self.holders.get(holder).and_then(|held| held.signers.get(signer));
        held.map_or_else(Size::default, |signer| signer.size)
    }
}

/// Keys that are remembered for a time, or until their holder has too many: who sends too much
/// loses its own.
#[derive(Debug)]
pub(crate) struct Waiting<K> {
    due: BTreeSet<(Duration, K)>,
    /// Those of callers, and those of the host and of signers that it knows: of a signer the one
    /// that has waited the longest goes first.
    usage: [Usage<Address, Reverse<(Duration, K)>>; 2],
    division: Division,
}

impl<K: Copy + Ord> Waiting<K> {
    pub(crate) fn new(division: Division) -> Self {
        Self { due: BTreeSet::new(), usage: Default::default(), division }
    }

    pub(crate) fn insert(&mut self, holder: Holder, signer: Address, due: (Duration, K)) {
        self.due.insert(due);
        self.usage[usize::from(holder.is_known())].insert(holder, signer, Reverse(due), 0);
    }

    /// Removes one that is there.
    pub(crate) fn remove(&mut self, holder: Holder, signer: Address, due: (Duration, K)) {
        self.due.remove(&due);
        self.usage[usize::from(holder.is_known())].remove(holder, signer, Reverse(due), 0);
    }

    /// One that is due.
    pub(crate) fn due(&self, now: Duration) -> Option<K> {
        self.due.first().filter(|(time, _)| *time <= now).map(|(_, key)| *key)
    }

    /// One that must go, if this holder, its network, or its half of all has too many: of the
    /// largest holder among these, and of its signer with the most, the one that has waited the
    /// longest.
    pub(crate) fn excess(&self, holder: &Holder) -> Option<K> {
        let usage = &self.usage[usize::from(holder.is_known())];
        let network = holder.network();
        let network_count = network.map_or(0, |network| usage.network_size(network).count);
        let largest = if usage.holder_size(holder).count > self.division.of_holder(holder).count {
            *holder
        } else if network_count > self.division.of_network(network).count {
            let network = usage.networks.get(&network?)?;
            network.by_size.by(Measure::Count).last()?.1
        } else if usage.total.count > self.division.half.count {
            usage.by_size.by(Measure::Count).last()?.1
        } else {
            return None;
        };
        let signer = usage.holders.get(&largest)?.by_size.by(Measure::Count).last();
        signer.map(|(_, (Reverse((_, key)), _))| *key)
    }

    /// How many there are of a caller, or of one signer that the host knows.
    pub(crate) fn count(&self, holder: &Holder, signer: &Address) -> usize {
        let usage = &self.usage[usize::from(holder.is_known())];
        match holder {
            Holder::Caller(_) | Holder::Forwarded { .. } => usage.holder_size(holder).count,
            Holder::Host | Holder::Signer(_) => usage.signer_size(holder, signer).count,
        }
    }
}
