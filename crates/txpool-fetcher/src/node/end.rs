//! Whether a connection has ended, and why.

use std::sync::{
    OnceLock,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use tokio_util::sync::CancellationToken;

use crate::error::LossReason;

/// The end of a connection. The first reason stands.
#[derive(Debug, Default)]
pub(crate) struct End {
    reason: OnceLock<LossReason>,
    /// Cancelled when the reason is set.
    is_set: CancellationToken,
    /// Relaxed: who reads it has learned of the end by a channel.
    is_by_peer: AtomicBool,
}

impl End {
    /// Sets the reason, unless there is one already.
    pub(crate) fn set(&self, reason: LossReason) {
        // The error is the reason that stands.
        let _ = self.reason.set(reason);
        self.is_set.cancel();
    }

    pub(crate) fn is_set(&self) -> bool {
        self.is_set.is_cancelled()
    }

    /// The peer has closed the connection, or has sent what alloy ended it for.
    pub(crate) fn set_by_peer(&self) {
        self.is_by_peer.store(true, Relaxed);
        self.set(LossReason::Closed);
    }

    /// Whether the peer has closed the connection, or has sent what alloy ended it for.
    pub(crate) fn is_by_peer(&self) -> bool {
        self.is_by_peer.load(Relaxed)
    }

    /// Waits for the end, and returns the reason. Cancel safe.
    pub(crate) async fn wait(&self) -> LossReason {
        self.is_set.cancelled().await;
        self.reason.get().cloned().unwrap_or(LossReason::Closed)
    }
}
