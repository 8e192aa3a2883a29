//! Reads this machine's wall clock and measures its offset from the server's clock.

use std::time::{Duration, Instant, SystemTime};

/// The wall clock of this machine. Tests use one with an offset.
///
/// No decision depends on this clock. Publishers and sources compare it with the server's clock for
/// the metric `order_stream_clock_offset_seconds`. How long an order has waited since its arrival
/// is measured with the monotonic clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct WallClock {
    ahead: Duration,
    behind: Duration,
}

impl WallClock {
    /// Returns a clock that is ahead of this machine's clock.
    #[must_use]
    pub const fn ahead_by(ahead: Duration) -> Self {
        Self { ahead, behind: Duration::ZERO }
    }

    /// Returns a clock that is behind this machine's clock.
    #[must_use]
    pub const fn behind_by(behind: Duration) -> Self {
        Self { ahead: Duration::ZERO, behind }
    }

    /// Returns the current time of this clock.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        SystemTime::now() + self.ahead - self.behind
    }

    /// Converts an arrival time ([`order_pool::arrival`]) to a monotonic instant, whether or not
    /// the clock was set since. Returns the current instant for a time in the future, which a host
    /// has read from another clock.
    pub(crate) fn to_instant(self, received_at: SystemTime) -> Instant {
        let received_at = received_at - self.ahead + self.behind;
        order_pool::arrival_instant(received_at).min(Instant::now())
    }
}

/// The difference between this machine's clock and the server's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClockOffset {
    ahead: Duration,
    behind: Duration,
}

impl ClockOffset {
    pub(crate) fn between(own: SystemTime, server: SystemTime) -> Self {
        match own.duration_since(server) {
            Ok(ahead) => Self { ahead, behind: Duration::ZERO },
            Err(error) => Self { ahead: Duration::ZERO, behind: error.duration() },
        }
    }

    /// Returns the server's time at the moment when this machine's clock shows `own`.
    pub(crate) fn server_time(&self, own: SystemTime) -> SystemTime {
        own - self.ahead + self.behind
    }

    /// Returns the offset in seconds, positive if this machine's clock is ahead.
    pub(crate) fn seconds(&self) -> f64 {
        self.ahead.as_secs_f64() - self.behind.as_secs_f64()
    }

    /// Whether the offset exceeds what `docs/fleet.md` and the alert allow.
    pub(crate) fn is_large(&self) -> bool {
        self.ahead.max(self.behind) > MAX_CLOCK_OFFSET
    }
}

/// A moment, and a time that the server's clock showed at this moment or later: the server has sent
/// it in its response to a request that was sent at this moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerClockReading {
    pub(crate) requested_at: Instant,
    pub(crate) server_time: SystemTime,
}

impl ServerClockReading {
    fn upper_bound(&self, now: Instant) -> Option<SystemTime> {
        let age = now.saturating_duration_since(self.requested_at);
        if age > MAX_READING_AGE { None } else { self.server_time.checked_add(age) }
    }
}

/// How long a reading is used: as long as some checks of the stream take, so that the drift of
/// clocks does not matter.
const MAX_READING_AGE: Duration = Duration::from_secs(15);

/// The latest readings of the server's clock. There are several, so that a single slow response
/// does no harm.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ServerClock {
    readings: [Option<ServerClockReading>; 4],
}

impl ServerClock {
    /// Adds a reading whose response came at `now` or before. Drops the readings that are too old,
    /// and those that it contradicts: the server's clock was set forward since, or another server
    /// with another clock leads now.
    pub(crate) fn record(&mut self, reading: ServerClockReading, now: Instant) {
        let is_contradicted = |old: &mut ServerClockReading| {
            old.upper_bound(now).is_none_or(|bound| bound < reading.server_time)
        };
        for old in &mut self.readings {
            old.take_if(is_contradicted);
        }
        self.readings.rotate_right(1);
        self.readings[0] = Some(reading);
    }

    /// Returns a time that the server's clock has not passed at `now`, if that clock was not set
    /// since the oldest reading that is kept; a step that is shorter than a response takes is
    /// noticed only when that reading is too old. The time is too late by no more than the duration
    /// of the fastest request. Returns `None` if no reading is known.
    pub(crate) fn upper_bound(&self, now: Instant) -> Option<SystemTime> {
        self.readings.iter().flatten().filter_map(|reading| reading.upper_bound(now)).min()
    }
}

/// The offset above which the log and an alert report a clock. NTP keeps clocks within
/// milliseconds.
const MAX_CLOCK_OFFSET: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::time;

    #[test]
    fn the_latest_reading_and_the_fastest_response_count() {
        let requested_at = Instant::now();
        let after = |seconds| requested_at + Duration::from_secs(seconds);
        let mut clock = ServerClock::default();
        assert_eq!(clock.upper_bound(after(9)), None);
        let mut record = |requested_at, server_time, received_at| {
            let reading = ServerClockReading { requested_at, server_time: time(server_time) };
            clock.record(reading, received_at);
            [clock.upper_bound(after(9)), clock.upper_bound(after(17))]
        };
        // The server may have read its clock at once or only at the response.
        assert_eq!(record(after(0), 100, after(1))[0], Some(time(109)));
        // It read it late, so the first reading is better, as long as it is not too old.
        assert_eq!(record(after(3), 105, after(6)), [109, 119].map(|seconds| Some(time(seconds))));
        assert_eq!(record(after(6), 105, after(7))[0], Some(time(108)));
        // The clock was set forward.
        assert_eq!(record(after(8), 208, after(9))[0], Some(time(209)));
        assert_eq!(clock.upper_bound(after(24)), None, "the readings are too old");
    }

    #[test]
    fn an_offset_has_a_sign_and_gives_the_servers_time() {
        for (own, server, seconds) in [(10, 7, 3.0), (7, 10, -3.0), (7, 7, 0.0)] {
            let offset = ClockOffset::between(time(own), time(server));
            assert_eq!((offset.seconds(), offset.is_large()), (seconds, own != server));
            assert_eq!(offset.server_time(time(own + 5)), time(server + 5));
        }
    }
}
