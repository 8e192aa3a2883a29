//! Raw transactions that wait while the load is high.

use load_control::{
    DeferralConfig, DeferralQueue, Gate, LoadMonitor, Offered, Refusal, WorkPermit,
};
use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::{Notify, Semaphore, oneshot};

/// How often the load is looked at while something waits. The monitor wakes nobody: it is on the
/// hot path of others.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// Who waits, in order. Each is given a slot when its turn has come, so that having waited it is not
/// refused for want of one.
///
/// Whoever waits keeps its place among the requests in flight, for seconds. So that the public's
/// transactions do not keep out bundles and cancellations, which never wait, those who wait have at
/// most half of these places.
#[derive(Debug)]
pub(crate) struct Deferral {
    /// `None` once closed.
    queue: Mutex<Option<Waiting>>,
    /// Places among the requests in flight that those who wait may have; `None` without limit.
    places: Option<Semaphore>,
    monitor: Option<LoadMonitor>,
    added: Notify,
}

type Waiting = DeferralQueue<oneshot::Sender<WorkPermit>>;

impl Deferral {
    pub(crate) fn new(
        config: DeferralConfig,
        monitor: Option<LoadMonitor>,
        gate: &Gate,
    ) -> Result<Self, load_control::ConfigError> {
        let queue = DeferralQueue::new("raw_transactions", config)?;
        // Rounded down: of a single request in flight nobody may have half.
        let places = gate.request_limit().map(|limit| Semaphore::new(limit / 2));
        Ok(Self { queue: Mutex::new(Some(queue)), places, monitor, added: Notify::new() })
    }

    /// Returns when the work may run: with a slot if it had to wait for its turn. Meanwhile its
    /// request counts as `weight` of those in flight.
    ///
    /// # Cancel safety
    /// Dropped, its place in the queue is passed over.
    pub(crate) async fn acquire(
        &self,
        gate: &Gate,
        weight: usize,
    ) -> Result<Option<WorkPermit>, Refusal> {
        let Some(monitor) = &self.monitor else { return Ok(None) };
        let now = Instant::now();
        let (turn, _places) = {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(queue) = queue.as_mut() else { return Err(gate.refuse_closed(now)) };
            let pressed = monitor.is_pressed();
            let places = match &self.places {
                Some(places) => {
                    let weight = weight.try_into().unwrap_or(u32::MAX);
                    let free = places.try_acquire_many(weight).ok();
                    if free.is_none() && queue.must_wait(pressed) {
                        queue.count_handed_back();
                        return Err(gate.refuse_deferred(now));
                    }
                    free
                }
                None => None,
            };
            let (sender, turn) = oneshot::channel();
            match queue.offer(sender, now, pressed) {
                Offered::Run(_) => return Ok(None),
                Offered::HandedBack(_) => return Err(gate.refuse_deferred(now)),
                Offered::Deferred => (turn, places),
            }
        };
        self.added.notify_one();
        // The sender is dropped only by `close`.
        turn.await.map(Some).map_err(|_| gate.refuse_closed(Instant::now()))
    }

    /// Gives turns until [`Self::close`].
    pub(crate) async fn run(&self, gate: &Gate) {
        loop {
            let added = self.added.notified();
            match self.next_due() {
                Err(Closed) => return,
                Ok(None) => added.await,
                Ok(Some(due)) if self.pressed() && due > Instant::now() => {
                    let look = due.min(Instant::now() + LOOK_INTERVAL);
                    tokio::time::sleep_until(look.into()).await;
                }
                Ok(Some(_)) => {
                    // The slot first: what is popped runs at once.
                    let slot = gate.acquire_external_deferred().await;
                    if let Some(turn) = self.pop() {
                        // A caller who is gone drops the slot with its channel.
                        let _ = turn.send(slot);
                    }
                }
            }
        }
    }

    /// Refuses everyone who waits, and whoever comes.
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

    fn pressed(&self) -> bool {
        self.monitor.as_ref().is_some_and(LoadMonitor::is_pressed)
    }

    fn next_due(&self) -> Result<Option<Instant>, Closed> {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.as_ref().map(DeferralQueue::next_due).ok_or(Closed)
    }

    fn pop(&self) -> Option<oneshot::Sender<WorkPermit>> {
        let pressed = self.pressed();
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.as_mut()?.pop(Instant::now(), pressed)
    }
}

struct Closed;
