//! The pauses between the steps of background work.

use std::time::Duration;

/// Draws the pauses between the steps of background work.
///
/// The owner divides the work into bounded steps, and sleeps for [`Self::next_pause`] between two
/// of them. Each pause is `pause x (1 + a random share of jitter_percent)`, so that processes that
/// were started together do not work at the same moments. A pause is never shorter than configured;
/// a pause of zero stays zero.
#[derive(Debug)]
pub struct Throttle {
    pause: Duration,
    jitter: f64,
}

impl Throttle {
    /// Pauses of at least `pause`, lengthened at random by at most `jitter_percent`. Every value is
    /// valid.
    pub fn new(pause: Duration, jitter_percent: u8) -> Self {
        let jitter = f64::from(jitter_percent) / 100.0;
        Self { pause, jitter }
    }

    /// Draws the length of the next pause.
    pub fn next_pause(&self) -> Duration {
        let lengthened = self.pause.as_secs_f64() * (1.0 + self.jitter * rand::random::<f64>());
        // Only a pause of centuries exceeds the range of `Duration`.
        Duration::try_from_secs_f64(lengthened).unwrap_or(Duration::MAX).max(self.pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const PAUSE: Duration = Duration::from_millis(100);

    #[test]
    fn jitter_only_lengthens_and_never_beyond_its_share() {
        let throttle = Throttle::new(PAUSE, 25);
        let drawn: Vec<_> = (0..1_000).map(|_| throttle.next_pause()).collect();
        assert!(drawn.iter().all(|pause| (PAUSE..=PAUSE.mul_f64(1.25)).contains(pause)));
        assert!(drawn.iter().min().unwrap() < &Duration::from_millis(102));
        assert!(drawn.iter().max().unwrap() > &Duration::from_millis(123));
        assert!(drawn.iter().collect::<HashSet<_>>().len() > 990);
    }

    #[test]
    fn without_jitter_every_pause_is_the_same_and_none_stays_none() {
        let throttle = Throttle::new(PAUSE, 0);
        assert!((0..100).all(|_| throttle.next_pause() == PAUSE));
        assert_eq!(Throttle::new(Duration::ZERO, 100).next_pause(), Duration::ZERO);
        assert_eq!(Throttle::new(Duration::MAX, 100).next_pause(), Duration::MAX);
    }
}
