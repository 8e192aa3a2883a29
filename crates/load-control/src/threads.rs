//! Builds a tokio runtime whose blocking work never waits for the start of a thread.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc},
    time::Duration,
};

use parking_lot::RwLock;
use tokio::runtime::{Builder, Runtime};

/// The longest time in which a thread must have started.
const START_TIMEOUT: Duration = Duration::from_secs(5);

/// Builds a runtime with exactly `blocking_threads` threads for blocking work. All of them are
/// started here, and none ends before the runtime. By default tokio starts such a thread when it
/// needs one, and ends it after ten idle seconds: if the machine refuses a new one then, tokio
/// panics, or keeps the work until another thread is free.
///
/// # Errors
/// The runtime cannot be built, or not all threads can be started. Then the runtime is shut down in
/// the background, because to drop it waits for its threads, which panics on a thread of another
/// runtime.
pub fn build_runtime(builder: &mut Builder, blocking_threads: usize) -> io::Result<Runtime> {
    let refused = || io::Error::other("the limit of threads is reached");
    builder.max_blocking_threads(blocking_threads).thread_keep_alive(Duration::MAX);
    // tokio panics if it cannot start a worker.
    let runtime =
        catch_unwind(AssertUnwindSafe(|| builder.build())).unwrap_or_else(|_| Err(refused()))?;
    // Each job waits for its release, so each needs a thread of its own. If tokio keeps a job until
    // a thread is free, the job does not report.
    let release = Arc::new(RwLock::new(()));
    let held = release.write();
    let (started, starts) = mpsc::sync_channel(1);
    for _ in 0..blocking_threads {
        let (release, started) = (Arc::clone(&release), started.clone());
        let job = move || {
            // Fails if the start has given up.
            let _ = started.send(());
            drop(release.read());
        };
        let spawned = catch_unwind(AssertUnwindSafe(|| drop(runtime.spawn_blocking(job))));
        if spawned.is_err() || starts.recv_timeout(START_TIMEOUT).is_err() {
            runtime.shutdown_background();
            return Err(refused());
        }
    }
    drop(held);
    Ok(runtime)
}
