//! The end of a connection, and its reason.

use std::sync::{
    OnceLock,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use tokio_util::sync::CancellationToken;

use crate::error::LossReason;

/// The end of a connection. The first reason that is set counts.
#[derive(Debug, Default)]
pub(crate) struct End {
    reason: OnceLock<LossReason>,
    /// Cancelled when the reason is set.
    is_set: CancellationToken,
    /// Relaxed: readers have learned of the end through a channel.
    is_by_peer: AtomicBool,
}

impl End {
    /// Sets the reason, unless there is one already.
    pub(crate) fn set(&self, reason: LossReason) {
        // The error means that there is a reason already.
        let _ = self.reason.set(reason);
        self.is_set.cancel();
    }

    /// Returns whether the connection has ended.
    pub(crate) fn is_set(&self) -> bool {
        self.is_set.is_cancelled()
    }

    /// Notes that the peer closed the connection, or that alloy did because of what the peer sent.
    pub(crate) fn set_by_peer(&self) {
        self.is_by_peer.store(true, Relaxed);
        self.set(LossReason::Closed);
    }

    /// Returns whether the peer closed the connection, or alloy did because of what the peer sent.
    pub(crate) fn is_by_peer(&self) -> bool {
        self.is_by_peer.load(Relaxed)
    }

    /// Waits for the end, and returns the reason.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn wait(&self) -> LossReason {
        self.is_set.cancelled().await;
        self.reason.get().cloned().unwrap_or(LossReason::Closed)
    }
}
