//! Counts how much each holder has, each network, and each signer of a holder, so that at a cap
//! only the largest loses.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use alloy_primitives::Address;

use super::limits::ShareCaps;
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

/// Keys in the order of their sizes, the largest last: by count, and by bytes.
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

    /// Moves a key from one size to another, or removes it if it has no orders left.
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
    /// Each item with its bytes. The last item is evicted first.
    pub(super) items: BTreeMap<I, usize>,
}

#[derive(Debug)]
pub(super) struct HolderUsage<S, I> {
    size: Size,
    pub(super) signers: BTreeMap<S, SignerUsage<I>>,
    /// Each signer with its last item.
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

/// The items of all holders that share a cap.
///
/// There is no hash table in it, because one that grows moves all of its entries at once.
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
    /// Adds an item that does not exist yet.
    pub(crate) fn insert(&mut self, holder: Holder, signer: S, item: I, bytes: usize) {
        self.change(holder, signer, item, bytes, Change::Insert);
    }

    /// Removes an item that exists.
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
        let usage = held
            .signers
            .entry(signer)
            .or_insert_with(|| SignerUsage { size: Size::default(), items: BTreeMap::new() });
        if let Some((last, _)) = usage.items.last_key_value() {
            held.by_size.remove(usage.size, (*last, signer));
        }
        change.apply(&mut usage.size, bytes);
        match change {
            Change::Insert => {
                usage.items.insert(item, bytes);
                held.items.insert(item);
            }
            Change::Remove => {
                usage.items.remove(&item);
                held.items.remove(&item);
            }
        }
        match usage.items.last_key_value() {
            Some((last, _)) => held.by_size.insert(usage.size, (*last, signer)),
            None => _ = held.signers.remove(&signer),
        }
        if after.count == 0 {
            self.holders.remove(&holder);
        }
        self.by_size.replace(before, after, holder);
        let Some(network) = holder.network() else { return };
        let usage = self.networks.entry(network).or_insert_with(|| NetworkUsage {
            size: Size::default(),
            by_size: BySize::default(),
            items: BTreeSet::new(),
        });
        change.apply(&mut usage.size, bytes);
        usage.by_size.replace(before, after, holder);
        match change {
            Change::Insert => _ = usage.items.insert((item, holder)),
            Change::Remove => _ = usage.items.remove(&(item, holder)),
        }
        if usage.size.count == 0 {
            self.networks.remove(&network);
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

/// Keys that are remembered for a time. A holder that has too many loses its own keys earlier.
#[derive(Debug)]
pub(crate) struct RetentionQueue<K> {
    due: BTreeSet<(Duration, K)>,
    /// The keys of callers, and those of the host and of the signers that it knows. The key of a
    /// signer that has waited the longest is the signer's last item.
    usage: [Usage<Address, Reverse<(Duration, K)>>; 2],
    caps: ShareCaps,
}

impl<K: Copy + Ord> RetentionQueue<K> {
    pub(crate) fn new(caps: ShareCaps) -> Self {
        Self { due: BTreeSet::new(), usage: Default::default(), caps }
    }

    pub(crate) fn insert(&mut self, holder: Holder, signer: Address, due: (Duration, K)) {
        self.due.insert(due);
        self.usage[usize::from(holder.is_known())].insert(holder, signer, Reverse(due), 0);
    }

    /// Removes a key that exists.
    pub(crate) fn remove(&mut self, holder: Holder, signer: Address, due: (Duration, K)) {
        self.due.remove(&due);
        self.usage[usize::from(holder.is_known())].remove(holder, signer, Reverse(due), 0);
    }

    /// Returns a key whose time is over.
    pub(crate) fn due(&self, now: Duration) -> Option<K> {
        self.due.first().filter(|(time, _)| *time <= now).map(|(_, key)| *key)
    }

    /// Returns a key to forget, if this holder, its network or its half has too many. It is the key
    /// that has waited the longest, of the signer with the most, of the largest holder.
    pub(crate) fn excess(&self, holder: &Holder) -> Option<K> {
        let usage = &self.usage[usize::from(holder.is_known())];
        let network = holder.network();
        let network_count = network.map_or(0, |network| usage.network_size(network).count);
        let largest = if usage.holder_size(holder).count > self.caps.for_holder(holder).count {
            *holder
        } else if network_count > self.caps.for_network(network).count {
            let network = usage.networks.get(&network?)?;
            network.by_size.by(Measure::Count).last()?.1
        } else if usage.total.count > self.caps.half.count {
            usage.by_size.by(Measure::Count).last()?.1
        } else {
            return None;
        };
        let signer = usage.holders.get(&largest)?.by_size.by(Measure::Count).last();
        signer.map(|(_, (Reverse((_, key)), _))| *key)
    }
}
