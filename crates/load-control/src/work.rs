//! The inner limit: permits for CPU-heavy work.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::metrics::Level;

/// Who goes first among the external callers that wait for a work permit; first come first served among
/// equals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// A caller that is known to be worth serving.
    Known,
    /// A caller that signs its requests.
    Signed,
    /// Anyone else.
    #[default]
    Unsigned,
}

/// A semaphore of all permits, and the permits of them that external callers may hold. An external
/// caller acquires one of each, internal work only one of the first.
///
/// tokio's semaphore is first come first served and assigns a released permit to the first waiter
/// before anyone can `try_acquire` it, so an external caller never overtakes internal work.
#[derive(Debug)]
pub(crate) struct WorkPermits {
    all: Arc<Semaphore>,
    external: Arc<External>,
    total: usize,
    level: Arc<Level>,
}

impl WorkPermits {
    pub(crate) fn new(total: usize, external: usize, level: Level) -> Self {
        Self {
            all: Arc::new(Semaphore::new(total)),
            external: Arc::new(External(Mutex::new(Queue { free: external, ..Queue::default() }))),
            total,
            level: Arc::new(level),
        }
    }

    pub(crate) fn try_acquire_external(&self) -> Option<WorkPermit> {
        let external = self.external.try_acquire()?;
        let permit = Arc::clone(&self.all).try_acquire_owned().ok()?;
        Some(self.permit(permit, Some(external)))
    }

    pub(crate) fn try_acquire_internal(&self) -> Option<WorkPermit> {
        let permit = Arc::clone(&self.all).try_acquire_owned().ok()?;
        Some(self.permit(permit, None))
    }

    /// Waits for one of the external permits first: while external callers hold all they may, it does
    /// not stand in the queue for all permits before internal work.
    ///
    /// At most `max_waiting` wait. Beyond it the last of those behind this one stops to wait, or, if
    /// there is none, this one does not begin.
    pub(crate) async fn acquire_external(
        &self,
        priority: Priority,
        max_waiting: usize,
    ) -> Result<WorkPermit, QueueFull> {
        let external = match self.external.join(priority, max_waiting)? {
            Joined::Free(permit) => permit,
            Joined::Waits(mut waiter) => (&mut waiter.granted).await.map_err(|_| QueueFull)?,
        };
        let mut permit = self.acquire().await;
        permit._external = Some(external);
        Ok(permit)
    }

    pub(crate) async fn acquire(&self) -> WorkPermit {
        let permit = Arc::clone(&self.all).acquire_owned().await;
        // `all` is private and `close` is never called on it.
        self.permit(permit.expect("the semaphore of all permits is never closed"), None)
    }

    fn permit(&self, permit: OwnedSemaphorePermit, external: Option<ExternalPermit>) -> WorkPermit {
        self.level.change(0, 1);
        let level = Arc::clone(&self.level);
        WorkPermit { _permit: permit, _external: external, level }
    }

    pub(crate) fn in_use(&self) -> usize {
        self.total - self.all.available_permits()
    }
}

/// As many external callers wait as may, and none of them behind this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueFull;

/// The permits of external callers. Not a semaphore, because the queue has an order of its own.
#[derive(Debug)]
struct External(Mutex<Queue>);

/// Nobody waits while a permit is free.
#[derive(Debug, Default)]
struct Queue {
    free: usize,
    /// By priority, then by arrival.
    waiting: BTreeMap<(Priority, u64), oneshot::Sender<ExternalPermit>>,
    joined: u64,
}

enum Joined {
    Free(ExternalPermit),
    Waits(Waiter),
}

impl External {
    fn try_acquire(self: &Arc<Self>) -> Option<ExternalPermit> {
        let mut queue = self.lock();
        queue.free = queue.free.checked_sub(1)?;
        Some(ExternalPermit(Arc::clone(self)))
    }

    fn join(self: &Arc<Self>, priority: Priority, max: usize) -> Result<Joined, QueueFull> {
        let mut queue = self.lock();
        if queue.free > 0 {
            queue.free -= 1;
            return Ok(Joined::Free(ExternalPermit(Arc::clone(self))));
        }
        if queue.waiting.len() >= max {
            match queue.waiting.last_key_value() {
                // Its waiter sees that the sender is gone.
                Some(((last, _), _)) if *last > priority => drop(queue.waiting.pop_last()),
                _ => return Err(QueueFull),
            }
        }
        let key = (priority, queue.joined);
        queue.joined += 1;
        let (sender, granted) = oneshot::channel();
        queue.waiting.insert(key, sender);
        Ok(Joined::Waits(Waiter { granted, key, external: Arc::clone(self) }))
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in the queue, until dropped.
#[derive(Debug)]
struct Waiter {
    granted: oneshot::Receiver<ExternalPermit>,
    key: (Priority, u64),
    external: Arc<External>,
}

impl Drop for Waiter {
    fn drop(&mut self) {
        // A permit that was granted and not taken goes on to the next with the channel.
        self.external.lock().waiting.remove(&self.key);
    }
}

/// One of the permits that external callers may hold. Dropped, it goes to the first that waits.
#[derive(Debug)]
struct ExternalPermit(Arc<External>);

impl Drop for ExternalPermit {
    fn drop(&mut self) {
        let next = {
            let mut queue = self.0.lock();
            let next = queue.waiting.pop_first();
            queue.free += usize::from(next.is_none());
            next
        };
        if let Some((_, sender)) = next {
            // If the waiter has just gone the permit comes back, and goes to the next.
            drop(sender.send(Self(Arc::clone(&self.0))));
        }
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
    _external: Option<ExternalPermit>,
    level: Arc<Level>,
}

impl Drop for WorkPermit {
    fn drop(&mut self) {
        self.level.change(1, 0);
    }
}
