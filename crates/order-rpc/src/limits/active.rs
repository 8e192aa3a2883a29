//! Counts the requests in progress, and waits for the last of them at shutdown.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The requests in progress. Once closed, no request begins.
#[derive(Debug, Default)]
pub(crate) struct ActiveRequests {
    state: Mutex<State>,
    empty: Notify,
}

#[derive(Debug, Default)]
struct State {
    active: usize,
    closed: bool,
}

/// A request in progress, until dropped.
#[derive(Debug)]
pub(crate) struct ActiveRequest(Arc<ActiveRequests>);

impl ActiveRequests {
    /// `None` once closed.
    pub(crate) fn begin(self: &Arc<Self>) -> Option<ActiveRequest> {
        let mut state = self.lock();
        (!state.closed).then(|| {
            state.active += 1;
            ActiveRequest(Arc::clone(self))
        })
    }

    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.empty.notify_one();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().active
    }

    /// Returns when it is closed and no request is in progress. For one task.
    pub(crate) async fn drained(&self) {
        loop {
            {
                let state = self.lock();
                if state.closed && state.active == 0 {
                    return;
                }
            }
            // A notification since the check is not lost.
            self.empty.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.active -= 1;
        let last = state.closed && state.active == 0;
        drop(state);
        if last {
            self.0.empty.notify_one();
        }
    }
}
