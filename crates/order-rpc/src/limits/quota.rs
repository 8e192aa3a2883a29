//! The quotas of signers and callers: token buckets that fill by the second. Time is passed in.

use std::{
    hash::Hash,
    time::{Duration, Instant},
};

use alloy_primitives::map::{Entry, HashMap};

use crate::config::Quota;

/// The buckets of many signers, or of many callers, in a bounded number. Each is the time at which
/// it is full again.
///
/// A bucket that is full again is dropped when room is needed, because a new one is full too. If no
/// bucket is full, signers without one share a single bucket, so that new signers gain nothing.
///
/// Not `governor`: its map of keys has no bound, and its limiter cannot be checked without
/// spending, which is needed before a claimed signer is verified.
#[derive(Debug)]
pub(crate) struct Quotas<K> {
    quota: Quota,
    max_keys: usize,
    buckets: HashMap<K, Instant>,
    shared: Instant,
    swept: Instant,
}

impl<K: Copy + Eq + Hash> Quotas<K> {
    pub(crate) fn new(quota: Quota, max_keys: usize, now: Instant) -> Self {
        Self { quota, max_keys, buckets: HashMap::default(), shared: now, swept: now }
    }

    /// Whether a quota is spent. Spends nothing: a claim in a header is not verified yet.
    pub(crate) fn check(&self, signer: K, count: usize, now: Instant) -> Result<(), Duration> {
        let Some(full_at) = self.buckets.get(&signer) else { return Ok(()) };
        spend(*full_at, self.quota, count, now).map(drop)
    }

    /// Spends `count` tokens; if there are not enough, spends none and returns the time until there
    /// are. The configuration sees to it that nothing costs more than a full bucket.
    pub(crate) fn take(&mut self, signer: K, count: usize, now: Instant) -> Result<(), Duration> {
        let quota = self.quota;
        let full_at = self.bucket(signer, now);
        *full_at = spend(*full_at, quota, count, now)?;
        Ok(())
    }

    /// Spends `count` tokens, also those that are not there yet.
    pub(crate) fn debit(&mut self, key: K, count: usize, now: Instant) {
        let time = time_of(count, self.quota);
        *self.bucket(key, now) += time;
    }

    /// The bucket of a key, or the shared one. What was full before is full now.
    fn bucket(&mut self, key: K, now: Instant) -> &mut Instant {
        if !self.buckets.contains_key(&key) && self.buckets.len() >= self.max_keys {
            self.sweep(now);
        }
        let room = self.buckets.len() < self.max_keys;
        let full_at = match self.buckets.entry(key) {
            Entry::Occupied(bucket) => bucket.into_mut(),
            Entry::Vacant(place) if room => place.insert(now),
            Entry::Vacant(_) => &mut self.shared,
        };
        *full_at = now.max(*full_at);
        full_at
    }

    /// At most ten times a second, because it visits every bucket.
    fn sweep(&mut self, now: Instant) {
        if now.saturating_duration_since(self.swept) >= Duration::from_millis(100) {
            self.swept = now;
            self.buckets.retain(|_, full_at| *full_at > now);
        }
    }
}

/// When the bucket is full after `count` tokens are spent, or the time until there are so many.
fn spend(full_at: Instant, quota: Quota, count: usize, now: Instant) -> Result<Instant, Duration> {
    let after = full_at.max(now) + time_of(count, quota);
    let emptied = now + time_of(quota.burst as usize, quota);
    let wait = after.saturating_duration_since(emptied);
    if wait.is_zero() { Ok(after) } else { Err(wait) }
}

/// The time in which so many tokens come.
fn time_of(count: usize, quota: Quota) -> Duration {
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
    fn a_signer_has_its_burst_then_its_rate() {
        let start = Instant::now();
        let mut quotas = Quotas::new(Quota { per_second: 10, burst: 3 }, 8, start);
        for _ in 0..3 {
            assert_eq!(quotas.take(signer(1), 1, start), Ok(()));
        }
        assert_eq!(quotas.check(signer(1), 1, start), Err(Duration::from_millis(100)));
        assert_eq!(quotas.take(signer(1), 1, start), Err(Duration::from_millis(100)));
        assert_eq!(quotas.take(signer(2), 3, start), Ok(()), "another's is its own");
        let later = start + Duration::from_millis(200);
        assert_eq!(quotas.take(signer(1), 2, later), Ok(()));
        assert!(quotas.take(signer(1), 1, later).is_err());
        assert!(quotas.take(signer(3), 4, later).is_err(), "a batch beyond the burst never fits");
    }

    #[test]
    fn made_up_signers_share_one_bucket_and_take_no_memory() {
        let start = Instant::now();
        let mut quotas = Quotas::new(Quota { per_second: 1, burst: 2 }, 4, start);
        let taken = (0..100).filter(|byte| quotas.take(signer(*byte), 1, start).is_ok()).count();
        assert_eq!((taken, quotas.buckets.len()), (4 + 2, 4));
        let rested = start + Duration::from_secs(5);
        assert_eq!(quotas.take(signer(200), 1, rested), Ok(()));
        assert_eq!(quotas.buckets.len(), 1, "buckets that are full again are forgotten");
    }
}
