//! When announcements were read from the socket.

use std::{collections::VecDeque, sync::Mutex, time::Instant};

use crate::sync::lock;

/// The read times and lengths of the latest announcements, by their number on the connection.
///
/// The broadcast channel carries the announcements and this carries their times, in the same order. The
/// reader counts those that it received and those that were reported as lost, so it knows the
/// number of each.
#[derive(Debug)]
pub(crate) struct ReadTimes {
    ring: Mutex<Ring>,
}

#[derive(Debug)]
struct Ring {
    /// Read time and length of each waiting announcement.
    waiting: VecDeque<(Instant, usize)>,
    waiting_bytes: usize,
    next: u64,
    slots: usize,
}

impl ReadTimes {
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            ring: Mutex::new(Ring { waiting: VecDeque::new(), waiting_bytes: 0, next: 0, slots }),
        }
    }

    /// Records an announcement of `bytes` bytes.
    pub(crate) fn push(&self, now: Instant, bytes: usize) {
        let mut ring = lock(&self.ring);
        if ring.waiting.len() == ring.slots {
            // The channel, which has as many slots, has lost the oldest one too.
            ring.forget(1);
        }
        ring.waiting.push_back((now, bytes));
        ring.waiting_bytes += bytes;
        ring.next += 1;
    }

    /// How many bytes wait to be read.
    pub(super) fn waiting_bytes(&self) -> usize {
        lock(&self.ring).waiting_bytes
    }

    /// The time of announcement `number`. Forgets it and all before it.
    pub(crate) fn take(&self, number: u64) -> Option<Instant> {
        let mut ring = lock(&self.ring);
        let first = ring.next - ring.waiting.len() as u64;
        let index = number.checked_sub(first)? as usize;
        let (at, _) = *ring.waiting.get(index)?;
        ring.forget(index + 1);
        Some(at)
    }

    /// How many announcements were read from the socket.
    pub(crate) fn read(&self) -> u64 {
        lock(&self.ring).next
    }
}

impl Ring {
    fn forget(&mut self, count: usize) {
        self.waiting_bytes -= self.waiting.drain(..count).map(|(_, bytes)| bytes).sum::<usize>();
    }
}
