//! Finds an order by its hash, for one writer and any number of readers without a lock.
//!
//! The index is divided into shards, so that a change touches a few cache lines however many orders
//! there are. A shard is an open-addressing table of words that pack a tag and a sequence number. A
//! word never moves: a removal leaves a tombstone, and a shard with too many tombstones is copied
//! and swapped. So a reader that races the writer still follows an unbroken probe sequence, and
//! finds every order that is present throughout. The sequence number is only a hint: the caller
//! compares the hash of the order with this number.

use std::sync::{
    Arc,
    atomic::{
        AtomicU64,
        Ordering::{Acquire, Release},
    },
};

use alloy_primitives::B256;
use arc_swap::ArcSwap;

use super::seen::HashKey;

/// The number of orders per shard at the caps. A shard is copied as a whole, in about 1 us at 2 ns
/// each.
const HASHES_PER_SHARD: usize = 512;

/// The most shards, whatever the caps.
const MAX_SHARDS: usize = 1 << 16;

/// The number of slots of a new shard.
const MIN_SLOTS: usize = 16;

/// The bits of a sequence number in a word: enough for 139 years at 4,000 events/s.
const SEQ_BITS: u32 = 44;

/// An empty slot: the end of a probe sequence.
const EMPTY: u64 = 0;

/// An entry was removed here; the probe sequence continues.
const TOMBSTONE: u64 = 1;

/// Added to a sequence number, so that no word is [`EMPTY`] or [`TOMBSTONE`].
const FIRST_SEQ: u64 = 2;

/// The readers' side.
#[derive(Debug)]
pub(crate) struct IndexTable {
    shards: Box<[ArcSwap<Slots>]>,
    /// It is secret, so that an attacker cannot choose the shard of a hash.
    key: HashKey,
}

const fn word(tag: u64, seq: u64) -> u64 {
    (tag << SEQ_BITS) | (seq + FIRST_SEQ)
}

const fn tag(word: u64) -> u64 {
    word >> SEQ_BITS
}

const fn seq(word: u64) -> u64 {
    (word & ((1 << SEQ_BITS) - 1)) - FIRST_SEQ
}

impl IndexTable {
    /// Returns the shard of a hash, and the tag that distinguishes hashes inside the shard.
    fn position(&self, hash: &B256) -> (usize, u64) {
        let hashed = self.key.fold(hash);
        (hashed as usize & (self.shards.len() - 1), tag(hashed))
    }

    /// Returns the first match that `confirm` accepts, among the few orders whose hash may be this
    /// one.
    pub(crate) fn find<T>(&self, hash: &B256, confirm: impl FnMut(u64) -> Option<T>) -> Option<T> {
        let (shard, tag) = self.position(hash);
        self.shards[shard].load().find(tag, confirm)
    }
}

/// One shard: a power of two of words, of which at least half are [`EMPTY`].
#[derive(Debug)]
struct Slots(Box<[AtomicU64]>);

impl Slots {
    fn new(len: usize) -> Self {
        Self((0..len).map(|_| AtomicU64::new(EMPTY)).collect())
    }

    /// Returns the probe sequence of a tag: all slots, from the tag's own on.
    fn probe(&self, tag: u64) -> impl Iterator<Item = usize> {
        let mask = self.0.len() - 1;
        (0..self.0.len()).map(move |step| (tag as usize + step) & mask)
    }

    /// Calls `confirm` with the sequence number of each entry that has this tag, until it returns a
    /// value. Different hashes can have the same tag, so `confirm` compares the hash of the order.
    fn find<T>(&self, wanted_tag: u64, mut confirm: impl FnMut(u64) -> Option<T>) -> Option<T> {
        // `Acquire` pairs with the writer's `Release`: a reader that sees a tombstone or a word
        // sees what the writer did before it. The order itself is read from its live page, which
        // has an ordering of its own.
        self.probe(wanted_tag)
            .map(|index| self.0[index].load(Acquire))
            .take_while(|word| *word != EMPTY)
            .filter(|word| *word != TOMBSTONE && tag(*word) == wanted_tag)
            .find_map(|word| confirm(seq(word)))
    }

    /// Inserts a word. Returns whether it used an empty slot, and not a tombstone's.
    fn insert(&self, word: u64) -> bool {
        for index in self.probe(tag(word)) {
            let before = self.0[index].load(Acquire);
            if before == EMPTY || before == TOMBSTONE {
                self.0[index].store(word, Release);
                return before == EMPTY;
            }
        }
        debug_assert!(false, "a shard is at most half full");
        false
    }

    /// Removes a word. Returns the number of slots that became empty, if the word was present.
    fn remove(&self, word: u64) -> Option<usize> {
        let mask = self.0.len() - 1;
        let index = self
            .probe(tag(word))
            .take_while(|index| self.0[*index].load(Acquire) != EMPTY)
            .find(|index| self.0[*index].load(Acquire) == word)?;
        self.0[index].store(TOMBSTONE, Release);
        // No probe sequence needs tombstones right before an empty slot, so they are cleared.
        let mut emptied = 0;
        let mut last = index;
        while self.0[(last + 1) & mask].load(Acquire) == EMPTY
            && self.0[last].load(Acquire) == TOMBSTONE
        {
            self.0[last].store(EMPTY, Release);
            emptied += 1;
            last = last.wrapping_sub(1) & mask;
        }
        Some(emptied)
    }
}

/// The writer's counts of a shard.
#[derive(Clone, Copy, Debug, Default)]
struct Occupancy {
    entries: usize,
    /// Entries and tombstones.
    used: usize,
}

/// The writer's side.
#[derive(Debug)]
pub(crate) struct Index {
    pub(crate) table: Arc<IndexTable>,
    occupancies: Box<[Occupancy]>,
}

impl Index {
    /// Makes an index for this many orders. It can hold more, but look-ups become slower.
    pub(crate) fn new(max_orders: usize) -> Self {
        let shards = (max_orders / HASHES_PER_SHARD).clamp(1, MAX_SHARDS).next_power_of_two();
        let table = IndexTable {
            shards: (0..shards).map(|_| ArcSwap::from_pointee(Slots::new(MIN_SLOTS))).collect(),
            key: HashKey::random(),
        };
        Self { table: Arc::new(table), occupancies: vec![Occupancy::default(); shards].into() }
    }

    /// Adds an order that the index does not contain.
    pub(crate) fn insert(&mut self, hash: &B256, seq: u64) {
        let (shard, tag) = self.table.position(hash);
        let occupancy = &mut self.occupancies[shard];
        let shard = &self.table.shards[shard];
        let slots = shard.load();
        occupancy.entries += 1;
        occupancy.used += usize::from(slots.insert(word(tag, seq)));
        if occupancy.used * 2 > slots.0.len() {
            // At most a third of the copy is used, so the next copy is at least a sixth of a shard
            // away.
            let copy = Slots::new((occupancy.entries * 3).next_power_of_two().max(MIN_SLOTS));
            for word in slots.0.iter().map(|word| word.load(Acquire)) {
                if word >= FIRST_SEQ {
                    copy.insert(word);
                }
            }
            occupancy.used = occupancy.entries;
            shard.store(Arc::new(copy));
        }
    }

    pub(crate) fn remove(&mut self, hash: &B256, seq: u64) {
        let (shard, tag) = self.table.position(hash);
        let emptied = self.table.shards[shard].load().remove(word(tag, seq));
        debug_assert!(emptied.is_some(), "order {seq} is not indexed");
        if let Some(emptied) = emptied {
            let occupancy = &mut self.occupancies[shard];
            occupancy.entries -= 1;
            occupancy.used -= emptied;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::keccak256;
    use std::{collections::HashMap, thread};

    fn hash(n: u64) -> B256 {
        keccak256(n.to_be_bytes())
    }

    #[test]
    fn the_index_equals_a_map_through_growth_and_removals() {
        let mut index = Index::new(2_000);
        let mut model = HashMap::new();
        // A linear congruential generator, so that each run has the same sequence.
        let mut random = 1_u64;
        for seq in 0..40_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let n = (random >> 33) % 3_000;
            match model.remove(&n) {
                Some(seq) => index.remove(&hash(n), seq),
                None => {
                    index.insert(&hash(n), seq);
                    model.insert(n, seq);
                }
            }
            let found =
                index.table.find(&hash(n), |seq| (model.get(&n) == Some(&seq)).then_some(seq));
            assert_eq!(found, model.get(&n).copied());
        }
        for n in 0..3_000 {
            let mut offered = Vec::new();
            index.table.find(&hash(n), |seq| {
                offered.push(seq);
                None::<()>
            });
            assert_eq!(
                offered.contains(model.get(&n).unwrap_or(&u64::MAX)),
                model.contains_key(&n)
            );
            // With a tag of 20 bits hardly any other order is offered.
            assert!(offered.len() <= 3, "{n} offers {offered:?}");
        }
        let used: usize = index.occupancies.iter().map(|occupancy| occupancy.used).sum();
        let slots: usize = index.table.shards.iter().map(|shard| shard.load().0.len()).sum();
        assert!(
            used * 2 <= slots && slots <= 12 * model.len(),
            "{slots} slots for {}",
            model.len()
        );
    }

    #[test]
    fn a_reader_finds_lasting_entries_while_others_come_and_go() {
        let mut index = Index::new(256);
        (0..32).for_each(|n| index.insert(&hash(n), n));
        let table = Arc::clone(&index.table);
        thread::scope(|scope| {
            let reader = scope.spawn(move || {
                for round in 0..20_000_u64 {
                    let n = round % 32;
                    let found = table.find(&hash(n), |seq| (seq == n).then_some(seq));
                    assert_eq!(found, Some(n), "lost in round {round}");
                }
            });
            let mut next = 100;
            while !reader.is_finished() {
                (next..next + 200).for_each(|n| index.insert(&hash(n), n));
                (next..next + 200).rev().step_by(2).for_each(|n| index.remove(&hash(n), n));
                (next..next + 200).step_by(2).for_each(|n| index.remove(&hash(n), n));
                next += 200;
            }
        });
    }
}
