//! What happens to one hash: deduplicated, requested, decoded, delivered, counted. Entry:
//! [`Fetch::on_announcement`] and [`Fetch::fetch_missing`].
//!
//! A hash holds a slot from before its request until its delivery has returned, so slots bound
//! everything that is in flight. A live announcement waits for a slot and never for deferrable
//! work, which has few slots and connections of its own.
//!
//! # Locks
//! | lock | who takes it | for how long |
//! |---|---|---|
//! | seen, 64 shards | who reads announcements, request threads, heads, audits, `Fetcher::announcers` | one look-up; an audit reads one of the 64 shards, 50 us when full |
//! | recent blocks (in [`Hashes`]) | who reads announcements and request threads to look up, heads and nonces to add | a look-up, or one block's hashes |
//! | a node's limit | a fetch when it begins and at its response, `status()` | a few fields |
//!
//! No two of these are ever held together.

mod deferral;
mod deliver;
mod hashes;
mod limit;
mod retry;
mod seen;
mod slots;

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Instant,
};

use tokio::sync::Semaphore;

pub(crate) use self::{
    deferral::Deferral,
    deliver::{Deliverer, ResponseReader},
    hashes::{AnnouncementCounts, Arrival, Hashes, Ticket, Waiting},
    limit::NodeLimit,
    retry::REQUESTED_ALONE,
    seen::{SHARDS, Seen},
    slots::{Slot, Slots},
};
pub use self::{deferral::DeferredStats, limit::ADAPTIVE_FLOOR};
use self::{limit::RequestPermit, retry::HARMFUL_LOSSES};
use alloy_primitives::B256;

use crate::{
    config::Settings,
    connection::Listings,
    metrics::Metrics,
    outcome::{Entry, Outcome},
    request::{RequestConnections, Requests},
    tasks::Tasks,
};

/// How transactions are requested.
pub(crate) struct Fetch {
    pub(crate) settings: Arc<Settings>,
    pub(crate) hashes: Arc<Hashes>,
    pub(crate) connections: RequestConnections<FetchRequest>,
    pub(crate) slots: Slots,
    /// How many requests may be in flight at each source.
    pub(crate) limits: Box<[Arc<NodeLimit>]>,
    /// Of each source's pool.
    pub(crate) listings: Box<[Arc<Listings>]>,
    pub(crate) deferral: Deferral,
    /// How many requests are sent over connections of their own at once.
    pub(crate) alone: Semaphore,
    /// Hashes that wait for their objects.
    pub(crate) waiting: Arc<Waiting>,
    /// Whether a blob transaction was ever delivered. geth does not list them.
    pub(crate) had_blobs: AtomicBool,
    /// Room for hashes of undone blocks that wait for slots.
    pub(crate) undone: Arc<Semaphore>,
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) metrics: Arc<Metrics>,
}

pub(crate) struct FetchTask {
    pub(crate) ticket: Ticket,
    pub(crate) slot: Slot,
    /// Which is asked, or was asked last.
    source: usize,
    retries: u32,
    /// Its response may end the connection: it is requested over connections of its own, of which so many were lost.
    alone: Option<u32>,
    /// Sources that have not been asked yet.
    untried: SourceSet,
    /// Those that did not have it when they were asked, and had not announced it.
    early: SourceSet,
    /// Those whose latest response was an error that may pass, or none.
    unanswered: SourceSet,
}

/// A request in flight, as its connection keeps it.
pub(crate) struct FetchRequest {
    task: FetchTask,
    /// Its source had not announced the transaction when it was asked.
    is_early: bool,
    permit: RequestPermit,
}

/// Up to 16 sources, as many as a configuration may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SourceSet(u16);

impl FetchRequest {
    pub(crate) fn hash(&self) -> B256 {
        self.task.ticket.arrival.hash
    }
}

impl SourceSet {
    fn all(count: usize) -> Self {
        Self(u16::MAX.checked_shr(16 - count as u32).unwrap_or(0))
    }

    fn of(source: usize) -> Self {
        Self(1 << source)
    }

    fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    fn remove(&mut self, source: usize) {
        self.0 &= !(1 << source);
    }

    fn contains(self, source: usize) -> bool {
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
    /// Processes one announcement: submits its request for the next flush. False: no slot is free.
    pub(crate) fn try_announcement(self: &Arc<Self>, arrival: Arrival) -> bool {
        let Some(slot) = self.slots.try_acquire_live(arrival.source) else { return false };
        if let Some(ticket) = self.hashes.enter(arrival) {
            self.submit(self.task(ticket, slot));
        }
        true
    }

    /// The same for a caller that sends it itself. `Some(None)`: known, or it waits at its source.
    pub(crate) fn try_begin(self: &Arc<Self>, arrival: Arrival) -> Option<Option<FetchRequest>> {
        let slot = self.slots.try_acquire_live(arrival.source)?;
        let Some(ticket) = self.hashes.enter(arrival) else { return Some(None) };
        let task = self.task(ticket, slot);
        let permit = self.limits[task.source].try_acquire();
        let Some(permit) = permit.filter(|_| task.alone.is_none()) else {
            self.submit(task);
            return Some(None);
        };
        Some(Some(self.request_of(task, permit)))
    }

    /// The same, and waits while all slots are taken.
    pub(crate) async fn on_announcement(self: &Arc<Self>, arrival: Arrival) {
        if let Some(ticket) = self.hashes.enter(arrival) {
            self.request(ticket).await;
        }
    }

    /// The same for one that has entered.
    pub(crate) async fn request(self: &Arc<Self>, ticket: Ticket) {
        let Err(ticket) = self.try_request(ticket) else { return };
        // Requests that are submitted must not wait for those that are not.
        self.connections.flush();
        let slot = self.slots.acquire_live(ticket.arrival.source).await;
        self.submit(self.task(ticket, slot));
    }

    /// The same without a wait; returned if it has to wait for a slot.
    pub(crate) fn try_request(self: &Arc<Self>, ticket: Ticket) -> Result<(), Ticket> {
        let slot = self.slots.try_acquire_live(ticket.arrival.source);
        let Some(slot) = slot else { return Err(ticket) };
        self.submit(self.task(ticket, slot));
        Ok(())
    }

    /// Requests what was announced while a block contained it: a node that told it before the head
    /// that removes the block does not tell it again. A leader that goes back and forth may have
    /// more than there is room for: the rest is left to the comparison that a reorg begins.
    pub(crate) fn undone(self: &Arc<Self>, source: usize, mut hashes: Vec<B256>) {
        let fetch = Arc::clone(self);
        hashes.truncate(self.undone.available_permits());
        let room = Arc::clone(&self.undone).try_acquire_many_owned(hashes.len() as u32);
        let Ok(room) = room else { return };
        self.tasks.spawn(async move {
            let _room = room;
            for hash in hashes {
                let at = Instant::now();
                // Its announcement has been counted.
                let arrival = Arrival { hash, entry: Entry::AuditRecovered, source, at };
                if let Some(ticket) = fetch.hashes.enter_undone(arrival) {
                    fetch.request(ticket).await;
                }
            }
            fetch.connections.flush();
        });
    }

    /// Fetches what a comparison found missing. Waits for a deferrable slot, not for the outcome.
    pub(crate) async fn fetch_missing(self: &Arc<Self>, ticket: Ticket) {
        let slot = self.slots.acquire_deferrable(ticket.arrival.source).await;
        self.submit(self.task(ticket, slot));
        self.connections.flush();
    }

    /// The response to a request of `sent`. Returns the task, unless the transaction `is_gone` and
    /// another source, one that failed before, or one that announced it since is asked.
    pub(crate) fn answered(
        self: &Arc<Self>,
        request: FetchRequest,
        sent: Instant,
        is_gone: bool,
    ) -> Option<FetchTask> {
        let FetchRequest { mut task, is_early, permit } = request;
        permit.record(None, task.ticket.is_deferrable());
        self.metrics.fetch_seconds.record(sent.elapsed().as_secs_f64());
        task.unanswered.remove(task.source);
        if !is_gone {
            return Some(task);
        }
        if is_early {
            task.early = task.early.or(SourceSet::of(task.source));
        }
        self.ask_other(task)
    }

    /// A useless response. Returns the task, unless another source that announced it is asked, or is not
    /// connected: then the hash has failed, and comes again with its announcement or a comparison.
    fn ask_other(self: &Arc<Self>, mut task: FetchTask) -> Option<FetchTask> {
        task.untried.remove(task.source);
        self.ask_again(&mut task);
        if !task.ticket.entered.is_undone {
            // Nothing waits for one that would have to have what it has not announced.
            let sources = self.hashes.seen.sources(&task.ticket.arrival.hash);
            task.untried = task.untried.and(sources);
            task.unanswered = task.unanswered.and(sources);
        }
        let left = task.untried.or(task.unanswered);
        let is_over = left == SourceSet::default() || task.ticket.entered.is_undone;
        match self.is_any_up(left) {
            true => self.spawn_retry(task, None),
            false if is_over => return Some(task),
            false => task.ticket.finish(Outcome::Failed, Some(Seen::Failed)),
        }
        None
    }

    fn task(&self, ticket: Ticket, slot: Slot) -> FetchTask {
        let untried = SourceSet::all(self.settings.config.sources.len());
        // What has ended connections before is not given as many.
        let alone = ticket.entered.is_suspect.then_some(HARMFUL_LOSSES - 1);
        let (early, unanswered) = <_>::default();
        let source = ticket.arrival.source;
        FetchTask { ticket, slot, source, retries: 0, alone, untried, early, unanswered }
    }

    fn request_of(&self, task: FetchTask, permit: RequestPermit) -> FetchRequest {
        let Ticket { arrival, entered, .. } = &task.ticket;
        // As of now: its announcement may come while its response is under way.
        let has_announced = || self.hashes.seen.sources(&arrival.hash).contains(task.source);
        let is_early = (task.source != arrival.source || entered.is_undone) && !has_announced();
        FetchRequest { task, is_early, permit }
    }

    /// Submits the request to the first source that may be asked now; without one, a task waits.
    fn submit(self: &Arc<Self>, mut task: FetchTask) {
        let may_ask = if task.alone.is_some() { SourceSet::default() } else { task.untried };
        for source in may_ask.iter_from(task.ticket.arrival.source) {
            if let Some(permit) = self.limits[source].try_acquire() {
                task.source = source;
                match self.submit_to(task, permit) {
                    Ok(()) => return,
                    Err(back) => task = back,
                }
            }
        }
        let fetch = Arc::clone(self);
        self.tasks.spawn(async move { fetch.submit_when_possible(task).await });
    }

    /// Submits the request to its source; returns it when that has no connection.
    #[expect(clippy::result_large_err, reason = "a box would cost an allocation for each hash")]
    fn submit_to(&self, task: FetchTask, permit: RequestPermit) -> Result<(), FetchTask> {
        let source = task.source;
        let Some(requests) = self.connections.of(source) else { return Err(task) };
        let (hash, deferrable) = (task.ticket.arrival.hash, task.ticket.is_deferrable());
        let request = self.request_of(task, permit);
        let submitted = match &*requests {
            Requests::Node(set) => {
                set.least_busy(deferrable).submit_fetch(&hash, request).map(|_| ())
            }
            Requests::InProcess(queues) => queues.submit(request, deferrable),
        };
        submitted.map_err(|request| {
            // The connection has ended, and its source has not noticed yet.
            self.connections.remove(source, &requests);
            request.task
        })
    }
}
