//! Defers raw transactions while the load is high: they queue, and the first one runs when the load
//! has fallen or when it has waited for the maximum time.
//!
//! # Locks
//! `front`: taken by a deferred request that is first in the queue, and held while it waits for the
//! load to fall and for its work permit. The waiters of this lock are the queue. No other lock is
//! taken under it.
//! `holders`: taken when a request enters or leaves the queue, for one look-up, and if the queue is
//! full for a pass over its at most 1,024 requests and another for each one that gives way; never
//! across an await or with another lock.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex as SyncMutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use alloy_primitives::map::HashMap;
use load_control::{Budget, Gate, LoadMonitor, Refusal, Share, WorkPermit};
use tokio::sync::{Mutex, oneshot};
use tokio_util::sync::CancellationToken;

use crate::{
    limits::{CallerId, Limits, Network},
    metrics::{DeferralMetrics, GaugeGuard},
};

/// The queue of deferred requests.
///
/// A request that has waited gets a work permit before other external callers, so that it is not
/// refused for lack of one.
///
/// A deferred request stays in flight for seconds. Bundles and cancellations, which are never
/// deferred, share the limit of requests in flight, so deferred requests may use only half of it.
///
/// When no place is left, the newest request of the network with the most places is refused, if
/// that network still has more than the new request's would have; what a front forwards stays.
#[derive(Debug)]
pub(crate) struct Deferral {
    /// The places in the queue. Each element of a batch takes one.
    places: Arc<Budget>,
    max_places: usize,
    holders: SyncMutex<Holders>,
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

/// The requests that hold places.
#[derive(Debug, Default)]
struct Holders {
    /// The number of the request that came last.
    last_number: u64,
    by_number: BTreeMap<u64, PlaceHolder>,
}

#[derive(Debug)]
struct PlaceHolder {
    caller: CallerId,
    places: Share,
    /// Dropped when the request gives way to another one.
    _stays: oneshot::Sender<()>,
}

/// The places of a request, released when dropped.
#[derive(Debug)]
struct HeldPlaces<'a> {
    deferral: &'a Deferral,
    number: u64,
    /// Ends when the request has given way to another one.
    gives_way: oneshot::Receiver<()>,
}

impl Drop for HeldPlaces<'_> {
    fn drop(&mut self) {
        self.deferral.lock_holders().by_number.remove(&self.number);
    }
}

impl Holders {
    /// Returns the requests that give way to a new one of this caller, so that at least `missing`
    /// places become free; `None` if the new request must not enter.
    fn to_displace(&self, caller: CallerId, weight: usize, missing: usize) -> Option<Vec<u64>> {
        let newest_first = self.by_number.iter().rev();
        let mut candidates: Vec<_> = newest_first
            .filter(|(_, holder)| !holder.caller.is_front)
            .map(|(number, holder)| (*number, holder.caller.network(), holder.places.count()))
            .collect();
        let mut counts = HashMap::<Network, usize>::default();
        for (_, network, count) in &candidates {
            *counts.entry(*network).or_default() += count;
        }
        let per_share = |counts: &HashMap<_, _>, network: Network, more| {
            network.per_share(counts.get(&network).copied().unwrap_or(0) + more)
        };
        // Those behind a front are many callers.
        let network = caller.network();
        let own = if caller.is_front { weight } else { per_share(&counts, network, weight) };
        let (mut displaced, mut freed) = (Vec::new(), 0);
        while freed < missing {
            let most = counts.keys().map(|network| per_share(&counts, *network, 0)).max()?;
            if most <= own {
                return None;
            }
            let is_of_largest = |(_, network, _): &_| per_share(&counts, *network, 0) == most;
            let (number, network, count) =
                candidates.remove(candidates.iter().position(is_of_largest)?);
            *counts.entry(network).or_default() -= count;
            freed += count;
            displaced.push(number);
        }
        Some(displaced)
    }
}

impl Deferral {
    pub(crate) fn new(limits: &Limits, monitor: Option<LoadMonitor>, gate: Gate) -> Self {
        // Rounded down: with a limit of one request in flight none may be deferred.
        let half_of_requests = gate.request_limit().map_or(usize::MAX, |limit| limit / 2);
        let max_places = limits.max_deferred.min(half_of_requests);
        Self {
            places: Budget::new(max_places),
            max_places,
            holders: SyncMutex::default(),
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

    fn lock_holders(&self) -> MutexGuard<'_, Holders> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes places, for which others may give way; `None` if they are not to be had.
    fn enter(&self, caller: CallerId, weight: usize) -> Option<HeldPlaces<'_>> {
        let mut holders = self.lock_holders();
        let missing = (self.places.used() + weight).saturating_sub(self.max_places);
        if missing > 0 {
            for number in holders.to_displace(caller, weight, missing)? {
                holders.by_number.remove(&number);
            }
        }
        let places = self.places.take(weight)?;
        holders.last_number += 1;
        let number = holders.last_number;
        let (_stays, gives_way) = oneshot::channel();
        holders.by_number.insert(number, PlaceHolder { caller, places, _stays });
        Some(HeldPlaces { deferral: self, number, gives_way })
    }

    /// Waits in the queue until the request may run, and returns a work permit for it. While it
    /// waits, the request takes `weight` places: one for each element of a batch.
    ///
    /// # Errors
    /// The queue is full or closed, or the request gave way to another one.
    ///
    /// # Cancel safety
    /// If the future is dropped, the request leaves the queue.
    pub(crate) async fn acquire(
        &self,
        caller: CallerId,
        weight: usize,
    ) -> Result<WorkPermit, Refusal> {
        let arrived_at = Instant::now();
        let Some(mut places) = self.enter(caller, weight) else {
            return Err(self.gate.refuse_deferred(arrived_at));
        };
        self.metrics.deferred.add(1);
        let _waiting = GaugeGuard::new(&self.metrics.waiting);
        tokio::select! {
            // The close is checked first, because a permit is of no use after it.
            biased;
            () = self.closed.cancelled() => Err(self.gate.refuse_closed(Instant::now())),
            _ = &mut places.gives_way => Err(self.gate.refuse_deferred(Instant::now())),
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
