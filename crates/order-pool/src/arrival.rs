//! Decides when an order arrived: the wall clock, made strictly increasing within this process.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, SystemTime},
};

/// A hybrid clock: the later of the wall clock and one microsecond after its last value.
#[derive(Debug)]
pub(crate) struct ArrivalClock(AtomicU64);

impl ArrivalClock {
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub(crate) fn next(&self, now: SystemTime) -> SystemTime {
        let now = unix_micros(now);
        let later = |last: u64| now.max(last.saturating_add(1));
        // Relaxed: only the order of its own values matters.
        let last = self.0.fetch_update(Relaxed, Relaxed, |last| Some(later(last)));
        let value = last.map_or(now, later);
        SystemTime::UNIX_EPOCH + Duration::from_micros(value)
    }
}

static CLOCK: ArrivalClock = ArrivalClock::new();

/// Returns the time of arrival for an order or a cancellation: the wall clock, but at least a
/// microsecond later than all times that it has returned in this process.
///
/// So of two messages the one that arrived later counts as later, even if the wall clock was set
/// back in between. After the wall clock was set forward and back, the returned times stay ahead
/// until it has caught up. If the times of two machines are compared meanwhile, those of the
/// machine that is ahead count as later.
#[must_use]
pub fn arrival() -> SystemTime {
    CLOCK.next(SystemTime::now())
}

/// Microseconds since the Unix epoch, below `u64::MAX`, which is the highest replacement nonce.
pub(crate) fn unix_micros(time: SystemTime) -> u64 {
    let since_epoch = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX - 1)
}
