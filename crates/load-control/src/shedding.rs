//! When a gate began to refuse and when it stopped: two log lines instead of thousands.

use crate::refusal::GateName;
use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// A row of refusals with no pause of [`Self::quiet`] in it.
#[derive(Debug)]
pub(crate) struct Shedding {
    gate: GateName,
    quiet: Duration,
    /// Whether there may be a row that has to end, so that a gate that refuses nobody takes no lock.
    open: AtomicBool,
    row: Mutex<Option<Row>>,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    first: Instant,
    last: Instant,
    refused: u64,
}

/// What a row of refusals came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) refused: u64,
    pub(crate) lasted: Duration,
}

impl Shedding {
    pub(crate) const fn new(gate: GateName, quiet: Duration) -> Self {
        Self { gate, quiet, open: AtomicBool::new(false), row: Mutex::new(None) }
    }

    /// True if a row begins.
    pub(crate) fn refused(&self, now: Instant) -> bool {
        self.ended(now);
        let mut row = self.row.lock().unwrap_or_else(PoisonError::into_inner);
        let begins = row.is_none();
        let current = row.get_or_insert(Row { first: now, last: now, refused: 0 });
        current.refused += 1;
        current.last = current.last.max(now);
        // Relaxed: only a hint; the row itself is read under the lock.
        self.open.store(true, Relaxed);
        drop(row);
        if begins {
            tracing::warn!(gate = self.gate.as_str(), "shedding: outside callers are refused");
        }
        begins
    }

    /// What came to its end, if a row did. To be called now and then.
    pub(crate) fn ended(&self, now: Instant) -> Option<Ended> {
        if !self.open.load(Relaxed) {
            return None;
        }
        let mut row = self.row.lock().unwrap_or_else(PoisonError::into_inner);
        let over = row.take_if(|row| now.saturating_duration_since(row.last) >= self.quiet)?;
        self.open.store(false, Relaxed);
        drop(row);
        let ended = Ended {
            refused: over.refused,
            lasted: over.last.saturating_duration_since(over.first),
        };
        tracing::info!(
            gate = self.gate.as_str(),
            refused = ended.refused,
            lasted_ms = ended.lasted.as_millis() as u64,
            "shedding is over"
        );
        Some(ended)
    }

    pub(crate) fn is_open(&self, now: Instant) -> bool {
        self.ended(now);
        self.open.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_refusals_begins_once_and_ends_once_with_its_number() {
        let shedding = Shedding::new(GateName::Slots, Duration::from_secs(1));
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(shedding.ended(at(0)), None);
        let begun: Vec<_> =
            [0, 500, 1_200, 2_100].into_iter().map(|ms| shedding.refused(at(ms))).collect();
        assert_eq!(begun, [true, false, false, false]);
        assert!(shedding.is_open(at(3_099)));
        let ended = Ended { refused: 4, lasted: Duration::from_millis(2_100) };
        assert_eq!(shedding.ended(at(3_099)), None);
        assert_eq!(shedding.ended(at(3_100)), Some(ended));
        assert_eq!(shedding.ended(at(3_200)), None);
        assert!(!shedding.is_open(at(3_200)));
    }

    #[test]
    fn a_refusal_after_a_quiet_time_ends_the_old_row_and_begins_another() {
        let shedding = Shedding::new(GateName::Requests, Duration::from_secs(1));
        let start = Instant::now();
        assert!(shedding.refused(start));
        assert!(shedding.refused(start + Duration::from_secs(5)));
        let ended = shedding.ended(start + Duration::from_secs(6)).unwrap();
        assert_eq!(ended.refused, 1);
    }

    #[test]
    fn refusals_of_many_threads_are_all_counted() {
        let shedding = Shedding::new(GateName::Requests, Duration::from_secs(1));
        let now = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1_000).for_each(|_| _ = shedding.refused(now)));
            }
        });
        assert_eq!(shedding.ended(now + Duration::from_secs(1)).unwrap().refused, 4_000);
    }
}
