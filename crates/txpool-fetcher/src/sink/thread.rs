//! The thread that calls the sink with chain events and look-ups of hashes, and its queue. Adding
//! to it never waits: see [`TransactionSink`] for what is dropped.

use std::{
    collections::{HashSet, VecDeque},
    mem::discriminant,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, PoisonError},
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

/// Heads that wait for the sink, and as many nonce updates: a dropped block is one that the fetcher
/// forgets too. With 1000 transactions in each block, they take 5 MB.
const EVENTS_WAITING: usize = RECENT_BLOCKS;

/// Most hashes of dropped blocks that are kept for the next head: 2 MiB. Beyond that, the oldest
/// are dropped: transactions of so old a block have expired in most pools.
const MINED_WAITING: usize = 1 << 16;

/// Hashes in one look-up at the sink: the longest that a head waits for look-ups.
const ASKED_TOGETHER: usize = 64;

/// How long a comparison waits for one look-up. The order pool takes microseconds.
const HOLDING_TIMEOUT: Duration = Duration::from_secs(2);

/// What the thread does.
pub(crate) enum Job {
    Head {
        block: Block,
        /// A reorg has undone it: what it mined is told no more if it is dropped.
        is_undone: bool,
        /// What blocks before it contain that the sink was not told: they were dropped, or are before the first head.
        carried: Vec<B256>,
    },
    Nonces(BlockNonces),
    /// These have left the node's pool.
    Vanished(Vec<B256>),
    /// These are listed by a node that could not be listed before.
    Listed(Vec<B256>),
    /// The node that has listed these cannot be listed any more.
    Unlisted(Vec<B256>),
    /// The chain has another genesis block.
    Reset,
    Holding(Vec<B256>, oneshot::Sender<Vec<Holding>>),
}

/// The bounded queue of the sink: heads and nonce updates by [`EVENTS_WAITING`] each, one list of
/// vanished hashes, one look-up for each running comparison, and what follows from a node that can be
/// listed again, or no longer, or that has another genesis block.
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
    /// Events were dropped and the sink has not yet taken everything that waited.
    is_behind: bool,
    /// No more is accepted.
    is_closed: bool,
}

/// Jobs for which there was no room, to be counted after the lock is released.
#[derive(Debug, Default, PartialEq, Eq)]
struct Dropped {
    heads: usize,
    nonces: usize,
    mined: usize,
    is_first: bool,
}

impl SinkQueue {
    pub(crate) fn new() -> Arc<Self> {
        let (waiting, ready, caught_up) = <_>::default();
        Arc::new(Self { waiting, ready, caught_up, metrics: SinkMetrics::new() })
    }

    /// These are in no block of the chain any more: no head that waits tells that a block before it mined them.
    pub(crate) fn undo(&self, hashes: &[B256]) {
        let hashes: HashSet<B256> = hashes.iter().copied().collect();
        for job in &mut lock(&self.waiting).jobs {
            if let Job::Head { block, carried, is_undone } = job {
                carried.retain(|hash| !hashes.contains(hash));
                *is_undone |= block.mined.iter().any(|hash| hashes.contains(hash));
            }
        }
    }

    /// Queues hashes that have left the node's pool. False if such a list already waits.
    pub(crate) fn push_vanished(&self, hashes: Vec<B256>) -> bool {
        let waits = |job: &Job| matches!(job, Job::Vanished(_));
        if lock(&self.waiting).jobs.iter().any(waits) {
            return false;
        }
        // Two comparisons at the same moment may add one list each.
        self.push(Job::Vanished(hashes))
    }

    /// Looks up hashes at the sink, in order; unknown if it is late. A dropped look-up is not run.
    pub(crate) async fn holding(&self, hashes: &[B256]) -> Vec<Holding> {
        let mut all = Vec::with_capacity(hashes.len());
        for some in hashes.chunks(ASKED_TOGETHER) {
            let (reply, answer) = oneshot::channel();
            self.push(Job::Holding(some.to_vec(), reply));
            match timeout(HOLDING_TIMEOUT, answer).await {
                Ok(Ok(holdings)) => all.extend(holdings),
                // The fetcher stops.
                Ok(Err(_)) => break,
                Err(_) => {
                    tracing::warn!("the sink does not answer which hashes it holds");
                    break;
                }
            }
        }
        all.resize(hashes.len(), Holding::Unknown);
        all
    }

    /// Accepts no more. Waiting jobs are run, then the thread ends.
    pub(crate) fn drain(&self) {
        lock(&self.waiting).is_closed = true;
        self.ready.notify_one();
    }

    /// Drops waiting jobs. The thread ends as soon as the sink returns.
    pub(crate) fn end(&self) {
        self.drain();
        let left = std::mem::take(&mut lock(&self.waiting).jobs);
        self.metrics.waiting.decrement(left.len() as f64);
        // Not the others: the comparison has stopped, and a list of vanished hashes is no chain event.
        let count = |is_kind: fn(&&Job) -> bool| left.iter().filter(is_kind).count();
        let heads = count(|job| matches!(job, Job::Head { .. }));
        let nonces = count(|job| matches!(job, Job::Nonces(_)));
        self.count(&Dropped { heads, nonces, ..Dropped::default() });
    }

    /// Runs a call of the sink; `None` if it panics, which is counted.
    fn guard<T>(&self, call: &'static str, body: impl FnOnce() -> T) -> Option<T> {
        // The unwinding drops the captured values; they are not used again.
        catch_unwind(AssertUnwindSafe(body)).inspect_err(|_| self.panicked(call)).ok()
    }

    fn panicked(&self, call: &'static str) {
        tracing::error!(call, "the sink has panicked");
        self.metrics.panicked(call);
    }

    fn count(&self, dropped: &Dropped) {
        if dropped.is_first {
            tracing::warn!("the sink does not keep up with the chain: events are dropped");
        }
        let Dropped { heads, nonces, mined, .. } = *dropped;
        for (event, count) in [("head", heads), ("nonces", nonces), ("mined", mined)] {
            self.metrics.dropped(event, count as u64);
        }
    }

    /// False at the end.
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
        self.count(&dropped);
        true
    }

    /// Waits for the next job. `None` at the end.
    fn next(&self) -> Option<Job> {
        let mut waiting = lock(&self.waiting);
        loop {
            if let Some(job) = waiting.jobs.pop_front() {
                drop(waiting);
                self.metrics.waiting.decrement(1.0);
                return Some(job);
            }
            if waiting.is_closed {
                return None;
            }
            if std::mem::take(&mut waiting.is_behind) {
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
            | Job::Holding(..) => Dropped::default(),
        };
        if let Job::Holding(..) = job {
            // Each comparison has one at most: its caller no longer waits for an earlier one.
            self.jobs.retain(|job| !matches!(job, Job::Holding(_, reply) if reply.is_closed()));
        }
        self.jobs.push_back(job);
        if dropped != Dropped::default() {
            dropped.is_first = !std::mem::replace(&mut self.is_behind, true);
        }
        dropped
    }

    /// Drops the oldest event of the kind of this one, if no further one may wait. The nonces of a
    /// head go with it; its mined hashes are passed to the next one.
    fn make_room(&mut self, job: &Job) -> Dropped {
        let is_kind = |other: &Job| discriminant(other) == discriminant(job);
        let mut dropped = Dropped::default();
        if self.jobs.iter().filter(|job| is_kind(job)).count() < EVENTS_WAITING {
            return dropped;
        }
        let oldest = self.jobs.iter().position(is_kind).and_then(|oldest| self.jobs.remove(oldest));
        let Some(Job::Head { block, carried: mut mined, is_undone }) = oldest else {
            dropped.nonces = 1;
            return dropped;
        };
        dropped.heads = 1;
        let before = self.jobs.len();
        let of_it =
            |job: &Job| matches!(job, Job::Nonces(nonces) if nonces.block_hash == block.head.hash);
        self.jobs.retain(|job| !of_it(job));
        dropped.nonces = before - self.jobs.len();
        if !is_undone {
            mined.extend(block.mined.iter());
        }
        let next = self.jobs.iter_mut().find_map(|job| match job {
            Job::Head { carried, .. } => Some(carried),
            _ => None,
        });
        if let Some(carried) = next {
            mined.append(carried);
            dropped.mined = mined.len().saturating_sub(MINED_WAITING);
            mined.drain(..dropped.mined);
            *carried = mined;
        }
        dropped
    }
}

/// A [`TransactionSink`] of any type: one allocation for each call.
pub(crate) trait AnySink: Send + Sync {
    fn deliver_boxed(&self, tx: FetchedTransaction) -> BoxFuture<'_, Delivery>;
    fn chain_event_boxed(&self, event: ChainEvent) -> BoxFuture<'_, ()>;
    fn holding_of(&self, hash: &B256) -> Holding;
}

impl<S: TransactionSink> AnySink for S {
    fn deliver_boxed(&self, tx: FetchedTransaction) -> BoxFuture<'_, Delivery> {
        self.deliver(tx).boxed()
    }

    fn chain_event_boxed(&self, event: ChainEvent) -> BoxFuture<'_, ()> {
        self.chain_event(event).boxed()
    }

    fn holding_of(&self, hash: &B256) -> Holding {
        self.holding(hash)
    }
}

/// Calls the sink. A panic ends the call, and is counted.
pub(crate) struct SinkCaller {
    sink: Box<dyn AnySink>,
    may_block: bool,
    pub(crate) queue: Arc<SinkQueue>,
    tasks: Arc<Tasks>,
    /// The sink has reported that it is closed.
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

    /// Whether a delivery may block the thread that calls it.
    pub(crate) fn may_block(&self) -> bool {
        self.may_block
    }

    /// `None` if the sink panics.
    pub(crate) async fn deliver(&self, tx: FetchedTransaction) -> Option<Delivery> {
        // The sink's own code runs even before its future is polled. The unwinding drops the captured
        // values; they are not used again.
        let call = AssertUnwindSafe(async { self.sink.deliver_boxed(tx).await }).catch_unwind();
        call.await.inspect_err(|_| self.queue.panicked("deliver")).ok()
    }

    /// Runs the jobs, until the queue ends and the sink has returned.
    pub(crate) fn run(&self) {
        while let Some(job) = self.queue.next() {
            match job {
                Job::Head { mut block, mut carried, .. } => {
                    if !carried.is_empty() {
                        carried.extend(block.mined.iter());
                        block = Block::new(block.head, carried);
                    }
                    self.tell(ChainEvent::Head(block));
                }
                Job::Nonces(nonces) => self.tell(ChainEvent::Nonces(nonces)),
                Job::Vanished(hashes) => self.tell_each(hashes, ChainEvent::Vanished),
                Job::Listed(hashes) => self.tell_each(hashes, ChainEvent::Listed),
                Job::Unlisted(hashes) => self.tell_each(hashes, ChainEvent::Unlisted),
                Job::Reset => self.tell(ChainEvent::Reset),
                Job::Holding(hashes, reply) => {
                    let holdings = hashes.iter().map(|hash| {
                        let found = self.queue.guard("holding", || self.sink.holding_of(hash));
                        found.unwrap_or(Holding::Unknown)
                    });
                    // The comparison may have stopped waiting.
                    let _ = reply.send(holdings.collect());
                }
            }
        }
    }

    fn tell_each(&self, hashes: Vec<B256>, event: fn(B256) -> ChainEvent) {
        hashes.into_iter().map(event).for_each(|event| self.tell(event));
    }

    fn tell(&self, event: ChainEvent) {
        let what = event.as_str();
        let call = async { self.sink.chain_event_boxed(event).await };
        let told = self.queue.guard(what, || self.tasks.wait_for(call, || {}));
        if told == Some(None) {
            // The fetcher stops, and the sink would have waited.
            self.queue.metrics.dropped(what, 1);
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
    fn what_a_reorg_undoes_of_dropped_blocks_is_not_told() {
        let queue = SinkQueue::new();
        for number in 1..=EVENTS_WAITING as u64 + 3 {
            queue.push(head(number));
        }
        queue.undo(&[hash(2, 2), hash(9, 2)]);
        let heads = heads(&queue);
        assert_eq!(heads[0], (4, 2), "the hashes of the first and the third");

        let queue = SinkQueue::new();
        (1..=2).for_each(|number| _ = queue.push(head(number)));
        queue.undo(&[hash(2, 2)]);
        (3..=EVENTS_WAITING as u64 + 2).for_each(|number| _ = queue.push(head(number)));
        assert_eq!(
            self::heads(&queue)[0],
            (3, 1),
            "of the first alone, though both were dropped later"
        );
    }

    #[test]
    fn what_is_kept_of_dropped_blocks_is_bounded_too() {
        let mut waiting = Waiting::default();
        let mined = vec![B256::ZERO; MINED_WAITING / 2 + 1];
        let mut dropped = 0;
        for number in 1..=EVENTS_WAITING as u64 + 2 {
            let block = Block::new(block(number).head, mined.clone());
            let job = Job::Head { block, is_undone: false, carried: Vec::new() };
            dropped += waiting.push(job).mined;
        }
        assert_eq!(dropped, 2);
    }

    #[test]
    fn nonces_go_with_their_heads_and_are_bounded_without_them_too() {
        let queue = SinkQueue::new();
        (1..=2).for_each(|number| _ = queue.push(nonces(number)));
        (1..=EVENTS_WAITING as u64 + 2).for_each(|number| _ = queue.push(head(number)));
        assert_eq!(lock(&queue.waiting).jobs.len(), EVENTS_WAITING);
        for number in 0..2 * EVENTS_WAITING as u64 {
            queue.push(nonces(number));
        }
        assert_eq!(lock(&queue.waiting).jobs.len(), 2 * EVENTS_WAITING);
    }

    #[test]
    fn requests_that_nobody_waits_for_do_not_pile_up() {
        let queue = SinkQueue::new();
        for _ in 0..100 {
            queue.push(Job::Holding(Vec::new(), oneshot::channel().0));
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
    fn the_end_drops_what_waits_and_draining_does_not() {
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
