//! Reads this machine's wall clock and measures its offset from the server's clock.

use std::time::{Duration, Instant, SystemTime};

/// The wall clock of this machine. Tests use one with an offset.
///
/// No decision depends on this clock. A publisher reads it to compute how long an order has waited
/// since its arrival, which is an interval. Publishers and sources compare it with the server's
/// clock for the metric `order_stream_clock_offset_seconds`.
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

    /// Converts an arrival time of this clock to a monotonic instant. Returns the current instant
    /// if the arrival is in the future, because the clock was set back since.
    pub(crate) fn to_instant(self, received_at: SystemTime) -> Instant {
        let now = Instant::now();
        let age = self.now().duration_since(received_at).unwrap_or_default();
        now.checked_sub(age).unwrap_or(now)
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

/// The offset above which the log and an alert report a clock. NTP keeps clocks within
/// milliseconds.
const MAX_CLOCK_OFFSET: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::time;

    #[test]
    fn an_offset_has_a_sign_and_gives_the_servers_time() {
        for (own, server, seconds) in [(10, 7, 3.0), (7, 10, -3.0), (7, 7, 0.0)] {
            let offset = ClockOffset::between(time(own), time(server));
            assert_eq!((offset.seconds(), offset.is_large()), (seconds, own != server));
            assert_eq!(offset.server_time(time(own + 5)), time(server + 5));
        }
    }
}
