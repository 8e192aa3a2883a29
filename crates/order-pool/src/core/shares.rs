//! Counts holdings by holder, and by signer within a holder, so that at a cap only the largest loses.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use alloy_primitives::Address;

use super::limits::Division;
use crate::{error::RejectReason, holder::Holder};

/// Most transactions that one insert may evict. A share that is full of bytes has 2.7 kB for each of the
/// transactions that it may have, so these make room for one of six blobs (0.83 MB).
pub(crate) const MAX_EVICTED_TXS: usize = 320;

/// What of a size is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    Count,
    Bytes,
}

/// A number of orders and their bytes: what is held, or a cap on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) count: usize,
    pub(crate) bytes: usize,
}

impl Size {
    const fn by(&self, measure: Measure) -> usize {
        match measure {
            Measure::Count => self.count,
            Measure::Bytes => self.bytes,
        }
    }

    pub(super) const fn add(&mut self, bytes: usize) {
        self.count += 1;
        self.bytes += bytes;
    }

    pub(super) const fn take(&mut self, bytes: usize) {
        self.count -= 1;
        self.bytes -= bytes;
    }

    /// By what it exceeds the caps, if it does.
    pub(crate) const fn exceeds(&self, caps: &Size) -> Option<Measure> {
        if self.count > caps.count {
            Some(Measure::Count)
        } else if self.bytes > caps.bytes {
            Some(Measure::Bytes)
        } else {
            None
        }
    }
}

/// Who has how much, the largest last: by count, and by bytes.
#[derive(Debug)]
struct BySize<T>([BTreeSet<(usize, T)>; 2]);

impl<T: Ord + Copy> BySize<T> {
    const fn by(&self, measure: Measure) -> &BTreeSet<(usize, T)> {
        &self.0[measure as usize]
    }

    fn insert(&mut self, size: Size, of: T) {
        self.0[0].insert((size.count, of));
        self.0[1].insert((size.bytes, of));
    }

    fn remove(&mut self, size: Size, of: T) {
        self.0[0].remove(&(size.count, of));
        self.0[1].remove(&(size.bytes, of));
    }
}

#[derive(Debug)]
struct OfSigner<I> {
    size: Size,
    /// The last one is evicted first.
    items: BTreeSet<I>,
}

#[derive(Debug)]
struct Held<S, I> {
    size: Size,
    signers: BTreeMap<S, OfSigner<I>>,
    /// The last item of each signer, and the signer.
    by_size: BySize<(I, S)>,
}

/// Items that share their caps. Without a hash table, whose growth would move them all at once.
#[derive(Debug)]
pub(crate) struct Shares<S, I> {
    size: Size,
    holders: BTreeMap<Holder, Held<S, I>>,
    by_size: BySize<Holder>,
}

impl<S, I> Default for Shares<S, I> {
    fn default() -> Self {
        let by_size = BySize(Default::default());
        Self { size: Size::default(), holders: BTreeMap::new(), by_size }
    }
}

/// An item, and who wants room for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct New<S, I> {
    pub(crate) holder: Holder,
    pub(crate) signer: S,
    /// Its signer's items above it may be evicted for it.
    pub(crate) item: I,
    /// The items of other signers from this one on may be evicted for it.
    pub(crate) from: I,
    pub(crate) bytes: usize,
    /// Most items that may be evicted for it.
    pub(crate) max_evicted: usize,
}

impl<S: Copy + Ord, I: Copy + Ord> Shares<S, I> {
    pub(crate) fn insert(&mut self, holder: Holder, signer: S, item: I, bytes: usize) {
        self.change(holder, signer, |sizes, items| {
            sizes.into_iter().for_each(|size| size.add(bytes));
            items.insert(item);
        });
    }

    /// Removes an item that is there.
    pub(crate) fn remove(&mut self, holder: Holder, signer: S, item: I, bytes: usize) {
        self.change(holder, signer, |sizes, items| {
            sizes.into_iter().for_each(|size| size.take(bytes));
            items.remove(&item);
        });
    }

    /// Changes the items of a signer, and the sizes of all, of the holder and of the signer.
    fn change(
        &mut self,
        holder: Holder,
        signer: S,
        change: impl FnOnce([&mut Size; 3], &mut BTreeSet<I>),
    ) {
        let held = self.holders.entry(holder).or_insert_with(|| Held {
            size: Size::default(),
            signers: BTreeMap::new(),
            by_size: BySize(Default::default()),
        });
        self.by_size.remove(held.size, holder);
        let OfSigner { size, items } = held
            .signers
            .entry(signer)
            .or_insert_with(|| OfSigner { size: Size::default(), items: BTreeSet::new() });
        if let Some(last) = items.last() {
            held.by_size.remove(*size, (*last, signer));
        }
        change([&mut self.size, &mut held.size, size], items);
        match items.last() {
            Some(last) => held.by_size.insert(*size, (*last, signer)),
            None => _ = held.signers.remove(&signer),
        }
        if held.size.count > 0 {
            self.by_size.insert(held.size, holder);
        } else {
            self.holders.remove(&holder);
        }
    }

    pub(crate) fn of(&self, holder: &Holder) -> Size {
        self.holders.get(holder).map_or_else(Size::default, |held| held.size)
    }

    pub(crate) fn of_signer(&self, holder: &Holder, signer: &S) -> Size {
        let of_signer = self.holders.get(holder).and_then(|held| held.signers.get(signer));
        of_signer.map_or_else(Size::default, |of_signer| of_signer.size)
    }

    pub(crate) fn items_of(&self, holder: &Holder, signer: &S) -> impl Iterator<Item = &I> {
        let of_signer = self.holders.get(holder).and_then(|held| held.signers.get(signer));
        of_signer.into_iter().flat_map(|of_signer| &of_signer.items)
    }

    /// Which claims must be evicted so that a new one fits, if `replaced` (item, its claims by this
    /// holder and by all, and its bytes) goes for it.
    ///
    /// At a holder's own cap, its signer with the most (the new item included) loses its last item.
    /// At the cap of all, the holder with the most loses one in the same way.
    pub(crate) fn room_for(
        &self,
        new: &New<S, I>,
        replaced: Option<(I, [usize; 2], usize)>,
        own_caps: Size,
        caps: Size,
        bytes_of: impl Fn(&I) -> usize,
    ) -> Result<Vec<(Holder, I)>, RejectReason> {
        let [of_own, of_all] = replaced.map_or([0; 2], |(_, claims, _)| claims);
        let with = |mut size: Size, claims: usize| {
            size.add(new.bytes);
            for _ in 0..claims {
                size.take(replaced.map_or(0, |(.., bytes)| bytes));
            }
            size
        };
        let mut room = Room {
            shares: self,
            new: *new,
            of_new_signer: with(self.of_signer(&new.holder, &new.signer), of_own),
            replaced: replaced.map(|(item, ..)| item),
            own: with(self.of(&new.holder), of_own),
            all: with(self.size, of_all),
            victims: Vec::new(),
        };
        let is_over_own = |room: &Room<'_, S, I>| room.own.exceeds(&own_caps).is_some();
        if let Some(by) = room.own.exceeds(&own_caps)
            && !room.evict(new.holder, by, is_over_own, &bytes_of)
        {
            let (holder, Size { count, bytes }) = (new.holder, self.of(&new.holder));
            let Size { count: limit, bytes: limit_bytes } = own_caps;
            return Err(RejectReason::HolderFull { holder, count, limit, bytes, limit_bytes });
        }
        let is_over = |room: &Room<'_, S, I>| room.all.exceeds(&caps).is_some();
        if let Some(by) = room.all.exceeds(&caps) {
            let larger = self.by_size.by(by).last().filter(|(size, _)| *size > room.own.by(by));
            let holder = larger.map_or(new.holder, |(_, holder)| *holder);
            if !room.evict(holder, by, is_over, &bytes_of) {
                let Size { count, bytes } = self.size;
                let Size { count: limit, bytes: limit_bytes } = caps;
                return Err(RejectReason::Full { count, limit, bytes, limit_bytes });
            }
        }
        Ok(room.victims)
    }
}

/// What is left while room is made. The new item is counted.
struct Room<'a, S, I> {
    shares: &'a Shares<S, I>,
    new: New<S, I>,
    of_new_signer: Size,
    replaced: Option<I>,
    own: Size,
    all: Size,
    victims: Vec<(Holder, I)>,
}

impl<S: Copy + Ord, I: Copy + Ord> Room<'_, S, I> {
    /// Evicts items of a holder until enough is free. Returns whether it is.
    fn evict(
        &mut self,
        holder: Holder,
        by: Measure,
        is_over: impl Fn(&Self) -> bool,
        bytes_of: &impl Fn(&I) -> usize,
    ) -> bool {
        let Some(held) = self.shares.holders.get(&holder) else { return !is_over(self) };
        let is_own = holder == self.new.holder;
        let own = held.signers.get(&self.new.signer).filter(|_| is_own);
        let kept = |item: &&I| Some(**item) != self.replaced;
        let own_last = own.and_then(|own| own.items.iter().rev().find(kept));
        let own_last = own_last.copied().unwrap_or(self.new.item).max(self.new.item);
        for &(size, (last, signer)) in held.by_size.by(by).iter().rev() {
            if !is_over(self) {
                break;
            }
            if is_own && signer == self.new.signer {
                continue;
            }
            // From here on the new item's signer has the most.
            let own_size = self.of_new_signer.by(by);
            if is_own && (size, last) <= (own_size, own_last) {
                break;
            }
            let mut left = size;
            for item in held.signers[&signer].items.iter().rev() {
                if !is_over(self) || is_own && left < own_size || *item < self.new.from {
                    break;
                }
                if Some(*item) == self.replaced || self.victims.contains(&(holder, *item)) {
                    continue;
                }
                if !self.push(holder, *item, bytes_of(item)) {
                    return false;
                }
                left -= if by == Measure::Count { 1 } else { bytes_of(item) };
            }
        }
        for item in own.into_iter().flat_map(|own| own.items.iter().rev()) {
            if !is_over(self) || *item <= self.new.item {
                break;
            }
            let is_gone = Some(*item) == self.replaced || self.victims.contains(&(holder, *item));
            if !is_gone && !self.push(holder, *item, bytes_of(item)) {
                return false;
            }
        }
        !is_over(self)
    }

    fn push(&mut self, holder: Holder, item: I, bytes: usize) -> bool {
        if self.victims.len() == self.new.max_evicted {
            return false;
        }
        self.victims.push((holder, item));
        self.all.take(bytes);
        if holder == self.new.holder {
            self.own.take(bytes);
        }
        true
    }
}

/// Keys that are remembered for a time, and no longer if a holder has too many: who sends too much
/// loses its own.
#[derive(Debug)]
pub(crate) struct Waiting<K> {
    due: BTreeSet<(Duration, K)>,
    /// Of callers, and of the host and of signers that it knows: of a signer the one that has
    /// waited the longest goes first.
    shares: [Shares<Address, Reverse<(Duration, K)>>; 2],
    division: Division,
}

impl<K: Copy + Ord> Waiting<K> {
    pub(crate) fn new(division: Division) -> Self {
        Self { due: BTreeSet::new(), shares: Default::default(), division }
    }

    pub(crate) fn insert(&mut self, holder: Holder, signer: Address, due: (Duration, K)) {
        self.due.insert(due);
        self.shares[usize::from(holder.is_known())].insert(holder, signer, Reverse(due), 0);
    }

    /// Removes one that is there.
    pub(crate) fn remove(&mut self, holder: Holder, signer: Address, due: (Duration, K)) {
        self.due.remove(&due);
        self.shares[usize::from(holder.is_known())].remove(holder, signer, Reverse(due), 0);
    }

    /// One that is due.
    pub(crate) fn due(&self, now: Duration) -> Option<K> {
        self.due.first().filter(|(at, _)| *at <= now).map(|(_, key)| *key)
    }

    /// One that must go, if this holder, or its half of all, has too many. It is the one that has
    /// waited the longest of the holder's signer with the most, or else of the largest holder's.
    pub(crate) fn excess(&self, holder: &Holder) -> Option<K> {
        let share = &self.shares[usize::from(holder.is_known())];
        let from = if share.of(holder).count > self.division.of_holder(holder).count {
            holder
        } else if share.size.count > self.division.half.count {
            share.by_size.by(Measure::Count).last().map(|(_, largest)| largest)?
        } else {
            return None;
        };
        let largest = share.holders.get(from)?.by_size.by(Measure::Count).last();
        largest.map(|(_, (Reverse((_, key)), _))| *key)
    }

    /// How many there are of a caller, or of one signer that the host knows.
    pub(crate) fn count(&self, holder: &Holder, signer: &Address) -> usize {
        let share = &self.shares[usize::from(holder.is_known())];
        match holder {
            Holder::Caller(_) => share.of(holder).count,
            Holder::Host | Holder::Signer(_) => share.of_signer(holder, signer).count,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, cmp::Ordering};

    use super::*;

    thread_local! {
        static COMPARED: Cell<usize> = const { Cell::new(0) };
    }

    /// A signer that counts how often it is looked at.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Signer(usize);

    impl Ord for Signer {
        fn cmp(&self, other: &Self) -> Ordering {
            COMPARED.with(|compared| compared.set(compared.get() + 1));
            self.0.cmp(&other.0)
        }
    }

    impl PartialOrd for Signer {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    /// All 18,000 senders of a full share were looked up for each transaction that came: 4 ms under the
    /// pool's lock.
    #[test]
    fn to_make_room_for_one_no_more_signers_are_looked_at_than_lose_something() {
        let mut shares = Shares::default();
        let by = |n: u8| Holder::caller([10, 0, 0, n].into());
        for n in 0..1_000 {
            shares.insert(by(1), Signer(n), n, 1);
        }
        let (holder, signer) = (by(2), Signer(1_000));
        let new = New { holder, signer, item: 1_000, from: 0, bytes: 1, max_evicted: 8 };
        let caps = Size { count: 1_000, bytes: usize::MAX };
        COMPARED.with(|compared| compared.set(0));
        let victims = shares.room_for(&new, None, caps, caps, |_| 1);
        assert_eq!(victims, Ok(vec![(by(1), 999)]));
        let compared = COMPARED.with(Cell::get);
        assert!(compared < 100, "{compared}");
    }
}
