//! Up to which time a connection was read, so that a slow thread of ours causes no time-out.

#![expect(clippy::arithmetic_side_effects, reason = "times of our own clock")]

use std::{
    sync::atomic::{
        AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
    time::{Duration, Instant},
};

/// How long the reader must have waited before it is certain that nothing has arrived: the system
/// may suspend it between its decision to wait and the wait itself.
const WAITED: Duration = Duration::from_millis(20);

/// Written by the reader of one connection, read by the code that times its requests out.
#[derive(Debug)]
pub(super) struct Pulse {
    opened: Instant,
    /// All in nanoseconds since `opened`.
    last_frame: AtomicU64,
    /// Since when the reader waits for bytes; [`BUSY`] while it does not.
    waits_since: AtomicU64,
    read_until: AtomicU64,
}

const BUSY: u64 = u64::MAX;

impl Pulse {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            opened: now,
            last_frame: AtomicU64::new(0),
            waits_since: AtomicU64::new(BUSY),
            read_until: AtomicU64::new(0),
        }
    }

    /// The reader is about to wait.
    pub(super) fn waits(&self, now: Instant) {
        // Release: a thread that sees this also sees the answered requests removed.
        self.waits_since.store(self.nanos(now), Release);
    }

    /// The reader has received bytes; returns the time.
    pub(super) fn reads(&self) -> Instant {
        self.waits_since.store(BUSY, Release);
        Instant::now()
    }

    /// Everything that had arrived by `at` has been processed.
    pub(super) fn has_read_until(&self, at: Instant) {
        self.read_until.store(self.nanos(at), Release);
    }

    /// A complete value arrived.
    pub(super) fn framed(&self, at: Instant) {
        self.last_frame.store(self.nanos(at), Relaxed);
    }

    pub(super) fn last_frame(&self) -> Instant {
        self.opened + Duration::from_nanos(self.last_frame.load(Relaxed))
    }

    /// The latest time up to which everything that had arrived is known to be processed.
    pub(super) fn read_until(&self, now: Instant) -> Instant {
        let since = self.waits_since.load(Acquire);
        let waited = self.nanos(now).saturating_sub(since);
        if since != BUSY && waited >= WAITED.as_nanos() as u64 {
            now
        } else {
            self.opened + Duration::from_nanos(self.read_until.load(Acquire))
        }
    }

    fn nanos(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.opened).as_nanos() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_stands_still_while_the_reader_is_busy_and_runs_while_it_waits() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let pulse = Pulse::new(start);
        assert_eq!(pulse.read_until(at(5_000)), start, "nothing was read yet");
        pulse.has_read_until(at(10));
        pulse.waits(at(11));
        assert_eq!(pulse.read_until(at(12)), at(10), "it may have been put to sleep");
        assert_eq!(pulse.read_until(at(500)), at(500));
        pulse.reads();
        assert_eq!(pulse.read_until(at(9_000)), at(10), "a sink blocks");
    }
}
