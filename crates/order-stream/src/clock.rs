//! The wall clock of this machine.

use std::time::{Duration, Instant, SystemTime};

/// The wall clock of this machine, or one that differs from it, for tests.
///
/// No decision depends on it. A publisher reads it to find how long an order has waited since its arrival, which is an
/// interval; both sides compare it with the server's clock, for `order_stream_clock_offset_seconds`.
#[derive(Clone, Copy, Debug, Default)]
pub struct WallClock {
    ahead: Duration,
    behind: Duration,
}

impl WallClock {
    /// One that is ahead of this machine's.
    #[must_use]
    pub const fn ahead_by(ahead: Duration) -> Self {
        Self { ahead, behind: Duration::ZERO }
    }

    /// One that is behind this machine's.
    #[must_use]
    pub const fn behind_by(behind: Duration) -> Self {
        Self { ahead: Duration::ZERO, behind }
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        SystemTime::now() + self.ahead - self.behind
    }

    /// The moment of an arrival that this clock has timed; now, if that time is in the future, because the clock was set
    /// back since.
    pub(crate) fn instant_of(&self, arrival: SystemTime) -> Instant {
        let (now, age) = (Instant::now(), self.now().duration_since(arrival).unwrap_or_default());
        now.checked_sub(age).unwrap_or(now)
    }
}

/// By how much this machine's clock is ahead of the server's, or behind it.
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

    /// The server's time when this machine's clock says `own`.
    pub(crate) fn server_time(&self, own: SystemTime) -> SystemTime {
        own - self.ahead + self.behind
    }

    /// Positive if this machine's clock is ahead.
    pub(crate) fn seconds(&self) -> f64 {
        self.ahead.as_secs_f64() - self.behind.as_secs_f64()
    }

    /// Whether it is more than what `docs/fleet.md` and the alert allow.
    pub(crate) fn is_large(&self) -> bool {
        self.ahead.max(self.behind) > MAX_CLOCK_OFFSET
    }
}

/// Above it the log and an alert say that a clock differs: NTP keeps clocks within some milliseconds.
const MAX_CLOCK_OFFSET: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_has_a_sign_and_gives_the_servers_time() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        for (own, server, seconds) in [(10, 7, 3.0), (7, 10, -3.0), (7, 7, 0.0)] {
            let offset = ClockOffset::between(at(own), at(server));
            assert_eq!((offset.seconds(), offset.is_large()), (seconds, own != server));
            assert_eq!(offset.server_time(at(own + 5)), at(server + 5));
        }
    }
}
