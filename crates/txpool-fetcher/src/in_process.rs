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
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use alloy_consensus::transaction::Recovered;
use alloy_eips::Encodable2718 as _;
use alloy_primitives::B256;
use chain_view::PooledTransaction;
use crossbeam_channel::{bounded, never, select_biased};
use futures::{
    FutureExt as _, StreamExt as _,
    future::{BoxFuture, Either, poll_fn, select},
};
use tokio::{runtime::Handle, time::sleep};

use crate::{
    announce::{Backlog, HashReader},
    chain::AnnouncedHead,
    connection::{End, NodeInfo, Subscription},
    decode::{Malformed, verify_blob_proofs},
    error::{ConnectError, LossReason},
    fetch::{Deliverer, Fetch, FetchRequest, FetchTask, Seen, Ticket},
    gap::{GapReason, Report},
    in_process_pool::{AnnouncementStream, BlockStream, InProcess, PoolAnnouncement},
    outcome::Outcome,
    request::PoolQueues,
    sink::TransactionSink,
    sync::{OnDrop, block_on, contain, lock},
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
        unread: Mutex::new(Unread {
            stream: announcements,
            hashes: HashReader::new(fetch, index, backlog, None),
            gets_since: None,
        }),
        runtime: Handle::current(),
        fetch: Arc::clone(fetch),
        backlog: Arc::clone(backlog),
    });
    let tasks = &fetch.tasks;
    let (deliverer, called) = (Arc::clone(deliverer), pool.clone());
    let (subscribed, unread) = (Arc::clone(&ended), Arc::clone(&announcements));
    let run = move || {
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

/// The stream of announcements. The pool's own may be short, and loses what it drops without a
/// count. So it is drained at once, into a buffer of ours whose overrun is counted.
struct Announcements {
    unread: Mutex<Unread>,
    /// A stream may use its timers. The pool and the sink are called outside of it.
    runtime: Handle,
    fetch: Arc<Fetch>,
    backlog: Arc<Backlog>,
}

struct Unread {
    stream: AnnouncementStream,
    hashes: HashReader,
    /// When the transaction was announced that the thread gets and delivers, until it polls again.
    gets_since: Option<Instant>,
}

impl Announcements {
    /// Reads to the end of the stream. Of the hashes at hand the threads `mempool-get` get all but the last.
    async fn read(&self, get: impl Fn(FetchRequest)) {
        let mut last: Option<(B256, Instant)> = None;
        loop {
            let polled = self.poll(&mut Context::from_waker(Waker::noop()));
            let next = match (polled, last.take()) {
                (Poll::Ready(next), Some((hash, at))) => {
                    lock(&self.unread).hashes.take(hash, at);
                    next
                }
                (Poll::Ready(next), None) => next,
                (Poll::Pending, Some((hash, at))) => {
                    self.begin(hash, at).into_iter().for_each(&get);
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
                None => return self.fetch.connections.flush(),
            }
        }
    }

    fn poll(&self, context: &mut Context<'_>) -> Poll<Option<PoolAnnouncement>> {
        let _in_runtime = self.runtime.enter();
        let mut unread = lock(&self.unread);
        unread.gets_since = None;
        unread.stream.poll_next_unpin(context)
    }

    fn begin(&self, hash: B256, at: Instant) -> Option<FetchRequest> {
        let mut unread = lock(&self.unread);
        let request = unread.hashes.begin(hash, at);
        unread.gets_since = request.is_some().then_some(at);
        request
    }

    /// Reads in the place of the thread while one transaction holds it up: the disk may be slow, and the sink
    /// may block. Returns at the end of the stream.
    async fn read_while_held_up(&self) {
        loop {
            match self.next_if_held_up() {
                None => sleep(HELD_UP).await,
                Some(Poll::Pending) => sleep(IN_ITS_PLACE).await,
                Some(Poll::Ready(Some(PoolAnnouncement::Lagged(count)))) => {
                    self.lagged(count).await;
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
        let next = unread.stream.poll_next_unpin(&mut Context::from_waker(Waker::noop()));
        if let Poll::Ready(Some(PoolAnnouncement::Pending(hash))) = next {
            unread.hashes.take(hash, Instant::now());
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

/// Starts the threads, which end when the queues are dropped.
///
/// # Errors
/// A thread cannot be started. Those that were already started end.
pub(crate) fn start<S: TransactionSink>(
    deliverer: &Arc<Deliverer<S>>,
    pool: &InProcess,
) -> Result<PoolQueues<FetchRequest>, ConnectError> {
    let fetch = &deliverer.fetch;
    let config = &fetch.settings.config;
    // Every submitted request holds a slot, so neither queue is ever full.
    let (live, live_requests) = bounded(config.fetch_slots);
    let (deferrable, deferrable_requests) = bounded(config.fetch_slots);
    for thread in 0..config.request_connections {
        // The other threads stay free for live transactions, however slow a backfill is.
        let takes_deferrable = thread < fetch.settings.deferrable_connections();
        let live = live_requests.clone();
        let deferrable = if takes_deferrable { deferrable_requests.clone() } else { never() };
        let (deliverer, called) = (Arc::clone(deliverer), pool.clone());
        let run = move || loop {
            let next = select_biased! {
                recv(live) -> request => request,
                recv(deferrable) -> request => request,
            };
            // Deferrable requests that still wait at the end are dropped, and count as failed.
            let Ok(request) = next else { return };
            get(&deliverer, &called, request);
        };
        let spawned = fetch.tasks.spawn_thread("mempool-get", run);
        spawned.map_err(|error| ConnectError::io(pool, error))?;
    }
    Ok(PoolQueues { live, deferrable })
}

/// Carries out a request, on a thread that may block: the pool may read a sidecar from the disk, and the sink may wait.
fn get<S: TransactionSink>(deliverer: &Deliverer<S>, pool: &InProcess, request: FetchRequest) {
    // Requests that wait at a stop stay unfinished.
    let fetch = &deliverer.fetch;
    if fetch.tasks.stop.is_cancelled() {
        return;
    }
    let (hash, requested_at) = (request.hash(), Instant::now());
    let found = pool.catch("get", |pool| pool.get(&hash));
    let is_gone = matches!(found, Ok(None));
    let answered = fetch.answered(request, requested_at, is_gone);
    let Some(FetchTask { ticket, mut slot, .. }) = answered else { return };
    match found {
        // It counts as failed.
        Err(_) => {}
        // Unlike a node, the pool returns no mined ones.
        Ok(None) if fetch.hashes.is_mined(&hash) => {
            ticket.finish(Outcome::Mined, Some(Seen::Mined));
        }
        Ok(None) => ticket.finish(Outcome::Gone, None),
        Ok(Some(tx)) => {
            fetch.slots.set_response_bytes(&mut slot, tx.inner().encode_2718_len());
            contain(|| deliver(deliverer, ticket, tx));
        }
    }
}

fn deliver<S: TransactionSink>(
    deliverer: &Deliverer<S>,
    ticket: Ticket,
    tx: Recovered<PooledTransaction>,
) {
    let (requested, found) = (ticket.arrival.hash, *tx.inner().hash());
    if found != requested {
        return ticket.malformed(&Malformed::OtherTransaction { requested, found });
    }
    if deliverer.fetch.settings.config.verify_blob_proofs {
        let Some(permit) = deliverer.work_permit(|| {}) else { return };
        let verified = verify_blob_proofs(tx.inner());
        drop(permit);
        if let Err(reason) = verified {
            return ticket.malformed(&Malformed::from(reason));
        }
    }
    deliverer.deliver(ticket, tx, None, || {});
}
