//! What happens to one hash: deduplicated, requested, decoded, delivered, counted.

pub(crate) mod deferral;
pub(crate) mod deliver;
pub(crate) mod limit;
pub(crate) mod retry;
pub(crate) mod seen;
mod semaphore;
pub(crate) mod slots;

use std::{
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use alloy_primitives::B256;
use chain_view::RecentBlocks;
use tokio::{runtime::Handle, sync::mpsc};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(crate) use self::deliver::AnswerReader;
use crate::{
    config::FetcherConfig,
    fetch::deferral::{Deferral, DeferralPermit},
    fetch::limit::{NodeLimit, RequestPermit},
    fetch::seen::{Seen, SeenSet},
    fetch::slots::{Slot, Slots},
    outcome::{Entry, Outcome, Tally, Ticket},
    request::NotInserted,
    request::{RequestConnections, Requests},
    sink::TransactionSink,
    sink::thread::SinkQueue,
    sync::lock,
};

/// The state that all sources share.
#[derive(Debug)]
pub(crate) struct FetchContext<S> {
    pub(crate) config: FetcherConfig,
    pub(crate) sink: S,
    /// The calls of the sink other than deliveries.
    pub(crate) sink_queue: Arc<SinkQueue>,
    pub(crate) tally: Arc<Tally>,
    pub(crate) seen: Arc<SeenSet>,
    pub(crate) slots: Slots,
    pub(crate) deferral: Arc<Deferral>,
    pub(crate) requests: RequestConnections,
    /// How many requests may be in flight at each source.
    pub(crate) limits: Box<[Arc<NodeLimit>]>,
    pub(crate) mined: Mutex<RecentBlocks>,
    pub(crate) chain_id: Mutex<Option<u64>>,
    /// The runtime on the thread of the sockets.
    pub(crate) runtime: Handle,
    /// Fetches that wait for a retry, so that a stop can wait for them.
    pub(crate) tasks: TaskTracker,
    /// Held by each thread that may call the sink, so that a stop can wait for them.
    pub(crate) alive: Alive,
    pub(crate) stop: CancellationToken,
    pub(crate) sink_closed: CancellationToken,
    pub(crate) announcement_counts: Box<[Arc<AnnouncementCounts>]>,
}

/// Nothing is ever sent: the receiver sees the end when the last holder has gone.
pub(crate) type Alive = mpsc::Sender<Infallible>;

/// How many hashes a source announced, and how many of them before any other source.
#[derive(Debug, Default)]
pub(crate) struct AnnouncementCounts {
    pub(crate) announced: AtomicU64,
    pub(crate) first_seen: AtomicU64,
}

/// A hash that enters, with its origin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) hash: B256,
    pub(crate) entry: Entry,
    pub(crate) source: usize,
    pub(crate) at: Instant,
}

impl Arrival {
    /// True for backfill and audits; a live announcement stays live when it is requested again.
    fn is_deferrable(&self) -> bool {
        self.entry != Entry::Announced
    }
}

/// A hash that is being fetched.
#[derive(Debug)]
pub(crate) struct FetchTask {
    pub(crate) arrival: Arrival,
    pub(crate) ticket: Ticket,
    pub(crate) slot: Slot,
    /// Retries that were made.
    retries: u32,
    /// How many connections were lost while the request was in flight.
    losses: u32,
    /// Sources that have not been asked yet.
    pub(crate) untried: SourceSet,
}

/// A request in flight, as its connection keeps it.
#[derive(Debug)]
pub(crate) struct FetchRequest {
    pub(crate) task: FetchTask,
    /// The source that is asked.
    pub(crate) source: usize,
    pub(crate) permit: RequestPermit,
}

/// Up to 16 sources, as many as a configuration may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SourceSet(u16);

impl SourceSet {
    fn all(count: usize) -> Self {
        Self(u16::MAX.checked_shr(16 - count as u32).unwrap_or(0))
    }

    pub(crate) fn remove(&mut self, source: usize) {
        self.0 &= !(1 << source);
    }

    /// The sources of this set, `first` before the others.
    fn iter_from(self, first: usize) -> impl Iterator<Item = usize> {
        let contains = move |source: &usize| self.0 >> *source & 1 == 1;
        std::iter::once(first)
            .chain((0..16).filter(move |source| *source != first))
            .filter(contains)
    }
}

impl<S: TransactionSink> FetchContext<S> {
    /// Processes one announcement, and submits its request; [`RequestConnections::flush`] sends it.
    /// Waits while all slots are taken; meanwhile later announcements stay in the broadcast buffer,
    /// whose overrun is counted.
    pub(crate) async fn on_announcement(self: &Arc<Self>, arrival: Arrival) {
        let Some(ticket) = self.enter(&arrival) else { return };
        let slot = match self.slots.try_acquire_live(self.deferral.track_live_fetch()) {
            Ok(slot) => slot,
            Err(live) => {
                // Requests that are submitted must not wait for those that are not.
                self.requests.flush();
                self.slots.acquire_live(live).await
            }
        };
        self.submit(self.task(arrival, ticket, slot));
    }

    /// Counts an announcement. `None` when its outcome is already known: mined or seen.
    pub(crate) fn enter(&self, arrival: &Arrival) -> Option<Ticket> {
        let ticket = self.tally.enter(Entry::Announced);
        self.announcement_counts[arrival.source].announced.fetch_add(1, Relaxed);
        if self.is_mined(&arrival.hash) {
            ticket.leave(Outcome::Mined);
            return None;
        }
        if !self.seen.insert_announced(arrival.hash, arrival.at) {
            ticket.leave(Outcome::Known);
            return None;
        }
        self.announcement_counts[arrival.source].first_seen.fetch_add(1, Relaxed);
        Some(ticket.in_flight(&self.seen, arrival.hash))
    }

    /// Fetches a transaction that a comparison found missing. Returns as soon as a deferrable slot
    /// was free and the fetch has begun; it does not wait for the outcome.
    pub(crate) async fn fetch_missing(self: &Arc<Self>, arrival: Arrival, permit: DeferralPermit) {
        let ticket = self.tally.enter(arrival.entry).in_flight(&self.seen, arrival.hash);
        let slot = self.slots.acquire_deferrable(permit).await;
        self.submit(self.task(arrival, ticket, slot));
        self.requests.flush();
    }

    fn task(&self, arrival: Arrival, ticket: Ticket, slot: Slot) -> FetchTask {
        let untried = SourceSet::all(self.config.sources.len());
        FetchTask { arrival, ticket, slot, retries: 0, losses: 0, untried }
    }

    /// Submits the request to the first source that may be asked now; without one, a task waits.
    fn submit(self: &Arc<Self>, task: FetchTask) {
        if let Err(task) = self.try_submit(task) {
            self.spawn_submit(task);
        }
    }

    #[expect(clippy::result_large_err, reason = "a box would cost an allocation for each hash")]
    fn try_submit(&self, mut task: FetchTask) -> Result<(), FetchTask> {
        for source in task.untried.iter_from(task.arrival.source) {
            if let Some(permit) = self.limits[source].try_acquire(task.arrival.is_deferrable()) {
                match self.submit_to(source, permit, task) {
                    Ok(()) => return Ok(()),
                    Err(back) => task = back,
                }
            }
        }
        Err(task)
    }

    /// Submits the request to one source; returns it when that source has no connection.
    #[expect(clippy::result_large_err, reason = "a box would cost an allocation for each hash")]
    fn submit_to(
        &self,
        source: usize,
        permit: RequestPermit,
        task: FetchTask,
    ) -> Result<(), FetchTask> {
        let Some(requests) = self.requests.of(source) else { return Err(task) };
        let (hash, deferrable) = (task.arrival.hash, task.arrival.is_deferrable());
        let request = FetchRequest { task, source, permit };
        let submitted = match &requests {
            Requests::Node(set) => set.least_busy(deferrable).submit(&hash, request),
            Requests::InProcess(reader) => reader.submit(request, deferrable),
        };
        submitted.map_err(|refused| match refused {
            NotInserted::Closed(request) => {
                // Its source has not noticed yet.
                self.requests.remove(source, &requests);
                request.task
            }
            NotInserted::Full(request) => request.task,
        })
    }
}

impl<S> FetchContext<S> {
    /// Records the outcome of a hash, unless it was dropped without one.
    fn finish(&self, hash: B256, ticket: Ticket, outcome: Outcome, seen: Option<Seen>) {
        self.seen.settle(hash, seen);
        ticket.leave(outcome);
        // A block may have been applied, or removed by a reorg, since the look-up. Only a block
        // that contains the transaction makes it mined, and only while the block is canonical: a
        // transaction that lost its nonce to a block, or was mined in a block that we do not know,
        // may be pending again after a reorg.
        match seen {
            Some(Seen::Delivered) if self.is_mined(&hash) => _ = self.seen.mined(hash),
            Some(Seen::Mined) if !self.is_mined(&hash) => self.seen.forget_mined(hash),
            _ => {}
        }
    }

    /// Whether a recent block contains the transaction.
    pub(crate) fn is_mined(&self, hash: &B256) -> bool {
        lock(&self.mined).is_mined(hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sources_are_asked_in_their_order_after_the_one_that_announced() {
        for count in 1..=16 {
            let all = SourceSet::all(count);
            let order: Vec<_> = all.iter_from(count - 1).collect();
            let expected: Vec<_> = std::iter::once(count - 1).chain(0..count - 1).collect();
            assert_eq!(order, expected);
        }
        let mut some = SourceSet::all(4);
        some.remove(2);
        assert_eq!(some.iter_from(2).collect::<Vec<_>>(), [0, 1, 3]);
    }
}
