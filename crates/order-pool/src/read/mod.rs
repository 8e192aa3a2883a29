//! What readers see. Readers take no lock: each structure is written by one thread at a time, under
//! the writer's lock ([`crate::pool`]), and published with atomics.
//!
//! | file | what it is for | without it |
//! |---|---|---|
//! | [`log`] | every event in its order, in segments of 256; a reader holds a sequence number and no segment | each reader would need a queue of its own, and a stuck one would keep its memory |
//! | [`live`] | every order with the sequence numbers of its addition and its removal: the pool as of number P is every entry with `added < P <= removed` | a replay would need a copy of the pool under the lock, or show some orders twice or never |
//! | [`index`] | finds an order by its hash | `get` and `contains` would take the writer's lock |
//! | [`seen`] | which orders were accepted recently, and which of them may come back | a mined or cancelled order could be accepted again, and audits would fetch what the pool refuses |
//! | [`heads`] | the last two heads with the numbers of their events | a replay could begin with a head that is above or below its orders |
//! | [`wake`] | the log's head, and the readers that wait for it to move | readers would poll, or the writer would wake each one itself |
//! | [`publisher`] | the writer's side of log and live pages: their caps, and what to free | log and pages could be freed in the wrong order, and memory would depend on readers |
//! | [`subscription`] | a reader: the replay, then the log | |
//!
//! # The order of publication
//! The writer publishes the index and the dedupe window, then the chain's head, the log, the live
//! pages, and last the log's head. It wakes readers after it has released the lock. A reader loads
//! the log's head first and the tables after it, so the tables contain everything below that head.
//! Memory that a reader may need is not freed before the log has dropped it, so a reader that is
//! too late receives an error ([`Lagged`](crate::Lagged)).

mod garbage;
mod heads;
mod index;
mod live;
mod log;
mod publisher;
mod seen;
mod subscription;
mod wake;

use std::sync::{Arc, atomic::AtomicBool};

use alloy_primitives::B256;
use arc_swap::ArcSwap;

pub use self::subscription::{CloseHandle, Subscription};
pub(crate) use self::{
    garbage::MAX_GARBAGE_BYTES,
    index::Index,
    log::{SEGMENT_EVENTS, SLOT_BYTES},
    publisher::Publisher,
    seen::{SeenState, SeenWindow},
};
use self::{
    heads::Heads, index::IndexTable, live::LiveTable, log::LogTable, seen::SeenTable, wake::Wakers,
};
use crate::{metrics::Counters, order::Order};

/// Everything that readers see. It is written only under the writer's lock.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) wakers: Wakers,
    pub(crate) heads: Heads,
    log: ArcSwap<LogTable>,
    live: ArcSwap<LiveTable>,
    index: Arc<IndexTable>,
    pub(crate) seen: Arc<SeenTable>,
    /// No source feeds the pool any more.
    pub(crate) has_feed_ended: AtomicBool,
    pub(crate) counters: Counters,
}

impl Tables {
    pub(crate) fn new(index: &Index, seen: &SeenWindow) -> Self {
        Self {
            wakers: Wakers::default(),
            heads: Heads::default(),
            log: ArcSwap::default(),
            live: ArcSwap::default(),
            index: Arc::clone(&index.table),
            seen: Arc::clone(&seen.table),
            has_feed_ended: AtomicBool::new(false),
            counters: Counters::new(),
        }
    }

    /// Returns what `show` makes of the pooled order with this hash, unless it is a bundle whose
    /// block has passed. An order that is in the pool throughout the call is found: see
    /// [`IndexTable`].
    pub(crate) fn find<T>(&self, hash: &B256, show: impl Fn(&Arc<Order>) -> T) -> Option<T> {
        let live = self.live.load();
        let is_match = |order: &&Arc<Order>| order.id().hash() == hash && !self.has_passed(order);
        self.index.find(hash, |seq| live.get(seq).filter(is_match).map(&show))
    }

    /// Whether the order is a bundle whose block has passed.
    fn has_passed(&self, order: &Order) -> bool {
        let Order::Bundle(bundle) = order else { return false };
        self.heads
            .latest()
            .is_some_and(|head| bundle.block().is_none_or(|block| block <= head.number))
    }
}
