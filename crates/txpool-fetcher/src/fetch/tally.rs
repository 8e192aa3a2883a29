//! Counts hashes: each one that enters leaves with exactly one outcome, and both are counted.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use alloy_primitives::B256;
use tokio_util::sync::CancellationToken;

use super::seen::{Entered, SeenSet};
use crate::{
    metrics::Metrics,
    outcome::{Counts, Entry, Outcome},
};

/// The counters. All accesses are relaxed: each counter is a sum of its own, and no other memory is
/// published through them.
#[derive(Debug)]
pub(crate) struct Tally {
    unfinished: AtomicU64,
    stop: CancellationToken,
    metrics: Arc<Metrics>,
}

impl Tally {
    /// After `stop`, a hash that is dropped without an outcome stays unfinished.
    pub(crate) fn new(stop: CancellationToken, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self { unfinished: AtomicU64::new(0), stop, metrics })
    }

    /// Counts a hash that enters. Its outcome is recorded with the ticket.
    pub(crate) fn enter(self: &Arc<Self>, entry: Entry) -> Ticket {
        self.metrics.entered[entry as usize].add(1);
        self.unfinished.fetch_add(1, Relaxed);
        self.metrics.unfinished.increment(1.0);
        Ticket { tally: Arc::clone(self), in_flight: None, is_suspect: false, has_left: false }
    }

    pub(crate) fn counts(&self) -> Counts {
        let entered = |entry: Entry| self.metrics.entered[entry as usize].get();
        let left = |outcome: Outcome| self.metrics.left[outcome as usize].get();
        Counts {
            announced: entered(Entry::Announced),
            backfilled: entered(Entry::Backfilled),
            audit_recovered: entered(Entry::AuditRecovered),
            pooled: left(Outcome::Pooled),
            known: left(Outcome::Known),
            gone: left(Outcome::Gone),
            mined: left(Outcome::Mined),
            malformed: left(Outcome::Malformed),
            refused: left(Outcome::Refused),
            postponed: left(Outcome::Postponed),
            failed: left(Outcome::Failed),
            unfinished: self.unfinished.load(Relaxed),
            lagged: self.metrics.lagged.get(),
            objects_missed: self.metrics.objects_missed.get(),
        }
    }
}

/// Records the outcome of one hash, once. If it is dropped without one (a panic, a source that has
/// ended), the hash counts as failed and may be fetched again; after a stop it stays unfinished.
#[derive(Debug)]
#[must_use]
pub(crate) struct Ticket {
    tally: Arc<Tally>,
    /// The set in which the hash is marked as in flight.
    in_flight: Option<(Arc<SeenSet>, B256)>,
    is_suspect: bool,
    has_left: bool,
}

impl Ticket {
    /// Marks the hash as in flight in that set until it has an outcome.
    pub(crate) fn in_flight(mut self, seen: &Arc<SeenSet>, hash: B256, entered: Entered) -> Self {
        self.in_flight = Some((Arc::clone(seen), hash));
        self.is_suspect = entered.is_suspect;
        self
    }

    /// Whether the response to its request has ended connections before.
    pub(super) fn is_suspect(&self) -> bool {
        self.is_suspect
    }

    pub(crate) fn leave(mut self, outcome: Outcome) {
        self.record(outcome);
    }

    fn record(&mut self, outcome: Outcome) {
        self.has_left = true;
        let tally = &self.tally;
        tally.metrics.left[outcome as usize].add(1);
        tally.unfinished.fetch_sub(1, Relaxed);
        tally.metrics.unfinished.decrement(1.0);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.has_left {
            return;
        }
        if let Some((seen, hash)) = self.in_flight.take() {
            seen.settle(hash, None);
        }
        if self.tally.stop.is_cancelled() {
            // The count is that of an end; the gauge is of what goes on.
            self.tally.metrics.unfinished.decrement(1.0);
        } else {
            self.record(Outcome::Failed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_counts_balance_whatever_enters_and_leaves(
            steps in proptest::collection::vec((0usize..3, proptest::option::of(0usize..8)), 0..200)
        ) {
            let tally = Tally::new(CancellationToken::new(), Metrics::new().into());
            for (entry, outcome) in steps {
                let ticket = tally.enter(Entry::ALL[entry]);
                if let Some(outcome) = outcome {
                    ticket.leave(Outcome::ALL[outcome]);
                }
                prop_assert_eq!(tally.counts().balance(), 0);
            }
        }
    }

    #[test]
    fn a_ticket_dropped_without_an_outcome_has_failed_and_is_unfinished_after_a_stop() {
        let stop = CancellationToken::new();
        let tally = Tally::new(stop.clone(), Metrics::new().into());
        let seen = Arc::new(SeenSet::new(1024));
        let hash = B256::repeat_byte(1);
        let enter = || {
            let again = seen.insert_announced(hash, 0, std::time::Instant::now());
            assert!(again.is_some(), "it may come again");
            tally.enter(Entry::Announced).in_flight(&seen, hash, Entered::default())
        };
        drop(enter());
        assert_eq!((tally.counts().failed, tally.counts().unfinished), (1, 0));
        let ticket = enter();
        stop.cancel();
        drop(ticket);
        assert_eq!((tally.counts().failed, tally.counts().unfinished), (1, 1));
        assert_eq!(tally.counts().balance(), 0);
    }

    #[test]
    fn every_label_stands_at_its_own_index() {
        for (index, outcome) in Outcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, index);
        }
        for (index, entry) in Entry::ALL.into_iter().enumerate() {
            assert_eq!(entry as usize, index);
        }
    }
}
