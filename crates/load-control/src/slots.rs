//! The inner limit: slots for CPU-heavy work.

use crate::metrics::Level;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Two counts: all slots, and those of them that outsiders may hold. An outsider needs one of each,
/// the inside one of the first.
///
/// tokio's semaphore is first come first served and hands a permit that comes free to whoever waits
/// before anyone can `try`: an outsider never overtakes an insider that waits.
#[derive(Debug)]
pub(crate) struct Slots {
    all: Arc<Semaphore>,
    outside: Arc<Semaphore>,
    total: usize,
    level: Arc<Level>,
}

impl Slots {
    pub(crate) fn new(total: usize, outside: usize, level: Level) -> Self {
        Self {
            all: Arc::new(Semaphore::new(total)),
            outside: Arc::new(Semaphore::new(outside)),
            total,
            level: Arc::new(level),
        }
    }

    pub(crate) fn try_outside(&self) -> Option<SlotPermit> {
        let outside = Arc::clone(&self.outside).try_acquire_owned().ok()?;
        let slot = Arc::clone(&self.all).try_acquire_owned().ok()?;
        Some(self.permit(slot, Some(outside)))
    }

    pub(crate) fn try_inside(&self) -> Option<SlotPermit> {
        let slot = Arc::clone(&self.all).try_acquire_owned().ok()?;
        Some(self.permit(slot, None))
    }

    /// Waits for the outsiders' share first, so that it takes no place in the line of the inside
    /// before it could use a slot.
    pub(crate) async fn wait_outside(&self) -> SlotPermit {
        let outside = Arc::clone(&self.outside).acquire_owned().await;
        let outside = outside.expect("the semaphore of the outsiders' slots is never closed");
        let mut permit = self.wait().await;
        permit._outside = Some(outside);
        permit
    }

    pub(crate) async fn wait(&self) -> SlotPermit {
        let slot = Arc::clone(&self.all).acquire_owned().await;
        // `all` is private and `close` is never called on it.
        self.permit(slot.expect("the semaphore of all slots is never closed"), None)
    }

    fn permit(
        &self,
        slot: OwnedSemaphorePermit,
        outside: Option<OwnedSemaphorePermit>,
    ) -> SlotPermit {
        self.level.change(0, 1);
        let level = Arc::clone(&self.level);
        SlotPermit { _slot: slot, _outside: outside, level }
    }

    pub(crate) fn in_use(&self) -> usize {
        self.total - self.all.available_permits()
    }
}

/// A slot, given back when dropped.
///
/// Work on another thread takes the permit along, or it is given back while the work still runs.
#[derive(Debug)]
#[must_use = "dropping it gives the slot back at once"]
pub struct SlotPermit {
    // In this order: with its slot free again, the place of the outsider is worth something.
    _slot: OwnedSemaphorePermit,
    _outside: Option<OwnedSemaphorePermit>,
    level: Arc<Level>,
}

impl Drop for SlotPermit {
    fn drop(&mut self) {
        self.level.change(1, 0);
    }
}
