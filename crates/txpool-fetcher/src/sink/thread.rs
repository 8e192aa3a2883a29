//! The thread that calls the sink with chain events and look-ups of hashes, and its queue. Adding
//! to the queue never waits; this file decides which events are dropped when it is full.

use std::{
    collections::{HashSet, VecDeque},
    mem::discriminant,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::Duration,
};

use alloy_primitives::B256;
use chain_view::{Block, BlockNonces};
use futures::{FutureExt as _, future::BoxFuture};
use tokio::{
    sync::{Notify, oneshot},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{ChainEvent, Delivery, FetchedTransaction, Holding, TransactionSink};
use crate::{limits::RECENT_BLOCKS, metrics::SinkMetrics, sync::lock, tasks::Tasks};

/// The number of heads that may wait for the sink, and the number of nonce updates that may. It is
/// the number of remembered blocks, so a dropped block is one that the fetcher forgets too. With
/// 1,000 transactions in each block, they take 5 MB.
const MAX_EVENTS: usize = RECENT_BLOCKS;

/// The number of hashes of dropped blocks that are kept for the next head: 2 MiB. Beyond that, the
/// oldest are dropped: transactions of blocks that old have expired in most pools.
const MAX_CARRIED: usize = 1 << 16;

/// The number of hashes in one look-up at the sink. It bounds how long a head waits for look-ups.
const LOOKUP_BATCH: usize = 64;

/// The number of hashes of a list of [`Job::Vanished`], [`Job::Listed`] or [`Job::Unlisted`] that
/// are reported before the other jobs that wait: about two milliseconds in the order pool.
const LIST_PART: usize = 1_024;

/// The pause between two parts of a list, in which deliveries get the locks of the sink.
const PART_PAUSE: Duration = Duration::from_millis(1);

/// How long a comparison waits for one look-up. The order pool takes microseconds.
const HOLDING_TIMEOUT: Duration = Duration::from_secs(2);

/// A job of the thread: a call, or calls, of the sink.
pub(crate) enum Job {
    /// Reports a head.
    Head {
        block: Block,
        /// A reorg has undone the block. If its event is dropped, its hashes are not carried on.
        is_undone: bool,
        /// Hashes of earlier blocks that have no event of their own: the event was dropped, or the
        /// block is before the first head.
        carried: Vec<B256>,
    },
    /// Reports the nonces of a block.
    Nonces(BlockNonces),
    /// Reports transactions that have left the nodes' pools.
    Vanished(Vec<B256>),
    /// Reports transactions that are listed by a node that could not be listed before.
    Listed(Vec<B256>),
    /// Reports transactions whose node cannot be listed any more.
    Unlisted(Vec<B256>),
    /// Reports that the chain was reset.
    Reset,
    /// Looks up hashes.
    Lookup { hashes: Vec<B256>, reply: oneshot::Sender<Vec<Holding>> },
}

/// The bounded queue of the thread: [`MAX_EVENTS`] heads and as many nonce updates, one list of
/// vanished hashes, one look-up for each running comparison, and the jobs for a node that can be
/// listed again, that cannot be listed any more, or whose chain was reset.
pub(crate) struct SinkQueue {
    waiting: Mutex<Waiting>,
    ready: Condvar,
    /// Notified when the sink has taken everything that waited, after events were dropped.
    pub(crate) caught_up: Notify,
    metrics: SinkMetrics,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    /// Events were dropped, and the sink has not yet taken all events that wait.
    has_dropped: bool,
    /// The queue accepts no more jobs.
    is_closed: bool,
}

/// Events for which there was no room. They are counted after the lock is released.
#[derive(Debug, Default, PartialEq, Eq)]
struct Dropped {
    heads: usize,
    nonces: usize,
    /// Hashes of dropped blocks beyond [`MAX_CARRIED`], which no head reports.
    mined: usize,
    /// These are the first dropped events since the sink had caught up.
    is_first: bool,
}

impl Job {
    /// Reduces a list to its last [`LIST_PART`] hashes, whose order is irrelevant. Returns the rest
    /// as another job.
    fn split_off(&mut self) -> Option<Self> {
        let (Self::Vanished(hashes) | Self::Listed(hashes) | Self::Unlisted(hashes)) = self else {
            return None;
        };
        let begin = hashes.len().saturating_sub(LIST_PART);
        // Only the part is copied.
        let part = hashes.split_off(begin);
        let later = std::mem::replace(hashes, part);
        if later.is_empty() {
            return None;
        }
        Some(match self {
            Self::Vanished(_) => Self::Vanished(later),
            Self::Listed(_) => Self::Listed(later),
            _ => Self::Unlisted(later),
        })
    }

    /// Returns whether the rest of a list may be reported after this job: not after another list,
    /// which may say the opposite, nor after a reset of the chain.
    const fn may_overtake_lists(&self) -> bool {
        matches!(self, Self::Head { .. } | Self::Nonces(_) | Self::Lookup { .. })
    }
}

impl SinkQueue {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            waiting: Mutex::default(),
            ready: Condvar::new(),
            caught_up: Notify::new(),
            metrics: SinkMetrics::new(),
        })
    }

    /// Notes that hashes are in no block of the chain any more, so that no waiting head reports
    /// them as hashes of a block before it.
    pub(crate) fn undo(&self, hashes: &[B256]) {
        let hashes: HashSet<B256> = hashes.iter().copied().collect();
        for job in &mut lock(&self.waiting).jobs {
            if let Job::Head { block, carried, is_undone } = job {
                carried.retain(|hash| !hashes.contains(hash));
                *is_undone |= block.mined.iter().any(|hash| hashes.contains(hash));
            }
        }
    }

    /// Queues hashes that have left the node's pool. Returns false if such a list waits already.
    pub(crate) fn push_vanished(&self, hashes: Vec<B256>) -> bool {
        if lock(&self.waiting).jobs.iter().any(|job| matches!(job, Job::Vanished(_))) {
            return false;
        }
        // Two comparisons that end at the same time may add one list each.
        self.push(Job::Vanished(hashes))
    }

    /// Looks up hashes at the sink. Returns one result for each hash, in order:
    /// [`Holding::Unknown`] from the first batch on for which the sink takes too long.
    ///
    /// # Cancel safety
    /// A look-up that nobody waits for is not performed.
    pub(crate) async fn holdings(&self, hashes: &[B256]) -> Vec<Holding> {
        let mut all = Vec::with_capacity(hashes.len());
        for batch in hashes.chunks(LOOKUP_BATCH) {
            let (reply, response) = oneshot::channel();
            self.push(Job::Lookup { hashes: batch.to_vec(), reply });
            match timeout(HOLDING_TIMEOUT, response).await {
                Ok(Ok(holdings)) => all.extend(holdings),
                // The fetcher stops.
                Ok(Err(_)) => break,
                Err(_) => {
                    tracing::warn!(
                        timeout = ?HOLDING_TIMEOUT,
                        "the sink did not say in time which hashes it holds: delivered ones count as \
                         held"
                    );
                    break;
                }
            }
        }
        all.resize(hashes.len(), Holding::Unknown);
        all
    }

    /// Closes the queue. The thread ends when it has run all waiting jobs.
    pub(crate) fn drain(&self) {
        lock(&self.waiting).is_closed = true;
        self.ready.notify_one();
    }

    /// Closes the queue and drops the waiting jobs. The thread ends as soon as the sink returns.
    pub(crate) fn end(&self) {
        self.drain();
        let left = std::mem::take(&mut lock(&self.waiting).jobs);
        self.metrics.waiting.decrement(left.len() as f64);
        // The other jobs do not count: the comparisons that they belong to have stopped.
        let heads = left.iter().filter(|job| matches!(job, Job::Head { .. })).count();
        let nonces = left.iter().filter(|job| matches!(job, Job::Nonces(_))).count();
        self.count_dropped(&Dropped { heads, nonces, ..Dropped::default() });
    }

    /// Runs a call of the sink. Returns `None` if it panics, and counts that.
    fn catch<T>(&self, call: &'static str, body: impl FnOnce() -> T) -> Option<T> {
        // The unwinding drops the captured values; they are not used again.
        catch_unwind(AssertUnwindSafe(body)).inspect_err(|_| self.count_panic(call)).ok()
    }

    fn count_panic(&self, call: &'static str) {
        tracing::error!(call, "a function of the sink panicked");
        self.metrics.count_panic(call);
    }

    fn count_dropped(&self, dropped: &Dropped) {
        if dropped.is_first {
            tracing::warn!(
                limit = MAX_EVENTS,
                "the sink does not keep up with the chain: its oldest events are dropped"
            );
        }
        let Dropped { heads, nonces, mined, .. } = *dropped;
        for (event, count) in [("head", heads), ("nonces", nonces), ("mined", mined)] {
            self.metrics.count_dropped(event, count as u64);
        }
    }

    /// Adds a job, and drops the oldest event of its kind if there is no room. Returns false if the
    /// queue is closed.
    pub(crate) fn push(&self, job: Job) -> bool {
        let mut waiting = lock(&self.waiting);
        if waiting.is_closed {
            return false;
        }
        let before = waiting.jobs.len();
        let dropped = waiting.push(job);
        let added = waiting.jobs.len() as f64 - before as f64;
        drop(waiting);
        self.ready.notify_one();
        self.metrics.waiting.increment(added);
        self.count_dropped(&dropped);
        true
    }

    /// Waits for the next job. Returns `None` when the queue is closed and empty.
    fn next(&self) -> Option<Job> {
        let mut waiting = lock(&self.waiting);
        loop {
            if let Some(mut job) = waiting.jobs.pop_front() {
                let rest = job.split_off();
                let is_last = rest.is_none();
                if let Some(rest) = rest {
                    let index = waiting.jobs.iter().take_while(|job| job.may_overtake_lists());
                    let index = index.count();
                    waiting.jobs.insert(index, rest);
                }
                drop(waiting);
                self.metrics.waiting.decrement(f64::from(u8::from(is_last)));
                return Some(job);
            }
            if waiting.is_closed {
                return None;
            }
            if std::mem::take(&mut waiting.has_dropped) {
                self.caught_up.notify_one();
            }
            waiting = self.ready.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Waiting {
    fn push(&mut self, job: Job) -> Dropped {
        let mut dropped = match &job {
            Job::Head { .. } | Job::Nonces(_) => self.make_room(&job),
            Job::Vanished(_)
            | Job::Listed(_)
            | Job::Unlisted(_)
            | Job::Reset
            | Job::Lookup { .. } => Dropped::default(),
        };
        if let Job::Lookup { .. } = job {
            // A comparison has at most one look-up that it waits for. Earlier ones are removed.
            self.jobs.retain(|job| !matches!(job, Job::Lookup { reply, .. } if reply.is_closed()));
        }
        self.jobs.push_back(job);
        if dropped != Dropped::default() {
            dropped.is_first = !std::mem::replace(&mut self.has_dropped, true);
        }
        dropped
    }

    /// Makes room for `job`, which is a head or a nonce update: if [`MAX_EVENTS`] of its kind wait,
    /// drops the oldest of these. The nonces of a dropped head are dropped too, and its hashes are
    /// carried on to the oldest head that is left, unless a reorg has undone its block.
    fn make_room(&mut self, job: &Job) -> Dropped {
        let is_same_kind = |other: &Job| discriminant(other) == discriminant(job);
        let mut dropped = Dropped::default();
        if self.jobs.iter().filter(|other| is_same_kind(other)).count() < MAX_EVENTS {
            return dropped;
        }
        let oldest = self.jobs.iter().position(is_same_kind);
        let oldest = oldest.and_then(|index| self.jobs.remove(index));
        let Some(Job::Head { block, carried, is_undone }) = oldest else {
            // It was a nonce update.
            dropped.nonces = 1;
            return dropped;
        };
        dropped.heads = 1;
        let before = self.jobs.len();
        let hash = block.head.hash;
        self.jobs.retain(|job| !matches!(job, Job::Nonces(nonces) if nonces.block_hash == hash));
        dropped.nonces = before - self.jobs.len();
        let mut unreported = carried;
        if !is_undone {
            unreported.extend(block.mined.iter());
        }
        // There is one, because only one of `MAX_EVENTS` heads was removed.
        let next_head = self.jobs.iter_mut().find_map(|job| match job {
            Job::Head { carried, .. } => Some(carried),
            _ => None,
        });
        if let Some(carried) = next_head {
            unreported.append(carried);
            dropped.mined = unreported.len().saturating_sub(MAX_CARRIED);
            unreported.drain(..dropped.mined);
            *carried = unreported;
        }
        dropped
    }
}

/// A [`TransactionSink`] as a trait object. Its futures are boxed, which is one allocation for each
/// call.
pub(crate) trait AnySink: Send + Sync {
    fn deliver_boxed(&self, tx: FetchedTransaction) -> BoxFuture<'_, Delivery>;
    fn chain_event_boxed(&self, event: ChainEvent) -> BoxFuture<'_, ()>;
    fn holding_any(&self, hash: &B256) -> Holding;
}

impl<S: TransactionSink> AnySink for S {
    fn deliver_boxed(&self, tx: FetchedTransaction) -> BoxFuture<'_, Delivery> {
        self.deliver(tx).boxed()
    }

    fn chain_event_boxed(&self, event: ChainEvent) -> BoxFuture<'_, ()> {
        self.chain_event(event).boxed()
    }

    fn holding_any(&self, hash: &B256) -> Holding {
        self.holding(hash)
    }
}

/// Calls the sink. A panic of the sink ends only that call, and is counted.
pub(crate) struct SinkCaller {
    sink: Box<dyn AnySink>,
    may_block: bool,
    pub(crate) queue: Arc<SinkQueue>,
    tasks: Arc<Tasks>,
    /// Cancelled when the sink has reported that it is closed.
    pub(crate) closed: CancellationToken,
}

impl SinkCaller {
    pub(crate) fn new(sink: impl TransactionSink, tasks: &Arc<Tasks>) -> Self {
        Self {
            may_block: sink.may_block(),
            sink: Box::new(sink),
            queue: SinkQueue::new(),
            tasks: Arc::clone(tasks),
            closed: CancellationToken::new(),
        }
    }

    /// Returns whether a delivery may block the thread that calls it.
    pub(crate) fn may_block(&self) -> bool {
        self.may_block
    }

    /// Delivers a transaction. The result is `None` if the sink panics.
    ///
    /// The sink is called at once, so that the returned future does not hold the transaction.
    pub(crate) fn deliver(
        &self,
        tx: FetchedTransaction,
    ) -> impl Future<Output = Option<Delivery>> + Send {
        // The sink may panic before it returns its future, or in it. The unwinding drops what the
        // sink was given, and that is not used again.
        let delivery = catch_unwind(AssertUnwindSafe(|| self.sink.deliver_boxed(tx)));
        async move {
            let result = match delivery {
                Ok(delivery) => AssertUnwindSafe(delivery).catch_unwind().await,
                Err(panic) => Err(panic),
            };
            result.inspect_err(|_| self.queue.count_panic("deliver")).ok()
        }
    }

    /// The body of the thread: runs the jobs until the queue is closed.
    pub(crate) fn run(&self) {
        while let Some(job) = self.queue.next() {
            match job {
                Job::Head { mut block, mut carried, .. } => {
                    if !carried.is_empty() {
                        carried.extend(block.mined.iter());
                        block = Block::new(block.head, carried);
                    }
                    self.report(ChainEvent::Head(block));
                }
                Job::Nonces(nonces) => self.report(ChainEvent::Nonces(nonces)),
                Job::Vanished(hashes) => self.report_each(hashes, ChainEvent::Vanished),
                Job::Listed(hashes) => self.report_each(hashes, ChainEvent::Listed),
                Job::Unlisted(hashes) => self.report_each(hashes, ChainEvent::Unlisted),
                Job::Reset => self.report(ChainEvent::Reset),
                Job::Lookup { hashes, reply } => {
                    let holdings = hashes.iter().map(|hash| {
                        let found = self.queue.catch("holding", || self.sink.holding_any(hash));
                        found.unwrap_or(Holding::Unknown)
                    });
                    // The error means that the comparison no longer waits.
                    let _ = reply.send(holdings.collect());
                }
            }
        }
    }

    /// Reports one event for each hash, and pauses after a full part of a list.
    fn report_each(&self, hashes: Vec<B256>, event: fn(B256) -> ChainEvent) {
        let is_full_part = hashes.len() == LIST_PART;
        hashes.into_iter().map(event).for_each(|event| self.report(event));
        if is_full_part {
            thread::sleep(PART_PAUSE);
        }
    }

    /// Reports a chain event to the sink.
    fn report(&self, event: ChainEvent) {
        let kind = event.as_str();
        let call = async { self.sink.chain_event_boxed(event).await };
        let result = self.queue.catch(kind, || self.tasks.wait_for(call, || {}));
        if result == Some(None) {
            // The fetcher stopped while the sink waited.
            self.queue.metrics.count_dropped(kind, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chain_view::Head;

    fn hash(number: u64, branch: u8) -> B256 {
        let mut hash = B256::repeat_byte(branch);
        hash[..8].copy_from_slice(&number.to_be_bytes());
        hash
    }

    fn block(number: u64) -> Block {
        let head = Head::new(number, hash(number, 1), hash(number.wrapping_sub(1), 1));
        Block::new(head, [hash(number, 2)])
    }

    fn head(number: u64) -> Job {
        Job::Head { block: block(number), is_undone: false, carried: Vec::new() }
    }

    fn nonces(number: u64) -> Job {
        Job::Nonces(BlockNonces::new(hash(number, 1), Vec::new()))
    }

    fn heads(queue: &SinkQueue) -> Vec<(u64, usize)> {
        let jobs = std::mem::take(&mut lock(&queue.waiting).jobs);
        let head = |job: &Job| match job {
            Job::Head { block, carried, .. } => Some((block.head.number, carried.len())),
            _ => None,
        };
        jobs.iter().filter_map(head).collect()
    }

    #[test]
    fn hashes_of_undone_dropped_blocks_are_not_carried_on() {
        let queue = SinkQueue::new();
        for number in 1..=MAX_EVENTS as u64 + 3 {
            queue.push(head(number));
        }
        queue.undo(&[hash(2, 2), hash(9, 2)]);
        let heads = heads(&queue);
        assert_eq!(heads[0], (4, 2), "the hashes of the first and the third");

        let queue = SinkQueue::new();
        (1..=2).for_each(|number| _ = queue.push(head(number)));
        queue.undo(&[hash(2, 2)]);
        (3..=MAX_EVENTS as u64 + 2).for_each(|number| _ = queue.push(head(number)));
        assert_eq!(
            self::heads(&queue)[0],
            (3, 1),
            "the hash of the first block alone, although both were dropped later"
        );
    }

    #[test]
    fn the_hashes_of_dropped_blocks_are_bounded() {
        let mut waiting = Waiting::default();
        let mined = vec![B256::ZERO; MAX_CARRIED / 2 + 1];
        let mut dropped = 0;
        for number in 1..=MAX_EVENTS as u64 + 2 {
            let block = Block::new(block(number).head, mined.clone());
            let job = Job::Head { block, is_undone: false, carried: Vec::new() };
            dropped += waiting.push(job).mined;
        }
        assert_eq!(dropped, 2);
    }

    #[test]
    fn nonces_are_dropped_with_their_heads_and_bounded_without_them() {
        let queue = SinkQueue::new();
        (1..=2).for_each(|number| _ = queue.push(nonces(number)));
        (1..=MAX_EVENTS as u64 + 2).for_each(|number| _ = queue.push(head(number)));
        assert_eq!(lock(&queue.waiting).jobs.len(), MAX_EVENTS);
        for number in 0..2 * MAX_EVENTS as u64 {
            queue.push(nonces(number));
        }
        assert_eq!(lock(&queue.waiting).jobs.len(), 2 * MAX_EVENTS);
    }

    /// Before, a head waited until all hashes of a list were reported: 0.2 s for 100,000.
    #[test]
    fn heads_are_reported_between_the_parts_of_a_list() {
        let queue = SinkQueue::new();
        let list = |byte| vec![B256::repeat_byte(byte); 2 * LIST_PART + 1];
        queue.push(Job::Listed(list(1)));
        queue.push(head(1));
        queue.push(nonces(1));
        queue.push(Job::Unlisted(list(2)));
        queue.push(head(2));
        queue.push(Job::Reset);
        queue.push(head(3));
        queue.drain();
        let line = |job| match job {
            Job::Head { block, .. } => format!("head {}", block.head.number),
            Job::Nonces(_) => "nonces".to_owned(),
            Job::Listed(hashes) => format!("listed {}", hashes.len()),
            Job::Unlisted(hashes) => format!("unlisted {}", hashes.len()),
            Job::Reset => "reset".to_owned(),
            Job::Vanished(_) | Job::Lookup { .. } => unreachable!(),
        };
        let jobs: Vec<_> = std::iter::from_fn(|| queue.next()).map(line).collect();
        let expected = [
            "listed 1024",
            "head 1",
            "nonces",
            "listed 1024",
            "listed 1",
            "unlisted 1024",
            "head 2",
            "unlisted 1024",
            "unlisted 1",
            "reset",
            "head 3",
        ];
        assert_eq!(jobs, expected);
    }

    #[test]
    fn look_ups_that_nobody_waits_for_do_not_pile_up() {
        let queue = SinkQueue::new();
        for _ in 0..100 {
            queue.push(Job::Lookup { hashes: Vec::new(), reply: oneshot::channel().0 });
        }
        assert_eq!(lock(&queue.waiting).jobs.len(), 1);
    }

    #[test]
    fn a_second_list_of_vanished_hashes_waits_for_the_first() {
        let queue = SinkQueue::new();
        assert!(queue.push_vanished(vec![B256::ZERO]));
        assert!(!queue.push_vanished(vec![B256::ZERO]));
        assert!(queue.next().is_some());
        assert!(queue.push_vanished(vec![B256::ZERO]));
    }

    #[test]
    fn the_end_drops_waiting_events_and_draining_does_not() {
        let queue = SinkQueue::new();
        queue.push(head(1));
        queue.drain();
        queue.push(head(2));
        assert!(queue.next().is_some() && queue.next().is_none());

        let queue = SinkQueue::new();
        queue.push(head(1));
        queue.end();
        assert!(queue.next().is_none());
    }
}
