//! What runs beside the sources, so that a stop can end it and wait for it.

use std::{io, pin::pin, thread};

use futures::FutureExt as _;
use tokio::{runtime::Handle, task::JoinHandle};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::sync::block_on;

/// The runtime of the sockets, what was spawned on it for no single source, and the stop.
pub(crate) struct Tasks {
    runtime: Handle,
    tracker: TaskTracker,
    threads: TaskTracker,
    pub(crate) stop: CancellationToken,
}

impl Tasks {
    pub(crate) fn new(runtime: Handle, stop: CancellationToken) -> Self {
        Self { runtime, tracker: TaskTracker::new(), threads: TaskTracker::new(), stop }
    }

    /// Starts a thread. A stop that has waited for it leaves no holder of what `body` holds.
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

    /// Spawns work that a stop drops, also from a thread outside of the runtime.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        let work = async move {
            // Nothing to return if it was stopped.
            stop.run_until_cancelled(work).await;
        };
        self.tracker.spawn_on(work, &self.runtime);
    }

    /// Runs work that may block on one of the runtime's threads for it, which are all started with the
    /// fetcher: see [`start_blocking_threads`](crate::fetcher).
    pub(crate) fn spawn_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        self.tracker.spawn_blocking_on(work, &self.runtime)
    }

    pub(crate) async fn ended(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }

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
        // Without a runtime: the sink may block, and at the end the runtime is dropped first.
        block_on(async {
            tokio::select! {
                biased;
                ready = future => Some(ready),
                () = self.stop.cancelled() => None,
            }
        })
    }
}
