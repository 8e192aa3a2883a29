//! Token buckets that refill continuously, for a bounded number of keys. The time is passed in.

use std::{
    hash::Hash,
    time::{Duration, Instant},
};

use alloy_primitives::map::{Entry, HashMap};

use crate::config::Quota;

/// The least time between two sweeps, because a sweep visits every bucket.
const SWEEP_INTERVAL: Duration = Duration::from_millis(100);

/// The buckets of many signers, or of many callers, in a bounded number. A bucket is stored as the
/// time at which it is full again.
///
/// When room is needed, buckets that are full again are dropped, because a new one is full too. If
/// none is full, keys without a bucket share a single one, so that fresh keys gain nothing.
///
/// This is not `governor`: its map of keys has no bound, and its limiter cannot be checked without
/// spending, which is needed before a claimed signer is verified.
#[derive(Debug)]
pub(super) struct TokenBuckets<K> {
    quota: Quota,
    max_keys: usize,
    /// When each bucket is full again.
    full_at: HashMap<K, Instant>,
    /// When the bucket of all keys without one of their own is full again.
    shared_full_at: Instant,
    swept_at: Instant,
}

impl<K: Copy + Eq + Hash> TokenBuckets<K> {
    pub(super) fn new(quota: Quota, max_keys: usize, now: Instant) -> Self {
        Self { quota, max_keys, full_at: HashMap::default(), shared_full_at: now, swept_at: now }
    }

    /// Checks that `count` tokens could be spent now, and spends none: the claim of a header is not
    /// verified yet.
    ///
    /// # Errors
    /// The time until there are enough tokens.
    pub(super) fn check(&self, key: K, count: usize, now: Instant) -> Result<(), Duration> {
        let Some(full_at) = self.full_at.get(&key) else { return Ok(()) };
        spend(*full_at, self.quota, count, now).map(drop)
    }

    /// Spends `count` tokens, or none if there are not enough. The configuration ensures that
    /// nothing costs more than a full bucket.
    ///
    /// # Errors
    /// The time until there are enough tokens.
    pub(super) fn take(&mut self, key: K, count: usize, now: Instant) -> Result<(), Duration> {
        let quota = self.quota;
        let full_at = self.bucket(key, now);
        *full_at = spend(*full_at, quota, count, now)?;
        Ok(())
    }

    /// Spends `count` tokens even if there are fewer, which leaves the key in debt.
    pub(super) fn debit(&mut self, key: K, count: usize, now: Instant) {
        let refill_time = refill_time(count, self.quota);
        *self.bucket(key, now) += refill_time;
    }

    /// Returns when the bucket of a key is full again: `now` if it is full already. A key without a
    /// bucket of its own has the shared one.
    fn bucket(&mut self, key: K, now: Instant) -> &mut Instant {
        if !self.full_at.contains_key(&key) && self.full_at.len() >= self.max_keys {
            self.sweep(now);
        }
        let has_room = self.full_at.len() < self.max_keys;
        let full_at = match self.full_at.entry(key) {
            Entry::Occupied(bucket) => bucket.into_mut(),
            Entry::Vacant(bucket) if has_room => bucket.insert(now),
            Entry::Vacant(_) => &mut self.shared_full_at,
        };
        *full_at = now.max(*full_at);
        full_at
    }

    /// Drops the buckets that are full again, at most once per [`SWEEP_INTERVAL`].
    fn sweep(&mut self, now: Instant) {
        if now.saturating_duration_since(self.swept_at) >= SWEEP_INTERVAL {
            self.swept_at = now;
            self.full_at.retain(|_, full_at| *full_at > now);
        }
    }
}

/// Returns when the bucket is full again after `count` tokens are spent from it.
///
/// # Errors
/// The time until there are enough tokens.
fn spend(full_at: Instant, quota: Quota, count: usize, now: Instant) -> Result<Instant, Duration> {
    let full_after = full_at.max(now) + refill_time(count, quota);
    // An empty bucket is full after the time that refills the whole burst.
    let empty_bucket_full_at = now + refill_time(quota.burst as usize, quota);
    let wait = full_after.saturating_duration_since(empty_bucket_full_at);
    if wait.is_zero() { Ok(full_after) } else { Err(wait) }
}

/// Returns the time in which `count` tokens are refilled.
fn refill_time(count: usize, quota: Quota) -> Duration {
    Duration::from_secs(count as u64) / quota.per_second
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::Address;

    fn signer(byte: u8) -> Address {
        Address::repeat_byte(byte)
    }

    #[test]
    fn a_signer_has_its_burst_and_then_its_rate() {
        let start = Instant::now();
        let mut buckets = TokenBuckets::new(Quota { per_second: 10, burst: 3 }, 8, start);
        for _ in 0..3 {
            assert_eq!(buckets.take(signer(1), 1, start), Ok(()));
        }
        assert_eq!(buckets.check(signer(1), 1, start), Err(Duration::from_millis(100)));
        assert_eq!(buckets.take(signer(1), 1, start), Err(Duration::from_millis(100)));
        assert_eq!(buckets.take(signer(2), 3, start), Ok(()), "another signer has its own");
        let later = start + Duration::from_millis(200);
        assert_eq!(buckets.take(signer(1), 2, later), Ok(()));
        assert!(buckets.take(signer(1), 1, later).is_err());
        assert!(buckets.take(signer(3), 4, later).is_err(), "more than the burst never fits");
    }

    #[test]
    fn made_up_signers_share_one_bucket_and_take_no_memory() {
        let start = Instant::now();
        let mut buckets = TokenBuckets::new(Quota { per_second: 1, burst: 2 }, 4, start);
        let mut taken = 0;
        for byte in 0..100 {
            taken += usize::from(buckets.take(signer(byte), 1, start).is_ok());
        }
        assert_eq!((taken, buckets.full_at.len()), (4 + 2, 4));
        let refilled = start + Duration::from_secs(5);
        assert_eq!(buckets.take(signer(200), 1, refilled), Ok(()));
        assert_eq!(buckets.full_at.len(), 1, "buckets that are full again are dropped");
    }
}
