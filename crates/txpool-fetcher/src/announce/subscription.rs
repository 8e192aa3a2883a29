//! Subscribes, and reads the hashes and heads that the node announces.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use alloy_pubsub::RawSubscription;
use tokio::sync::{
    broadcast::error::{RecvError, TryRecvError},
    mpsc::{self, error::TrySendError},
};

use super::{
    backlog::{Backlog, Progress, Turn},
    objects::{Notification, ObjectReader, ObjectSender, parse_hash},
    pairs::Pairs,
};
use crate::{
    chain::{AnnouncedHead, read_head},
    config::Announcements,
    connection::{Connection, dial},
    error::{CallError, ConnectError, LossReason},
    fetch::{Arrival, Deliverer, Fetch},
    gap::{GapReason, Report},
    outcome::Entry,
    sink::TransactionSink,
};

/// Slots of the buffer for heads, whose reader waits only for the source. alloy keeps its first
/// receiver, so the buffer always holds that many of the latest heads: at most 16 MiB.
const HEAD_BUFFER: usize = 16;

/// Most announcements of objects in one batch.
const HANDED_OVER_TOGETHER: usize = 64;

/// Most requests in one write: 10 KB, a few microseconds of formatting.
const SUBMITTED_TOGETHER: u32 = 64;

/// Reports to the source. Cannot deadlock: the source never waits for a task that reports.
pub(crate) async fn report(reports: &mpsc::Sender<Report>, report: Report) {
    // A closed channel means that the source has ended, which makes the report irrelevant.
    let _ = reports.send(report).await;
}

/// A subscription that is up and not read yet.
#[derive(Debug)]
pub(crate) struct Subscribed {
    /// To hashes and heads.
    pub(crate) connection: Arc<Connection>,
    hashes: RawSubscription,
    new_heads: RawSubscription,
    progress: Arc<Progress>,
    pub(crate) objects: Option<SubscribedObjects>,
}

/// The second subscription, with full announcements.
#[derive(Debug)]
pub(crate) struct SubscribedObjects {
    pub(crate) connection: Arc<Connection>,
    objects: RawSubscription,
    progress: Arc<Progress>,
    pairs: Arc<Pairs>,
    /// The way to their thread.
    thread: ObjectSender,
}

/// Connects and subscribes. `known`: the source was up before.
pub(crate) async fn subscribe<S: TransactionSink>(
    fetch: &Arc<Fetch>,
    deliverer: &Arc<Deliverer<S>>,
    index: usize,
    backlog: &Backlog,
    known: bool,
) -> Result<Subscribed, ConnectError> {
    let limits = &fetch.settings.limits;
    let endpoint = &fetch.settings.config.sources[index];
    let open = |objects| open(fetch, deliverer, index, objects, known);
    let refused = |error: CallError| ConnectError::NotEthereum {
        endpoint: endpoint.to_string(),
        method: "eth_subscribe",
        answer: error.to_string(),
    };
    // Objects first: a hash without its object is then one that the node has dropped.
    let opened = match fetch.settings.config.announcements {
        Announcements::Hashes => None,
        announcements => Some((announcements, open(true).await?)),
    };
    let objects = match opened {
        None => None,
        Some((Announcements::Auto, (_, Err(CallError::Rpc { code, message })))) => {
            tracing::warn!(%endpoint, code, message, "the node refuses full objects: taking hashes");
            None
        }
        Some((_, (connection, subscribed))) => {
            let objects = subscribed.map_err(refused)?;
            let progress = Progress::new(connection.read_times());
            let pairs = Pairs::new(&progress, limits);
            let spawned = ObjectReader::spawn(fetch, deliverer, index, &progress, &pairs);
            let thread = spawned.map_err(|error| ConnectError::io(endpoint, error))?;
            backlog.add_reader(&progress);
            Some(SubscribedObjects { connection, objects, progress, pairs, thread })
        }
    };
    let (connection, subscribed) = open(false).await?;
    let hashes = subscribed.map_err(refused)?;
    let heads = connection.subscribe_heads(HEAD_BUFFER, limits.ping_timeout);
    let new_heads = heads.await.map_err(refused)?;
    let progress = Progress::new(connection.read_times());
    // The last one: what it has read is what the source has announced.
    backlog.add_reader(&progress);
    Ok(Subscribed { connection, hashes, new_heads, progress, objects })
}

/// Connects, and subscribes to announcements. The inner error is the node's answer to that.
async fn open<S>(
    fetch: &Fetch,
    deliverer: &Deliverer<S>,
    index: usize,
    objects: bool,
    known: bool,
) -> Result<(Arc<Connection>, Result<RawSubscription, CallError>), ConnectError> {
    let limits = &fetch.settings.limits;
    let endpoint = &fetch.settings.config.sources[index];
    let connection = Arc::new(dial(endpoint, limits, known).await?);
    deliverer.chain_id.check(index, endpoint, connection.node.chain_id).await?;
    let wanted = limits.announcement_buffer;
    match connection.subscribe_announcements(objects, wanted, limits.ping_timeout).await {
        Ok(Err(probed)) => {
            let endpoint = endpoint.to_string();
            Err(ConnectError::BufferNotInEffect { endpoint, probed, wanted })
        }
        Ok(Ok(subscription)) => Ok((connection, Ok(subscription))),
        Err(error) => Ok((connection, Err(error))),
    }
}

impl Subscribed {
    /// Reads until the connection ends.
    pub(crate) async fn read(
        self,
        fetch: &Arc<Fetch>,
        index: usize,
        backlog: &Backlog,
        reports: &mpsc::Sender<Report>,
        heads: &mpsc::Sender<AnnouncedHead>,
    ) {
        let Self { connection, hashes, new_heads, progress, objects } = self;
        // Two readers, so that a wait for a slot does not delay a head.
        let read_announcements = async {
            let turn = match backlog.wait_for_turn(&progress, connection.closed()).await {
                Ok(turn) => turn,
                Err(unread) => return fetch.metrics.lagged.add(unread),
            };
            match objects {
                None => read_hashes(fetch, index, hashes, &progress, None, reports).await,
                Some(objects) => {
                    let pairs = Arc::clone(&objects.pairs);
                    let read_hashes = async {
                        read_hashes(fetch, index, hashes, &progress, Some(&pairs), reports).await;
                        pairs.close();
                    };
                    let read_objects = objects.read(fetch, &connection, &turn, reports);
                    tokio::join!(read_hashes, read_objects, pairs.request_overdue(fetch));
                }
            }
            fetch.deferral.observe_backlog(index, backlog.len());
        };
        tokio::join!(read_announcements, read_heads(fetch, new_heads, reports, heads));
    }
}

impl SubscribedObjects {
    /// Reads until one of the two connections ends, which ends the other one; or, with
    /// [`Announcements::Auto`], until the node turns out to announce hashes here too.
    async fn read(
        self,
        fetch: &Fetch,
        hashes: &Connection,
        turn: &Turn,
        reports: &mpsc::Sender<Report>,
    ) {
        let Self { connection, objects, progress, pairs, thread: (take_turn, batches) } = self;
        // The thread ends first only when the fetcher stops.
        let _ = take_turn.send(Arc::clone(turn));
        let read = async {
            if !read_objects(fetch, objects, batches, &progress).await {
                tracing::warn!("the node announces hashes instead of objects: taking hashes");
                pairs.close();
                report(reports, Report::NoObjects).await;
                connection.kill(LossReason::Closed);
            }
        };
        let until_one_ends = async {
            tokio::select! {
                // The order is irrelevant: if both have ended, nothing is left to end.
                reason = connection.closed() => if !pairs.is_closed() { hashes.kill(reason) },
                reason = hashes.closed() => connection.kill(reason),
            }
        };
        tokio::join!(read, until_one_ends);
    }
}

/// The buffer in which announcements of hashes wait for their reader. `None` is an announcement that
/// is not a hash.
pub(crate) trait HashBuffer {
    fn recv(&mut self) -> impl Future<Output = Result<Option<B256>, RecvError>> + Send;

    fn try_recv(&mut self) -> Result<Option<B256>, TryRecvError>;
}

impl HashBuffer for RawSubscription {
    async fn recv(&mut self) -> Result<Option<B256>, RecvError> {
        Self::recv(self).await.map(|json| parse_hash(json.get()))
    }

    fn try_recv(&mut self) -> Result<Option<B256>, TryRecvError> {
        Self::try_recv(self).map(|json| parse_hash(json.get()))
    }
}

/// Reads announcements of hashes and submits their requests; with `pairs`, they wait for their
/// objects first.
pub(crate) async fn read_hashes(
    fetch: &Arc<Fetch>,
    index: usize,
    mut hashes: impl HashBuffer,
    progress: &Progress,
    pairs: Option<&Pairs>,
    reports: &mpsc::Sender<Report>,
) {
    // The number of the next announcement on this connection.
    let mut number = 0;
    let mut lag = Lag::default();
    let mut in_a_row = 0u32;
    loop {
        // All announcements at hand are submitted together, and sent before the wait for more.
        let received = match hashes.try_recv() {
            Err(TryRecvError::Empty) => {
                fetch.connections.flush();
                in_a_row = 0;
                hashes.recv().await
            }
            Err(TryRecvError::Lagged(count)) => Err(RecvError::Lagged(count)),
            Err(TryRecvError::Closed) => Err(RecvError::Closed),
            Ok(announced) => {
                in_a_row += 1;
                if in_a_row.is_multiple_of(SUBMITTED_TOGETHER) {
                    fetch.connections.flush();
                    // Yields to the sockets.
                    tokio::task::yield_now().await;
                }
                Ok(announced)
            }
        };
        match received {
            Ok(announced) => {
                let at = progress.read_times.take(number).unwrap_or_else(Instant::now);
                number += 1;
                match announced {
                    Some(hash) => {
                        let arrival = Arrival { hash, entry: Entry::Announced, source: index, at };
                        match pairs {
                            None => {
                                let backlog = progress.read_times.read().saturating_sub(number);
                                fetch.deferral.observe_backlog(index, backlog);
                                fetch.on_announcement(arrival).await;
                            }
                            // The backlog is that of the objects.
                            Some(pairs) => {
                                if let Some((arrival, ticket)) =
                                    pairs.on_hash(&fetch.hashes, arrival)
                                {
                                    fetch.request(arrival, ticket).await;
                                }
                            }
                        }
                    }
                    None => fetch.metrics.malformed_notifications.increment(1),
                }
                progress.take(1);
            }
            Err(RecvError::Lagged(count)) => {
                number += count;
                lag.record(fetch, progress, count, reports).await;
            }
            Err(RecvError::Closed) => break,
        }
    }
}

/// Reads announcements of objects and passes on everything that has arrived as one batch. False if it
/// has ended because the node announces hashes here too.
///
/// An overrun of this buffer loses nothing: the hashes come by the other subscription.
async fn read_objects(
    fetch: &Fetch,
    mut objects: RawSubscription,
    batches: mpsc::Sender<Vec<Notification>>,
    progress: &Progress,
) -> bool {
    let mut may_be_hashes = fetch.settings.config.announcements == Announcements::Auto;
    let mut number = 0;
    let mut batch = Vec::new();
    loop {
        let received = match objects.try_recv() {
            Ok(json) => Ok(json),
            Err(TryRecvError::Empty) if batch.is_empty() => objects.recv().await,
            Err(TryRecvError::Lagged(count)) => Err(RecvError::Lagged(count)),
            Err(TryRecvError::Empty | TryRecvError::Closed) => Err(RecvError::Closed),
        };
        match received {
            Ok(json) => {
                if may_be_hashes && parse_hash(json.get()).is_some() {
                    return false;
                }
                may_be_hashes = false;
                let at = progress.read_times.take(number).unwrap_or_else(Instant::now);
                number += 1;
                batch.push(Notification { json, at });
                if batch.len() < HANDED_OVER_TOGETHER {
                    continue;
                }
            }
            Err(RecvError::Lagged(count)) => {
                number += count;
                progress.take(count);
                continue;
            }
            // Nothing more is at hand. At the end of the subscription the batch is empty next time.
            Err(RecvError::Closed) if !batch.is_empty() => {}
            Err(RecvError::Closed) => return true,
        }
        // Waits while the thread is behind: later announcements stay in the broadcast buffer.
        if batches.send(std::mem::take(&mut batch)).await.is_err() {
            // The thread ends first only when the fetcher stops.
            return true;
        }
        // Yields to the sockets.
        tokio::task::yield_now().await;
    }
}

/// Counts the announcements that our own buffer lost.
#[derive(Debug, Default)]
struct Lag {
    logged: Option<Instant>,
}

impl Lag {
    async fn record(
        &mut self,
        fetch: &Fetch,
        progress: &Progress,
        count: u64,
        reports: &mpsc::Sender<Report>,
    ) {
        progress.take(count);
        fetch.metrics.lagged.add(count);
        // A buffer that has overrun overruns again at nearly every read, so at most one line per
        // second is logged.
        if self.logged.is_none_or(|logged| logged.elapsed() >= Duration::from_secs(1)) {
            tracing::warn!(count, "announcement buffer overruns");
            self.logged = Some(Instant::now());
        }
        report(reports, Report::Gap(GapReason::Lagged)).await;
    }
}

async fn read_heads(
    fetch: &Fetch,
    mut new_heads: RawSubscription,
    reports: &mpsc::Sender<Report>,
    heads: &mpsc::Sender<AnnouncedHead>,
) {
    // The latest of the heads for which the queue had no room.
    let mut waiting: Option<AnnouncedHead> = None;
    loop {
        tokio::select! {
            // Reading comes first: if announced heads were not read, the node would seem to
            // announce none. Neither branch loses an item when dropped.
            biased;
            received = new_heads.recv() => match received {
                Ok(json) => match read_head(json.get()) {
                    Ok(head) => {
                        report(reports, Report::Head(head)).await;
                        waiting = match heads.try_send(head.into()) {
                            // The one that waited is an ancestor of this one, and is fetched as
                            // such.
                            Ok(()) => None,
                            Err(TrySendError::Full(head)) => Some(head),
                            Err(TrySendError::Closed(_)) => return,
                        };
                    }
                    Err(_) => fetch.metrics.malformed_notifications.increment(1),
                },
                // The parent of the next head is then unknown, and the missed blocks are fetched.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            },
            permit = heads.reserve(), if waiting.is_some() => match (permit, waiting.take()) {
                (Ok(permit), Some(head)) => permit.send(head),
                _ => return,
            },
        }
    }
}
