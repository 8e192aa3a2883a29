//! Answers that are held back, each for its own time, on a thread with a finer clock than tokio's millisecond.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Condvar, Mutex, PoisonError},
    time::{Duration, Instant},
};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::lock;

type Deliver = Box<dyn FnOnce() + Send>;

pub(crate) struct DelayLine {
    inner: Mutex<Inner>,
    changed: Condvar,
}

struct Inner {
    /// By due time; the number keeps equals in their order.
    due: BTreeMap<(Instant, u64), Deliver>,
    number: u64,
    rng: ChaCha8Rng,
    stopped: bool,
}

impl DelayLine {
    pub(crate) fn new(seed: u64) -> Self {
        let inner = Inner {
            due: BTreeMap::new(),
            number: 0,
            rng: ChaCha8Rng::seed_from_u64(seed),
            stopped: false,
        };
        Self { inner: Mutex::new(inner), changed: Condvar::new() }
    }

    pub(crate) fn draw_up_to(&self, most: Duration) -> Duration {
        most.mul_f64(lock(&self.inner).rng.random())
    }

    pub(crate) fn hold(&self, time: Duration, deliver: impl FnOnce() + Send + 'static) {
        let due = Instant::now() + time;
        let mut inner = lock(&self.inner);
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
        let mut inner = lock(&self.inner);
        while !inner.stopped {
            let now = Instant::now();
            let next = inner.due.first_key_value().map(|((due, _), _)| *due);
            inner = match next {
                None => self.changed.wait(inner).unwrap_or_else(PoisonError::into_inner),
                Some(due) if due > now => {
                    let woken = self.changed.wait_timeout(inner, due - now);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
                Some(_) => {
                    let (_, deliver) = inner.due.pop_first().expect("just seen");
                    drop(inner);
                    deliver();
                    lock(&self.inner)
                }
            };
        }
    }

    pub(crate) fn stop(&self) {
        let mut inner = lock(&self.inner);
        inner.stopped = true;
        inner.due.clear();
        drop(inner);
        self.changed.notify_one();
    }
}

impl fmt::Debug for DelayLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DelayLine").finish_non_exhaustive()
    }
}
