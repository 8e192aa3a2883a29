//! The heads of the chain, from the pool's events.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    time::{Duration, Instant},
};

use mempool_ingest::{
    OrderPool,
    order_pool::{
        Cancellation, Head, Lagged, Order, OrderSink, RemoveReason, SinkGuard, StartError,
    },
};

/// A head, and when it was received.
pub(crate) type Told = (Head, Instant);

/// The current head, then every later one, each after the pool has removed the orders of its block.
pub(crate) struct Heads {
    /// Without a bound: a head is small, and comes once a slot.
    told: Receiver<Told>,
    _guard: SinkGuard,
}

impl Heads {
    pub(crate) fn follow(pool: &OrderPool) -> Result<Self, StartError> {
        let (sender, told) = channel();
        let sink = HeadSink { sender, last: None };
        Ok(Self { told, _guard: pool.subscribe_sink(u64::MAX, sink)? })
    }

    pub(crate) fn next_timeout(&self, timeout: Duration) -> Result<Told, RecvTimeoutError> {
        self.told.recv_timeout(timeout)
    }

    /// The last of the waiting heads.
    pub(crate) fn latest(&self) -> Option<Told> {
        self.told.try_iter().last()
    }
}

struct HeadSink {
    sender: Sender<Told>,
    last: Option<Head>,
}

impl OrderSink for HeadSink {
    fn insert(&mut self, _: &Arc<Order>) -> bool {
        true
    }

    fn remove(&mut self, _: &Arc<Order>, _: RemoveReason) -> bool {
        true
    }

    fn cancel(&mut self, _: &Cancellation) -> bool {
        true
    }

    fn head(&mut self, head: &Head) -> bool {
        // A resync delivers it again.
        if self.last.replace(*head) == Some(*head) {
            return true;
        }
        self.sender.send((*head, Instant::now())).is_ok()
    }

    fn lagged(&mut self, _: Lagged) -> bool {
        true
    }
}
