//! When orders arrive: the wall clock, made strictly increasing within this process.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, SystemTime},
};

use crate::core::micros;

/// A hybrid clock: the later of the wall clock and one microsecond after its last value.
#[derive(Debug)]
pub(crate) struct ArrivalClock(AtomicU64);

impl ArrivalClock {
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub(crate) fn next(&self, now: SystemTime) -> SystemTime {
        let now = micros(now);
        let later = |last: u64| now.max(last.saturating_add(1));
        // Relaxed: only the order of its own values matters.
        let last = self.0.fetch_update(Relaxed, Relaxed, |last| Some(later(last)));
        let value = last.map_or(now, later);
        SystemTime::UNIX_EPOCH + Duration::from_micros(value)
    }
}

static CLOCK: ArrivalClock = ArrivalClock::new();

/// The time of arrival of an order or of a cancellation: the wall clock, but later than all times
/// that it has returned in this process, by at least a microsecond. So of two messages the one that
/// arrived later counts as later, even if the wall clock was set back in between. After a step
/// forward and back its values stay ahead until the wall clock has caught up; of two machines the
/// one that is ahead counts as later meanwhile.
#[must_use]
pub fn arrival() -> SystemTime {
    CLOCK.next(SystemTime::now())
}
