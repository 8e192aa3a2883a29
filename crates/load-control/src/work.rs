//! The inner limit: permits for CPU-heavy work.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::metrics::Level;

/// Two semaphores: one counts all permits, the other those that external callers may hold. An
/// external caller acquires one of each, internal work only one of the first.
///
/// tokio's semaphore is first come first served and assigns a released permit to the first waiter
/// before anyone can `try_acquire` it, so an external caller never overtakes internal work.
#[derive(Debug)]
pub(crate) struct WorkPermits {
    all: Arc<Semaphore>,
    external: Arc<Semaphore>,
    total: usize,
    level: Arc<Level>,
}

impl WorkPermits {
    pub(crate) fn new(total: usize, external: usize, level: Level) -> Self {
        Self {
            all: Arc::new(Semaphore::new(total)),
            external: Arc::new(Semaphore::new(external)),
            total,
            level: Arc::new(level),
        }
    }

    pub(crate) fn try_acquire_external(&self) -> Option<WorkPermit> {
        let external = Arc::clone(&self.external).try_acquire_owned().ok()?;
        let permit = Arc::clone(&self.all).try_acquire_owned().ok()?;
        Some(self.permit(permit, Some(external)))
    }

    pub(crate) fn try_acquire_internal(&self) -> Option<WorkPermit> {
        let permit = Arc::clone(&self.all).try_acquire_owned().ok()?;
        Some(self.permit(permit, None))
    }

    /// Waits for the external semaphore first: while external callers hold all they may, it does
    /// not stand in the queue for all permits before internal work.
    pub(crate) async fn acquire_external(&self) -> WorkPermit {
        let external = Arc::clone(&self.external).acquire_owned().await;
        // `external` is private and `close` is never called on it.
        let external = external.expect("the semaphore of external permits is never closed");
        let mut permit = self.acquire().await;
        permit._external = Some(external);
        permit
    }

    pub(crate) async fn acquire(&self) -> WorkPermit {
        let permit = Arc::clone(&self.all).acquire_owned().await;
        // `all` is private and `close` is never called on it.
        self.permit(permit.expect("the semaphore of all permits is never closed"), None)
    }

    fn permit(
        &self,
        permit: OwnedSemaphorePermit,
        external: Option<OwnedSemaphorePermit>,
    ) -> WorkPermit {
        self.level.change(0, 1);
        let level = Arc::clone(&self.level);
        WorkPermit { _permit: permit, _external: external, level }
    }

    pub(crate) fn in_use(&self) -> usize {
        self.total - self.all.available_permits()
    }
}

/// A permit for CPU-heavy work, released when dropped.
///
/// If the work runs on another thread, move the permit there: otherwise it is released while the
/// work still runs.
#[derive(Debug)]
#[must_use = "dropping it releases the permit at once"]
pub struct WorkPermit {
    // Fields are dropped in this order: whoever then gets the external permit finds this one
    // released too.
    _permit: OwnedSemaphorePermit,
    _external: Option<OwnedSemaphorePermit>,
    level: Arc<Level>,
}

impl Drop for WorkPermit {
    fn drop(&mut self) {
        self.level.change(1, 0);
    }
}
