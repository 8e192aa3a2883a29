//! When hashes and heads came, and whether a silence is one of the subscription.
//!
//! Whether a silence is plausible is judged with the Poisson distribution: if 20 announcements are
//! expected in it, the probability of none is e^-20. Heads must have come: a stalled chain is no
//! dead subscription. Hashes count when they are read from the socket: our own back-pressure is no
//! silence. Silence alone is a suspicion: the load may have ended. The comparison that follows
//! lists the pool twice, 4 s apart. Hashes new in the second list that were not announced prove
//! that the subscription is dead; those of the first may be older than it.

use std::time::{Duration, Instant};

use crate::gap::MIN_SILENCE;

/// How many announcements must have been expected in a silence before it is suspicious.
const SUSPICIOUS_EXPECTATION: f64 = 20.0;

/// How many heads must have come since the last hash before a silence counts.
const HEADS_WITHOUT_HASHES: u32 = 2;

/// As many hashes at once may be all that a node had room for: reth's listener behind the subscription
/// holds 2,048 and silently drops the rest, when a lower base fee promotes thousands at once.
const LISTENER_SLOTS: u64 = 2_048;

/// How long they may take to be read.
const BURST_WINDOW: Duration = Duration::from_millis(500);

/// The time over which the rate of announcements is averaged.
const RATE_WINDOW: Duration = Duration::from_secs(30);

pub(super) struct Activity {
    pub(super) read: u64,
    pub(super) rate_per_s: f64,
    ticked: Instant,
    /// How many hashes the latest tick brought, and in which time.
    latest: (u64, Duration),
    /// A burst goes on: it is a reason for one comparison.
    in_burst: bool,
    hash_at: Instant,
    heads_since_hash: u32,
    /// An audit found transactions missing although no hash was ever announced.
    never_announced: bool,
    head: Option<u64>,
    behind_since: Option<Instant>,
}

impl Activity {
    pub(super) fn new(read: u64, rate_per_s: f64, now: Instant) -> Self {
        Self {
            read,
            rate_per_s,
            ticked: now,
            latest: (0, Duration::ZERO),
            in_burst: false,
            hash_at: now,
            heads_since_hash: 0,
            never_announced: false,
            head: None,
            behind_since: None,
        }
    }

    /// Returns whether so many hashes begin to come at once that the node may have dropped others.
    pub(super) fn tick(&mut self, read: u64, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.ticked);
        if passed.is_zero() {
            return false;
        }
        let new = read.saturating_sub(self.read);
        // A burst may come on both sides of a tick.
        let (before, took) = std::mem::replace(&mut self.latest, (new, passed));
        let is_burst = new + before >= LISTENER_SLOTS && took + passed <= BURST_WINDOW;
        let has_begun = !std::mem::replace(&mut self.in_burst, is_burst) && is_burst;
        let passed = passed.as_secs_f64();
        if new > 0 {
            // Averaged only over ticks with hashes: a silence is judged by the rate before it.
            let weight = (passed / RATE_WINDOW.as_secs_f64()).min(1.0);
            self.rate_per_s += weight * (new as f64 / passed - self.rate_per_s);
            self.hash_at = now;
            self.heads_since_hash = 0;
            self.never_announced = false;
        }
        self.read = read;
        self.ticked = now;
        has_begun
    }

    /// The silence was no sign of a dead subscription: the rate is at most one hash in it.
    pub(super) fn load_has_ended(&mut self, now: Instant) {
        let silence = now.saturating_duration_since(self.hash_at);
        self.rate_per_s = self.rate_per_s.min(1.0 / silence.max(MIN_SILENCE).as_secs_f64());
        self.never_announced = false;
    }

    pub(super) fn head(&mut self, number: u64) {
        // One that was requested may be told after a newer one that was announced meanwhile.
        self.head = self.head.max(Some(number));
        self.behind_since = None;
        self.heads_since_hash = self.heads_since_hash.saturating_add(1);
    }

    /// An audit has found transactions missing. A subscription that has never announced any has no rate
    /// by which its silence could be judged, and is suspicious by this.
    pub(super) fn found_missing(&mut self) {
        self.never_announced = self.heads_since_hash >= HEADS_WITHOUT_HASHES;
    }

    pub(super) fn is_silent(&self, now: Instant) -> bool {
        let silence = now.saturating_duration_since(self.hash_at);
        let expected = self.rate_per_s * silence.as_secs_f64();
        self.heads_since_hash >= HEADS_WITHOUT_HASHES
            && silence >= MIN_SILENCE
            && (self.never_announced || expected >= SUSPICIOUS_EXPECTATION)
    }

    /// Whether the node has been ahead of its own announcements for longer than [`MIN_SILENCE`].
    pub(super) fn is_behind(&mut self, number: u64, now: Instant) -> bool {
        // Before the first announced head, compare with the first block number that was returned.
        let known = *self.head.get_or_insert(number);
        if number <= known {
            self.behind_since = None;
            return false;
        }
        let since = *self.behind_since.get_or_insert(now);
        now.saturating_duration_since(since) >= MIN_SILENCE
    }
}
