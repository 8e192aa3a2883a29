//! A pool in this process as a source: reads its streams, and calls it for transactions. Entry:
//! [`subscribe`] for its announcements and blocks, [`start`] for the threads that request
//! transactions. The trait is [`InProcessPool`](crate::InProcessPool).
//!
//! State machine, slots, outcomes and comparisons are those of a node. These things differ:
//!
//! - Its two streams stand for the subscription connection of a node. The end or the panic of
//!   either counts as a lost connection. A thread `mempool-announce` reads the announcements.
//! - When several hashes are ready, this thread requests and delivers the last one itself. So with
//!   one transaction at a time no other thread has to wake up, which would cost more than
//!   everything else.
//! - The other requests go to one of two queues, for live and for deferrable work, from which the
//!   threads `mempool-get` take them.
//! - There are no time-outs and no pings: a silent stream is found by the audit and the rule for
//!   stale sources.
//!
//! # Locks
//! | lock | taken by | for how long |
//! |---|---|---|
//! | stream of announcements | its thread; `mempool-io` while a transaction blocks that thread | a poll of the stream, and the entry of its hash |

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

/// How long one transaction may block the thread of the announcements before `mempool-io` reads in
/// its place. reth's stream holds 2,048 hashes, a second of 2,000/s.
const MAX_BLOCKED: Duration = Duration::from_millis(100);

/// The pause between two reads of `mempool-io` in place of that thread: ten hashes at 2,000/s.
const READ_INTERVAL: Duration = Duration::from_millis(5);

/// Subscribes to both streams of the pool. The returned tasks read them until the subscription
/// ends.
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
    let subscription = Subscription {
        node,
        ended: Arc::clone(&ended),
        genesis: None,
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
        unread: Mutex::new(Unread { stream: announcements, overflow, blocked_since: None }),
        runtime: Handle::current(),
        source: index,
        read,
        meter: Arc::clone(&meter),
        context: Arc::clone(context),
        fetch: Arc::clone(fetch),
        backlog: Arc::clone(backlog),
    });
    let (thread_ended, thread_announcements) = (Arc::clone(&ended), Arc::clone(&announcements));
    let caller = Caller::new(context, fetch, pool);
    let run = move || {
        let read = thread_announcements.read(|request| caller.get(request));
        let read = pin!(until_end("announcements", read));
        if let Either::Left((reason, _)) = block_on(select(read, pin!(thread_ended.wait()))) {
            thread_ended.set(reason);
        }
    };
    let endpoint = &context.settings.config.sources[index];
    let spawned = context.tasks.spawn_thread("mempool-announce", run);
    spawned.map_err(|error| ConnectError::io(endpoint, error))?;
    // The subscription ends on every path, also when a stream panics while it is dropped.
    let ended_on_drop = Arc::clone(&ended);
    let sets_end = OnDrop(move || ended_on_drop.set(LossReason::Closed));
    let overflow =
        fetch_overflow(waiting, meter, Arc::clone(context), Arc::clone(fetch), Arc::clone(backlog));
    let read = async move {
        let _sets_end = sets_end;
        let reason = tokio::select! {
            // The order is irrelevant: the first branch that is ready ends the subscription.
            reason = ended.wait() => reason,
            reason = until_end("announcements", announcements.read_while_blocked()) => reason,
            reason = until_end("blocks", read_blocks(blocks, &announcements.backlog)) => reason,
        };
        ended.set(reason);
    };
    Ok((subscription, vec![read.boxed(), overflow.boxed()]))
}

/// Fetches the hashes that wait for slots, until the subscription has ended and none waits any
/// more.
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
                meter.count_taken();
                fetch.fetch_announced(arrival).await;
                context.deferral.observe_backlog(arrival.source, || backlog.len());
            }
            Err(RecvError::Lagged(count)) => {
                meter.skip(count);
                report_lag(&context, &backlog, meter.newly_lost()).await;
            }
            Err(RecvError::Closed) => return backlog.remove(&meter),
        }
    }
}

/// Counts announcements that the pool's stream lost, and opens a gap.
async fn report_lag(context: &Context, backlog: &Backlog, count: u64) {
    context.metrics.lagged.add(count);
    tracing::warn!(count, "the pool's stream lost announcements: its pool is compared");
    backlog.report(Report::Gap(GapReason::Lagged)).await;
}

/// Runs `read`, which reads a stream to its end, and returns the reason of the end.
async fn until_end(stream: &'static str, read: impl Future<Output = ()>) -> LossReason {
    // The stream is not polled again after a panic.
    match AssertUnwindSafe(read).catch_unwind().await {
        Ok(()) => LossReason::StreamEnded(stream),
        Err(_) => LossReason::StreamPanicked(stream),
    }
}

/// The stream of announcements. The pool's own buffer may be short, and may drop hashes without a
/// count. So the stream is read at once, and hashes for which no slot is free go into a broadcast
/// buffer like that of a node.
struct Announcements {
    unread: Mutex<Unread>,
    /// The stream is polled inside of this runtime, because it may use timers. The pool and the
    /// sink are called outside of it.
    runtime: Handle,
    source: usize,
    /// The number of hashes read. Relaxed: a count of its own.
    read: Arc<AtomicU64>,
    meter: Arc<Meter>,
    context: Arc<Context>,
    fetch: Arc<Fetch>,
    backlog: Arc<Backlog>,
}

struct Unread {
    stream: AnnouncementStream,
    overflow: broadcast::Sender<Arrival>,
    /// While the thread requests and delivers a transaction: when that transaction was announced.
    blocked_since: Option<Instant>,
}

impl Announcements {
    /// Reads the stream to its end. When several hashes are ready, the threads `mempool-get`
    /// request all but the last one, which `request` gets and delivers on this thread.
    async fn read(&self, request: impl Fn(PoolRequest)) {
        let mut last: Option<(B256, Instant)> = None;
        loop {
            let polled = self.poll(&mut TaskContext::from_waker(Waker::noop()));
            let next = match (polled, last.take()) {
                (Poll::Ready(next), Some((hash, received_at))) => {
                    self.take(&lock(&self.unread), hash, received_at);
                    next
                }
                (Poll::Ready(next), None) => next,
                (Poll::Pending, Some((hash, received_at))) => {
                    if let Some(begun) = self.begin(hash, received_at) {
                        request(begun);
                    }
                    continue;
                }
                (Poll::Pending, None) => poll_fn(|context| self.poll(context)).await,
            };
            match next {
                Some(PoolAnnouncement::Pending(hash)) => last = Some((hash, Instant::now())),
                Some(PoolAnnouncement::Lagged(count)) => {
                    report_lag(&self.context, &self.backlog, count).await;
                }
                None => return,
            }
        }
    }

    /// Polls the stream from its thread, which is no longer blocked then.
    fn poll(&self, context: &mut TaskContext<'_>) -> Poll<Option<PoolAnnouncement>> {
        let _in_runtime = self.runtime.enter();
        let mut unread = lock(&self.unread);
        unread.blocked_since = None;
        unread.stream.poll_next_unpin(context)
    }

    /// Fetches a hash on one of the threads `mempool-get`, or lets it wait for a slot.
    fn take(&self, unread: &Unread, hash: B256, received_at: Instant) {
        let arrival = self.count_read(hash, received_at);
        // With 1, no hash waits for a slot before this one.
        if self.meter.waiting() == 1 && self.fetch.try_fetch_announced(arrival) {
            return self.meter.count_taken();
        }
        self.wait_for_slot(unread, arrival);
    }

    /// Begins to fetch a hash for the caller, which requests the transaction itself. `None` if the
    /// hash is known, fetched by another thread, or waits for a slot.
    fn begin(&self, hash: B256, received_at: Instant) -> Option<PoolRequest> {
        let mut unread = lock(&self.unread);
        let arrival = self.count_read(hash, received_at);
        let mut request = None;
        if self.meter.waiting() == 1
            && let Ok(begun) = self.fetch.try_begin(arrival)
        {
            self.meter.count_taken();
            request = begun;
        } else {
            self.wait_for_slot(&unread, arrival);
        }
        unread.blocked_since = request.is_some().then_some(received_at);
        request
    }

    /// Counts a hash that was read, which waits from then on.
    fn count_read(&self, hash: B256, received_at: Instant) -> Arrival {
        self.read.fetch_add(1, Relaxed);
        Arrival { hash, entry: Entry::Announced, source: self.source, received_at }
    }

    /// Puts a hash into the buffer from which [`fetch_overflow`] fetches it.
    fn wait_for_slot(&self, unread: &Unread, arrival: Arrival) {
        // The error means that the source has ended, which has counted the hashes that wait.
        let _ = unread.overflow.send(arrival);
        self.context.deferral.observe_backlog(self.source, || self.backlog.len());
    }

    /// Reads in place of the thread while one transaction blocks it, because the disk may be slow
    /// and the sink may block. Returns at the end of the stream.
    async fn read_while_blocked(&self) {
        loop {
            match self.next_if_blocked() {
                None => sleep(MAX_BLOCKED).await,
                Some(Poll::Pending) => sleep(READ_INTERVAL).await,
                Some(Poll::Ready(Some(PoolAnnouncement::Lagged(count)))) => {
                    report_lag(&self.context, &self.backlog, count).await;
                }
                Some(Poll::Ready(Some(PoolAnnouncement::Pending(_)))) => {}
                Some(Poll::Ready(None)) => return,
            }
        }
    }

    /// Polls the stream, and lets its hash enter. `None` if the thread is not blocked.
    fn next_if_blocked(&self) -> Option<Poll<Option<PoolAnnouncement>>> {
        // A thread that is no longer blocked polls the stream again after this, so its waker is the
        // last one that the stream gets.
        let mut unread = lock(&self.unread);
        unread.blocked_since.filter(|since| since.elapsed() >= MAX_BLOCKED)?;
        let next = unread.stream.poll_next_unpin(&mut TaskContext::from_waker(Waker::noop()));
        if let Poll::Ready(Some(PoolAnnouncement::Pending(hash))) = next {
            self.take(&unread, hash, Instant::now());
        }
        Some(next)
    }
}

/// Reads the stream of blocks to its end.
async fn read_blocks(mut blocks: BlockStream, backlog: &Backlog) {
    while let Some(mined) = blocks.next().await {
        backlog.report(Report::Head(mined.block.head)).await;
        backlog.heads.push(AnnouncedHead::with_block(mined.into(), false));
        // Lets the follower take the head before a burst of blocks displaces it.
        tokio::task::yield_now().await;
    }
}

/// Starts the threads `mempool-get`, which end when the returned queues are dropped.
///
/// # Errors
/// A thread cannot be started. Threads that were already started end.
pub(crate) fn start(
    context: &Arc<Context>,
    fetch: &Arc<Fetch>,
    pool: &InProcess,
) -> Result<PoolQueues<PoolRequest>, ConnectError> {
    let config = &context.settings.config;
    // Every request in a queue holds a slot, so neither queue is ever full.
    let (live, live_requests) = bounded(config.fetch_slots);
    let (deferrable, deferrable_requests) = bounded(config.fetch_slots);
    for thread in 0..config.request_connections {
        // The other threads take live requests alone, however slow a backfill is.
        let takes_deferrable = thread < context.settings.deferrable_connections();
        let live = live_requests.clone();
        let deferrable = if takes_deferrable { deferrable_requests.clone() } else { never() };
        let caller = Caller::new(context, fetch, pool);
        let run = move || loop {
            let next = select_biased! {
                recv(live) -> request => request,
                recv(deferrable) -> request => request,
            };
            // The queues are dropped. Deferrable requests that still wait count as failed.
            let Ok(request) = next else { return };
            caller.get(request);
        };
        let spawned = context.tasks.spawn_thread("mempool-get", run);
        spawned.map_err(|error| ConnectError::io(&Endpoint::InProcess(pool.clone()), error))?;
    }
    Ok(PoolQueues { live, deferrable })
}

/// Requests transactions from the pool and delivers them, on a thread that may block: the pool may
/// read a sidecar from the disk, and the sink may wait.
struct Caller {
    context: Arc<Context>,
    fetch: Arc<Fetch>,
    pool: InProcess,
}

impl Caller {
    fn new(context: &Arc<Context>, fetch: &Arc<Fetch>, pool: &InProcess) -> Self {
        Self { context: Arc::clone(context), fetch: Arc::clone(fetch), pool: pool.clone() }
    }

    /// Requests one transaction, and delivers it or continues its fetch elsewhere.
    fn get(&self, request: PoolRequest) {
        let tasks = &self.context.tasks;
        // The hashes of requests that wait at a stop stay unfinished.
        if tasks.stop.is_cancelled() {
            return;
        }
        let hash = request.hash();
        let found = self.pool.catch("get", |pool| pool.get(&hash));
        let is_absent = matches!(found, Ok(None));
        let Some(task) = self.fetch.on_pool_response(request, is_absent) else { return };
        match found {
            // The pool panicked. The dropped task counts as failed.
            Err(_) => {}
            // Unlike a node, the pool does not return mined transactions.
            Ok(None) => task.finish_mined(),
            Ok(Some(tx)) => {
                contain(|| tasks.wait_for(self.fetch.deliver_in_process(task, tx), || {}));
            }
        }
    }
}
