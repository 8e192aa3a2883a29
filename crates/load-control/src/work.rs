//! The inner gate: permits for CPU-heavy work, and the queue of external callers that wait for one.
//!
//! The lock of the external permits is taken for one push or pop: when an external caller acquires
//! or releases a permit, or stops waiting.

use std::{collections::BTreeMap, fmt, sync::Arc};

use metrics::Gauge;
use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    time::{Instant, timeout_at},
};

use crate::{
    config::{GateConfig, MAX_PERMIT_WAITERS},
    metrics::WorkMetrics,
    refusal::RefusalReason,
};

/// The order in which external callers get a work permit; first come first served within each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// A caller that the host knows.
    Known,
    /// A caller that signs its requests.
    Signed,
    /// Any other caller.
    #[default]
    Unsigned,
}

/// A semaphore of all permits, and a queue for the permits that external callers may hold. Internal
/// work acquires a permit of the semaphore; an external caller needs an external permit first.
///
/// tokio's semaphore is first come first served and assigns a released permit to the first waiter
/// before anyone can `try_acquire` it, so an external caller never overtakes internal work.
#[derive(Debug)]
pub(crate) struct WorkPermits {
    all: Arc<Semaphore>,
    level: Gauge,
    pub(crate) metrics: WorkMetrics,
    config: GateConfig,
    /// This is not a semaphore, because the queue is ordered by priority.
    external: Mutex<Queue>,
}

/// The free external permits, and the callers that wait for one. No caller waits while a permit is
/// free.
#[derive(Debug, Default)]
struct Queue {
    free: usize,
    /// Ordered by priority, then by arrival.
    waiting: BTreeMap<Key, Waiting>,
    /// The number of callers so far, which orders them by arrival.
    joined: u64,
    /// When a caller last found the queue empty.
    last_empty: Option<Instant>,
}

type Key = (Priority, u64);

/// A caller that waits: a task that receives the permit, or a job that is run under it.
#[derive(Debug)]
enum Waiting {
    Task(oneshot::Sender<ExternalPermit>),
    Job(Job),
}

/// Work that waits for a permit. A thread that has just finished such work runs the next one
/// itself, so that no permit is idle while a task and another thread are woken.
struct Job {
    runtime: Handle,
    /// How long the job may wait for a permit of the semaphore.
    deadline: Instant,
    /// Does the work, unless it is refused. The returned function sends the caller the result or
    /// the reason of the refusal.
    run: Box<dyn FnOnce(Result<(), RefusalReason>) -> Report + Send>,
}

/// Sends the result to the caller. It is called after the permit has been released, so that a
/// caller that has its result finds the permit free.
type Report = Box<dyn FnOnce() + Send>;

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Job")
    }
}

impl WorkPermits {
    pub(crate) fn new(config: GateConfig, external: usize, level: Gauge) -> Arc<Self> {
        let external = Mutex::new(Queue { free: external, ..Queue::default() });
        let all = Arc::new(Semaphore::new(config.work_permits));
        Arc::new(Self { all, level, metrics: WorkMetrics::new(), config, external })
    }

    pub(crate) fn try_acquire_external(self: &Arc<Self>) -> Option<WorkPermit> {
        let external = self.try_external()?;
        Some(WorkPermit { external: Some(external), all: self.try_all()? })
    }

    pub(crate) fn try_acquire_internal(self: &Arc<Self>) -> Option<WorkPermit> {
        Some(WorkPermit { all: self.try_all()?, external: None })
    }

    /// Waits for an external permit first. So while external callers hold all of these, no further
    /// one stands before internal work in the queue of the semaphore.
    pub(crate) async fn acquire_external(
        self: &Arc<Self>,
        priority: Priority,
        now: Instant,
    ) -> Result<WorkPermit, RefusalReason> {
        let (sender, granted) = oneshot::channel();
        let queued = self.join(priority, MAX_PERMIT_WAITERS, now, |_| Waiting::Task(sender));
        // The caller is counted only now that it is in the queue, or refused.
        self.metrics.external_waited.add(1);
        let queued = queued?;
        let granted = timeout_at(queued.deadline, self.granted(queued, granted));
        granted.await.unwrap_or(Err(RefusalReason::NoPermit))
    }

    /// Like [`Self::acquire_external`], with the highest priority and without a time limit.
    pub(crate) async fn acquire_external_deferred(self: &Arc<Self>, now: Instant) -> WorkPermit {
        let (sender, granted) = oneshot::channel();
        let waiting = |_| Waiting::Task(sender);
        let queued = self.join(Priority::Known, usize::MAX, now, waiting);
        let queued = queued.expect("the queue has no limit");
        self.granted(queued, granted).await.expect("nobody has a higher priority")
    }

    async fn granted(
        self: &Arc<Self>,
        queued: Queued,
        granted: oneshot::Receiver<ExternalPermit>,
    ) -> Result<WorkPermit, RefusalReason> {
        // A caller that displaces this one drops the sender.
        let external = granted.await.map_err(|_| RefusalReason::QueueFull)?;
        drop(queued);
        Ok(WorkPermit { all: self.acquire_all().await, external: Some(external) })
    }

    /// Runs work on a blocking thread of the current runtime. The work holds the given permit, or
    /// an external one, for which it waits as in [`Self::acquire_external`]. Returns `None` if the
    /// work panics or the runtime shuts down.
    pub(crate) async fn run_external<T: Send + 'static>(
        self: &Arc<Self>,
        permit: Option<WorkPermit>,
        priority: Priority,
        now: Instant,
        work: impl FnOnce() -> Result<T, RefusalReason> + Send + 'static,
    ) -> Option<Result<T, RefusalReason>> {
        let (sender, mut done) = oneshot::channel();
        let run = Box::new(move |admitted: Result<(), RefusalReason>| -> Report {
            // If the caller has disconnected, the work is not needed.
            if sender.is_closed() {
                return Box::new(|| ());
            }
            let result = admitted.and_then(|()| work());
            Box::new(move || drop(sender.send(result)))
        });
        let job = |deadline| Job { runtime: Handle::current(), deadline, run };
        let Some(permit) = permit else {
            let waiting = |deadline| Waiting::Job(job(deadline));
            let queued = self.join(priority, MAX_PERMIT_WAITERS, now, waiting);
            self.metrics.external_waited.add(1);
            let queued = match queued {
                Ok(queued) => queued,
                Err(reason) => return Some(Err(reason)),
            };
            return match timeout_at(queued.deadline, &mut done).await {
                Ok(done) => done.ok(),
                Err(_) if queued.leave() => Some(Err(RefusalReason::NoPermit)),
                // The job is no longer in the queue, so it has its external permit.
                Err(_) => done.await.ok(),
            };
        };
        job(now).spawn(permit);
        done.await.ok()
    }

    pub(crate) async fn acquire(self: &Arc<Self>) -> WorkPermit {
        WorkPermit { all: self.acquire_all().await, external: None }
    }

    pub(crate) fn in_use(&self) -> usize {
        self.config.work_permits - self.all.available_permits()
    }

    fn try_external(self: &Arc<Self>) -> Option<ExternalPermit> {
        let mut queue = self.external.lock();
        queue.free = queue.free.checked_sub(1)?;
        Some(ExternalPermit(Arc::clone(self)))
    }

    fn try_all(self: &Arc<Self>) -> Option<AnyPermit> {
        let permit = Arc::clone(&self.all).try_acquire_owned().ok()?;
        Some(self.count(permit))
    }

    async fn acquire_all(self: &Arc<Self>) -> AnyPermit {
        let permit = Arc::clone(&self.all).acquire_owned().await;
        // The semaphore is private, and nothing closes it.
        self.count(permit.expect("the semaphore of all permits is never closed"))
    }

    /// Counts a permit as held until it is dropped.
    fn count(self: &Arc<Self>, permit: OwnedSemaphorePermit) -> AnyPermit {
        self.level.increment(1);
        AnyPermit { _permit: permit, shared: Arc::clone(self) }
    }

    /// Joins the queue, or starts at once. `waiting` makes the entry of the queue from its
    /// deadline.
    fn join(
        self: &Arc<Self>,
        priority: Priority,
        max_waiting: usize,
        now: Instant,
        waiting: impl FnOnce(Instant) -> Waiting,
    ) -> Result<Queued, RefusalReason> {
        let mut queue = self.external.lock();
        let key = (priority, queue.joined);
        queue.joined += 1;
        let deadline = queue.deadline(now, &self.config);
        let waiting = waiting(deadline);
        let queued = Queued { key, deadline, shared: Arc::clone(self) };
        if queue.free > 0 {
            queue.free -= 1;
            drop(queue);
            waiting.begin(ExternalPermit(Arc::clone(self)));
            return Ok(queued);
        }
        let mut displaced = None;
        if queue.waiting.len() >= max_waiting {
            match queue.waiting.last_key_value() {
                Some(((last, _), _)) if *last > priority => displaced = queue.waiting.pop_last(),
                _ => {
                    // The lock is released first, because `queued` takes it when it is dropped.
                    drop(queue);
                    return Err(RefusalReason::QueueFull);
                }
            }
        }
        queue.waiting.insert(key, waiting);
        drop(queue);
        // A displaced task needs no call: it notices that its sender was dropped.
        if let Some((_, Waiting::Job(job))) = displaced {
            (job.run)(Err(RefusalReason::QueueFull))();
        }
        Ok(queued)
    }
}

impl Queue {
    /// Returns the deadline of a new caller, by the rule of a controlled-delay queue (Facebook,
    /// "Fail at Scale", ACM Queue 2015). A queue that was empty a moment ago holds a burst, or the
    /// callers that arrived while the machine was stalled, and will soon be empty again. A queue
    /// that no longer gets empty receives more work than can be done, so its callers wait for less
    /// time.
    fn deadline(&mut self, now: Instant, config: &GateConfig) -> Instant {
        if self.waiting.is_empty() {
            self.last_empty = Some(now);
        }
        let never_empty_for = now.saturating_duration_since(self.last_empty.unwrap_or(now));
        let wait = if never_empty_for <= config.burst_wait {
            config.permit_wait.max(config.burst_wait)
        } else {
            config.permit_wait
        };
        now.checked_add(wait).unwrap_or(now)
    }
}

impl Waiting {
    /// Gives the waiter its external permit. It may be called on any thread, so it runs no work
    /// itself.
    fn begin(self, external: ExternalPermit) {
        match self {
            // If the waiter has just left, the permit is dropped, which passes it to the next one.
            Self::Task(sender) => drop(sender.send(external)),
            Self::Job(job) => job.begin(external),
        }
    }
}

impl Job {
    /// Starts the job once a permit of the semaphore is free too.
    fn begin(self, external: ExternalPermit) {
        if let Some(all) = external.0.try_all() {
            return self.spawn(WorkPermit { all, external: Some(external) });
        }
        self.runtime.clone().spawn(async move {
            match timeout_at(self.deadline, external.0.acquire_all()).await {
                Ok(all) => self.spawn(WorkPermit { all, external: Some(external) }),
                Err(_) => {
                    drop(external);
                    (self.run)(Err(RefusalReason::NoPermit))();
                }
            }
        });
    }

    fn spawn(self, permit: WorkPermit) {
        self.runtime.clone().spawn_blocking(move || self.run_with_next_jobs(permit));
    }

    /// Runs the job and then the jobs that wait, until the next waiter is a task or there is none.
    fn run_with_next_jobs(self, mut permit: WorkPermit) {
        let mut job = self;
        loop {
            let report = (job.run)(Ok(()));
            let next = permit.into_next();
            report();
            match next {
                Some(next) => (job, permit) = next,
                None => return,
            }
        }
    }
}

/// An entry of the queue, which leaves it when dropped.
#[derive(Debug)]
struct Queued {
    key: Key,
    deadline: Instant,
    shared: Arc<WorkPermits>,
}

impl Queued {
    /// Leaves the queue. Returns whether the entry was still waiting.
    fn leave(&self) -> bool {
        // The entry is bound to a name, so that it is dropped after the lock is released.
        let entry = self.shared.external.lock().waiting.remove(&self.key);
        entry.is_some()
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        // A permit that was granted and not yet received is dropped with its channel.
        self.leave();
    }
}

/// One of the permits that external callers may hold. When dropped, it passes to the first waiter.
#[derive(Debug)]
struct ExternalPermit(Arc<WorkPermits>);

impl Drop for ExternalPermit {
    fn drop(&mut self) {
        let next = {
            let mut queue = self.0.external.lock();
            let next = queue.waiting.pop_first();
            queue.free += usize::from(next.is_none());
            next
        };
        if let Some((_, waiting)) = next {
            waiting.begin(Self(Arc::clone(&self.0)));
        }
    }
}

/// A permit of the semaphore, counted while it is held.
#[derive(Debug)]
struct AnyPermit {
    _permit: OwnedSemaphorePermit,
    shared: Arc<WorkPermits>,
}

impl Drop for AnyPermit {
    fn drop(&mut self) {
        self.shared.level.decrement(1);
    }
}

/// A permit for CPU-heavy work, released when dropped.
///
/// If the work runs on another thread, move the permit there: otherwise it is released while the
/// work still runs.
#[derive(Debug)]
#[must_use = "dropping it releases the permit at once"]
pub struct WorkPermit {
    // The fields are dropped in this order, so that the caller that gets the external permit next
    // finds this one free.
    all: AnyPermit,
    external: Option<ExternalPermit>,
}

impl WorkPermit {
    /// Passes the permit to the first waiter, if that is a job. Internal work that waits comes
    /// first.
    fn into_next(self) -> Option<(Job, Self)> {
        let Self { all, external } = self;
        drop(all);
        let external = external?;
        let job = {
            let mut queue = external.0.external.lock();
            let first = queue.waiting.first_entry();
            first.filter(|first| matches!(first.get(), Waiting::Job(_))).map(|first| first.remove())
        };
        let Some(Waiting::Job(job)) = job else { return None };
        let Some(all) = external.0.try_all() else {
            job.begin(external);
            return None;
        };
        Some((job, Self { all, external: Some(external) }))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{pin::pin, sync::OnceLock};

    use futures::FutureExt;
    use metrics::{Counter, CounterFn};

    use super::*;
    use crate::metric_set::Count;

    /// Records the length of the queue whenever a caller is counted.
    #[derive(Default)]
    struct QueueLengths {
        work: OnceLock<Arc<WorkPermits>>,
        recorded: Mutex<Vec<usize>>,
    }

    impl CounterFn for QueueLengths {
        fn increment(&self, _: u64) {
            let length = self.work.get().unwrap().external.lock().waiting.len();
            self.recorded.lock().push(length);
        }

        fn absolute(&self, _: u64) {}
    }

    /// A caller used to be counted before it joined the queue, so another one that relied on the
    /// count could overtake it.
    #[tokio::test]
    async fn a_caller_that_is_counted_as_waiting_is_in_the_queue() {
        let mut work = WorkPermits::new(GateConfig::for_cores(2), 0, Gauge::noop());
        let lengths = Arc::new(QueueLengths::default());
        let counter = Count::new(Counter::from_arc(Arc::clone(&lengths)));
        Arc::get_mut(&mut work).unwrap().metrics.external_waited = counter;
        lengths.work.set(Arc::clone(&work)).unwrap();
        let (priority, now) = (Priority::Known, Instant::now());
        let mut permit = pin!(work.acquire_external(priority, now));
        assert!(permit.as_mut().now_or_never().is_none());
        let mut done = pin!(work.run_external(None, priority, now, || Ok(())));
        assert!(done.as_mut().now_or_never().is_none());
        assert_eq!(*lengths.recorded.lock(), [1, 2]);
    }
}
