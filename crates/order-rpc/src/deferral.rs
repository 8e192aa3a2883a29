//! Deferral of raw transactions while the load is high: they stand in a line, and the first of it runs
//! when the load has fallen, or when it has waited for long enough.
//!
//! # Locks
//! First: taken by a deferred request, and held while it waits for the load to fall and for its permit,
//! because it is the line; nothing else takes it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use load_control::{Budget, Gate, LoadMonitor, Refusal, WorkPermit};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::{
    limits::Limits,
    metrics::{DeferralMetrics, Present},
};

/// Each request that has waited gets a work permit before other callers, so that it is not refused for
/// lack of one.
///
/// A deferred request stays in flight, for seconds. Bundles and cancellations, which are never
/// deferred, have the same limit of requests in flight, so deferred ones may use half of it.
#[derive(Debug)]
pub(crate) struct Deferral {
    /// In the line; each element of a batch takes one.
    places: Arc<Budget>,
    /// Held by the first of the line: tokio's mutex is first come first served.
    first: Mutex<()>,
    max_age: Duration,
    gate: Gate,
    monitor: Option<LoadMonitor>,
    metrics: DeferralMetrics,
    closed: CancellationToken,
}

/// What became of raw transactions that came while the load was high.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeferralStats {
    /// Requests that were deferred.
    pub deferred: u64,
    /// Those of them that ran because of their age, while the load was still high.
    pub aged: u64,
    /// Those that wait now; each element of a batch counts.
    pub waiting: usize,
}

impl Deferral {
    pub(crate) fn new(limits: &Limits, monitor: Option<LoadMonitor>, gate: Gate) -> Self {
        // Rounded down: with a limit of one request in flight none may be deferred.
        let half = gate.request_limit().map_or(usize::MAX, |limit| limit / 2);
        Self {
            places: Budget::new(limits.max_deferred.min(half)),
            first: Mutex::default(),
            max_age: limits.max_deferral,
            gate,
            monitor,
            metrics: DeferralMetrics::new(),
            closed: CancellationToken::new(),
        }
    }

    /// Whether a request that arrives now has to wait: also while earlier ones do, which it would
    /// overtake. After [`Self::close`] there are none, and only the load counts.
    pub(crate) fn must_wait(&self) -> bool {
        self.monitor.as_ref().is_some_and(|monitor| {
            monitor.is_pressed() || self.places.used() > 0 && !self.closed.is_cancelled()
        })
    }

    /// A work permit for one that [must wait](Self::must_wait), when its work may run. Meanwhile its
    /// request takes as many places as its weight.
    ///
    /// # Cancel safety
    /// If the future is dropped, the work leaves the line.
    pub(crate) async fn acquire(&self, weight: usize) -> Result<WorkPermit, Refusal> {
        let arrived = Instant::now();
        let Some(_places) = self.places.take(weight) else {
            return Err(self.gate.refuse_deferred(arrived));
        };
        self.metrics.deferred.add(1);
        let _waiting = Present::new(&self.metrics.waiting);
        let permit = async {
            let _first = self.first.lock().await;
            if let Some(monitor) = &self.monitor {
                // If the clock cannot represent the time, it never comes.
                let at_most = arrived.checked_add(self.max_age);
                let is_calm = monitor.wait_until_normal(at_most, || {}).await;
                self.metrics.aged.add(u64::from(!is_calm));
            }
            self.gate.acquire_external_deferred().await
        };
        tokio::select! {
            // First, because a permit is of no use any more.
            biased;
            () = self.closed.cancelled() => Err(self.gate.refuse_closed(Instant::now())),
            permit = permit => Ok(permit),
        }
    }

    /// Refuses every deferred request, and every later one that would have to wait.
    pub(crate) fn close(&self) {
        self.closed.cancel();
    }

    pub(crate) fn stats(&self) -> DeferralStats {
        let DeferralMetrics { deferred, aged, .. } = &self.metrics;
        let (deferred, aged) = (deferred.get(), aged.get());
        DeferralStats { deferred, aged, waiting: self.places.used() }
    }
}
