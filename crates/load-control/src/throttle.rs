//! Background work in steps, with a pause in between.

use crate::{error::ConfigError, jitter::Jitter};
use std::{thread, time::Duration};

/// The pause between two steps of background work by default: none but a chance for others to run.
pub const DEFAULT_PAUSE: Duration = Duration::ZERO;
/// How much a pause varies by default: a tenth to either side.
pub const DEFAULT_PAUSE_JITTER: f64 = 0.1;
/// The longest pause: a minute. Upkeep that rests longer does not keep up.
pub const MAX_PAUSE: Duration = Duration::from_secs(60);

/// Makes background work give way between its steps.
///
/// The work is cut into bounded steps by its owner; between two of them it calls one of the pauses.
/// Each pause is drawn anew from `pause × (1 ± jitter)`, so that a fleet that was started together
/// does not pause, and then work, in step.
#[derive(Debug)]
pub struct Throttle {
    pause: Duration,
    jitter: f64,
    chance: Jitter,
}

impl Default for Throttle {
    /// [`DEFAULT_PAUSE`], [`DEFAULT_PAUSE_JITTER`].
    fn default() -> Self {
        Self { pause: DEFAULT_PAUSE, jitter: DEFAULT_PAUSE_JITTER, chance: Jitter::random() }
    }
}

impl Throttle {
    /// `pause` is at most [`MAX_PAUSE`]; `jitter` is the fraction of it, 0 to 1, by which a pause
    /// may be shorter or longer.
    ///
    /// # Errors
    /// If either is out of bounds.
    pub fn new(pause: Duration, jitter: f64) -> Result<Self, ConfigError> {
        if pause > MAX_PAUSE {
            return Err(ConfigError::OutOfBounds {
                field: "pause (ms)",
                value: pause.as_millis().try_into().unwrap_or(u64::MAX),
                min: 0,
                max: MAX_PAUSE.as_millis() as u64,
            });
        }
        if !(0.0..=1.0).contains(&jitter) {
            return Err(ConfigError::Fraction { field: "jitter", value: jitter });
        }
        Ok(Self { pause, jitter, chance: Jitter::random() })
    }

    /// The same pauses in every run, for tests.
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.chance = Jitter::seeded(seed);
        self
    }

    /// Draws the length of the next pause.
    pub fn next_pause(&self) -> Duration {
        if self.pause.is_zero() {
            return Duration::ZERO;
        }
        let factor = 1.0 - self.jitter + 2.0 * self.jitter * self.chance.fraction();
        self.pause.mul_f64(factor)
    }

    /// Pauses a task. With a pause of zero it still gives the other tasks of the worker their turn.
    ///
    /// # Cancel safety
    /// Nothing is lost when it is dropped.
    ///
    /// # Panics
    /// With a pause above zero outside a tokio runtime with its timer on.
    pub async fn pause_between_steps(&self) {
        match self.next_pause() {
            Duration::ZERO => tokio::task::yield_now().await,
            pause => tokio::time::sleep(pause).await,
        }
    }

    /// Pauses a thread. With a pause of zero it still lets another thread run.
    pub fn pause_between_steps_blocking(&self) {
        match self.next_pause() {
            Duration::ZERO => thread::yield_now(),
            pause => thread::sleep(pause),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn pauses_vary_within_their_jitter_and_not_beyond() {
        let pause = Duration::from_millis(100);
        let throttle = Throttle::new(pause, 0.25).unwrap().with_seed(1);
        let drawn: Vec<_> = (0..1_000).map(|_| throttle.next_pause()).collect();
        let (low, high) = (Duration::from_millis(75), Duration::from_millis(125));
        assert!(drawn.iter().all(|pause| (low..=high).contains(pause)));
        assert!(drawn.iter().min().unwrap() < &Duration::from_millis(80));
        assert!(drawn.iter().max().unwrap() > &Duration::from_millis(120));
        assert!(drawn.iter().collect::<HashSet<_>>().len() > 990);
    }

    #[test]
    fn without_jitter_every_pause_is_the_same() {
        let throttle = Throttle::new(Duration::from_millis(3), 0.0).unwrap();
        assert!((0..100).all(|_| throttle.next_pause() == Duration::from_millis(3)));
        assert_eq!(Throttle::default().next_pause(), Duration::ZERO);
    }

    #[test]
    fn two_of_a_fleet_do_not_pause_in_step() {
        let pause = Duration::from_secs(1);
        let one = Throttle::new(pause, 0.1).unwrap();
        let other = Throttle::new(pause, 0.1).unwrap();
        assert!((0..10).any(|_| one.next_pause() != other.next_pause()));
    }

    #[test]
    fn a_pause_or_a_jitter_out_of_bounds_is_an_error() {
        assert!(Throttle::new(MAX_PAUSE, 1.0).is_ok());
        assert!(Throttle::new(MAX_PAUSE + Duration::from_millis(1), 0.0).is_err());
        for jitter in [-0.1, 1.1, f64::NAN] {
            assert!(Throttle::new(DEFAULT_PAUSE, jitter).is_err());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_pauses_for_as_long_as_was_drawn() {
        let throttle = Throttle::new(Duration::from_secs(1), 0.5).unwrap().with_seed(3);
        let expected = Throttle::new(Duration::from_secs(1), 0.5).unwrap().with_seed(3);
        let before = tokio::time::Instant::now();
        throttle.pause_between_steps().await;
        let took = before.elapsed();
        let drawn = expected.next_pause();
        // The timer counts in whole milliseconds, upwards.
        assert!(took >= drawn && took <= drawn + Duration::from_millis(1), "{took:?} {drawn:?}");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn without_a_pause_the_other_tasks_of_the_worker_still_get_their_turn() {
        use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
        let ran = std::sync::Arc::new(AtomicBool::new(false));
        let other = tokio::spawn({
            let ran = std::sync::Arc::clone(&ran);
            async move { ran.store(true, Relaxed) }
        });
        Throttle::default().pause_between_steps().await;
        assert!(ran.load(Relaxed));
        other.await.unwrap();
    }

    #[test]
    fn a_thread_pauses_too() {
        let throttle = Throttle::new(Duration::from_millis(20), 0.0).unwrap();
        let before = std::time::Instant::now();
        throttle.pause_between_steps_blocking();
        assert!(before.elapsed() >= Duration::from_millis(20));
    }
}
