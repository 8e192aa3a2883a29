//! The pauses between attempts.

use std::time::Duration;

/// A connection that has lasted as long resets the backoff.
pub(crate) const STABLE_AFTER: Duration = Duration::from_secs(10);

/// The longest pause between attempts over a connection that works: they cost the server little, and orders wait for
/// them.
const LONGEST_CONNECTED: Duration = Duration::from_secs(1);

/// Exponential backoff with jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The longest first pause; the limit doubles with each attempt.
    pub base: Duration,
    /// The longest pause of any attempt.
    pub cap: Duration,
}

impl Backoff {
    /// The pause before attempt `attempt` (the first retry is 0), for a `jitter` in 0..1. Half of it is
    /// fixed and half random, so that the clients of a restarted server come back one after the other.
    #[must_use]
    pub fn delay(&self, attempt: u32, jitter: f64) -> Duration {
        let grown = self.base.saturating_mul(1_u32.checked_shl(attempt).unwrap_or(u32::MAX));
        let capped = grown.min(self.cap);
        capped / 2 + (capped / 2).mul_f64(jitter.clamp(0.0, 1.0))
    }

    /// The same for attempts over a connection that works.
    pub(crate) fn connected(self) -> Self {
        Self { cap: self.cap.min(LONGEST_CONNECTED), ..self }
    }

    /// As [`Self::delay`], with a random jitter.
    pub(crate) fn random_delay(&self, attempt: u32) -> Duration {
        self.delay(attempt, rand::random())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_cap_and_keep_half_of_their_length() {
        let backoff = Backoff { base: Duration::from_millis(100), cap: Duration::from_secs(1) };
        let longest = |attempt| backoff.delay(attempt, 1.0).as_millis();
        assert_eq!([0, 1, 3, 4, 40, u32::MAX].map(longest), [100, 200, 800, 1_000, 1_000, 1_000]);
        assert_eq!(backoff.delay(0, 0.0), Duration::from_millis(50));
    }
}
