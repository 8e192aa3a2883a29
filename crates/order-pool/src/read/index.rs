//! The index of orders by hash.
//!
//! One writer, any number of readers, no lock. It is divided into shards, so that a change touches
//! a few cache lines however many orders there are.
//!
//! Open addressing over words that pack a tag and a sequence number. A word never moves: a removal
//! leaves a tombstone, and a shard with too many tombstones is copied and swapped. So a reader that
//! races the writer still follows an unbroken probe sequence, and finds every order that is present
//! throughout. The sequence number is only a hint: the caller compares the hash of the order it
//! leads to.

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

/// Orders per shard at the caps: a shard is copied as a whole (at 2 ns each, about 1 us).
const HASHES_PER_SHARD: usize = 512;

/// Most shards, whatever the caps.
const MAX_SHARDS: usize = 1 << 16;

/// Initial slots of a shard.
const MIN_SLOTS: usize = 16;

/// Bits of a sequence number in a word: at 4,000 events/s enough for 139 years.
const SEQ_BITS: u32 = 44;

/// An empty slot: the end of a probe sequence.
const EMPTY: u64 = 0;

/// A tombstone: an entry was removed here; the probe sequence continues.
const GONE: u64 = 1;

/// Added to a sequence number, so that no word is one of the two above.
const FIRST_SEQ: u64 = 2;

/// The readers' side.
#[derive(Debug)]
pub(crate) struct IndexTable {
    hashes: Box<[ArcSwap<Slots>]>,
    /// Secret, so that an attacker cannot choose the shard of a hash.
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
    /// The shard of a hash, and the tag that distinguishes hashes inside it.
    fn position(&self, hash: &B256) -> (usize, u64) {
        let hashed = self.key.fold(hash);
        (hashed as usize & (self.hashes.len() - 1), tag(hashed))
    }

    /// The first match that `is` confirms, among the few orders whose hash may be this one.
    pub(crate) fn find<T>(&self, hash: &B256, is: impl FnMut(u64) -> Option<T>) -> Option<T> {
        let (shard, tag) = self.position(hash);
        self.hashes[shard].load().find(tag, is)
    }
}

/// One shard: a power of two of words, at most half of them not [`EMPTY`].
#[derive(Debug)]
struct Slots(Box<[AtomicU64]>);

impl Slots {
    fn new(len: usize) -> Self {
        Self((0..len).map(|_| AtomicU64::new(EMPTY)).collect())
    }

    /// The probe sequence of a tag: at most all slots.
    fn chain(&self, tag: u64) -> impl Iterator<Item = usize> {
        let mask = self.0.len() - 1;
        (0..self.0.len()).map(move |step| (tag as usize + step) & mask)
    }

    fn find<T>(&self, wanted: u64, mut is: impl FnMut(u64) -> Option<T>) -> Option<T> {
        // `Acquire` pairs with the writer's `Release`: a reader that sees a tombstone or a word
        // sees what the writer did before it. The live set itself publishes the order behind a
        // sequence number.
        self.chain(wanted)
            .map(|at| self.0[at].load(Acquire))
            .take_while(|word| *word != EMPTY)
            .filter(|word| *word != GONE && tag(*word) == wanted)
            .find_map(|word| is(seq(word)))
    }

    /// Inserts a word; returns whether it used an empty slot, not a tombstone.
    fn put(&self, word: u64) -> bool {
        for at in self.chain(tag(word)) {
            let before = self.0[at].load(Acquire);
            if before <= GONE {
                self.0[at].store(word, Release);
                return before == EMPTY;
            }
        }
        debug_assert!(false, "a shard is at most half full");
        false
    }

    /// Removes a word; returns how many slots became empty, if it was present.
    fn take(&self, word: u64) -> Option<usize> {
        let mask = self.0.len() - 1;
        let at = self
            .chain(tag(word))
            .take_while(|at| self.0[*at].load(Acquire) != EMPTY)
            .find(|at| self.0[*at].load(Acquire) == word)?;
        self.0[at].store(GONE, Release);
        // Tombstones right before an empty slot are on no probe sequence, so they can be cleared.
        let mut emptied = 0;
        let mut last = at;
        while self.0[(last + 1) & mask].load(Acquire) == EMPTY && self.0[last].load(Acquire) == GONE
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
struct Fill {
    entries: usize,
    /// Entries and tombstones.
    used: usize,
}

/// The writer's side.
#[derive(Debug)]
pub(crate) struct Index {
    pub(crate) table: Arc<IndexTable>,
    fills: Box<[Fill]>,
}

impl Index {
    /// An index for this many orders. It can hold more, but look-ups become slower.
    pub(crate) fn new(max_orders: usize) -> Self {
        let shards = (max_orders / HASHES_PER_SHARD).clamp(1, MAX_SHARDS).next_power_of_two();
        let table = IndexTable {
            hashes: (0..shards).map(|_| ArcSwap::from_pointee(Slots::new(MIN_SLOTS))).collect(),
            key: HashKey::random(),
        };
        Self { table: Arc::new(table), fills: vec![Fill::default(); shards].into() }
    }

    /// Adds an order that is not in it.
    pub(crate) fn insert(&mut self, hash: &B256, seq: u64) {
        let (shard, tag) = self.table.position(hash);
        let (shard, fill) = (&self.table.hashes[shard], &mut self.fills[shard]);
        let slots = shard.load();
        fill.entries += 1;
        fill.used += usize::from(slots.put(word(tag, seq)));
        if fill.used * 2 > slots.0.len() {
            // At most a third full, so that the next copy is at least a sixth of a shard away.
            let larger = Slots::new((fill.entries * 3).next_power_of_two().max(MIN_SLOTS));
            for word in slots.0.iter().map(|word| word.load(Acquire)).filter(|word| *word > GONE) {
                larger.put(word);
            }
            fill.used = fill.entries;
            shard.store(Arc::new(larger));
        }
    }

    pub(crate) fn remove(&mut self, hash: &B256, seq: u64) {
        let (shard, tag) = self.table.position(hash);
        let emptied = self.table.hashes[shard].load().take(word(tag, seq));
        debug_assert!(emptied.is_some(), "order {seq} is not indexed");
        if let Some(emptied) = emptied {
            let fill = &mut self.fills[shard];
            fill.entries -= 1;
            fill.used -= emptied;
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
    fn it_finds_what_is_in_it_and_nothing_else_through_growth_and_removals() {
        let mut index = Index::new(2_000);
        let mut model = HashMap::new();
        // A linear congruential generator: any sequence will do, and this one is the same each run.
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
            // A tag of 20 bits: hardly ever more than the one.
            assert!(offered.len() <= 3, "{n} offers {offered:?}");
        }
        let used: usize = index.fills.iter().map(|fill| fill.used).sum();
        let slots: usize = index.table.hashes.iter().map(|shard| shard.load().0.len()).sum();
        assert!(
            used * 2 <= slots && slots <= 12 * model.len(),
            "{slots} slots for {}",
            model.len()
        );
    }

    #[test]
    fn a_reader_finds_what_stays_while_everything_around_it_comes_and_goes() {
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
