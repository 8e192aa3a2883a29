//! Tells the pool the time, so that tests can stop it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

/// A monotonic clock: the system's, or one that a test moves. Cloning gives another handle to the
/// same clock.
#[derive(Clone, Debug)]
pub struct Clock(Kind);

#[derive(Clone, Debug)]
enum Kind {
    System(Instant),
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// Returns the system's clock, which starts at zero now.
    pub fn system() -> Self {
        Self(Kind::System(Instant::now()))
    }

    /// Returns a clock that starts at zero and that only [`Self::advance`] moves.
    pub fn manual() -> Self {
        Self(Kind::Manual(Arc::default()))
    }

    /// Moves a manual clock forward, by at most 584 years in all. Has no effect on the system's
    /// clock.
    pub fn advance(&self, duration: Duration) {
        if let Kind::Manual(nanos) = &self.0 {
            let added = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
            nanos.fetch_add(added, SeqCst);
        }
    }

    /// Returns the time since the clock was made.
    pub fn now(&self) -> Duration {
        match &self.0 {
            Kind::System(start) => start.elapsed(),
            Kind::Manual(nanos) => Duration::from_nanos(nanos.load(SeqCst)),
        }
    }
}
