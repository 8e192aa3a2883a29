//! What waits to be written to one connection.

use std::{collections::VecDeque, sync::Mutex, time::Instant};

use tokio::sync::Notify;

use crate::lock;

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
    Write(VecDeque<Vec<u8>>),
    /// The last that goes out.
    WriteAndClose(Vec<u8>),
    Wait,
    WaitUntil(Instant),
    Close,
}

impl Outbox {
    /// Queues a message, of which the first `singles` bytes are one write each; false when that was too much and the
    /// connection is closed now.
    pub(crate) fn push(&self, mut message: Vec<u8>, singles: usize) -> bool {
        let mut queue = lock(&self.queue);
        // What would be written to a dead connection is not kept either: it is lost in any case.
        if queue.phase != Phase::Open || queue.freeze == Freeze::Forever {
            return true;
        }
        let len = message.len();
        if queue.bytes + len > MAX_QUEUED_BYTES {
            queue.phase = Phase::Closed;
            drop(queue);
            self.wake.notify_one();
            return false;
        }
        if singles > 0 {
            queue.seal();
            queue.chunks.extend(message.drain(..singles.min(len)).map(|byte| vec![byte]));
        }
        if queue.gathered.len() + message.len() >= GATHER_BYTES {
            queue.seal();
        }
        if queue.gathered.is_empty() {
            queue.gathered = message;
        } else {
            queue.gathered.extend_from_slice(&message);
        }
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
            (false, _) => Next::Write(std::mem::take(&mut queue.chunks)),
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
    fn half_of_first(&mut self) -> Vec<u8> {
        self.seal();
        let mut first = self.chunks.pop_front().unwrap_or_default();
        let line = first.iter().position(|byte| *byte == b'\n').unwrap_or(first.len());
        first.truncate(line / 2);
        first
    }

    fn seal(&mut self) {
        if !self.gathered.is_empty() {
            self.chunks.push_back(std::mem::take(&mut self.gathered));
        }
    }
}
