//! The dedupe window: remembers which orders were accepted recently, whether or not they are still
//! pooled, for one writer and any number of readers without a lock.
//!
//! An order is remembered by a 62-bit fingerprint under a secret key, with its state in the two
//! bits above, so that 2^20 orders take 24 MiB. At that size a look-up confuses two orders with a
//! probability of 2^-42, and without the key an attacker cannot force it.

use std::{
    collections::{BTreeMap, VecDeque},
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use alloy_primitives::B256;

/// A free slot. No fingerprint is zero.
const EMPTY: u64 = 0;

/// The bits of a fingerprint in a word. The state of its order is in the bits above.
const FINGERPRINT_BITS: u32 = 62;

/// The mask of these bits.
const FINGERPRINT: u64 = (1 << FINGERPRINT_BITS) - 1;

/// What happened to an order after it was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeenState {
    /// The order is in the pool, or was removed for good.
    Known,
    /// The order left as [`OrderStatus::MayReturn`](crate::OrderStatus::MayReturn) says. It may be
    /// accepted if it is inserted again, and a comparison of pools should offer it.
    MayReturn,
}

impl SeenState {
    const fn of_word(word: u64) -> Self {
        match word >> FINGERPRINT_BITS {
            0 => Self::Known,
            _ => Self::MayReturn,
        }
    }

    const fn word(self, fingerprint: u64) -> u64 {
        ((self as u64) << FINGERPRINT_BITS) | fingerprint
    }
}

/// A secret key under which keccak hashes are hashed once more, so that an attacker cannot choose
/// their position in a table.
#[derive(Debug)]
pub(crate) struct HashKey([u64; 2]);

impl HashKey {
    pub(crate) fn random() -> Self {
        let random = RandomState::new();
        Self([random.hash_one(1_u8), random.hash_one(2_u8)])
    }

    /// Hashes half of the bytes, which is enough: two hashes with equal halves cost an attacker
    /// 2^64 work, for one collision.
    pub(crate) fn fold(&self, hash: &B256) -> u64 {
        let word =
            |first: usize| u64::from_be_bytes(std::array::from_fn(|byte| hash[first + byte]));
        let product = u128::from(word(0) ^ self.0[0]) * u128::from(word(16) ^ self.0[1]);
        (product as u64) ^ ((product >> 64) as u64)
    }
}

/// The readers' side: an open-addressing table, never more than half full.
///
/// All accesses are relaxed, because a slot is complete by itself. While the writer moves an entry
/// back over a removed one, a reader may miss it. At worst a transaction is then fetched once more
/// and found `Known` at the insert, which the writer decides alone and exactly.
#[derive(Debug)]
pub(crate) struct SeenTable {
    slots: Box<[AtomicU64]>,
    key: HashKey,
}

impl SeenTable {
    fn new(window: usize) -> Self {
        let len = (window * 2).next_power_of_two();
        Self { slots: (0..len).map(|_| AtomicU64::new(EMPTY)).collect(), key: HashKey::random() }
    }

    /// Returns the state of an order; `None` if it is not remembered.
    pub(crate) fn state(&self, hash: &B256) -> Option<SeenState> {
        let (_, state) = self.find(self.fingerprint(hash)).ok()?;
        Some(state)
    }

    fn fingerprint(&self, hash: &B256) -> u64 {
        (self.key.fold(hash) & FINGERPRINT).max(1)
    }

    /// Returns the slot where a look-up begins.
    fn home(&self, fingerprint: u64) -> usize {
        fingerprint as usize & (self.slots.len() - 1)
    }

    /// Returns the slot of a fingerprint and its state, or the free slot for it. Terminates because
    /// the table is at most half full. A reader must not read the slot again, because the writer
    /// may have moved another entry there.
    fn find(&self, fingerprint: u64) -> Result<(usize, SeenState), usize> {
        let mask = self.slots.len() - 1;
        let mut index = self.home(fingerprint);
        // Only a reader that races the writer's moves can reach the bound.
        for _ in 0..self.slots.len() {
            match self.slots[index].load(Relaxed) {
                EMPTY => return Err(index),
                found if found & FINGERPRINT == fingerprint => {
                    return Ok((index, SeenState::of_word(found)));
                }
                _ => index = (index + 1) & mask,
            }
        }
        Err(index)
    }

    /// Sets the state of an order, if it is remembered.
    fn set(&self, fingerprint: u64, state: SeenState) {
        if let Ok((index, _)) = self.find(fingerprint) {
            self.slots[index].store(state.word(fingerprint), Relaxed);
        }
    }

    /// Removes a fingerprint, and moves later entries back into the slot that becomes free, so that
    /// a look-up still finds them without tombstones.
    fn remove(&self, fingerprint: u64) {
        let mask = self.slots.len() - 1;
        let Ok((mut hole, _)) = self.find(fingerprint) else { return };
        let mut index = hole;
        loop {
            index = (index + 1) & mask;
            let entry = self.slots[index].load(Relaxed);
            if entry == EMPTY {
                break;
            }
            // The entry may move into the hole, unless a look-up for it begins after the hole. Both
            // distances are counted back from the entry's slot.
            let home_distance = index.wrapping_sub(self.home(entry)) & mask;
            let hole_distance = index.wrapping_sub(hole) & mask;
            if home_distance >= hole_distance {
                self.slots[hole].store(entry, Relaxed);
                hole = index;
            }
        }
        self.slots[hole].store(EMPTY, Relaxed);
    }
}

/// The writer's side: the table, and the order in which orders are forgotten.
#[derive(Debug)]
pub(crate) struct SeenWindow {
    pub(crate) table: std::sync::Arc<SeenTable>,
    queue: VecDeque<u64>,
    /// The number of positions in the queue that belong to orders which were forgotten early, by
    /// fingerprint. They are never more than the queue holds. It is no hash table, because to grow
    /// one with half a million took 12 ms.
    vacant: BTreeMap<u64, usize>,
    window: usize,
}

impl SeenWindow {
    pub(crate) fn new(window: usize) -> Self {
        Self {
            table: std::sync::Arc::new(SeenTable::new(window)),
            queue: VecDeque::new(),
            vacant: BTreeMap::new(),
            window,
        }
    }

    /// Sets the state of an order, if it is remembered.
    pub(crate) fn set(&mut self, hash: &B256, state: SeenState) {
        self.table.set(self.table.fingerprint(hash), state);
    }

    /// Remembers an accepted order. If the window is full, the order that was accepted the longest
    /// ago is forgotten.
    pub(crate) fn insert(&mut self, hash: &B256) {
        let fingerprint = self.table.fingerprint(hash);
        let Err(free) = self.table.find(fingerprint) else { return };
        self.table.slots[free].store(SeenState::Known.word(fingerprint), Relaxed);
        self.queue.push_back(fingerprint);
        if self.queue.len() > self.window
            && let Some(oldest) = self.queue.pop_front()
        {
            match self.vacant.get_mut(&oldest) {
                None => self.table.remove(oldest),
                Some(1) => _ = self.vacant.remove(&oldest),
                Some(count) => *count -= 1,
            }
        }
    }

    /// Permits every remembered order to be inserted again, once it is not in the pool.
    pub(crate) fn let_all_return(&mut self) {
        for slot in &self.table.slots {
            let word = slot.load(Relaxed);
            if word != EMPTY {
                slot.store(SeenState::MayReturn.word(word & FINGERPRINT), Relaxed);
            }
        }
    }

    /// Forgets an order early. Its position in the queue stays vacant. If it is inserted again, it
    /// gets a new position.
    pub(crate) fn forget(&mut self, hash: &B256) {
        let fingerprint = self.table.fingerprint(hash);
        if self.table.find(fingerprint).is_ok() {
            self.table.remove(fingerprint);
            *self.vacant.entry(fingerprint).or_default() += 1;
        }
    }
}
