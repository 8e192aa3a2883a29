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
    backlog::{Backlog, Progress},
    objects::{Notification, ObjectReader, ObjectSender, parse_hash},
};
use crate::{
    chain::{AnnouncedHead, read_head},
    config::Announcements,
    connection::{Connection, dial},
    error::{CallError, ConnectError},
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
    pub(crate) connection: Arc<Connection>,
    announcements: RawSubscription,
    new_heads: RawSubscription,
    progress: Arc<Progress>,
    /// With full announcements, the way to their thread.
    objects: Option<ObjectSender>,
}

/// Connects and subscribes. `known`: the source was up before.
pub(crate) async fn subscribe<S: TransactionSink>(
    fetch: &Arc<Fetch>,
    deliverer: &Arc<Deliverer<S>>,
    index: usize,
    backlog: &Backlog,
    known: bool,
) -> Result<Subscribed, ConnectError> {
    let (config, limits) = (&fetch.settings.config, &fetch.settings.limits);
    let endpoint = &config.sources[index];
    let connection = Arc::new(dial(endpoint, limits, &deliverer.chain_id, known).await?);
    let slots = limits.announcement_buffer;
    let refused = |error: CallError| ConnectError::NotEthereum {
        endpoint: endpoint.to_string(),
        method: "eth_subscribe",
        answer: error.to_string(),
    };
    let limit = limits.ping_timeout;
    let kind = config.announcements;
    let subscribed = connection.subscribe_announcements(kind, slots, limit).await;
    let announcements = subscribed.map_err(refused)?.map_err(|probed| {
        ConnectError::BufferNotInEffect { endpoint: endpoint.to_string(), probed, wanted: slots }
    })?;
    let new_heads = connection.subscribe_heads(HEAD_BUFFER, limit).await.map_err(refused)?;
    let progress = Progress::new(connection.read_times());
    let objects = match kind {
        Announcements::Hashes => None,
        Announcements::Full => {
            let spawned = ObjectReader::spawn(fetch, deliverer, index, Arc::clone(&progress));
            Some(spawned.map_err(|error| ConnectError::io(endpoint, error))?)
        }
    };
    backlog.add_reader(&progress);
    Ok(Subscribed { connection, announcements, new_heads, progress, objects })
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
        let Self { connection, announcements, new_heads, progress, objects } = self;
        // Two readers, so that a wait for a slot does not delay a head.
        let read_announcements = async {
            let turn = match backlog.wait_for_turn(&progress, connection.closed()).await {
                Ok(turn) => turn,
                Err(unread) => return fetch.metrics.lagged.add(unread),
            };
            match objects {
                None => {
                    let _turn = turn;
                    read_hashes(fetch, index, announcements, &progress, reports).await;
                }
                Some((take_turn, batches)) => {
                    // The thread ends first only when the fetcher stops.
                    let _ = take_turn.send(turn);
                    read_objects(fetch, announcements, batches, &progress, reports).await;
                }
            }
            fetch.deferral.observe_backlog(index, backlog.len());
        };
        tokio::join!(read_announcements, read_heads(fetch, new_heads, reports, heads));
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

/// Reads announcements of hashes and submits their requests.
pub(crate) async fn read_hashes(
    fetch: &Arc<Fetch>,
    index: usize,
    mut hashes: impl HashBuffer,
    progress: &Progress,
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
                        let backlog = progress.read_times.read().saturating_sub(number);
                        fetch.deferral.observe_backlog(index, backlog);
                        fetch.on_announcement(arrival).await;
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

/// Reads announcements of objects and passes on everything that has arrived as one batch.
async fn read_objects(
    fetch: &Fetch,
    mut objects: RawSubscription,
    batches: mpsc::Sender<Vec<Notification>>,
    progress: &Progress,
    reports: &mpsc::Sender<Report>,
) {
    let mut number = 0;
    let mut lag = Lag::default();
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
                let at = progress.read_times.take(number).unwrap_or_else(Instant::now);
                number += 1;
                batch.push(Notification { json, at });
                if batch.len() < HANDED_OVER_TOGETHER {
                    continue;
                }
            }
            Err(RecvError::Lagged(count)) => {
                number += count;
                lag.record(fetch, progress, count, reports).await;
                continue;
            }
            // Nothing more is at hand. At the end of the subscription the batch is empty next time.
            Err(RecvError::Closed) if !batch.is_empty() => {}
            Err(RecvError::Closed) => break,
        }
        // Waits while the thread is behind: later announcements stay in the broadcast buffer.
        if batches.send(std::mem::take(&mut batch)).await.is_err() {
            // The thread ends first only when the fetcher stops.
            break;
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
                        report(reports, Report::Head(head.number)).await;
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
