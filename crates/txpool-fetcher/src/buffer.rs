//! A bounded queue whose writer never waits: a full queue drops its oldest item. It holds heads.
//!
//! The reader and the writer take its lock for one push or one pop.

use std::{collections::VecDeque, sync::Mutex};

use tokio::sync::Notify;

use crate::sync::lock;

/// A bounded queue with one reader.
pub(crate) struct Buffer<T> {
    capacity: usize,
    items: Mutex<VecDeque<T>>,
    changed: Notify,
}

impl<T> Buffer<T> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, items: Mutex::default(), changed: Notify::new() }
    }

    /// Adds an item; when the queue is full, it displaces the oldest one.
    pub(crate) fn push(&self, item: T) {
        let mut items = lock(&self.items);
        if items.len() == self.capacity {
            items.pop_front();
        }
        items.push_back(item);
        drop(items);
        self.changed.notify_one();
    }

    /// Removes all items.
    pub(crate) fn clear(&self) {
        lock(&self.items).clear();
    }

    /// Waits for the oldest item and removes it.
    ///
    /// # Cancel safety
    /// Cancel safe: an item is only removed when it is returned.
    pub(crate) async fn next(&self) -> T {
        loop {
            if let Some(item) = lock(&self.items).pop_front() {
                return item;
            }
            self.changed.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[test]
    fn new_items_displace_the_oldest_ones() {
        let buffer = Buffer::new(4);
        assert_eq!(buffer.next().now_or_never(), None);
        (0..6).for_each(|item| buffer.push(item));
        let rest: Vec<_> = std::iter::from_fn(|| buffer.next().now_or_never()).collect();
        assert_eq!(rest, [2, 3, 4, 5]);
    }
}
