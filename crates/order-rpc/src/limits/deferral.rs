//! Deferral of raw transactions while the load is high.
//!
//! # Locks
//! Deferred: taken by a raw transaction while the load is high, the task that releases it, for one push or pop; never across an await or with another lock.

use std::{
    sync::{Mutex, PoisonError},
    time::Instant,
};

use load_control::{
    DeferralConfig, DeferralQueue, Gate, LoadMonitor, Offered, Refusal, WorkPermit,
};
use tokio::sync::{Notify, Semaphore, oneshot};

/// The queue of deferred requests. Each gets a work permit when it may run, so that a request that
/// has waited is not refused for lack of one.
///
/// A deferred request stays in flight, for seconds. Bundles and cancellations, which are never
/// deferred, share the limit of requests in flight with it, so deferred requests may use at most
/// half of that limit.
#[derive(Debug)]
pub(crate) struct Deferral {
    /// `None` once closed.
    queue: Mutex<Option<Waiting>>,
    /// The share of the requests in flight that deferred ones may use; `None`: no limit.
    share: Option<Semaphore>,
    gate: Gate,
    monitor: Option<LoadMonitor>,
    added: Notify,
}

type Waiting = DeferralQueue<oneshot::Sender<WorkPermit>>;

impl Deferral {
    pub(crate) fn new(config: DeferralConfig, monitor: Option<LoadMonitor>, gate: Gate) -> Self {
        let queue = DeferralQueue::new("raw_transactions", config).expect("the default is valid");
        // Rounded down: with a limit of one request in flight none may be deferred.
        let share = gate.request_limit().map(|limit| Semaphore::new(limit / 2));
        Self { queue: Mutex::new(Some(queue)), share, gate, monitor, added: Notify::new() }
    }

    /// Whether a request that arrives now has to wait.
    pub(crate) fn must_wait(&self) -> bool {
        let pressed = self.pressed();
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        // A closed queue refuses every request.
        queue.as_ref().is_none_or(|queue| queue.must_wait(pressed))
    }

    /// Returns when the work may run: with a work permit if it was deferred. Meanwhile its request
    /// counts as `weight` in the deferred share.
    ///
    /// # Cancel safety
    /// If the future is dropped, the work leaves the queue.
    pub(crate) async fn acquire(&self, weight: usize) -> Result<Option<WorkPermit>, Refusal> {
        let gate = &self.gate;
        let Some(monitor) = &self.monitor else { return Ok(None) };
        let now = Instant::now();
        let (permit, _share) = {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(queue) = queue.as_mut() else { return Err(gate.refuse_closed(now)) };
            let pressed = monitor.is_pressed();
            let share = match &self.share {
                Some(share) => {
                    let weight = weight.try_into().unwrap_or(u32::MAX);
                    let free = share.try_acquire_many(weight).ok();
                    if free.is_none() && queue.must_wait(pressed) {
                        queue.count_handed_back();
                        return Err(gate.refuse_deferred(now));
                    }
                    free
                }
                None => None,
            };
            let (sender, permit) = oneshot::channel();
            match queue.offer(sender, now, pressed) {
                Offered::Run(_) => return Ok(None),
                Offered::HandedBack(_) => return Err(gate.refuse_deferred(now)),
                Offered::Deferred => (permit, share),
            }
        };
        self.added.notify_one();
        let mut waiter = Waiter { deferral: self, permit, is_over: false };
        let permit = (&mut waiter.permit).await;
        waiter.is_over = true;
        // The sender is dropped only by `close`.
        permit.map(Some).map_err(|_| gate.refuse_closed(Instant::now()))
    }

    /// Grants permits until [`Self::close`].
    pub(crate) async fn run(&self) {
        loop {
            let added = self.added.notified();
            match self.next_due() {
                None => return,
                Some(None) => added.await,
                Some(Some(due)) if self.pressed() && due > Instant::now() => {
                    // The order is irrelevant: both branches lead to a new look at the queue.
                    tokio::select! {
                        () = self.normal_or(due) => {}
                        () = added => {}
                    }
                }
                Some(Some(_)) => {
                    // Acquires the permit first, because the popped work runs at once.
                    let permit = self.gate.acquire_external_deferred().await;
                    if let Some(sender) = self.pop() {
                        // If the caller has disconnected, the permit is dropped with the channel.
                        let _ = sender.send(permit);
                    }
                }
            }
        }
    }

    /// Refuses every deferred request, and every later one.
    pub(crate) fn close(&self) {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut queue) = queue {
            queue.drain().for_each(drop);
        }
        self.added.notify_one();
    }

    pub(crate) fn stats(&self) -> Option<load_control::DeferralStats> {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.as_ref().map(|queue| queue.stats(Instant::now()))
    }

    /// Returns when the load is normal, or at `deadline`.
    async fn normal_or(&self, deadline: Instant) {
        if let Some(monitor) = &self.monitor {
            monitor.wait_until_normal(Some(deadline), || {}).await;
        }
    }

    fn pressed(&self) -> bool {
        self.monitor.as_ref().is_some_and(LoadMonitor::is_pressed)
    }

    /// `None` once closed.
    fn next_due(&self) -> Option<Option<Instant>> {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.as_ref().map(DeferralQueue::next_due)
    }

    fn pop(&self) -> Option<oneshot::Sender<WorkPermit>> {
        let pressed = self.pressed();
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.as_mut()?.pop(Instant::now(), pressed)
    }
}

/// A caller that waits in the queue. If it is dropped meanwhile, the caller has disconnected, and
/// its entry is withdrawn.
struct Waiter<'a> {
    deferral: &'a Deferral,
    permit: oneshot::Receiver<WorkPermit>,
    is_over: bool,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        self.permit.close();
        let mut queue = self.deferral.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = queue.as_mut() {
            queue.withdraw(oneshot::Sender::is_closed);
        }
    }
}
