//! The outer limit: how many external requests are in flight.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use metrics::Gauge;

use crate::sync::AtomicUsize;

/// A count with an upper bound.
#[derive(Debug)]
pub(crate) struct InFlight {
    count: AtomicUsize,
    limit: usize,
    level: Gauge,
}

impl InFlight {
    pub(crate) fn new(limit: usize, level: Gauge) -> Self {
        Self { count: AtomicUsize::new(0), limit, level }
    }

    /// Adds all of them or none. Never exceeds the limit, and never refuses while there is room: if
    /// the count were raised first and compared afterwards, two callers could refuse each other.
    fn try_add(&self, more: usize) -> bool {
        let raise = |count: usize| count.checked_add(more).filter(|raised| *raised <= self.limit);
        // Relaxed: no other memory depends on this count.
        let added = self.count.fetch_update(Relaxed, Relaxed, raise).is_ok();
        if added {
            self.level.increment(more as f64);
        }
        added
    }

    fn remove(&self, count: usize) {
        self.count.fetch_sub(count, Relaxed);
        self.level.decrement(count as f64);
    }

    pub(crate) fn get(&self) -> usize {
        self.count.load(Relaxed)
    }
}

/// Counts a request as in flight until it is dropped: after the response was sent, after the caller
/// disconnected, when its future is cancelled, and when its code panics.
#[derive(Debug)]
#[must_use = "dropping it ends the request's count at once"]
pub struct InFlightPermit {
    in_flight: Arc<InFlight>,
    weight: usize,
}

impl InFlightPermit {
    pub(crate) fn try_new(in_flight: &Arc<InFlight>) -> Option<Self> {
        in_flight.try_add(1).then(|| Self { in_flight: Arc::clone(in_flight), weight: 1 })
    }

    /// Grows the permit to the weight `to`; all or nothing.
    pub(crate) fn try_grow(&mut self, to: usize) -> bool {
        let more = to.saturating_sub(self.weight);
        let grown = self.in_flight.try_add(more);
        if grown {
            self.weight += more;
        }
        grown
    }

    /// The number of requests that it counts as.
    pub const fn weight(&self) -> usize {
        self.weight
    }
}

impl Drop for InFlightPermit {
    fn drop(&mut self) {
        self.in_flight.remove(self.weight);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::thread;

    #[test]
    fn the_limit_holds_and_the_last_permit_is_always_given_in_every_interleaving() {
        loom::model(|| {
            let in_flight = Arc::new(InFlight::new(1, Gauge::noop()));
            let entered = Arc::new(AtomicUsize::new(0));
            let enter = {
                let (in_flight, entered) = (Arc::clone(&in_flight), Arc::clone(&entered));
                move || {
                    let Some(permit) = InFlightPermit::try_new(&in_flight) else { return false };
                    assert_eq!(entered.fetch_add(1, Relaxed), 0);
                    entered.fetch_sub(1, Relaxed);
                    drop(permit);
                    true
                }
            };
            let other = thread::spawn(enter.clone());
            let here = enter();
            let there = other.join().unwrap();
            assert!(here || there);
            assert_eq!(in_flight.get(), 0);
        });
    }
}
