//! The end of a connection.

use tokio::sync::watch;

use crate::error::LossReason;

/// Whether a connection has ended, and why. The first reason stands.
pub(crate) struct End(watch::Sender<Option<LossReason>>);

impl End {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(None))
    }

    /// Sets the reason, unless there is one already.
    pub(crate) fn set(&self, reason: LossReason) {
        self.0.send_if_modified(|ended| {
            let is_first = ended.is_none();
            ended.get_or_insert(reason);
            is_first
        });
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.borrow().is_some()
    }

    pub(crate) fn is_by_peer(&self) -> bool {
        self.0.borrow().as_ref().is_some_and(LossReason::is_by_peer)
    }

    /// Waits for the end, and returns the reason. Cancel safe.
    pub(crate) async fn wait(&self) -> LossReason {
        let mut ended = self.0.subscribe();
        let reason = ended.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
        reason.unwrap_or(LossReason::Closed)
    }
}
