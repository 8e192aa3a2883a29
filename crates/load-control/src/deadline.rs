//! A deadline for a shutdown, which holds on any runtime, and although other threads are gone.

use std::{
    convert::Infallible,
    future::poll_fn,
    pin::{Pin, pin},
    sync::mpsc,
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

/// The pause between two looks at the future, if the thread of the timer cannot be started.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Waits for `future` for at most `limit`. Returns `None` at the limit.
///
/// It needs neither a runtime nor its timers: a thread `shutdown-deadline`, which ends with the
/// wait, measures the time. If that thread cannot be started, the calling thread is blocked
/// instead, until the future is ready or the limit is reached.
///
/// # Cancel safety
/// As that of `future`.
pub async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    let started_at = Instant::now();
    let mut future = pin!(future);
    let (send_passed, mut passed) = oneshot::channel::<()>();
    // Nothing is ever sent: the wait of the thread ends when the sender is dropped.
    let (_wait, wait_ended) = mpsc::channel::<Infallible>();
    let timer = move || {
        // The error is the end of the wait or the limit. Then nobody may be waiting any more.
        let _ = wait_ended.recv_timeout(limit);
        let _ = send_passed.send(());
    };
    if thread::Builder::new().name("shutdown-deadline".into()).spawn(timer).is_err() {
        let mut context = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
                return Some(value);
            }
            if started_at.elapsed() >= limit {
                return None;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => Pin::new(&mut passed).poll(context).map(|_| None),
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::executor::block_on;

    #[test]
    fn a_wait_ends_with_its_future_or_at_the_limit_without_a_runtime() {
        let hour = Duration::from_secs(3_600);
        assert_eq!(block_on(within(hour, async { 7 })), Some(7));
        let limit = Duration::from_millis(20);
        let started_at = Instant::now();
        assert_eq!(block_on(within(limit, std::future::pending::<()>())), None);
        assert!(started_at.elapsed() >= limit);
        // Another thread makes it ready.
        let (send, value) = oneshot::channel();
        thread::spawn(move || send.send(8));
        assert_eq!(block_on(within(hour, value)), Some(Ok(8)));
    }
}
