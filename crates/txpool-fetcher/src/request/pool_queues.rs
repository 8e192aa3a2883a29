//! The queues of requests to a pool in this process.

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded, never, select_biased};

/// Takes the requests. The threads that read them end when it is dropped.
#[derive(Debug)]
pub(crate) struct PoolQueues<T> {
    live: Sender<T>,
    deferrable: Sender<T>,
}

/// What one thread reads.
#[derive(Debug)]
pub(crate) struct PoolRequests<T> {
    live: Receiver<T>,
    deferrable: Receiver<T>,
}

impl<T> Clone for PoolRequests<T> {
    fn clone(&self) -> Self {
        Self { live: self.live.clone(), deferrable: self.deferrable.clone() }
    }
}

impl<T> PoolQueues<T> {
    /// Two queues of this many requests each.
    pub(crate) fn new(capacity: usize) -> (Self, PoolRequests<T>) {
        let (live, live_requests) = bounded(capacity);
        let (deferrable, deferrable_requests) = bounded(capacity);
        let requests = PoolRequests { live: live_requests, deferrable: deferrable_requests };
        (Self { live, deferrable }, requests)
    }

    /// Returned when the threads have ended.
    pub(crate) fn submit(&self, request: T, deferrable: bool) -> Result<(), T> {
        let requests = if deferrable { &self.deferrable } else { &self.live };
        requests.try_send(request).map_err(TrySendError::into_inner)
    }
}

impl<T> PoolRequests<T> {
    /// Without the deferrable requests.
    pub(crate) fn live_only(self) -> Self {
        Self { deferrable: never(), ..self }
    }

    /// Waits for the next request, live ones first. `None` at the end: deferrable requests that still
    /// wait are then dropped.
    pub(crate) fn next(&self) -> Option<T> {
        select_biased! {
            recv(self.live) -> request => request.ok(),
            recv(self.deferrable) -> request => request.ok(),
        }
    }
}
