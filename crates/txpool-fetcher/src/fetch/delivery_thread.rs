//! The thread `mempool-deliver`, which decodes and delivers while the thread of the sockets is
//! busy.
//!
//! Recovering a sender takes 34 us, a third of the work for one transaction. While little is in
//! flight, that is done on the thread of the sockets, which saves a hand-over and delays nothing.
//! With more in flight it would delay every announcement behind it, so from [`BUSY`] fetches in
//! flight on, responses are handed over to this thread, unless [`BEHIND`] of them wait for it: then
//! both threads decode. Measured on two cores: with everything on one thread the rate ends near
//! 13,000 transactions/s; with a hand-over for each response 500 transactions/s cost a fifth more
//! CPU time; and without both threads decoding the p50 at 10,000/s was 100 ms, in place of 1 ms.
//!
//! A sink that may block its caller ([`TransactionSink::may_block`]) is only called on this thread,
//! so that the host cannot delay the reading of the sockets. Large transactions are only decoded
//! here.
//!
//! [`TransactionSink::may_block`]: crate::TransactionSink::may_block

use std::{io, sync::Arc};

use futures::future::BoxFuture;
use tokio::sync::mpsc;

use crate::{context::Context, sync::contain};

/// The number of fetches in flight from which on the thread of the sockets counts as busy.
pub(super) const BUSY: usize = 8;

/// The length, in bytes, above which a transaction is always decoded on this thread: one with blobs
/// takes some milliseconds.
pub(super) const LARGE_BYTES: usize = 16 * 1024;

/// The number of responses in the queue from which on the thread counts as behind: some, so that it
/// always has work while the thread of the sockets decodes one response itself.
const BEHIND: usize = 8;

/// Capacity of the thread's queue: as many as the default fetch slots. A full queue makes the
/// callers of [`DeliveryThread::run`] wait.
const QUEUE_CAPACITY: usize = 64;

pub(super) struct DeliveryThread {
    queue: mpsc::Sender<BoxFuture<'static, ()>>,
}

impl DeliveryThread {
    /// Whether so many responses wait that the thread of the sockets decodes the next one itself:
    /// otherwise it would be idle while this thread limits the rate.
    pub(super) fn is_behind(&self) -> bool {
        self.queue.max_capacity() - self.queue.capacity() >= BEHIND
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(context: &Context) -> io::Result<Self> {
        let (queue, mut waiting) = mpsc::channel::<BoxFuture<'static, ()>>(QUEUE_CAPACITY);
        let tasks = Arc::clone(&context.tasks);
        let body = {
            let tasks = Arc::clone(&tasks);
            move || {
                // The thread has no runtime, so the sink may block. After a stop it waits for
                // nothing.
                while let Some(Some(work)) = tasks.wait_for(waiting.recv(), || {}) {
                    if tasks.stop.is_cancelled() {
                        return;
                    }
                    contain(|| tasks.wait_for(work, || {}));
                }
            }
        };
        tasks.spawn_thread("mempool-deliver", body)?;
        Ok(Self { queue })
    }

    /// Hands work over to the thread. Waits for room in the queue, but not for the end of the work.
    pub(super) async fn run(&self, work: BoxFuture<'static, ()>) {
        // The queue is closed after a stop: then the work is dropped, and its hash stays
        // unfinished.
        let _ = self.queue.send(work).await;
    }
}
