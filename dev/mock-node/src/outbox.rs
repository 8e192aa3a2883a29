//! What waits to be written to one connection.

use std::{collections::VecDeque, sync::Mutex, time::Instant};

use alloy_primitives::bytes::Bytes;
use tokio::sync::Notify;

use crate::lock;

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
        if piece.is_empty() {
            return;
        }
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

    fn into_bytes(self) -> Bytes {
        [self.pieces.concat(), self.tail].concat().into()
    }

    /// The first half of it.
    pub(crate) fn half(self) -> Self {
        let whole = self.into_bytes();
        Self { pieces: vec![whole.slice(..whole.len() / 2)], tail: Vec::new() }
    }

    /// The same, its first `count` bytes as pieces of their own: each is one write.
    pub(crate) fn in_single_bytes(self, count: usize) -> Self {
        let whole = self.into_bytes();
        let count = count.min(whole.len());
        let singles = (0..count).map(|at| whole.slice(at..=at));
        Self { pieces: singles.chain([whole.slice(count..)]).collect(), tail: Vec::new() }
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

/// What the writer is to do.
#[derive(Debug)]
pub(crate) enum Next {
    Write(Vec<Bytes>),
    /// The last that goes out.
    WriteAndClose(Bytes),
    Wait,
    WaitUntil(Instant),
    Close,
}

impl Outbox {
    pub(crate) fn new(limit_bytes: usize) -> Self {
        Self { queue: Mutex::default(), wake: Notify::new(), limit_bytes }
    }

    /// Queues a message; false when that was too much and the connection is closed now.
    pub(crate) fn push(&self, message: Message) -> bool {
        let mut queue = lock(&self.queue);
        // What would be written to a dead connection is not kept either: it is lost in any case.
        if queue.phase != Phase::Open || queue.freeze == Freeze::Forever {
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
        let mut queue = lock(&self.queue);
        if queue.phase == Phase::Open {
            queue.phase = Phase::Finishing;
        }
        drop(queue);
        self.wake.notify_one();
    }

    /// Closes without writing what is queued.
    pub(crate) fn close(&self) {
        lock(&self.queue).phase = Phase::Closed;
        self.wake.notify_one();
    }

    pub(crate) fn take(&self) -> Next {
        let mut queue = lock(&self.queue);
        if queue.phase == Phase::Closed {
            return Next::Close;
        }
        match queue.freeze() {
            Freeze::No => {}
            Freeze::Until(until) => return Next::WaitUntil(until),
            Freeze::Forever => return Next::Wait,
        }
        if queue.cut && queue.bytes > 0 {
            queue.phase = Phase::Closed;
            return Next::WriteAndClose(queue.half_of_first());
        }
        queue.seal();
        match (queue.chunks.is_empty(), queue.phase) {
            (false, _) => Next::Write(queue.chunks.drain(..).collect()),
            (true, Phase::Finishing) => Next::Close,
            (true, _) => Next::Wait,
        }
    }

    /// Neither reads nor writes for a while, or ever again.
    pub(crate) fn freeze(&self, freeze: Freeze) {
        lock(&self.queue).freeze = freeze;
        self.wake.notify_one();
    }

    pub(crate) fn frozen(&self) -> Freeze {
        lock(&self.queue).freeze()
    }

    /// Cuts the next message in its middle.
    pub(crate) fn cut(&self) {
        lock(&self.queue).cut = true;
        self.wake.notify_one();
    }

    /// Tells that these bytes have left.
    pub(crate) fn written(&self, bytes: usize) {
        lock(&self.queue).bytes -= bytes;
    }

    /// Waits until something changed since the last [`take`](Self::take). A change in between is not missed: the
    /// notification is kept.
    pub(crate) async fn changed(&self) {
        self.wake.notified().await;
    }
}

impl Queue {
    fn freeze(&mut self) -> Freeze {
        if let Freeze::Until(until) = self.freeze
            && until <= Instant::now()
        {
            self.freeze = Freeze::No;
        }
        self.freeze
    }

    /// Of the first message that waits; never all of it, since no message is empty and each ends with a line end.
    fn half_of_first(&mut self) -> Bytes {
        self.seal();
        let first = self.chunks.pop_front().unwrap_or_default();
        let line = first.iter().position(|byte| *byte == b'\n').unwrap_or(first.len());
        first.slice(..line / 2)
    }

    fn seal(&mut self) {
        if !self.gathered.is_empty() {
            let gathered = std::mem::take(&mut self.gathered);
            self.chunks.push_back(gathered.into());
        }
    }
}
