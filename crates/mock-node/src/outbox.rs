//! What waits to be written to one connection.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use alloy_primitives::bytes::Bytes;
use tokio::sync::Notify;

/// Small messages are gathered up to this size before a new buffer is begun.
const GATHER_BYTES: usize = 64 << 10;

/// A message in one or more pieces, of which large ones are shared and not copied.
#[derive(Debug, Default)]
pub(crate) struct Message {
    pieces: Vec<Bytes>,
    tail: Vec<u8>,
}

impl Message {
    pub(crate) fn text(&mut self) -> &mut Vec<u8> {
        &mut self.tail
    }

    pub(crate) fn push_shared(&mut self, piece: Bytes) {
        if !self.tail.is_empty() {
            self.pieces.push(std::mem::take(&mut self.tail).into());
        }
        self.pieces.push(piece);
    }

    pub(crate) fn append(&mut self, other: Self) {
        for piece in other.pieces {
            self.push_shared(piece);
        }
        self.tail.extend_from_slice(&other.tail);
    }

    pub(crate) fn len(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum::<usize>() + self.tail.len()
    }
}

impl From<Vec<u8>> for Message {
    fn from(tail: Vec<u8>) -> Self {
        Self { pieces: Vec::new(), tail }
    }
}

/// The queue of one connection, bounded in bytes. Pushing never waits: a reader that is so late that the bound is
/// reached is cut off, so that it costs neither the node's memory nor anybody else's time.
#[derive(Debug)]
pub(crate) struct Outbox {
    queue: Mutex<Queue>,
    wake: Notify,
    limit_bytes: usize,
}

#[derive(Debug, Default)]
struct Queue {
    chunks: VecDeque<Bytes>,
    gathered: Vec<u8>,
    bytes: usize,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Open,
    /// Nothing more comes; what is queued is still written.
    Finishing,
    Closed,
}

/// What the writer is to do.
#[derive(Debug)]
pub(crate) enum Next {
    Write(Vec<Bytes>),
    Wait,
    Close,
}

impl Outbox {
    pub(crate) fn new(limit_bytes: usize) -> Self {
        Self { queue: Mutex::default(), wake: Notify::new(), limit_bytes }
    }

    /// Queues a message; false when that was too much and the connection is closed now.
    pub(crate) fn push(&self, message: Message) -> bool {
        let mut queue = self.lock();
        if queue.phase != Phase::Open {
            return true;
        }
        let len = message.len();
        if queue.bytes + len > self.limit_bytes {
            queue.phase = Phase::Closed;
            drop(queue);
            self.wake.notify_one();
            return false;
        }
        for piece in message.pieces {
            queue.seal();
            queue.chunks.push_back(piece);
        }
        if queue.gathered.len() >= GATHER_BYTES {
            queue.seal();
        }
        queue.gathered.extend_from_slice(&message.tail);
        queue.bytes += len;
        drop(queue);
        self.wake.notify_one();
        true
    }

    /// Writes what is queued, then closes.
    pub(crate) fn finish(&self) {
        let mut queue = self.lock();
        if queue.phase == Phase::Open {
            queue.phase = Phase::Finishing;
        }
        drop(queue);
        self.wake.notify_one();
    }

    /// Closes without writing what is queued.
    pub(crate) fn close(&self) {
        self.lock().phase = Phase::Closed;
        self.wake.notify_one();
    }

    pub(crate) fn take(&self) -> Next {
        let mut queue = self.lock();
        if queue.phase == Phase::Closed {
            return Next::Close;
        }
        queue.seal();
        match (queue.chunks.is_empty(), queue.phase) {
            (false, _) => Next::Write(queue.chunks.drain(..).collect()),
            (true, Phase::Finishing) => Next::Close,
            (true, _) => Next::Wait,
        }
    }

    /// Tells that these bytes have left.
    pub(crate) fn written(&self, bytes: usize) {
        self.lock().bytes -= bytes;
    }

    /// Waits until something changed since the last [`take`](Self::take). A change in between is not missed: the
    /// notification is kept.
    pub(crate) async fn changed(&self) {
        self.wake.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // A panic while it was held left whole messages or none.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn seal(&mut self) {
        if !self.gathered.is_empty() {
            let gathered = std::mem::take(&mut self.gathered);
            self.chunks.push_back(gathered.into());
        }
    }
}
