//! What happens to one hash: it is deduplicated, requested, decoded, delivered and counted. Entry:
//! [`Fetch::announced`] and [`Fetch::fetch_missing`]; [`transaction`] is the whole way of one hash.
//!
//! A hash holds a fetch slot from before its request until its delivery has returned, so slots bound
//! everything that is in flight. A live announcement waits for a slot and never for deferrable
//! work, which has few slots and connections of its own.
//!
//! # Threads
//! Everything runs on `mempool-io`, the single thread of the fetcher's runtime, on which alloy reads the
//! sockets. While more than a few requests are in flight, decoding, sender recovery and delivery of a
//! response run on the thread `mempool-deliver` instead: see [`delivery_thread`].
//!
//! # Locks
//! | lock | who takes it | for how long |
//! |---|---|---|
//! | seen, 64 shards | announcements, responses, heads, audits, `Fetcher::announcers` | one look-up; an audit reads one of the 64 shards, 50 us when full |
//! | recent blocks (in [`Hashes`]) | announcements and responses to look up, heads and nonces to add | a look-up, or one block's hashes |
//! | a node's limit | a fetch when it begins and at its response, `status()` | a few fields |
//!
//! No two of these are ever held together.

mod deferral;
mod deliver;
mod delivery_thread;
mod hashes;
mod limit;
mod seen;
mod slots;
mod transaction;

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Instant,
};

use alloy_primitives::B256;
use tokio::sync::Semaphore;

pub(crate) use self::{
    deferral::Deferral,
    deliver::AnnouncedTransaction,
    hashes::{AnnouncementCounts, Arrival, Hashes, Ticket},
    limit::{Failures, NodeLimit},
    seen::{HeldHash, SHARDS, Seen},
    transaction::PoolRequest,
};
pub use self::{deferral::DeferredStats, limit::ADAPTIVE_FLOOR};
use self::{
    delivery_thread::DeliveryThread,
    limit::RequestPermit,
    slots::{Slot, Slots},
    transaction::{FetchTask, LATE_WAITING},
};
use crate::{
    context::Context, error::StartError, limits::ANNOUNCEMENT_BUFFER, node::Requests,
    outcome::Entry,
};

/// Fetches transactions: the slots, the limits of the nodes, and what is in flight.
pub(crate) struct Fetch {
    context: Arc<Context>,
    slots: Slots,
    /// How many requests may be in flight at each source.
    limits: Box<[Arc<NodeLimit>]>,
    /// Held by the request for a hash whose response may end its connection: one at a time, so that
    /// it is known which one does.
    suspects: Semaphore,
    /// Room for fetches that wait for a late answer without a slot.
    late: Semaphore,
    /// Room for hashes of undone blocks that wait for slots.
    undone: Arc<Semaphore>,
    /// Whether a blob transaction was ever delivered. geth does not list them.
    had_blobs: AtomicBool,
    delivery_thread: DeliveryThread,
}

/// Up to 16 sources, as many as a configuration may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SourceSet(u16);

impl SourceSet {
    fn all(count: usize) -> Self {
        Self(u16::MAX.checked_shr(16 - count as u32).unwrap_or(0))
    }

    fn single(source: usize) -> Self {
        Self(1 << source)
    }

    fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    fn is_empty(self) -> bool {
        self.0 == 0
    }

    fn remove(&mut self, source: usize) {
        self.0 &= !(1 << source);
    }

    pub(crate) fn contains(self, source: usize) -> bool {
        self.0 >> source & 1 == 1
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        (0..16).filter(move |source| self.contains(*source))
    }

    /// The sources of this set, `first` before the others.
    fn iter_from(self, first: usize) -> impl Iterator<Item = usize> {
        let others = self.iter().filter(move |source| *source != first);
        std::iter::once(first).filter(move |first| self.contains(*first)).chain(others)
    }
}

impl Fetch {
    /// # Errors
    /// The thread for deliveries cannot be started, or the monitor cannot watch the slots.
    pub(crate) fn new(
        context: Arc<Context>,
        limits: Box<[Arc<NodeLimit>]>,
    ) -> Result<Self, StartError> {
        let delivery_thread = DeliveryThread::start(&context).map_err(|source: io::Error| {
            StartError::Thread { thread: "mempool-deliver", source }
        })?;
        let slots = Slots::new(&context.settings, context.metrics.in_flight_bytes.clone())?;
        Ok(Self {
            slots,
            limits,
            suspects: Semaphore::new(1),
            late: Semaphore::new(LATE_WAITING),
            undone: Arc::new(Semaphore::new(ANNOUNCEMENT_BUFFER)),
            had_blobs: AtomicBool::new(false),
            delivery_thread,
            context,
        })
    }

    /// Takes in one announcement: counts it, and fetches it if it is news. Waits for a slot, and not
    /// for the outcome.
    ///
    /// # Cancel safety
    /// A hash that waits for its slot when this is dropped counts as failed.
    pub(crate) async fn announced(self: &Arc<Self>, arrival: Arrival) {
        if let Some(ticket) = self.context.hashes.enter(arrival) {
            self.fetch(ticket).await;
        }
    }

    /// As [`Self::announced`], if a slot is free. Otherwise nothing is counted.
    pub(crate) fn try_announced(self: &Arc<Self>, arrival: Arrival) -> bool {
        let Some(slot) = self.slots.try_acquire_live(arrival.source) else { return false };
        if let Some(ticket) = self.context.hashes.enter(arrival) {
            self.spawn(self.task(ticket, slot));
        }
        true
    }

    /// Fetches a hash that has entered. Waits for a slot, and not for the outcome.
    pub(crate) async fn fetch(self: &Arc<Self>, ticket: Ticket) {
        let slot = self.slots.acquire_live(ticket.arrival.source).await;
        self.spawn(self.task(ticket, slot));
    }

    /// As [`Self::fetch`], if a slot is free. Returns the ticket if none is.
    pub(crate) fn try_fetch(self: &Arc<Self>, ticket: Ticket) -> Result<(), Ticket> {
        match self.slots.try_acquire_live(ticket.arrival.source) {
            Some(slot) => {
                self.spawn(self.task(ticket, slot));
                Ok(())
            }
            None => Err(ticket),
        }
    }

    /// Fetches what a comparison found missing. Waits for a deferrable slot, not for the outcome.
    pub(crate) async fn fetch_missing(self: &Arc<Self>, ticket: Ticket) {
        let slot = self.slots.acquire_deferrable(ticket.arrival.source).await;
        self.spawn(self.task(ticket, slot));
    }

    /// Takes in an announcement for a caller that gets the transaction itself, from a pool in this
    /// process. Returns `None` if it is known, or has to be requested elsewhere first. The outer
    /// `None` says that no slot is free, and nothing is counted.
    pub(crate) fn try_begin(self: &Arc<Self>, arrival: Arrival) -> Option<Option<PoolRequest>> {
        let slot = self.slots.try_acquire_live(arrival.source)?;
        let Some(ticket) = self.context.hashes.enter(arrival) else { return Some(None) };
        let task = self.task(ticket, slot);
        match self.limits[task.source()].try_acquire() {
            Some(permit) => Some(Some(self.pool_request(task, permit))),
            None => {
                self.spawn(task);
                Some(None)
            }
        }
    }

    /// Requests what was announced while a block contained it: a node that told it before the head
    /// that removes the block does not tell it again. A leader that goes back and forth may have
    /// more than there is room for: the rest is left to the comparison that a reorg begins.
    pub(crate) fn undone(self: &Arc<Self>, source: usize, mut hashes: Vec<B256>) {
        let fetch = Arc::clone(self);
        hashes.truncate(self.undone.available_permits());
        let room = Arc::clone(&self.undone).try_acquire_many_owned(hashes.len() as u32);
        let Ok(room) = room else { return };
        self.context.tasks.spawn(async move {
            let _room = room;
            for hash in hashes {
                let at = Instant::now();
                // Its announcement has been counted.
                let arrival = Arrival { hash, entry: Entry::AuditRecovered, source, at };
                if let Some(ticket) = fetch.context.hashes.enter_undone(arrival) {
                    fetch.fetch(ticket).await;
                }
            }
        });
    }

    /// Whether a blob transaction was ever delivered.
    pub(crate) fn had_blobs(&self) -> bool {
        // Relaxed: a comparison reads it long after the deliveries that it looks at.
        self.had_blobs.load(Relaxed)
    }

    fn task(&self, ticket: Ticket, slot: Slot) -> FetchTask {
        FetchTask::new(ticket, slot, self.context.settings.config.sources.len())
    }

    /// Takes a hash to its outcome, in a task of its own. A stop drops it, unfinished. What a pool in
    /// this process has announced needs no task, and no thread but the one that gets it.
    fn spawn(self: &Arc<Self>, mut task: FetchTask) {
        let source = task.source();
        if let Some(requests) = self.context.connections.get(source)
            && let Requests::InProcess(queues) = &*requests
            && let Some(permit) = self.limits[source].try_acquire()
        {
            let is_deferrable = task.ticket.is_deferrable();
            match queues.submit(self.pool_request(task, permit), is_deferrable) {
                Ok(()) => return,
                Err(back) => task = back.into_task(),
            }
        }
        self.context.tasks.spawn(Arc::clone(self).transaction(task));
    }
}
