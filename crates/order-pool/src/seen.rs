//! The dedupe window: which orders were accepted lately, whether or not they are still here.
//!
//! One writer, any number of readers, no lock. An order is remembered by a 64-bit fingerprint under
//! a secret key, so that 2^20 of them take 24 MiB; two orders are mistaken for each other with a
//! chance of 2^-44 per look-up at that size, and nobody who does not know the key can force it.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use alloy_primitives::B256;

const EMPTY: u64 = 0;

/// The readers' side: an open-addressing table, never more than half full.
///
/// All accesses are relaxed: a slot is a whole fact by itself. While the writer moves an entry
/// back over a removed one, a reader may pass it by and miss it; the worst that follows is that a
/// transaction is fetched once more and found `Known` at the insert, which the writer decides
/// alone and exactly.
#[derive(Debug)]
pub(crate) struct SeenTable {
    slots: Box<[AtomicU64]>,
    keys: [u64; 2],
}

impl SeenTable {
    fn new(window: usize) -> Self {
        let len = (window * 2).next_power_of_two();
        let random = RandomState::new();
        Self {
            slots: (0..len).map(|_| AtomicU64::new(EMPTY)).collect(),
            keys: [random.hash_one(1_u8), random.hash_one(2_u8)],
        }
    }

    pub(crate) fn contains(&self, hash: &B256) -> bool {
        self.find(self.fingerprint(hash)).is_ok()
    }

    /// The hash is keccak already; the key keeps an attacker from choosing where it lands.
    fn fingerprint(&self, hash: &B256) -> u64 {
        let (left, right) = hash.split_at(16);
        let word = |bytes: &[u8]| bytes.iter().fold(0_u64, |acc, b| (acc << 8) | u64::from(*b));
        let a = word(&left[..8]) ^ self.keys[0];
        let b = word(&right[..8]) ^ self.keys[1];
        let product = u128::from(a) * u128::from(b);
        let folded = (product as u64) ^ ((product >> 64) as u64);
        if folded == EMPTY { 1 } else { folded }
    }

    fn home(&self, fingerprint: u64) -> usize {
        fingerprint as usize & (self.slots.len() - 1)
    }

    /// Where the fingerprint is, or the free slot where it would go. Ends because the table is at
    /// most half full.
    fn find(&self, fingerprint: u64) -> Result<usize, usize> {
        let mask = self.slots.len() - 1;
        let mut at = self.home(fingerprint);
        // The bound only matters to a reader that races a writer's moves.
        for _ in 0..self.slots.len() {
            match self.slots[at].load(Relaxed) {
                EMPTY => return Err(at),
                found if found == fingerprint => return Ok(at),
                _ => at = (at + 1) & mask,
            }
        }
        Err(at)
    }

    fn insert(&self, fingerprint: u64) -> bool {
        match self.find(fingerprint) {
            Ok(_) => false,
            Err(at) => {
                self.slots[at].store(fingerprint, Relaxed);
                true
            }
        }
    }

    /// Removes by shifting back, so that no tombstones pile up.
    fn remove(&self, fingerprint: u64) {
        let mask = self.slots.len() - 1;
        let Ok(mut hole) = self.find(fingerprint) else {
            return;
        };
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let entry = self.slots[at].load(Relaxed);
            if entry == EMPTY {
                break;
            }
            // An entry may move into the hole unless its home lies after the hole.
            let from_home = at.wrapping_sub(self.home(entry)) & mask;
            let from_hole = at.wrapping_sub(hole) & mask;
            if from_home >= from_hole {
                self.slots[hole].store(entry, Relaxed);
                hole = at;
            }
        }
        self.slots[hole].store(EMPTY, Relaxed);
    }
}

/// The writer's side: the table and who leaves it first.
#[derive(Debug)]
pub(crate) struct SeenWindow {
    table: std::sync::Arc<SeenTable>,
    queue: VecDeque<u64>,
    /// How many places in the queue belong to orders forgotten before their time. Never more than
    /// the queue holds.
    vacant: HashMap<u64, usize>,
    window: usize,
}

impl SeenWindow {
    pub(crate) fn new(window: usize) -> Self {
        Self {
            table: std::sync::Arc::new(SeenTable::new(window)),
            queue: VecDeque::new(),
            vacant: HashMap::new(),
            window,
        }
    }

    pub(crate) const fn table(&self) -> &std::sync::Arc<SeenTable> {
        &self.table
    }

    pub(crate) fn contains(&self, hash: &B256) -> bool {
        self.table.contains(hash)
    }

    /// Remembers an accepted order; the one accepted the longest ago is forgotten if the window is
    /// full.
    pub(crate) fn insert(&mut self, hash: &B256) {
        let fingerprint = self.table.fingerprint(hash);
        if !self.table.insert(fingerprint) {
            return;
        }
        self.queue.push_back(fingerprint);
        if self.queue.len() > self.window
            && let Some(oldest) = self.queue.pop_front()
        {
            match self.vacant.entry(oldest) {
                Entry::Vacant(_) => self.table.remove(oldest),
                Entry::Occupied(mut places) if *places.get() > 1 => *places.get_mut() -= 1,
                Entry::Occupied(places) => {
                    places.remove();
                }
            }
        }
    }

    /// Forgets an order before its time. Its place in the queue stays, vacant: if it comes again it
    /// gets a new one.
    pub(crate) fn forget(&mut self, hash: &B256) {
        let fingerprint = self.table.fingerprint(hash);
        if self.table.find(fingerprint).is_ok() {
            self.table.remove(fingerprint);
            *self.vacant.entry(fingerprint).or_default() += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::keccak256;

    fn hash(n: u64) -> B256 {
        keccak256(n.to_be_bytes())
    }

    #[test]
    fn the_window_holds_exactly_the_last_accepted_orders() {
        let mut seen = SeenWindow::new(100);
        for n in 0..10_000 {
            seen.insert(&hash(n));
            let oldest = (n + 1).saturating_sub(100);
            assert!((oldest..=n).all(|n| seen.contains(&hash(n))), "lost one at {n}");
            if let Some(gone) = oldest.checked_sub(1) {
                assert!(!seen.contains(&hash(gone)), "kept {gone} too long");
            }
        }
    }

    #[test]
    fn a_forgotten_order_is_unknown_and_the_others_are_not() {
        let mut seen = SeenWindow::new(64);
        (0..64).for_each(|n| seen.insert(&hash(n)));
        (0..64).step_by(2).for_each(|n| seen.forget(&hash(n)));
        for n in 0..64 {
            assert_eq!(seen.contains(&hash(n)), n % 2 == 1);
        }
    }
}
