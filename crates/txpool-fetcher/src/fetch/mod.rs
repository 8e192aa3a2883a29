//! Fetches hashes: each is deduplicated, requested, decoded, delivered and counted. Entry:
//! [`Fetch::fetch_announced`] and [`Fetch::fetch_missing`]; read [`transaction`] first, which is
//! the whole way of one hash.
//!
//! A hash holds a fetch slot from before its request until its delivery has returned, so the slots
//! bound everything that is in flight. A live announcement may wait for a slot, and never for
//! deferrable work, which has few slots and its own connections.
//!
//! # Threads
//! Everything runs on `mempool-io`, the single thread of the fetcher's runtime, on which alloy
//! reads the sockets. While more than a few requests are in flight, decoding, sender recovery and
//! delivery of a response run on the thread `mempool-deliver` instead: see [`delivery_thread`].
//!
//! # Locks
//! | lock | taken by | for how long |
//! |---|---|---|
//! | seen hashes, 64 shards | announcements, responses, heads, audits, `FetcherHandle::announcers` | one look-up; an audit reads a whole shard, 50 us when full |
//! | recent blocks (in [`Hashes`]) | announcements and responses to look up, heads and nonces to add | a look-up, or the hashes of one block |
//! | a node's limit | a fetch when it begins and at its response, `status()` | a few fields |
//!
//! No two of these are held at the same time.

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
    transaction::{FetchTask, MAX_WAITING_FOR_LATE},
};
use crate::{
    context::Context, error::StartError, limits::ANNOUNCEMENT_BUFFER, node::Requests,
    outcome::Entry,
};

/// No fetch slot is free.
#[derive(Debug)]
pub(crate) struct NoSlot;

/// Fetches transactions, within the slots and the limits of the nodes.
pub(crate) struct Fetch {
    context: Arc<Context>,
    slots: Slots,
    /// For each source: the number of requests that may be in flight.
    limits: Box<[Arc<NodeLimit>]>,
    /// One permit, held by the request for a hash whose response may end its connection: with one
    /// such request at a time it is known which one does.
    suspects: Semaphore,
    /// Bounds the fetches that wait for late responses without a slot.
    late_room: Semaphore,
    /// Bounds the hashes of undone blocks that wait for slots.
    undone_room: Arc<Semaphore>,
    /// Whether a blob transaction was ever delivered.
    had_blobs: AtomicBool,
    delivery_thread: DeliveryThread,
}

/// A set of sources, by their indices: up to 16, as many as a configuration may have.
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

    /// Iterates over the sources of this set in ascending order, but `first` before the others.
    fn iter_from(self, first: usize) -> impl Iterator<Item = usize> {
        let others = self.iter().filter(move |source| *source != first);
        std::iter::once(first).filter(move |first| self.contains(*first)).chain(others)
    }
}

impl Fetch {
    /// Starts the thread for deliveries.
    ///
    /// # Errors
    /// The thread cannot be started, or the monitor cannot watch the slots.
    pub(crate) fn new(
        context: Arc<Context>,
        limits: Box<[Arc<NodeLimit>]>,
    ) -> Result<Self, StartError> {
        let delivery_thread = DeliveryThread::start(&context)
            .map_err(|error: io::Error| StartError::Thread { thread: "mempool-deliver", error })?;
        let slots = Slots::new(&context.settings, context.metrics.in_flight_bytes.clone())?;
        Ok(Self {
            slots,
            limits,
            suspects: Semaphore::new(1),
            late_room: Semaphore::new(MAX_WAITING_FOR_LATE),
            undone_room: Arc::new(Semaphore::new(ANNOUNCEMENT_BUFFER)),
            had_blobs: AtomicBool::new(false),
            delivery_thread,
            context,
        })
    }

    /// Counts an announcement, and fetches its hash if it is new. Waits for a slot, but not for the
    /// outcome.
    ///
    /// # Cancel safety
    /// If the future is dropped, a hash that waits for its slot counts as failed.
    pub(crate) async fn fetch_announced(self: &Arc<Self>, arrival: Arrival) {
        if let Some(ticket) = self.context.hashes.enter(arrival) {
            self.fetch(ticket).await;
        }
    }

    /// Like [`Self::fetch_announced`], if a slot is free. Otherwise it returns false and counts
    /// nothing.
    pub(crate) fn try_fetch_announced(self: &Arc<Self>, arrival: Arrival) -> bool {
        let Some(slot) = self.slots.try_acquire_live(arrival.source) else { return false };
        if let Some(ticket) = self.context.hashes.enter(arrival) {
            self.spawn(self.task(ticket, slot));
        }
        true
    }

    /// Fetches a hash that has entered. Waits for a slot, but not for the outcome.
    pub(crate) async fn fetch(self: &Arc<Self>, ticket: Ticket) {
        let slot = self.slots.acquire_live(ticket.arrival.source).await;
        self.spawn(self.task(ticket, slot));
    }

    /// Like [`Self::fetch`], if a slot is free. Otherwise it returns the ticket.
    pub(crate) fn try_fetch(self: &Arc<Self>, ticket: Ticket) -> Result<(), Ticket> {
        match self.slots.try_acquire_live(ticket.arrival.source) {
            Some(slot) => {
                self.spawn(self.task(ticket, slot));
                Ok(())
            }
            None => Err(ticket),
        }
    }

    /// Fetches a hash that a comparison found missing. Waits for a deferrable slot, but not for the
    /// outcome.
    pub(crate) async fn fetch_missing(self: &Arc<Self>, ticket: Ticket) {
        let slot = self.slots.acquire_deferrable(ticket.arrival.source).await;
        self.spawn(self.task(ticket, slot));
    }

    /// Like [`Self::fetch_missing`], for a hash that our own buffer lost: it was announced as
    /// recently as what is live, and waits for the same slots.
    pub(crate) async fn fetch_lost(self: &Arc<Self>, ticket: Ticket) {
        let slot = self.slots.acquire_lost(ticket.arrival.source).await;
        self.spawn(self.task(ticket, slot));
    }

    /// Counts an announcement for a caller that requests the transaction itself, from a pool in
    /// this process. Returns `None` if the hash is known, or if a task has to wait for a permit
    /// first.
    ///
    /// # Errors
    /// No slot is free, and nothing was counted.
    pub(crate) fn try_begin(
        self: &Arc<Self>,
        arrival: Arrival,
    ) -> Result<Option<PoolRequest>, NoSlot> {
        let slot = self.slots.try_acquire_live(arrival.source).ok_or(NoSlot)?;
        let Some(ticket) = self.context.hashes.enter(arrival) else { return Ok(None) };
        let task = self.task(ticket, slot);
        match self.limits[task.source()].try_acquire() {
            Some(permit) => Ok(Some(self.pool_request(task, permit))),
            None => {
                self.spawn(task);
                Ok(None)
            }
        }
    }

    /// Fetches hashes that were announced while a block contained them, after a reorg removed that
    /// block: a node that announced them before it announced the reorg does not repeat that.
    ///
    /// Hashes beyond the room are left to the comparison that follows a reorg. A leader that goes
    /// back and forth between branches may exceed it.
    pub(crate) fn fetch_undone(self: &Arc<Self>, source: usize, mut hashes: Vec<B256>) {
        let fetch = Arc::clone(self);
        hashes.truncate(self.undone_room.available_permits());
        let room = Arc::clone(&self.undone_room).try_acquire_many_owned(hashes.len() as u32);
        let Ok(room) = room else { return };
        self.context.tasks.spawn(async move {
            let _room = room;
            for hash in hashes {
                let received_at = Instant::now();
                // Not `Entry::Announced`: the announcement has been counted already.
                let arrival = Arrival { hash, entry: Entry::AuditRecovered, source, received_at };
                if let Some(ticket) = fetch.context.hashes.enter_undone(arrival) {
                    fetch.fetch(ticket).await;
                }
            }
        });
    }

    /// Forgets that requests to a source failed, if all are from before this time: a comparison
    /// that began then has found nothing to request.
    pub(crate) fn forget_failures_before(&self, source: usize, time: Instant) {
        self.limits[source].forget_failures_before(time);
    }

    /// Returns whether a source has returned a transaction since this time.
    pub(crate) fn has_returned_since(&self, source: usize, time: Instant) -> bool {
        self.limits[source].has_returned_since(time)
    }

    /// Records that a source has listed this many transactions twice, and returned them neither
    /// time: such requests have failed.
    pub(crate) fn record_listed_absent(&self, source: usize, count: u64) {
        self.limits[source].record_listed_absent(count);
    }

    /// Returns whether a blob transaction was ever delivered. geth does not list them.
    pub(crate) fn had_blobs(&self) -> bool {
        // Relaxed: a comparison reads this long after the deliveries that it is about.
        self.had_blobs.load(Relaxed)
    }

    fn task(&self, ticket: Ticket, slot: Slot) -> FetchTask {
        FetchTask::new(ticket, slot, self.context.settings.config.sources.len())
    }

    /// Takes a hash to its outcome in a separate task, which a stop drops. A request to a pool in
    /// this process needs no task if its permit is free: one of the pool's threads does the rest.
    fn spawn(self: &Arc<Self>, mut task: FetchTask) {
        let source = task.source();
        if let Some(requests) = self.context.connections.get(source)
            && let Requests::InProcess(queues) = &*requests
            && let Some(permit) = self.limits[source].try_acquire()
        {
            let is_deferrable = task.ticket.is_deferrable();
            match queues.submit(self.pool_request(task, permit), is_deferrable) {
                Ok(()) => return,
                Err(rejected) => task = rejected.into_task(),
            }
        }
        self.context.tasks.spawn(Arc::clone(self).transaction(task));
    }
}
