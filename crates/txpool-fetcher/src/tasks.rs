//! The tasks and threads that belong to no single source, so that a stop can end and await them.

use std::{io, pin::pin, thread};

use futures::FutureExt as _;
use tokio::{runtime::Handle, task::JoinHandle};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::sync::block_on;

/// Spawns tasks on the fetcher's runtime and threads outside of it, and waits for their end.
pub(crate) struct Tasks {
    runtime: Handle,
    tracker: TaskTracker,
    threads: TaskTracker,
    /// Cancelled when the fetcher stops, for whatever reason.
    pub(crate) stop: CancellationToken,
}

impl Tasks {
    pub(crate) fn new(runtime: Handle, stop: CancellationToken) -> Self {
        Self { runtime, tracker: TaskTracker::new(), threads: TaskTracker::new(), stop }
    }

    /// Starts a thread. Once [`Self::threads_ended`] has returned, everything that `body` held is
    /// dropped.
    pub(crate) fn spawn_thread(
        &self,
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let alive = self.threads.token();
        let body = move || {
            body();
            drop(alive);
        };
        thread::Builder::new().name(name.into()).spawn(body).map(drop)
    }

    /// Spawns a task that a stop drops. Can be called on threads outside of the runtime too.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        // Boxed, because a future that holds another one, and runs it, is twice as large.
        let work = Box::pin(work);
        let work = async move {
            // `None` if the fetcher has stopped: the task has nothing to return.
            stop.run_until_cancelled(work).await;
        };
        self.tracker.spawn_on(work, &self.runtime);
    }

    /// Runs work that may block on one of the runtime's blocking threads, which are all started
    /// with the fetcher: see `start_runtime` in `fetcher.rs`.
    pub(crate) fn spawn_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        self.tracker.spawn_blocking_on(work, &self.runtime)
    }

    /// Waits until all tasks and all blocking work have ended.
    pub(crate) async fn ended(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }

    /// Waits until all threads have ended.
    pub(crate) async fn threads_ended(&self) {
        self.threads.close();
        self.threads.wait().await;
    }

    /// Runs a future that is usually ready at once. Otherwise it calls `about_to_wait` and blocks
    /// this thread until the future is ready, or until the fetcher stops: then it returns `None`.
    pub(crate) fn wait_for<T>(
        &self,
        future: impl Future<Output = T>,
        mut about_to_wait: impl FnMut(),
    ) -> Option<T> {
        let mut future = pin!(future);
        if let Some(ready) = future.as_mut().now_or_never() {
            return Some(ready);
        }
        about_to_wait();
        // Not on the runtime: the future may block, and at the end the runtime is dropped first.
        block_on(async {
            tokio::select! {
                // A result that is ready counts, although the fetcher stops.
                biased;
                ready = future => Some(ready),
                () = self.stop.cancelled() => None,
            }
        })
    }
}
