//! The queues of requests to a pool in this process.

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded, select_biased};

/// Takes the requests. The threads that read them end when it is dropped.
pub(crate) struct PoolQueues<T> {
    live: Sender<T>,
    deferrable: Sender<T>,
}

/// What one thread reads: live requests, and deferrable ones.
pub(crate) type PoolRequests<T> = (Receiver<T>, Receiver<T>);

impl<T> PoolQueues<T> {
    /// Two queues of this many requests each.
    pub(crate) fn new(capacity: usize) -> (Self, PoolRequests<T>) {
        let (live, live_requests) = bounded(capacity);
        let (deferrable, deferrable_requests) = bounded(capacity);
        (Self { live, deferrable }, (live_requests, deferrable_requests))
    }

    /// Returned when the threads have ended.
    pub(crate) fn submit(&self, request: T, deferrable: bool) -> Result<(), T> {
        let requests = if deferrable { &self.deferrable } else { &self.live };
        requests.try_send(request).map_err(TrySendError::into_inner)
    }
}

/// Waits for the next request, live ones first. `None` at the end: deferrable requests that still wait are then
/// dropped.
pub(crate) fn next_of<T>((live, deferrable): &PoolRequests<T>) -> Option<T> {
    select_biased! {
        recv(live) -> request => request.ok(),
        recv(deferrable) -> request => request.ok(),
    }
}
