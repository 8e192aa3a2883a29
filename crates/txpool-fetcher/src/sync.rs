//! How the crate's locks are taken, and how its threads wait.

use std::{
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Wake},
    thread::{self, Thread},
};

/// Locks `mutex`, also after a panic of another holder: what stands behind the locks of this crate
/// is plain data, valid after each statement, so a panic leaves nothing half done.
///
/// Every lock of this crate is held for single look-ups and changes, never across an await or a
/// call into the sink.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a future on this thread, which is not one of a runtime: what the future calls may block.
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
            // It may wake up without a reason, and is then polled once more.
            Poll::Pending => thread::park(),
        }
    }
}
