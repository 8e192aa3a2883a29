//! A semaphore whose size changes.

use std::sync::{Arc, Mutex};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::sync::lock;

/// A semaphore whose size can change while permits are in use.
#[derive(Debug)]
pub(super) struct ResizableSemaphore {
    semaphore: Arc<Semaphore>,
    size: Mutex<Size>,
}

#[derive(Clone, Copy, Debug)]
struct Size {
    wanted: usize,
    /// Permits in use that are not returned to the semaphore when they are dropped.
    owed: usize,
}

#[derive(Debug)]
pub(super) struct ResizablePermit {
    permit: Option<OwnedSemaphorePermit>,
    of: Arc<ResizableSemaphore>,
}

impl ResizableSemaphore {
    pub(super) fn new(count: usize) -> Self {
        let size = Mutex::new(Size { wanted: count, owed: 0 });
        Self { semaphore: Arc::new(Semaphore::new(count)), size }
    }

    /// Waits for a permit, first come, first served.
    pub(super) async fn acquire(self: &Arc<Self>) -> ResizablePermit {
        let permit = Arc::clone(&self.semaphore).acquire_owned().await;
        ResizablePermit {
            permit: Some(permit.expect("our semaphores are never closed")),
            of: Arc::clone(self),
        }
    }

    pub(super) fn try_acquire(self: &Arc<Self>) -> Option<ResizablePermit> {
        let permit = Arc::clone(&self.semaphore).try_acquire_owned().ok()?;
        Some(ResizablePermit { permit: Some(permit), of: Arc::clone(self) })
    }

    pub(super) fn is_full(&self) -> bool {
        self.semaphore.available_permits() == 0
    }

    pub(super) fn in_use(&self) -> usize {
        let size = *lock(&self.size);
        // A permit that is being released may be counted on both sides of the subtraction.
        (size.wanted + size.owed).saturating_sub(self.semaphore.available_permits())
    }

    pub(super) fn resize(&self, wanted: usize) {
        let mut size = lock(&self.size);
        if wanted < size.wanted {
            let fewer = size.wanted - wanted;
            size.owed += fewer - self.semaphore.forget_permits(fewer);
        } else {
            let more = wanted - size.wanted;
            let kept = more.min(size.owed);
            size.owed -= kept;
            self.semaphore.add_permits(more - kept);
        }
        size.wanted = wanted;
    }
}

impl Drop for ResizablePermit {
    fn drop(&mut self) {
        let Some(permit) = self.permit.take() else { return };
        let mut size = lock(&self.of.size);
        if size.owed > 0 {
            size.owed -= 1;
            permit.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[tokio::test]
    async fn permits_in_use_when_the_size_falls_are_not_returned() {
        let resizable = Arc::new(ResizableSemaphore::new(8));
        let mut out: Vec<_> =
            (0..6).map(|_| resizable.acquire().now_or_never().expect("free")).collect();
        resizable.resize(4);
        out.truncate(4);
        assert!(resizable.acquire().now_or_never().is_none(), "4 of 4 are in use");
        out.pop();
        let permit = resizable.acquire().now_or_never().expect("one is free again");
        resizable.resize(6);
        out.extend((0..2).map(|_| resizable.acquire().now_or_never().expect("two more")));
        assert!(resizable.acquire().now_or_never().is_none(), "6 of 6 are in use");
        drop((out, permit));
        assert_eq!((resizable.semaphore.available_permits(), resizable.in_use()), (6, 0));
    }

    #[tokio::test]
    async fn a_size_that_falls_and_rises_while_permits_are_in_use_loses_none() {
        let resizable = Arc::new(ResizableSemaphore::new(8));
        let out: Vec<_> =
            (0..8).map(|_| resizable.acquire().now_or_never().expect("free")).collect();
        resizable.resize(2);
        resizable.resize(8);
        drop(out);
        assert_eq!(resizable.semaphore.available_permits(), 8);
    }
}
