//! What waits to be written to one connection.

use std::{collections::VecDeque, time::Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Small messages are gathered up to this size before a new buffer is begun.
const GATHER_BYTES: usize = 64 << 10;

/// The bytes that wait for one slow reader before its connection is closed. reth queues for it without
/// a bound, which could exhaust a test machine.
const MAX_QUEUED_BYTES: usize = 256 << 20;

/// The queue of one connection, bounded in bytes. Pushing never waits: a reader that is so late that the bound is
/// reached is cut off, so that it costs neither the node's memory nor anybody else's time.
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
    /// The next message is cut in its middle, and the connection closed there.
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
    /// Nothing more comes; what is queued is still written.
    Finishing,
    Closed,
}

impl Outbox {
    fn change(&self, change: impl FnOnce(&mut Queue)) {
        change(&mut self.queue.lock());
        self.wake.notify_one();
    }

    /// Queues a message, of which the first `singles` bytes are one write each. Closes the connection when that is too
    /// much.
    pub(crate) fn push(&self, message: Vec<u8>, singles: usize) {
        self.change(|queue| queue.push(message, singles));
    }

    /// Writes what is queued, then closes.
    pub(crate) fn finish(&self) {
        self.change(|queue| {
            if queue.phase == Phase::Open {
                queue.phase = Phase::Finishing;
            }
        });
    }

    /// Closes without writing what is queued.
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

    /// What is to be written next; `None` when the connection is to be closed. A change between two looks is not
    /// missed, because the notification is kept. Cancel safe: it returns at once what it takes.
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
            // The order does not matter: both lead to another look.
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
        // What would be written to a dead connection is not kept either: it is lost in any case.
        if self.phase != Phase::Open || self.freeze == Freeze::Forever {
            return;
        }
        let len = message.len();
        if self.bytes + len > MAX_QUEUED_BYTES {
            tracing::debug!("a connection is closed, since too much waits for it");
            self.phase = Phase::Closed;
            return;
        }
        self.bytes += len;
        let singles = message.drain(..singles.min(len)).map(|byte| vec![byte]);
        self.chunks.extend(singles);
        match self.chunks.back_mut() {
            // Not to a byte that is a write of its own.
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

    /// Of the first message that waits; never all of it, since no message is empty and each ends with a line end.
    fn half_of_first(&mut self) -> Vec<u8> {
        let mut first = self.chunks.pop_front().unwrap_or_default();
        let line = first.iter().position(|byte| *byte == b'\n').unwrap_or(first.len());
        first.truncate(line / 2);
        first
    }
}
