//! A pool in this process as a source. Entry: [`subscribe`] for its announcements and blocks,
//! [`start`] for the threads that get transactions. The trait is [`InProcessPool`](crate::InProcessPool).
//!
//! State machine, slots, outcomes and comparisons are those of a node. Only the two ends differ.
//!
//! - Its two streams stand for the subscription connection of a node; the end or the panic of either counts
//!   as a lost connection. A thread `mempool-announce` reads the announcements.
//! - That thread also gets and delivers the last of the hashes at hand: with one transaction at a time no other
//!   thread has to wake up, which costs more than everything else.
//! - The other requests go to one of two queues, live and deferrable, which the threads `mempool-get` read.
//! - No time-outs, no pings: a silent stream is found by the audit and the rule for stale sources.
//!
//! # Locks
//! | lock | who takes it | for how long |
//! |---|---|---|
//! | stream of announcements | its thread; `mempool-io` while a transaction holds that thread up | a poll of the stream, and to take in the hash it gave |

use std::{
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context as TaskContext, Poll, Waker},
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use crossbeam_channel::{bounded, never, select_biased};
use futures::{
    FutureExt as _, StreamExt as _,
    future::{Either, poll_fn, select},
};
use tokio::{
    runtime::Handle,
    sync::broadcast::{self, error::RecvError},
    time::sleep,
};

use crate::{
    announce::{Backlog, Readers, Subscription},
    chain::AnnouncedHead,
    config::Endpoint,
    context::Context,
    error::{ConnectError, LossReason},
    fetch::{Arrival, Fetch, PoolRequest},
    gap::{GapReason, Report},
    in_process_pool::{AnnouncementStream, BlockStream, InProcess, PoolAnnouncement},
    node::{End, Meter, NodeInfo, PoolQueues},
    outcome::Entry,
    sync::{OnDrop, block_on, contain, lock},
};

/// How long the thread of the announcements may be held up by one transaction before `mempool-io`
/// reads in its place. reth's stream holds 2,048 hashes, a second of 2,000/s.
const HELD_UP: Duration = Duration::from_millis(100);
/// Between two reads while it is held up: at 2,000/s some ten hashes.
const IN_ITS_PLACE: Duration = Duration::from_millis(5);

/// Subscribes to both streams. The future reads them until the subscription ends.
pub(crate) async fn subscribe(
    context: &Arc<Context>,
    fetch: &Arc<Fetch>,
    index: usize,
    pool: &InProcess,
    backlog: &Arc<Backlog>,
) -> Result<(Subscription, Readers), ConnectError> {
    let subscribed = pool.call(&context.tasks, "announcements", |pool| {
        (pool.chain_id(), pool.announcements(), pool.blocks())
    });
    let (chain_id, announcements, blocks) = subscribed.await?;
    context.chain_id.check(index, &context.settings.config.sources[index], chain_id).await?;
    let node = NodeInfo { client: pool.to_string(), chain_id };
    let ended: Arc<End> = Arc::default();
    let up = Subscription {
        node,
        ended: Arc::clone(&ended),
        was_reset: false,
        has_objects: false,
        connections: Vec::new(),
    };
    let (overflow, waiting) = broadcast::channel(context.settings.limits.announcement_buffer);
    let read = Arc::<AtomicU64>::default();
    let meter = Arc::new(Meter::new(context.settings.limits.announcement_buffer, {
        let read = Arc::clone(&read);
        move || read.load(Relaxed)
    }));
    backlog.add(&meter);
    let announcements = Arc::new(Announcements {
        unread: Mutex::new(Unread { stream: announcements, overflow, gets_since: None }),
        runtime: Handle::current(),
        source: index,
        read,
        meter: Arc::clone(&meter),
        context: Arc::clone(context),
        fetch: Arc::clone(fetch),
        backlog: Arc::clone(backlog),
    });
    let (subscribed, unread) = (Arc::clone(&ended), Arc::clone(&announcements));
    let caller = Caller::new(context, fetch, pool);
    let run = move || {
        let read = unread.read(|request| caller.get(request));
        let read = pin!(until_end("announcements", read));
        if let Either::Left((reason, _)) = block_on(select(read, pin!(subscribed.wait()))) {
            subscribed.set(reason);
        }
    };
    let endpoint = &context.settings.config.sources[index];
    let spawned = context.tasks.spawn_thread("mempool-announce", run);
    spawned.map_err(|error| ConnectError::io(endpoint, error))?;
    // On every path, also when a stream panics while it is dropped.
    let subscribed = Arc::clone(&ended);
    let ends = OnDrop(move || subscribed.set(LossReason::Closed));
    let overflow =
        fetch_overflow(waiting, meter, Arc::clone(context), Arc::clone(fetch), Arc::clone(backlog));
    let read = async move {
        let _ends = ends;
        let reason = tokio::select! {
            // The order is irrelevant: the first branch that ends, ends all.
            reason = ended.wait() => reason,
            reason = until_end("announcements", announcements.read_while_held_up()) => reason,
            reason = until_end("blocks", read_blocks(blocks, &announcements.backlog)) => reason,
        };
        ended.set(reason);
    };
    Ok((up, vec![read.boxed(), overflow.boxed()]))
}

/// Fetches what waits for slots, until the subscription has ended and nothing waits any more.
async fn fetch_overflow(
    mut waiting: broadcast::Receiver<Arrival>,
    meter: Arc<Meter>,
    context: Arc<Context>,
    fetch: Arc<Fetch>,
    backlog: Arc<Backlog>,
) {
    loop {
        match waiting.recv().await {
            Ok(arrival) => {
                meter.taken();
                fetch.announced(arrival).await;
                context.deferral.observe_backlog(arrival.source, || backlog.len());
            }
            Err(RecvError::Lagged(count)) => {
                meter.skip(count);
                lagged(&context, &backlog, meter.newly_lost()).await;
            }
            Err(RecvError::Closed) => return backlog.remove(&meter),
        }
    }
}

async fn lagged(context: &Context, backlog: &Backlog, count: u64) {
    context.metrics.lagged.add(count);
    tracing::warn!(count, "the pool's stream of announcements overran");
    backlog.report(Report::Gap(GapReason::Lagged)).await;
}

/// Why a stream that was read to its end has ended.
async fn until_end(stream: &'static str, read: impl Future<Output = ()>) -> LossReason {
    // The stream is not polled again after a panic.
    match AssertUnwindSafe(read).catch_unwind().await {
        Ok(()) => LossReason::StreamEnded(stream),
        Err(_) => LossReason::StreamPanicked(stream),
    }
}

/// The stream of announcements. The pool's own may be short, and loses what it drops without a
/// count. So it is drained at once; what finds no slot goes into a broadcast buffer like that of a node.
struct Announcements {
    unread: Mutex<Unread>,
    /// A stream may use its timers. The pool and the sink are called outside of it.
    runtime: Handle,
    source: usize,
    /// How many hashes were read. Relaxed: a count of its own.
    read: Arc<AtomicU64>,
    meter: Arc<Meter>,
    context: Arc<Context>,
    fetch: Arc<Fetch>,
    backlog: Arc<Backlog>,
}

struct Unread {
    stream: AnnouncementStream,
    overflow: broadcast::Sender<Arrival>,
    /// When the transaction was announced that the thread gets and delivers, until it polls again.
    gets_since: Option<Instant>,
}

impl Announcements {
    /// Reads to the end of the stream. Of the hashes at hand the threads `mempool-get` get all but the last.
    async fn read(&self, get: impl Fn(PoolRequest)) {
        let mut last: Option<(B256, Instant)> = None;
        loop {
            let polled = self.poll(&mut TaskContext::from_waker(Waker::noop()));
            let next = match (polled, last.take()) {
                (Poll::Ready(next), Some((hash, at))) => {
                    self.take(&lock(&self.unread), hash, at);
                    next
                }
                (Poll::Ready(next), None) => next,
                (Poll::Pending, Some((hash, at))) => {
                    self.begin(hash, at).into_iter().for_each(&get);
                    continue;
                }
                (Poll::Pending, None) => poll_fn(|context| self.poll(context)).await,
            };
            match next {
                Some(PoolAnnouncement::Pending(hash)) => last = Some((hash, Instant::now())),
                Some(PoolAnnouncement::Lagged(count)) => {
                    lagged(&self.context, &self.backlog, count).await;
                }
                None => return,
            }
        }
    }

    fn poll(&self, context: &mut TaskContext<'_>) -> Poll<Option<PoolAnnouncement>> {
        let _in_runtime = self.runtime.enter();
        let mut unread = lock(&self.unread);
        unread.gets_since = None;
        unread.stream.poll_next_unpin(context)
    }

    /// Fetches a hash, on one of the threads `mempool-get`; or it waits for a slot.
    fn take(&self, unread: &Unread, hash: B256, at: Instant) {
        let arrival = self.arrival(hash, at);
        if self.meter.waiting() == 1 && self.fetch.try_announced(arrival) {
            return self.meter.taken();
        }
        self.wait_for_slot(unread, arrival);
    }

    /// Begins to fetch a hash for the caller, who gets it itself; `None` if it is known, or waits.
    fn begin(&self, hash: B256, at: Instant) -> Option<PoolRequest> {
        let mut unread = lock(&self.unread);
        let arrival = self.arrival(hash, at);
        let mut request = None;
        if self.meter.waiting() == 1
            && let Some(begun) = self.fetch.try_begin(arrival)
        {
            self.meter.taken();
            request = begun;
        } else {
            self.wait_for_slot(&unread, arrival);
        }
        unread.gets_since = request.is_some().then_some(at);
        request
    }

    /// The hash is read, and waits.
    fn arrival(&self, hash: B256, at: Instant) -> Arrival {
        self.read.fetch_add(1, Relaxed);
        Arrival { hash, entry: Entry::Announced, source: self.source, at }
    }

    fn wait_for_slot(&self, unread: &Unread, arrival: Arrival) {
        // The receiver has ended only if the source has, which counts what waits.
        let _ = unread.overflow.send(arrival);
        self.context.deferral.observe_backlog(self.source, || self.backlog.len());
    }

    /// Reads in the place of the thread while one transaction holds it up: the disk may be slow, and the sink
    /// may block. Returns at the end of the stream.
    async fn read_while_held_up(&self) {
        loop {
            match self.next_if_held_up() {
                None => sleep(HELD_UP).await,
                Some(Poll::Pending) => sleep(IN_ITS_PLACE).await,
                Some(Poll::Ready(Some(PoolAnnouncement::Lagged(count)))) => {
                    lagged(&self.context, &self.backlog, count).await;
                }
                Some(Poll::Ready(Some(PoolAnnouncement::Pending(_)))) => {}
                Some(Poll::Ready(None)) => return,
            }
        }
    }

    /// Polls the stream while the thread is held up, and takes in the hash.
    fn next_if_held_up(&self) -> Option<Poll<Option<PoolAnnouncement>>> {
        // A thread that goes on polls after this, and its waker stays.
        let mut unread = lock(&self.unread);
        unread.gets_since.filter(|since| since.elapsed() >= HELD_UP)?;
        let next = unread.stream.poll_next_unpin(&mut TaskContext::from_waker(Waker::noop()));
        if let Poll::Ready(Some(PoolAnnouncement::Pending(hash))) = next {
            self.take(&unread, hash, Instant::now());
        }
        Some(next)
    }
}

async fn read_blocks(mut blocks: BlockStream, backlog: &Backlog) {
    while let Some(mined) = blocks.next().await {
        backlog.report(Report::Head(mined.block.head)).await;
        backlog.heads.push(AnnouncedHead::with_block(mined.into(), false));
        // The follower takes it before a burst of blocks displaces it.
        tokio::task::yield_now().await;
    }
}

/// Starts the threads, which end when the queues are dropped.
///
/// # Errors
/// A thread cannot be started. Those that were already started end.
pub(crate) fn start(
    context: &Arc<Context>,
    fetch: &Arc<Fetch>,
    pool: &InProcess,
) -> Result<PoolQueues<PoolRequest>, ConnectError> {
    let config = &context.settings.config;
    // Every submitted request holds a slot, so neither queue is ever full.
    let (live, live_requests) = bounded(config.fetch_slots);
    let (deferrable, deferrable_requests) = bounded(config.fetch_slots);
    for thread in 0..config.request_connections {
        // The other threads stay free for live transactions, however slow a backfill is.
        let takes_deferrable = thread < context.settings.deferrable_connections();
        let live = live_requests.clone();
        let deferrable = if takes_deferrable { deferrable_requests.clone() } else { never() };
        let caller = Caller::new(context, fetch, pool);
        let run = move || loop {
            let next = select_biased! {
                recv(live) -> request => request,
                recv(deferrable) -> request => request,
            };
            // Deferrable requests that still wait at the end are dropped, and count as failed.
            let Ok(request) = next else { return };
            caller.get(request);
        };
        let spawned = context.tasks.spawn_thread("mempool-get", run);
        spawned.map_err(|error| ConnectError::io(&Endpoint::InProcess(pool.clone()), error))?;
    }
    Ok(PoolQueues { live, deferrable })
}

/// Gets transactions from the pool and delivers them, on a thread that may block: the pool may read a
/// sidecar from the disk, and the sink may wait.
struct Caller {
    context: Arc<Context>,
    fetch: Arc<Fetch>,
    pool: InProcess,
}

impl Caller {
    fn new(context: &Arc<Context>, fetch: &Arc<Fetch>, pool: &InProcess) -> Self {
        Self { context: Arc::clone(context), fetch: Arc::clone(fetch), pool: pool.clone() }
    }

    fn get(&self, request: PoolRequest) {
        let tasks = &self.context.tasks;
        // Requests that wait at a stop stay unfinished.
        if tasks.stop.is_cancelled() {
            return;
        }
        let hash = request.hash();
        let found = self.pool.catch("get", |pool| pool.get(&hash));
        let is_absent = matches!(found, Ok(None));
        let Some(task) = self.fetch.answered_in_process(request, is_absent) else { return };
        match found {
            // It counts as failed.
            Err(_) => {}
            // Unlike a node, the pool returns no mined ones.
            Ok(None) => task.mined(),
            Ok(Some(tx)) => {
                contain(|| tasks.wait_for(self.fetch.deliver_in_process(task, tx), || {}));
            }
        }
    }
}
