//! The thread that decodes and delivers while the thread of the sockets is busy.
//!
//! Recovering a sender takes 34 us, a third of what one transaction costs. On the thread that reads the
//! sockets it costs no hand-over, and nobody waits for it while little is in flight. With more, it would
//! delay every announcement behind it. So a response is decoded in place until [`BUSY`] fetches are in
//! flight, and handed over beyond that. Measured on two cores, against everything on one thread:
//! that ends near 13,000 transactions/s, and with a hand-over for each response 500/s cost a fifth more.
//!
//! A sink that may block the thread that calls it ([`TransactionSink::may_block`]) is called here alone:
//! nothing of the host may delay the reading of the sockets. So is what takes long to decode.
//!
//! [`TransactionSink::may_block`]: crate::TransactionSink::may_block

use std::{io, sync::Arc};

use futures::{FutureExt as _, future::BoxFuture};
use tokio::sync::mpsc;

use crate::{context::Context, sync::contain};

/// So many fetches in flight are the sign that the thread of the sockets is behind.
pub(super) const BUSY: usize = 8;

/// A longer transaction is decoded here: one with blobs takes some milliseconds.
pub(super) const LARGE_BYTES: usize = 16 * 1024;

/// Work that may wait for the thread: as many as the default fetch slots. Who hands over waits for room.
const WAITING: usize = 64;

pub(super) struct DeliveryThread {
    queue: mpsc::Sender<BoxFuture<'static, ()>>,
}

impl DeliveryThread {
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(context: &Context) -> io::Result<Self> {
        let (queue, mut waiting) = mpsc::channel::<BoxFuture<'static, ()>>(WAITING);
        let tasks = Arc::clone(&context.tasks);
        let body = {
            let tasks = Arc::clone(&tasks);
            move || {
                // Without a runtime, so that the sink may block. After a stop nothing is waited for.
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

    /// Hands work over. Waits for room, and not for the end of the work.
    pub(super) async fn run(&self, work: impl Future<Output = ()> + Send + 'static) {
        // Closed at a stop: then the work is dropped, unfinished.
        let _ = self.queue.send(work.boxed()).await;
    }
}
