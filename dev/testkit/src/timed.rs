//! The pool behind a stopwatch.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use mempool_ingest::{
    OrderPool,
    txpool_fetcher::{ChainEvent, Delivery, Entry, FetchedTransaction, Holding, TransactionSink},
};

use crate::figures::{Times, histogram};

/// Takes the time of what was announced, from the announcement read from the socket to the order in
/// the pool; otherwise the pool as it is.
#[derive(Clone, Debug)]
pub struct Timed {
    pool: OrderPool,
    /// When each was announced, and how long it took.
    pub live: Arc<Mutex<Vec<(Instant, Duration)>>>,
}

impl Timed {
    pub fn new(pool: OrderPool) -> Self {
        Self { pool, live: Arc::default() }
    }

    /// Of what was announced in between.
    pub fn times(&self, from: Instant, to: Instant) -> Times {
        let mut times = histogram();
        for (at, latency) in self.live.lock().expect("nobody panics with it").iter() {
            if (from..to).contains(at) {
                times.saturating_record(latency.as_nanos() as u64);
            }
        }
        Times::from(&times)
    }
}

impl TransactionSink for Timed {
    async fn deliver(&self, tx: FetchedTransaction) -> Delivery {
        let (entry, at) = (tx.entry, tx.announced_at);
        let delivery = self.pool.deliver(tx).await;
        if entry == Entry::Announced {
            self.live.lock().expect("nobody panics with it").push((at, at.elapsed()));
        }
        delivery
    }

    async fn chain_event(&self, event: ChainEvent) {
        self.pool.chain_event(event).await;
    }

    fn holding(&self, hash: &B256) -> Holding {
        TransactionSink::holding(&self.pool, hash)
    }
}
