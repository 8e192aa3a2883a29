//! A queue that never makes its writer wait: for announcements, and for heads.
//!
//! Readers, who processes what was read, comparisons and `status()` take its lock, for one item.

use std::{collections::VecDeque, sync::Mutex};

use tokio::sync::Notify;

use crate::sync::lock;

/// A bounded queue with one reader. When full, a new item displaces the oldest, which is counted.
pub(crate) struct Buffer<T> {
    slots: usize,
    /// While more items wait, the newest is the next.
    few: usize,
    queue: Mutex<Queue<T>>,
    changed: Notify,
}

struct Queue<T> {
    /// With their sizes in bytes.
    items: VecDeque<(T, usize)>,
    bytes: usize,
    /// Displaced, and the reader does not know it yet.
    lost: u64,
    /// The reader has one that it took and has not processed.
    is_in_hand: bool,
    is_closed: bool,
}

impl<T> Buffer<T> {
    /// In the order of their arrival.
    pub(crate) fn new(slots: usize) -> Self {
        Self::newest_first_above(slots, slots)
    }

    /// While more than `few` wait, the newest comes first: what comes is then as fresh as if nothing waited, and
    /// the oldest, which are late already, wait until there is less to do, or are displaced.
    pub(crate) fn newest_first_above(few: usize, slots: usize) -> Self {
        let queue = Queue {
            items: VecDeque::new(),
            bytes: 0,
            lost: 0,
            is_in_hand: false,
            is_closed: false,
        };
        Self { slots, few, queue: Mutex::new(queue), changed: Notify::new() }
    }

    /// Returns whether an item is lost: the oldest one, which is displaced, or this one after the end.
    pub(crate) fn push(&self, item: T, bytes: usize) -> bool {
        let mut queue = lock(&self.queue);
        if queue.is_closed {
            return true;
        }
        let displaced = if queue.items.len() == self.slots { queue.pop(false) } else { None };
        let is_lost = displaced.is_some();
        queue.lost += u64::from(is_lost);
        queue.items.push_back((item, bytes));
        queue.bytes += bytes;
        drop(queue);
        self.changed.notify_one();
        is_lost
    }

    /// The next item, if there is one, or how many were displaced before it. The one before counts as processed.
    pub(crate) fn try_next(&self) -> Option<Result<T, u64>> {
        let mut queue = lock(&self.queue);
        queue.is_in_hand = false;
        if queue.lost > 0 {
            return Some(Err(std::mem::take(&mut queue.lost)));
        }
        let is_crowded = queue.items.len() > self.few;
        let item = queue.pop(is_crowded)?;
        queue.is_in_hand = true;
        Some(Ok(item))
    }

    /// Waits for the next item; `None` when there will be none. The one before counts as processed. Cancel safe.
    pub(crate) async fn next(&self) -> Option<Result<T, u64>> {
        loop {
            if let Some(next) = self.try_next() {
                return Some(next);
            }
            if lock(&self.queue).is_closed {
                return None;
            }
            self.changed.notified().await;
        }
    }

    /// No more items are taken in. Returns how many wait.
    pub(crate) fn close(&self) -> u64 {
        let mut queue = lock(&self.queue);
        queue.is_closed = true;
        let waiting = queue.items.len() as u64;
        drop(queue);
        self.changed.notify_one();
        waiting
    }

    /// How many items wait or are being processed, including those displaced without the reader's knowledge.
    pub(crate) fn len(&self) -> u64 {
        let queue = lock(&self.queue);
        queue.items.len() as u64 + queue.lost + u64::from(queue.is_in_hand)
    }

    pub(crate) fn bytes(&self) -> usize {
        lock(&self.queue).bytes
    }
}

impl<T> Queue<T> {
    /// The newest item, or the oldest.
    fn pop(&mut self, newest: bool) -> Option<T> {
        let popped = if newest { self.items.pop_back() } else { self.items.pop_front() };
        let (item, bytes) = popped?;
        self.bytes -= bytes;
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[test]
    fn the_oldest_are_displaced_and_counted_before_the_next_one_and_bytes_are_those_that_wait() {
        let buffer = Buffer::new(4);
        let lost: Vec<_> = (0..7).map(|item| buffer.push(item, 10)).collect();
        assert_eq!(lost, [false, false, false, false, true, true, true]);
        assert_eq!((buffer.len(), buffer.bytes()), (7, 40));
        assert_eq!(buffer.try_next(), Some(Err(3)));
        assert_eq!(buffer.try_next(), Some(Ok(3)));
        assert_eq!((buffer.len(), buffer.bytes()), (4, 30), "one of them is being processed");
        let rest: Vec<_> = std::iter::from_fn(|| buffer.try_next()).collect();
        assert_eq!(rest, [Ok(4), Ok(5), Ok(6)]);
        assert_eq!((buffer.len(), buffer.bytes()), (0, 0));
    }

    #[test]
    fn while_more_than_a_few_wait_the_newest_comes_first() {
        let buffer = Buffer::newest_first_above(2, 4);
        (0..6).for_each(|item| _ = buffer.push(item, 10));
        assert_eq!(buffer.try_next(), Some(Err(2)));
        let rest: Vec<_> = std::iter::from_fn(|| buffer.try_next()).collect();
        assert_eq!(rest, [Ok(5), Ok(4), Ok(2), Ok(3)]);
        assert_eq!((buffer.len(), buffer.bytes()), (0, 0));
    }

    #[test]
    fn what_was_pushed_before_the_end_is_read() {
        let buffer = Buffer::new(4);
        assert_eq!(buffer.next().now_or_never(), None);
        assert!(!buffer.push(1, 0));
        assert_eq!(buffer.close(), 1);
        assert!(buffer.push(2, 0), "nobody would read it");
        assert_eq!(buffer.next().now_or_never(), Some(Some(Ok(1))));
        assert_eq!(buffer.next().now_or_never(), Some(None));
    }
}
