//! Decides when an order arrived: by a clock of this process, which no step of the wall clock
//! changes.

use std::{
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant, SystemTime},
};

/// The wall clock at one moment, and from then on the monotonic clock.
///
/// If it followed the wall clock when that is set, the time between an arrival and its publication
/// over a fleet could not be computed, and an order could seem to have come after its cancellation.
#[derive(Debug)]
pub(crate) struct ArrivalClock {
    /// One moment by both clocks.
    start: (SystemTime, Instant),
    /// The latest time that [`Self::next`] has returned, in microseconds since the Unix epoch.
    latest: AtomicU64,
}

impl ArrivalClock {
    pub(crate) const fn new(start: (SystemTime, Instant)) -> Self {
        Self { start, latest: AtomicU64::new(0) }
    }

    /// Returns the time at `now`, or a microsecond after the latest one, if that is later.
    pub(crate) fn next(&self, now: Instant) -> SystemTime {
        let now = unix_micros(self.time_at(now));
        let later = |latest: u64| now.max(latest.saturating_add(1));
        // Relaxed: only the order of its own values matters.
        let latest = self.latest.fetch_update(Relaxed, Relaxed, |latest| Some(later(latest)));
        SystemTime::UNIX_EPOCH + Duration::from_micros(latest.map_or(now, later))
    }

    pub(crate) fn time_at(&self, instant: Instant) -> SystemTime {
        let (start_time, start) = self.start;
        match instant.checked_duration_since(start) {
            Some(since) => start_time.checked_add(since),
            None => start_time.checked_sub(start.duration_since(instant)),
        }
        .unwrap_or(start_time)
    }

    pub(crate) fn instant_of(&self, time: SystemTime) -> Instant {
        let (start_time, start) = self.start;
        match time.duration_since(start_time) {
            Ok(since) => start.checked_add(since),
            Err(before) => start.checked_sub(before.duration()),
        }
        .unwrap_or(start)
    }
}

/// It begins with the first order or cancellation of the process.
static CLOCK: LazyLock<ArrivalClock> =
    LazyLock::new(|| ArrivalClock::new((SystemTime::now(), Instant::now())));

/// Returns the time of arrival for an order or a cancellation: at least a microsecond later than
/// all times that this function has returned in this process.
///
/// It is the time of the wall clock when this process first used it, and from then on that of the
/// monotonic clock. So of two messages the one that arrived later counts as later, by the time that
/// has passed between them, however the wall clock was set meanwhile. If it was set, the returned
/// times differ from it by that step until the process is started again.
#[must_use]
pub fn arrival() -> SystemTime {
    CLOCK.next(Instant::now())
}

/// Returns the time of the clock of [`arrival`] at a moment of this process.
#[must_use]
pub fn arrival_at(instant: Instant) -> SystemTime {
    CLOCK.time_at(instant)
}

/// Returns the moment at which the clock of [`arrival`] shows this time.
#[must_use]
pub fn arrival_instant(time: SystemTime) -> Instant {
    CLOCK.instant_of(time)
}

/// Microseconds since the Unix epoch, below `u64::MAX`, which is the highest replacement nonce.
pub(crate) fn unix_micros(time: SystemTime) -> u64 {
    let since_epoch = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX - 1)
}
