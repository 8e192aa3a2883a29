//! A subscriber that notes when it saw each order.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use alloy_primitives::B256;
use mempool_ingest::{OrderPool, order_pool::Event};

use crate::usage::now_ns;

/// Orders, and when each was in front of the subscriber, by [`now_ns`].
#[derive(Clone, Debug, Default)]
pub struct Seen(Arc<Mutex<Vec<(B256, u64)>>>);

impl Seen {
    /// Reads a pool as a builder would, on a thread that ends with it.
    pub fn follow(pool: &OrderPool) -> Self {
        let (seen, mut orders) = (Self::default(), pool.subscribe_all());
        let noted = seen.clone();
        let read = move || {
            while let Some(event) = orders.next_blocking() {
                match event {
                    Ok(Event::Added(order)) => noted.note(*order.id().hash(), now_ns()),
                    Ok(_) => {}
                    Err(_) => orders.resync(),
                }
            }
        };
        thread::Builder::new().name("subscriber".into()).spawn(read).expect("a thread");
        seen
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(B256, u64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn note(&self, hash: B256, at: u64) {
        self.lock().push((hash, at));
    }

    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// Takes out what was seen.
    pub fn take(&self) -> Vec<(B256, u64)> {
        std::mem::take(&mut self.lock())
    }
}
