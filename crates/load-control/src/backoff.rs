//! The delays between attempts.

use std::time::Duration;

/// Capped exponential backoff with jitter.
///
/// ```
/// use std::time::Duration;
///
/// use load_control::Backoff;
///
/// let backoff = Backoff { base: Duration::from_millis(50), cap: Duration::from_secs(1) };
/// assert_eq!(backoff.delay(0, 1.0), backoff.base);
/// assert_eq!(backoff.delay(9, 1.0), backoff.cap);
/// assert!(backoff.random_delay(9) >= backoff.cap / 2);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The longest delay before the first retry; the limit doubles with each attempt.
    pub base: Duration,
    /// The longest delay of any attempt.
    pub cap: Duration,
}

impl Backoff {
    /// The delay before attempt `attempt` (the first retry is 0), for a `jitter` in 0..1.
    ///
    /// Half of the delay is fixed and half is random. With full jitter a retry could follow at
    /// once; without jitter all clients of a restarted server would reconnect in the same
    /// millisecond.
    #[must_use]
    pub fn delay(&self, attempt: u32, jitter: f64) -> Duration {
        let grown = self.base.saturating_mul(1_u32.checked_shl(attempt).unwrap_or(u32::MAX));
        let capped = grown.min(self.cap);
        capped / 2 + (capped / 2).mul_f64(jitter.clamp(0.0, 1.0))
    }

    /// [`Self::delay`] with a random jitter.
    #[must_use]
    pub fn random_delay(&self, attempt: u32) -> Duration {
        self.delay(attempt, rand::random())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff =
        Backoff { base: Duration::from_millis(100), cap: Duration::from_secs(1) };

    #[test]
    fn delays_double_up_to_the_cap_and_half_of_each_is_fixed() {
        let longest = |attempt| BACKOFF.delay(attempt, 1.0).as_millis();
        assert_eq!([0, 1, 3, 4, 32, u32::MAX].map(longest), [100, 200, 800, 1_000, 1_000, 1_000]);
        assert_eq!(BACKOFF.delay(0, 0.0), Duration::from_millis(50));
    }

    #[test]
    fn two_clients_do_not_retry_at_the_same_moments() {
        assert!((0..10).any(|_| BACKOFF.random_delay(3) != BACKOFF.random_delay(3)));
    }
}
