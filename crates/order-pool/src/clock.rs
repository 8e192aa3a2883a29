//! The pool's source of time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

/// A monotonic clock: the system's, or one that a test moves by hand. Cloning gives another handle
/// to the same clock.
#[derive(Clone, Debug)]
pub struct Clock(Kind);

#[derive(Clone, Debug)]
enum Kind {
    System(Instant),
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The system's clock, from now.
    pub fn system() -> Self {
        Self(Kind::System(Instant::now()))
    }

    /// A clock that only [`Self::advance`] moves.
    pub fn manual() -> Self {
        Self(Kind::Manual(Arc::default()))
    }

    /// Moves a manual clock forward, at most 584 years in all. It has no effect on the system's
    /// clock.
    pub fn advance(&self, by: Duration) {
        if let Kind::Manual(nanos) = &self.0 {
            let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
            nanos.fetch_add(by, SeqCst);
        }
    }

    /// The time since the clock was made.
    pub fn now(&self) -> Duration {
        match &self.0 {
            Kind::System(start) => start.elapsed(),
            Kind::Manual(nanos) => Duration::from_nanos(nanos.load(SeqCst)),
        }
    }
}
