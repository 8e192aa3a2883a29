//! The subscription to a pool in this process: its streams, read as a node's announcements are.

use std::{
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use futures::{
    FutureExt as _, StreamExt as _,
    future::{BoxFuture, Either, poll_fn, select},
};
use tokio::{runtime::Handle, time::sleep};

use super::get;
use crate::{
    announce::{Backlog, HashReader},
    chain::AnnouncedHead,
    connection::{End, NodeInfo, Subscription},
    error::{ConnectError, LossReason},
    fetch::{Deliverer, Fetch, FetchRequest},
    gap::{GapReason, Report},
    in_process_pool::{AnnouncementStream, BlockStream, InProcess, PoolAnnouncement},
    sink::TransactionSink,
    sync::{OnDrop, block_on, lock},
};

/// How long the thread of the announcements may be held up by one transaction before `mempool-io`
/// reads in its place. reth's stream holds 2,048 hashes, a second of 2,000/s.
const HELD_UP: Duration = Duration::from_millis(100);
/// Between two reads while it is held up: at 2,000/s some ten hashes.
const IN_ITS_PLACE: Duration = Duration::from_millis(5);

/// Subscribes to both streams. The future reads them until the subscription ends.
pub(crate) async fn subscribe<S: TransactionSink>(
    deliverer: &Arc<Deliverer<S>>,
    index: usize,
    pool: &InProcess,
    backlog: &Arc<Backlog>,
) -> Result<(Subscription, BoxFuture<'static, ()>), ConnectError> {
    let fetch = &deliverer.fetch;
    let subscribed = pool.call(&fetch.tasks, "announcements", |pool| {
        (pool.chain_id(), pool.announcements(), pool.blocks())
    });
    let (chain_id, announcements, blocks) = subscribed.await?;
    deliverer.chain_id.check(index, &fetch.settings.config.sources[index], chain_id).await?;
    let node = NodeInfo { client: pool.to_string(), chain_id };
    let ended: Arc<End> = Arc::default();
    let up = Subscription { node, ended: Arc::clone(&ended), connections: Vec::new() };
    let announcements = Arc::new(Announcements {
        unread: Mutex::new((announcements, HashReader::new(fetch, index, backlog, None))),
        busy: AtomicU64::new(0),
        runtime: Handle::current(),
        fetch: Arc::clone(fetch),
        backlog: Arc::clone(backlog),
    });
    let tasks = &fetch.tasks;
    let (deliverer, called) = (Arc::clone(deliverer), pool.clone());
    let (subscribed, unread) = (Arc::clone(&ended), Arc::clone(&announcements));
    let run = move || {
        let _ends = OnDrop(|| subscribed.set(LossReason::Closed));
        let read = unread.read(|request| get(&deliverer, &called, request));
        let read = pin!(until_end("announcements", read));
        if let Either::Left((reason, _)) = block_on(select(read, pin!(subscribed.wait()))) {
            subscribed.set(reason);
        }
    };
    tasks.spawn_thread("mempool-announce", run).map_err(|error| ConnectError::io(pool, error))?;
    // On every path, also when a stream panics while it is dropped.
    let subscribed = Arc::clone(&ended);
    let ends = OnDrop(move || subscribed.set(LossReason::Closed));
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
    Ok((up, read.boxed()))
}

/// Why a stream that was read to its end has ended.
async fn until_end(stream: &'static str, read: impl Future<Output = ()>) -> LossReason {
    // The stream is not polled again after a panic.
    match AssertUnwindSafe(read).catch_unwind().await {
        Ok(()) => LossReason::StreamEnded(stream),
        Err(_) => LossReason::StreamPanicked(stream),
    }
}

/// The stream of announcements.
///
/// The pool's own stream may be short (reth's holds 2,048 hashes), and loses what it drops without
/// a count. So it is drained at once, into a buffer of ours whose overrun is counted.
struct Announcements {
    /// Locked for a poll of the stream, and to pass on what it gave.
    unread: Mutex<(AnnouncementStream, HashReader)>,
    /// Counts up when the thread begins to get a transaction, and when it has delivered it: odd in between.
    /// Changed without the lock; who polls has it, so that no waker of the thread is lost.
    busy: AtomicU64,
    /// A stream may use its timers. The pool and the sink are called outside of it.
    runtime: Handle,
    fetch: Arc<Fetch>,
    backlog: Arc<Backlog>,
}

impl Announcements {
    /// Reads to the end of the stream. Of the hashes at hand the threads `mempool-get` get all but the last.
    async fn read(&self, get: impl Fn(FetchRequest)) {
        let mut last: Option<(B256, Instant)> = None;
        loop {
            let polled = self.poll(&mut Context::from_waker(Waker::noop()));
            let next = match (polled, last.take()) {
                (Poll::Ready(next), Some((hash, at))) => {
                    lock(&self.unread).1.take(hash, at);
                    next
                }
                (Poll::Ready(next), None) => next,
                (Poll::Pending, Some((hash, at))) => {
                    let request = lock(&self.unread).1.begin(hash, at);
                    if let Some(request) = request {
                        self.busy.fetch_add(1, Relaxed);
                        get(request);
                        self.busy.fetch_add(1, Relaxed);
                    }
                    continue;
                }
                (Poll::Pending, None) => {
                    // What had to be requested from another source.
                    self.fetch.connections.flush();
                    poll_fn(|context| self.poll(context)).await
                }
            };
            match next {
                Some(PoolAnnouncement::Pending(hash)) => last = Some((hash, Instant::now())),
                Some(PoolAnnouncement::Lagged(count)) => self.lagged(count).await,
                None => return,
            }
        }
    }

    fn poll(&self, context: &mut Context<'_>) -> Poll<Option<PoolAnnouncement>> {
        let _in_runtime = self.runtime.enter();
        lock(&self.unread).0.poll_next_unpin(context)
    }

    /// Reads in the place of the thread while one transaction holds it up: the disk may be slow, and the sink
    /// may block. Returns at the end of the stream.
    async fn read_while_held_up(&self) {
        let mut before = 0;
        loop {
            sleep(HELD_UP).await;
            let busy = self.busy.load(Relaxed);
            if busy.is_multiple_of(2) || std::mem::replace(&mut before, busy) != busy {
                continue;
            }
            while let Some(next) = self.next_if(busy) {
                match next {
                    Poll::Ready(Some(PoolAnnouncement::Lagged(count))) => self.lagged(count).await,
                    Poll::Ready(Some(PoolAnnouncement::Pending(_))) => {}
                    Poll::Ready(None) => return,
                    Poll::Pending => sleep(IN_ITS_PLACE).await,
                }
            }
        }
    }

    /// Polls the stream while the thread is held up by the same transaction, and takes in the hash.
    fn next_if(&self, busy: u64) -> Option<Poll<Option<PoolAnnouncement>>> {
        let (stream, hashes) = &mut *lock(&self.unread);
        // Under the lock: a thread that goes on polls after this, and its waker stays.
        if self.busy.load(Relaxed) != busy {
            return None;
        }
        let next = stream.poll_next_unpin(&mut Context::from_waker(Waker::noop()));
        if let Poll::Ready(Some(PoolAnnouncement::Pending(hash))) = next {
            hashes.take(hash, Instant::now());
        }
        Some(next)
    }

    async fn lagged(&self, count: u64) {
        self.fetch.metrics.lagged.add(count);
        tracing::warn!(count, "the pool's stream of announcements overran");
        self.backlog.report(Report::Gap(GapReason::Lagged)).await;
    }
}

async fn read_blocks(mut blocks: BlockStream, backlog: &Backlog) {
    while let Some(mined) = blocks.next().await {
        backlog.report(Report::Head(mined.block.head)).await;
        backlog.heads.push(AnnouncedHead::with_block(mined.into(), false), 0);
        // The follower takes it before a burst of blocks displaces it.
        tokio::task::yield_now().await;
    }
}
