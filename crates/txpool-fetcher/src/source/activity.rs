//! The activity of a subscription: decides from the times of hashes and heads whether a silence is
//! suspicious.
//!
//! A silence is judged with the Poisson distribution: if 20 announcements are expected in it, the
//! probability of none is e^-20. Heads must have come meanwhile, because a stalled chain announces
//! no hashes either; or the silence must be longer, if a comparison can judge it: two heads may
//! take half a minute. Hashes count when they are read from the socket, so back-pressure of the
//! fetcher is not a silence.
//!
//! Silence alone is only suspicious, because the load may have ended. The comparison that follows
//! lists the pool twice, 4 s apart. Hashes that are new in the second list and were not announced
//! prove that the subscription is dead. Hashes in the first list may be older than the
//! subscription.

use std::time::{Duration, Instant};

use crate::gap::MIN_SILENCE;

/// The number of expected announcements from which on a silence is suspicious.
const SUSPICIOUS_EXPECTATION: f64 = 20.0;

/// The number of heads since the last hash from which on a silence counts.
const HEADS_WITHOUT_HASHES: u32 = 2;

/// How long a silence without heads must last: with the time of the comparison that follows, a dead
/// subscription is noticed within fifteen seconds.
const MIN_SILENCE_WITHOUT_HEADS: Duration = Duration::from_secs(8);

/// The number of hashes at once that may be all that a node had room for: reth's listener behind
/// the subscription holds 2,048 hashes and silently drops the rest, when a lower base fee promotes
/// thousands of transactions at once.
const LISTENER_SLOTS: u64 = 2_048;

/// The time in which so many hashes count as a burst.
const BURST_WINDOW: Duration = Duration::from_millis(500);

/// The time over which the rate of announcements is averaged.
const RATE_WINDOW: Duration = Duration::from_secs(30);

/// The recent announcements of one source.
pub(super) struct Activity {
    /// The number of hashes read from the socket.
    pub(super) read: u64,
    /// The running mean of the rate of hashes, in hashes per second.
    pub(super) rate_per_s: f64,
    ticked_at: Instant,
    /// The number of hashes in the latest tick, and its length.
    latest_tick: (u64, Duration),
    /// A burst continues, for which a comparison was requested already.
    in_burst: bool,
    /// The tick with the latest hash.
    hash_at: Instant,
    heads_since_hash: u32,
    /// An audit found transactions missing although no hash was ever announced.
    never_announced: bool,
    /// The highest announced or returned head.
    head: Option<u64>,
    /// Since when the node has known a newer block than it announced.
    behind_since: Option<Instant>,
    /// Since when the node has only known older blocks than it announced.
    ahead_since: Option<Instant>,
}

impl Activity {
    pub(super) fn new(read: u64, rate_per_s: f64, now: Instant) -> Self {
        Self {
            read,
            rate_per_s,
            ticked_at: now,
            latest_tick: (0, Duration::ZERO),
            in_burst: false,
            hash_at: now,
            heads_since_hash: 0,
            never_announced: false,
            head: None,
            behind_since: None,
            ahead_since: None,
        }
    }

    /// Records the number of hashes read so far. Returns whether a burst begins, so large that the
    /// node may have dropped hashes.
    pub(super) fn tick(&mut self, read: u64, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.ticked_at);
        if passed.is_zero() {
            return false;
        }
        let new = read.saturating_sub(self.read);
        // A burst may be spread over two ticks.
        let (before, before_passed) = std::mem::replace(&mut self.latest_tick, (new, passed));
        let is_burst = new + before >= LISTENER_SLOTS && before_passed + passed <= BURST_WINDOW;
        let has_begun = !std::mem::replace(&mut self.in_burst, is_burst) && is_burst;
        let passed = passed.as_secs_f64();
        if new > 0 {
            // The mean is only over ticks with hashes, so that a silence is judged by the rate
            // before it.
            let weight = (passed / RATE_WINDOW.as_secs_f64()).min(1.0);
            self.rate_per_s += weight * (new as f64 / passed - self.rate_per_s);
            self.hash_at = now;
            self.heads_since_hash = 0;
            self.never_announced = false;
        }
        self.read = read;
        self.ticked_at = now;
        has_begun
    }

    /// Notes that a silence did not mean a dead subscription: the rate is at most one hash in the
    /// silence.
    pub(super) fn set_load_ended(&mut self, now: Instant) {
        let silence = now.saturating_duration_since(self.hash_at);
        self.rate_per_s = self.rate_per_s.min(1.0 / silence.max(MIN_SILENCE).as_secs_f64());
        self.never_announced = false;
    }

    /// Notes a head that the node announced or returned.
    pub(super) fn head(&mut self, number: u64) {
        // A requested head may come after a newer one that was announced meanwhile.
        self.head = self.head.max(Some(number));
        self.behind_since = None;
        self.heads_since_hash = self.heads_since_hash.saturating_add(1);
    }

    /// Notes that an audit found missing transactions. A subscription that has never announced a
    /// hash has no rate by which its silence could be judged, so this makes it suspicious.
    pub(super) fn found_missing(&mut self) {
        self.never_announced = self.heads_since_hash >= HEADS_WITHOUT_HASHES;
    }

    /// Returns whether the silence since the latest hash is suspicious. `is_compared`: a comparison
    /// judges it.
    pub(super) fn is_silent(&self, now: Instant, is_compared: bool) -> bool {
        let silence = now.saturating_duration_since(self.hash_at);
        let expected = self.rate_per_s * silence.as_secs_f64();
        let is_long = is_compared && silence >= MIN_SILENCE_WITHOUT_HEADS;
        (self.heads_since_hash >= HEADS_WITHOUT_HASHES || is_long)
            && silence >= MIN_SILENCE
            && (self.never_announced || expected >= SUSPICIOUS_EXPECTATION)
    }

    /// Records a block number that the node returned. Returns whether the node has been ahead of
    /// its own announcements for [`MIN_SILENCE`].
    pub(super) fn is_behind(&mut self, number: u64, now: Instant) -> bool {
        // Before the first head, later numbers are compared with the first one that was returned.
        let known = *self.head.get_or_insert(number);
        if number >= known {
            self.ahead_since = None;
        } else if now.saturating_duration_since(*self.ahead_since.get_or_insert(now)) >= MIN_SILENCE
        {
            // It was set back, or announced a block that does not exist. With that one, heads that
            // are not announced any more would never be noticed.
            self.head = Some(number);
            self.ahead_since = None;
        }
        if number <= known {
            self.behind_since = None;
            return false;
        }
        let since = *self.behind_since.get_or_insert(now);
        now.saturating_duration_since(since) >= MIN_SILENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Before the fix a head that does not exist hid for ever that heads were no longer announced.
    #[test]
    fn a_head_that_the_node_does_not_have_is_forgotten() {
        let start = Instant::now();
        let mut activity = Activity::new(0, 0.0, start);
        activity.head(100);
        activity.head(u64::MAX);
        let mut is_behind =
            |silences: u32, number| activity.is_behind(number, start + silences * MIN_SILENCE);
        assert!(!is_behind(0, 100) && !is_behind(1, 101), "it may be a race");
        assert!(!is_behind(2, 102), "it is ahead for the first time");
        assert!(is_behind(3, 103));
    }
}
