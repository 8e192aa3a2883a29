//! Counts holdings by holder, so that at a cap only the largest holder loses.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
};

/// The holdings of one holder.
#[derive(Debug)]
pub(crate) struct Share<I> {
    /// The last one is evicted first.
    items: BTreeSet<I>,
    bytes: usize,
}

/// Items by holder. No item belongs to two holders, and a holder's last item is evicted first.
#[derive(Debug)]
pub(crate) struct Shares<H, I> {
    holders: HashMap<H, Share<I>>,
    /// Number of items and last item of each holder.
    by_count: BTreeSet<(usize, I)>,
    /// Bytes and last item of each holder.
    by_bytes: BTreeSet<(usize, I)>,
}

impl<H, I> Default for Shares<H, I> {
    fn default() -> Self {
        Self { holders: HashMap::new(), by_count: BTreeSet::new(), by_bytes: BTreeSet::new() }
    }
}

impl<H: Copy + Eq + Hash, I: Copy + Ord> Shares<H, I> {
    pub(crate) fn insert(&mut self, holder: H, item: I, bytes: usize) {
        self.change(holder, |share| {
            share.items.insert(item);
            share.bytes += bytes;
        });
    }

    pub(crate) fn remove(&mut self, holder: H, item: I, bytes: usize) {
        self.change(holder, |share| {
            share.items.remove(&item);
            share.bytes -= bytes;
        });
    }

    fn change(&mut self, holder: H, change: impl FnOnce(&mut Share<I>)) {
        let share = self
            .holders
            .entry(holder)
            .or_insert_with(|| Share { items: BTreeSet::new(), bytes: 0 });
        if let Some(last) = share.items.last() {
            self.by_count.remove(&(share.items.len(), *last));
            self.by_bytes.remove(&(share.bytes, *last));
        }
        change(share);
        match share.items.last() {
            Some(last) => {
                self.by_count.insert((share.items.len(), *last));
                self.by_bytes.insert((share.bytes, *last));
            }
            None => _ = self.holders.remove(&holder),
        }
    }

    /// How many items a holder has.
    pub(crate) fn count(&self, holder: &H) -> usize {
        self.holders.get(holder).map_or(0, |share| share.items.len())
    }

    /// The bytes of a holder's items.
    pub(crate) fn bytes(&self, holder: &H) -> usize {
        self.holders.get(holder).map_or(0, |share| share.bytes)
    }

    /// A holder's items, the first to evict first.
    pub(crate) fn last_first(&self, holder: H) -> impl Iterator<Item = I> {
        self.holders.get(&holder).into_iter().flat_map(|share| share.items.iter().rev().copied())
    }

    /// The highest number of items of any holder, and that holder's last item. Among equals, the
    /// holder with the greatest last item.
    pub(crate) fn most_items(&self) -> Option<(usize, I)> {
        self.by_count.last().copied()
    }

    /// The same by bytes.
    pub(crate) fn most_bytes(&self) -> Option<(usize, I)> {
        self.by_bytes.last().copied()
    }

    /// All holders.
    pub(crate) fn holders(&self) -> impl Iterator<Item = &H> {
        self.holders.keys()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_holder_is_known_by_count_and_by_bytes_and_a_tie_falls_to_the_last_item() {
        let mut shares = Shares::default();
        for (holder, item, bytes) in [('a', 1, 10), ('a', 5, 10), ('b', 9, 90), ('c', 3, 1)] {
            shares.insert(holder, item, bytes);
        }
        assert_eq!((shares.most_items(), shares.most_bytes()), (Some((2, 5)), Some((90, 9))));
        assert_eq!((shares.count(&'a'), shares.bytes(&'a'), shares.count(&'z')), (2, 20, 0));
        assert!(shares.last_first('a').eq([5, 1]));
        shares.remove('a', 5, 10);
        assert_eq!(shares.most_items(), Some((1, 9)));
        shares.remove('b', 9, 90);
        assert_eq!((shares.most_items(), shares.most_bytes()), (Some((1, 3)), Some((10, 1))));
        shares.remove('a', 1, 10);
        shares.remove('c', 3, 1);
        assert_eq!((shares.most_items(), shares.holders().count()), (None, 0));
    }
}
