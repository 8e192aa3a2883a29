//! Random numbers for retries and pauses. Not for secrets.

use std::{
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// A splitmix64 sequence (Steele, Lea, Flood 2014) that any number of threads draw from: the state
/// is a counter, so one relaxed addition gives each caller a number of its own.
#[derive(Debug)]
pub(crate) struct Jitter(AtomicU64);

impl Jitter {
    pub(crate) const fn seeded(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    /// Seeded differently in each process, as std seeds its hash maps from the system.
    pub(crate) fn random() -> Self {
        Self::seeded(RandomState::new().hash_one(0_u8))
    }

    /// In `0.0..1.0`.
    pub(crate) fn fraction(&self) -> f64 {
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut z = self.0.fetch_add(GOLDEN, Relaxed).wrapping_add(GOLDEN);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        // The 53 bits that fit a double.
        (z >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_fill_their_range_evenly() {
        let jitter = Jitter::seeded(7);
        let mut tenths = [0_u32; 10];
        for _ in 0..10_000 {
            let fraction = jitter.fraction();
            assert!((0.0..1.0).contains(&fraction));
            tenths[(fraction * 10.0) as usize] += 1;
        }
        assert!(tenths.iter().all(|count| (850..1150).contains(count)), "{tenths:?}");
    }
}
