//! The messages that wait to be written to one connection.

use std::{collections::VecDeque, time::Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Small messages are gathered up to this size before a new buffer is begun.
const GATHER_BYTES: usize = 64 << 10;

/// How many bytes may wait for a slow reader; beyond that its connection is closed. reth queues
/// without a bound, which could exhaust a test machine.
const MAX_QUEUED_BYTES: usize = 256 << 20;

/// The queue of one connection, bounded in bytes. Pushing never waits: a reader that is too slow is
/// disconnected, so that it costs neither the memory of the node nor the time of other clients.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    queue: Mutex<Queue>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    chunks: VecDeque<Vec<u8>>,
    bytes: usize,
    phase: Phase,
    freeze: Freeze,
    /// The next message is cut in the middle, and then the connection is closed.
    cut: bool,
}

/// Whether the connection's two directions are paused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Freeze {
    #[default]
    No,
    Until(Instant),
    Forever,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Open,
    /// Nothing more is queued; queued messages are still written.
    Finishing,
    Closed,
}

impl Outbox {
    fn change(&self, change: impl FnOnce(&mut Queue)) {
        change(&mut self.queue.lock());
        self.wake.notify_one();
    }

    /// Queues a message, whose first `singles` bytes are written one by one. Closes the connection
    /// if too much is queued.
    pub(crate) fn push(&self, message: Vec<u8>, singles: usize) {
        self.change(|queue| queue.push(message, singles));
    }

    /// Closes the connection after all queued messages are written.
    pub(crate) fn finish(&self) {
        self.change(|queue| {
            if queue.phase == Phase::Open {
                queue.phase = Phase::Finishing;
            }
        });
    }

    /// Closes the connection without writing the queued messages.
    pub(crate) fn close(&self) {
        self.change(|queue| queue.phase = Phase::Closed);
    }

    pub(crate) fn freeze(&self, freeze: Freeze) {
        self.change(|queue| queue.freeze = freeze);
    }

    pub(crate) fn cut(&self) {
        self.change(|queue| queue.cut = true);
    }

    pub(crate) fn frozen(&self) -> Freeze {
        self.queue.lock().freeze()
    }

    /// Waits for the next chunks to write; `None` if the connection must be closed.
    ///
    /// # Cancel safety
    /// Nothing is lost: chunks are taken only when they are returned. A change between two checks
    /// is not missed, because `Notify` keeps its notification.
    pub(crate) async fn next(&self) -> Option<VecDeque<Vec<u8>>> {
        loop {
            let freeze = {
                let mut queue = self.queue.lock();
                match (queue.phase, queue.freeze()) {
                    (Phase::Closed, _) => return None,
                    (_, Freeze::No) if queue.cut && queue.bytes > 0 => {
                        queue.phase = Phase::Closed;
                        return Some([queue.half_of_first()].into());
                    }
                    (_, Freeze::No) if !queue.chunks.is_empty() => {
                        return Some(std::mem::take(&mut queue.chunks));
                    }
                    (Phase::Finishing, Freeze::No) => return None,
                    (_, freeze) => freeze,
                }
            };
            let Freeze::Until(until) = freeze else {
                self.wake.notified().await;
                continue;
            };
            // The order is irrelevant: both branches lead to another check.
            tokio::select! {
                () = tokio::time::sleep_until(until.into()) => {}
                () = self.wake.notified() => {}
            }
        }
    }

    pub(crate) fn written(&self, bytes: usize) {
        self.queue.lock().bytes -= bytes;
    }
}

impl Queue {
    fn push(&mut self, mut message: Vec<u8>, singles: usize) {
        // A message to a dead connection would never be written, so it is not kept.
        if self.phase != Phase::Open || self.freeze == Freeze::Forever {
            return;
        }
        let len = message.len();
        if self.bytes + len > MAX_QUEUED_BYTES {
            tracing::debug!("a connection is closed because its reader is too slow");
            self.phase = Phase::Closed;
            return;
        }
        self.bytes += len;
        let singles = message.drain(..singles.min(len)).map(|byte| vec![byte]);
        self.chunks.extend(singles);
        match self.chunks.back_mut() {
            // A chunk of one byte is left alone, because it must be a separate write.
            Some(last) if last.len() > 1 && last.len() + message.len() < GATHER_BYTES => {
                last.append(&mut message);
            }
            _ => self.chunks.push_back(message),
        }
    }

    fn freeze(&mut self) -> Freeze {
        if let Freeze::Until(until) = self.freeze
            && until <= Instant::now()
        {
            self.freeze = Freeze::No;
        }
        self.freeze
    }

    /// Returns the first half of the first queued message. That is never all of it, because each
    /// message ends with a line end.
    fn half_of_first(&mut self) -> Vec<u8> {
        let mut first = self.chunks.pop_front().unwrap_or_default();
        let line = first.iter().position(|byte| *byte == b'\n').unwrap_or(first.len());
        first.truncate(line / 2);
        first
    }
}
