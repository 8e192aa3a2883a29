//! A queue of heads that never makes its writer wait.
//!
//! Its lock is taken by who reads heads and who follows them, for one item.

use std::{collections::VecDeque, sync::Mutex};

use tokio::sync::Notify;

use crate::sync::lock;

/// A bounded queue with one reader. When it is full, a new item displaces the oldest.
pub(crate) struct Buffer<T> {
    slots: usize,
    items: Mutex<VecDeque<T>>,
    changed: Notify,
}

impl<T> Buffer<T> {
    pub(crate) fn new(slots: usize) -> Self {
        Self { slots, items: Mutex::default(), changed: Notify::new() }
    }

    pub(crate) fn push(&self, item: T) {
        let mut items = lock(&self.items);
        if items.len() == self.slots {
            items.pop_front();
        }
        items.push_back(item);
        drop(items);
        self.changed.notify_one();
    }

    /// Waits for the next item. Cancel safe.
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
    fn the_oldest_items_are_displaced() {
        let buffer = Buffer::new(4);
        assert_eq!(buffer.next().now_or_never(), None);
        (0..6).for_each(|item| buffer.push(item));
        let rest: Vec<_> = std::iter::from_fn(|| buffer.next().now_or_never()).collect();
        assert_eq!(rest, [2, 3, 4, 5]);
    }
}
