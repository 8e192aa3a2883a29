//! Small helpers for locks, panics, threads without a runtime, and counters.

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

/// Locks `mutex`, also after a holder panicked: the mutexes of this crate protect plain data that
/// is valid after each statement, so a panic leaves nothing half changed.
///
/// Every lock is held for single look-ups and changes, never across an await or a call of the sink.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the work for one transaction. If it panics, the transaction counts as failed, and the
/// thread continues with the next one.
pub(crate) fn contain<T>(work: impl FnOnce() -> T) -> Option<T> {
    // The unwinding drops the captured values; they are not used again.
    catch_unwind(AssertUnwindSafe(work))
        .inspect_err(|_| tracing::error!("a panic ended the processing of a transaction"))
        .ok()
}

/// Runs a future to its end on this thread, which belongs to no runtime, so the future may block.
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

/// Calls the function when it is dropped, also by a panic.
pub(crate) struct OnDrop<F: Fn()>(pub(crate) F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// A contribution to a counter of work that is under way, which ends when this is dropped.
pub(crate) struct Share<'a> {
    counter: &'a AtomicU64,
    left: u64,
}

impl<'a> Share<'a> {
    /// Adds `count` to the counter.
    pub(crate) fn add_to(counter: &'a AtomicU64, count: u64) -> Self {
        counter.fetch_add(count, Relaxed);
        Self { counter, left: count }
    }

    /// Subtracts one from the counter. Must be called at most `count` times.
    pub(crate) fn finish_one(&mut self) {
        self.left -= 1;
        self.counter.fetch_sub(1, Relaxed);
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.counter.fetch_sub(self.left, Relaxed);
    }
}
