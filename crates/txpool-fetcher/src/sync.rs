//! Takes the crate's locks, blocks its threads on futures, and counts what goes on.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Wake},
    thread::{self, Thread},
};

/// Locks `mutex`, also after a holder has panicked: the locks of this crate protect plain data that
/// is valid after each statement, so a panic leaves nothing half changed.
///
/// Every lock is held for single look-ups and changes, never across an await or a call of the sink.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs work on one transaction. If it panics, the transaction counts as failed, and the thread goes on.
pub(crate) fn contain<T>(work: impl FnOnce() -> T) -> Option<T> {
    // The unwinding drops the captured values; they are not used again.
    catch_unwind(AssertUnwindSafe(work))
        .inspect_err(|_| tracing::error!("a transaction could not be processed"))
        .ok()
}

/// Runs a future on this thread, which belongs to no runtime: what it calls may block.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let mut future = pin!(future);
    let waker = Arc::new(Unpark(thread::current())).into();
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(ready) => return ready,
            // A spurious wake-up only polls once more.
            Poll::Pending => thread::park(),
        }
    }
}

/// Calls this when it is dropped, also by a panic.
pub(crate) struct OnDrop<F: Fn()>(pub(crate) F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// A part of a figure, which is subtracted when this is dropped.
pub(crate) struct Share<'a>(&'a AtomicU64, u64);

impl<'a> Share<'a> {
    pub(crate) fn of(figure: &'a AtomicU64, count: u64) -> Self {
        figure.fetch_add(count, Relaxed);
        Self(figure, count)
    }

    /// Subtracts one. Must be called at most once for each.
    pub(crate) fn one_done(&mut self) {
        self.1 -= 1;
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Relaxed);
    }
}
