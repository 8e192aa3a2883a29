//! The threads that decode, recover senders and call the sink.
//!
//! Plain threads behind two queues, not a second runtime: a job is a short computation and a call
//! of the sink, so there is nothing to schedule, and no thread has to wake another one to steal
//! work.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    thread,
    time::Duration,
};

use crossbeam_channel::{Receiver, RecvError, Sender, bounded, select_biased};
use tokio::runtime::Handle;
use tokio_util::task::task_tracker::TaskTrackerToken;

struct Job {
    work: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Held until the work is done, so that a stop can wait for it.
    _token: TaskTrackerToken,
}

/// A handle to the threads. They end when the last handle is dropped and the queues are empty.
#[derive(Clone, Debug)]
pub(crate) struct Workers {
    live: Sender<Job>,
    deferrable: Sender<Job>,
}

/// The priority of a job. Live jobs wait only for other live jobs, deferrable jobs for all live
/// ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    Live,
    Deferrable,
}

/// Lets its owner wait until all threads have ended.
#[derive(Debug)]
pub(crate) struct WorkerThreads(Receiver<()>);

impl Workers {
    /// Starts `threads` threads. `for_deferrable` of them do deferrable work too; a backfill must
    /// not keep all of them busy when a live job comes. Jobs may use the timers of `runtime`. Each
    /// of the two queues holds `capacity` jobs.
    pub(crate) fn start(
        threads: usize,
        for_deferrable: usize,
        capacity: usize,
        runtime: &Handle,
    ) -> io::Result<(Self, WorkerThreads)> {
        let (live, live_queue) = bounded::<Job>(capacity);
        let (deferrable, deferrable_queue) = bounded::<Job>(capacity);
        let (alive, ended) = bounded(0);
        for number in 0..threads {
            let deferrable_queue = (number < for_deferrable).then(|| deferrable_queue.clone());
            let live_queue = live_queue.clone();
            let (runtime, alive) = (runtime.clone(), alive.clone());
            thread::Builder::new().name("mempool-worker".into()).spawn(move || {
                work(&live_queue, deferrable_queue.as_ref(), &runtime);
                drop(alive);
            })?;
        }
        Ok((Self { live, deferrable }, WorkerThreads(ended)))
    }

    /// Queues work. False when the queue is full: then the work is dropped, and its owner counts
    /// it. Fetches cannot fill a queue, because it has room for more jobs than there are slots.
    #[must_use]
    pub(crate) fn run(
        &self,
        urgency: Urgency,
        token: TaskTrackerToken,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> bool {
        let queue = match urgency {
            Urgency::Live => &self.live,
            Urgency::Deferrable => &self.deferrable,
        };
        queue.try_send(Job { work: Box::pin(work), _token: token }).is_ok()
    }
}

impl WorkerThreads {
    /// Waits until all threads have ended, at most for `limit`. True if they have. Every
    /// [`Workers`] must be dropped before.
    pub(crate) fn wait_until_ended(&self, limit: Duration) -> bool {
        // Nothing is ever sent; the channel is disconnected when the last thread ends.
        matches!(self.0.recv_timeout(limit), Err(crossbeam_channel::RecvTimeoutError::Disconnected))
    }
}

fn next(live: &Receiver<Job>, deferrable: Option<&Receiver<Job>>) -> Result<Job, RecvError> {
    let Some(deferrable) = deferrable else { return live.recv() };
    // Live jobs first. Both queues are disconnected together, when the last handle is dropped. What
    // is left in the other queue is then still done.
    select_biased! {
        recv(live) -> job => job.or_else(|_| deferrable.recv()),
        recv(deferrable) -> job => job.or_else(|_| live.recv()),
    }
}

fn work(live: &Receiver<Job>, deferrable: Option<&Receiver<Job>>, runtime: &Handle) {
    while let Ok(job) = next(live, deferrable) {
        // If a sink panics, the transaction that it was given counts as failed, and the thread goes
        // on. What the job captured is dropped by the unwinding and not used again.
        if catch_unwind(AssertUnwindSafe(|| runtime.block_on(job.work))).is_err() {
            tracing::error!("a sink has panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio_util::task::TaskTracker;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_live_job_finds_a_thread_while_deferrable_ones_fill_theirs() {
        let (workers, threads) = Workers::start(2, 1, 8, &Handle::current()).unwrap();
        let tracker = TaskTracker::new();
        let (done, finished) = bounded(8);
        let (block, blocked) = bounded::<()>(0);
        for number in 0..3 {
            let (blocked, done) = (blocked.clone(), done.clone());
            let work = async move {
                // Ends when `block` is dropped.
                let _ = blocked.recv();
                done.send(number).unwrap();
            };
            assert!(workers.run(Urgency::Deferrable, tracker.token(), work));
        }
        let live = async move { done.send(100).unwrap() };
        assert!(workers.run(Urgency::Live, tracker.token(), live));
        assert_eq!(finished.recv_timeout(PATIENCE), Ok(100), "the others wait");
        drop(block);
        let rest: Vec<_> = finished.iter().collect();
        assert_eq!(rest, [0, 1, 2]);
        drop(workers);
        assert!(threads.wait_until_ended(PATIENCE));
    }

    #[tokio::test]
    async fn what_is_queued_at_the_end_is_still_done() {
        let (workers, threads) = Workers::start(1, 1, 8, &Handle::current()).unwrap();
        let tracker = TaskTracker::new();
        let (done, finished) = bounded(8);
        for urgency in [Urgency::Deferrable, Urgency::Live, Urgency::Deferrable] {
            let done = done.clone();
            assert!(workers.run(urgency, tracker.token(), async move { done.send(()).unwrap() }));
        }
        drop((workers, done));
        assert!(threads.wait_until_ended(PATIENCE));
        assert_eq!(finished.iter().count(), 3);
    }
}
