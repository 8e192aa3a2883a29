//! Answers that are held back, each for its own time, on a thread with a finer clock than tokio's millisecond.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

/// How long the node takes to answer `eth_getRawTransactionByHash`. Each response is delayed
/// separately: many wait at the same time, and they are sent out of order where the delays differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Latency {
    /// No delay, in the order of the requests.
    #[default]
    None,
    /// Always the same.
    Fixed(Duration),
    /// Log-normal, given by two of its quantiles. Draws are capped at ten times `p99`.
    LogNormal {
        /// Half of the answers take longer.
        median: Duration,
        /// One in a hundred takes longer.
        p99: Duration,
    },
}

/// The 99th percentile of the standard normal distribution.
const Z_99: f64 = 2.326_347_874;

type Deliver = Box<dyn FnOnce() + Send>;

pub(crate) struct DelayLine {
    inner: Mutex<Inner>,
    changed: Condvar,
    latency: Latency,
}

struct Inner {
    /// By due time; the number keeps equals in their order.
    due: BTreeMap<(Instant, u64), Deliver>,
    number: u64,
    rng: ChaCha8Rng,
    stopped: bool,
}

impl DelayLine {
    pub(crate) fn new(latency: Latency, seed: u64) -> Self {
        let inner = Inner {
            due: BTreeMap::new(),
            number: 0,
            rng: ChaCha8Rng::seed_from_u64(seed),
            stopped: false,
        };
        Self { inner: Mutex::new(inner), changed: Condvar::new(), latency }
    }

    /// How long the next answer takes.
    pub(crate) fn draw(&self) -> Duration {
        match self.latency {
            Latency::None => Duration::ZERO,
            Latency::Fixed(time) => time,
            Latency::LogNormal { median, p99 } => log_normal(&mut self.lock().rng, median, p99),
        }
    }

    /// Anything up to `most`.
    pub(crate) fn draw_up_to(&self, most: Duration) -> Duration {
        most.mul_f64(self.lock().rng.random())
    }

    pub(crate) fn hold(&self, time: Duration, deliver: impl FnOnce() + Send + 'static) {
        let due = Instant::now() + time;
        let mut inner = self.lock();
        inner.number += 1;
        let number = inner.number;
        let first = inner.due.first_key_value().is_none_or(|((next, _), _)| due < *next);
        inner.due.insert((due, number), Box::new(deliver));
        drop(inner);
        if first {
            self.changed.notify_one();
        }
    }

    /// Delivers until stopped; what is held then is not delivered.
    pub(crate) fn run(&self) {
        let mut inner = self.lock();
        while !inner.stopped {
            let now = Instant::now();
            let next = inner.due.first_key_value().map(|((due, _), _)| *due);
            inner = match next {
                None => self.changed.wait(inner).unwrap_or_else(PoisonError::into_inner),
                Some(due) if due > now => {
                    self.changed
                        .wait_timeout(inner, due - now)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
                Some(_) => {
                    let (_, deliver) = inner.due.pop_first().expect("just seen");
                    drop(inner);
                    deliver();
                    self.lock()
                }
            };
        }
    }

    pub(crate) fn stop(&self) {
        let mut inner = self.lock();
        inner.stopped = true;
        inner.due.clear();
        drop(inner);
        self.changed.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn log_normal(rng: &mut impl Rng, median: Duration, p99: Duration) -> Duration {
    // Box-Muller; 1 - u is never zero.
    let (u, v): (f64, f64) = (rng.random(), rng.random());
    let normal = (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos();
    let sigma = (p99.as_secs_f64() / median.as_secs_f64()).ln() / Z_99;
    let time = median.as_secs_f64() * (sigma * normal).exp();
    Duration::from_secs_f64(time.min(p99.as_secs_f64() * 10.0))
}

impl fmt::Debug for DelayLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DelayLine").field("latency", &self.latency).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_normal_latencies_have_the_quantiles_they_were_asked_for() {
        let (median, p99) = (Duration::from_millis(2), Duration::from_millis(20));
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        let mut times: Vec<_> = (0..20_000).map(|_| log_normal(&mut rng, median, p99)).collect();
        times.sort_unstable();
        let near = |time: Duration, goal: Duration| {
            let ratio = time.as_secs_f64() / goal.as_secs_f64();
            assert!((0.85..1.15).contains(&ratio), "{time:?} is not {goal:?}");
        };
        near(times[10_000], median);
        near(times[19_800], p99);
    }
}
