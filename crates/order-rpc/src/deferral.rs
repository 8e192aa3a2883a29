//! Defers raw transactions while the load is high: they queue, and the first one runs when the load
//! has fallen or when it has waited for the maximum time.
//!
//! # Locks
//! `front`: taken by a deferred request that is first in the queue, and held while it waits for the
//! load to fall and for its work permit. The waiters of this lock are the queue. No other lock is
//! taken under it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use load_control::{Budget, Gate, LoadMonitor, Refusal, WorkPermit};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::{
    limits::Limits,
    metrics::{DeferralMetrics, GaugeGuard},
};

/// The queue of deferred requests.
///
/// A request that has waited gets a work permit before other external callers, so that it is not
/// refused for lack of one.
///
/// A deferred request stays in flight for seconds. Bundles and cancellations, which are never
/// deferred, share the limit of requests in flight, so deferred requests may use only half of it.
#[derive(Debug)]
pub(crate) struct Deferral {
    /// The places in the queue. Each element of a batch takes one.
    places: Arc<Budget>,
    /// Held by the first request of the queue: tokio's mutex is first come, first served.
    front: Mutex<()>,
    /// How long a request waits at most. Then it runs although the load is high.
    max_deferral: Duration,
    gate: Gate,
    monitor: Option<LoadMonitor>,
    metrics: DeferralMetrics,
    closed: CancellationToken,
}

/// The number of requests with raw transactions that were deferred because the load was high.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeferralStats {
    /// Requests that were deferred.
    pub deferred: u64,
    /// Deferred requests that ran because they had waited for the maximum time, while the load was
    /// still high.
    pub aged: u64,
    /// Raw transactions that wait now: a batch counts once for each of its elements. Unlike this
    /// number, `order_rpc_deferred` counts a batch once.
    pub waiting: usize,
}

impl Deferral {
    pub(crate) fn new(limits: &Limits, monitor: Option<LoadMonitor>, gate: Gate) -> Self {
        // Rounded down: with a limit of one request in flight none may be deferred.
        let half_of_requests = gate.request_limit().map_or(usize::MAX, |limit| limit / 2);
        Self {
            places: Budget::new(limits.max_deferred.min(half_of_requests)),
            front: Mutex::default(),
            max_deferral: limits.max_deferral,
            gate,
            monitor,
            metrics: DeferralMetrics::new(),
            closed: CancellationToken::new(),
        }
    }

    /// Whether a request that arrives now has to wait: the load is high, or earlier requests wait,
    /// which it must not overtake. After [`Self::close`] no request waits, and only the load
    /// counts.
    pub(crate) fn must_wait(&self) -> bool {
        let Some(monitor) = &self.monitor else { return false };
        let has_queue = self.places.used() > 0 && !self.closed.is_cancelled();
        monitor.is_pressed() || has_queue
    }

    /// Waits in the queue until the request may run, and returns a work permit for it. While it
    /// waits, the request takes `weight` places: one for each element of a batch.
    ///
    /// # Errors
    /// The queue is full or closed.
    ///
    /// # Cancel safety
    /// If the future is dropped, the request leaves the queue.
    pub(crate) async fn acquire(&self, weight: usize) -> Result<WorkPermit, Refusal> {
        let arrived_at = Instant::now();
        let Some(_places) = self.places.take(weight) else {
            return Err(self.gate.refuse_deferred(arrived_at));
        };
        self.metrics.deferred.add(1);
        let _waiting = GaugeGuard::new(&self.metrics.waiting);
        tokio::select! {
            // The close is checked first, because a permit is of no use after it.
            biased;
            () = self.closed.cancelled() => Err(self.gate.refuse_closed(Instant::now())),
            permit = self.wait_for_permit(arrived_at) => Ok(permit),
        }
    }

    async fn wait_for_permit(&self, arrived_at: Instant) -> WorkPermit {
        let _front = self.front.lock().await;
        if let Some(monitor) = &self.monitor {
            // `None` if the clock cannot represent the deadline, which then never comes.
            let deadline = arrived_at.checked_add(self.max_deferral);
            let is_normal = monitor.wait_until_normal(deadline).await;
            self.metrics.aged.add(u64::from(!is_normal));
        }
        self.gate.acquire_external_deferred().await
    }

    /// Refuses every deferred request, and every later one that would have to wait.
    pub(crate) fn close(&self) {
        self.closed.cancel();
    }

    pub(crate) fn stats(&self) -> DeferralStats {
        DeferralStats {
            deferred: self.metrics.deferred.get(),
            aged: self.metrics.aged.get(),
            waiting: self.places.used(),
        }
    }
}
