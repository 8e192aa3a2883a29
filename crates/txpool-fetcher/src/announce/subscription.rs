//! Connects, subscribes, and reads the hashes and heads that the node announces.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use alloy_pubsub::RawSubscription;
use tokio::sync::{
    OwnedMutexGuard,
    broadcast::error::{RecvError, TryRecvError},
    mpsc::{self, error::TrySendError},
};

use super::objects::{Notification, ObjectReader, parse_hash};
use crate::{
    chain::{Announced, read_head},
    config::{Announcements, Endpoint},
    connection::{Connection, dial},
    error::{CallError, ConnectError, LossReason},
    fetch::{Arrival, FetchContext},
    outcome::Entry,
    sink::TransactionSink,
    source::{
        Message,
        machine::Event,
        send,
        status::{Progress, SourceShared},
    },
    sync::lock,
};

/// Slots of the buffer for heads, whose reader waits only for the source. alloy keeps its first
/// receiver, so the buffer always holds that many of the latest heads: at most 16 MiB.
const HEAD_BUFFER: usize = 16;

/// Most announcements of objects in one batch.
const HANDED_OVER_TOGETHER: usize = 64;

/// Most requests in one write: 10 KB, a few microseconds of formatting.
const SUBMITTED_TOGETHER: u32 = 64;

pub(crate) async fn dial_on_chain<S>(
    context: &FetchContext<S>,
    index: usize,
    known: bool,
) -> Result<Connection, ConnectError> {
    let endpoint = &context.config.sources[index];
    let connection = dial(endpoint, &context.config, known).await?;
    check_chain(context, endpoint, connection.node.chain_id)?;
    Ok(connection)
}

/// All sources must be on the chain of the first one.
pub(crate) fn check_chain<S>(
    context: &FetchContext<S>,
    endpoint: &Endpoint,
    found: u64,
) -> Result<(), ConnectError> {
    let expected = *lock(&context.chain_id).get_or_insert(found);
    if found == expected {
        return Ok(());
    }
    Err(ConnectError::OtherChain { endpoint: endpoint.to_string(), found, expected })
}

/// Connects, subscribes, reports that the subscription is up, and reads until the connection ends.
pub(crate) async fn run_subscription<S: TransactionSink>(
    context: &Arc<FetchContext<S>>,
    index: usize,
    shared: &Arc<SourceShared>,
    messages: &mpsc::Sender<Message>,
    heads: &mpsc::Sender<Announced>,
) -> Result<(), ConnectError> {
    let config = &context.config;
    let endpoint = &config.sources[index];
    let known = lock(&shared.status).node.is_some();
    let connection = Arc::new(dial_on_chain(context, index, known).await?);
    let slots = config.announcement_buffer;
    let refused = |error: CallError| ConnectError::NotEthereum {
        endpoint: endpoint.to_string(),
        method: "eth_subscribe",
        answer: error.to_string(),
    };
    let limit = config.ping_timeout;
    let kind = config.announcements;
    let subscribed = connection.subscribe_announcements(kind, slots, limit).await;
    let announcements = match subscribed.map_err(refused)? {
        Ok(subscription) => subscription,
        Err(probed) => {
            return Err(ConnectError::BufferNotInEffect {
                endpoint: endpoint.to_string(),
                probed,
                wanted: slots,
            });
        }
    };
    let new_heads = connection.subscribe_heads(HEAD_BUFFER, limit).await.map_err(refused)?;
    let progress = Arc::new(Progress::new(connection.read_times()));
    let batches = match kind {
        Announcements::Hashes => None,
        Announcements::Full => {
            let spawned = ObjectReader::spawn(context, index, Arc::clone(&progress));
            Some(spawned.map_err(|source| ConnectError::Io {
                endpoint: endpoint.to_string(),
                source: source.into(),
            })?)
        }
    };
    shared.add_reader(&progress);
    if messages.send(Message::SubscriptionUp(Arc::clone(&connection))).await.is_err() {
        return Ok(());
    }
    // Two readers, so that a wait for a slot does not delay a head.
    let read_announcements = async {
        let turn = wait_for_turn(context, shared, &progress, connection.closed()).await;
        let Some(turn) = turn else { return };
        match batches {
            None => {
                let _turn = turn;
                read_hashes(context, index, announcements, &progress, messages).await;
            }
            Some((take_turn, batches)) => {
                // The thread ends first only when the fetcher stops.
                let _ = take_turn.send(turn);
                read_objects(context, announcements, batches, &progress, messages).await;
            }
        }
        context.deferral.observe_backlog(index, shared.backlog());
    };
    tokio::join!(read_announcements, read_heads(context, new_heads, messages, heads));
    Ok(())
}

/// Waits until the reader of a lost connection has processed that connection's announcements: it
/// waits for something, such as a slot, that the next reader would wait for too. `None` if the
/// connection is lost before its turn comes, together with its announcements; so at most two such
/// buffers exist, however often connections are lost meanwhile.
pub(crate) async fn wait_for_turn<S>(
    context: &FetchContext<S>,
    shared: &SourceShared,
    progress: &Progress,
    lost: impl Future<Output = LossReason>,
) -> Option<OwnedMutexGuard<()>> {
    tokio::select! {
        // If the turn comes together with the loss, it is taken, so that nothing is lost.
        biased;
        turn = Arc::clone(&shared.reading).lock_owned() => Some(turn),
        _ = lost => {
            let unread = progress.backlog();
            progress.take(unread);
            context.tally.lagged(unread);
            None
        }
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
pub(crate) async fn read_hashes<S: TransactionSink>(
    context: &Arc<FetchContext<S>>,
    index: usize,
    mut hashes: impl HashBuffer,
    progress: &Progress,
    messages: &mpsc::Sender<Message>,
) {
    // The number of the next announcement on this connection.
    let mut number = 0;
    let mut lag = Lag::default();
    let mut in_a_row = 0u32;
    loop {
        // All announcements at hand are submitted together, and sent before the wait for more.
        let received = match hashes.try_recv() {
            Err(TryRecvError::Empty) => {
                context.requests.flush();
                in_a_row = 0;
                hashes.recv().await
            }
            Err(TryRecvError::Lagged(count)) => Err(RecvError::Lagged(count)),
            Err(TryRecvError::Closed) => Err(RecvError::Closed),
            Ok(announced) => {
                in_a_row += 1;
                if in_a_row.is_multiple_of(SUBMITTED_TOGETHER) {
                    context.requests.flush();
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
                        context.deferral.observe_backlog(index, backlog);
                        context.on_announcement(arrival).await;
                    }
                    None => context.tally.metrics.malformed_notifications.increment(1),
                }
                progress.take(1);
            }
            Err(RecvError::Lagged(count)) => {
                number += count;
                lag.record(context, progress, count, messages).await;
            }
            Err(RecvError::Closed) => break,
        }
    }
}

/// Reads announcements of objects and passes on everything that has arrived as one batch.
async fn read_objects<S: TransactionSink>(
    context: &Arc<FetchContext<S>>,
    mut objects: RawSubscription,
    batches: mpsc::Sender<Vec<Notification>>,
    progress: &Progress,
    messages: &mpsc::Sender<Message>,
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
                lag.record(context, progress, count, messages).await;
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
    async fn record<S>(
        &mut self,
        context: &FetchContext<S>,
        progress: &Progress,
        count: u64,
        messages: &mpsc::Sender<Message>,
    ) {
        progress.take(count);
        context.tally.lagged(count);
        // A buffer that has overrun overruns again at nearly every read, so at most one line per
        // second is logged.
        if self.logged.is_none_or(|logged| logged.elapsed() >= Duration::from_secs(1)) {
            tracing::warn!(count, "announcement buffer overruns");
            self.logged = Some(Instant::now());
        }
        send(messages, Message::Event(Event::Lagged)).await;
    }
}

async fn read_heads<S>(
    context: &Arc<FetchContext<S>>,
    mut new_heads: RawSubscription,
    messages: &mpsc::Sender<Message>,
    heads: &mpsc::Sender<Announced>,
) {
    // The latest of the heads for which the queue had no room.
    let mut waiting: Option<Announced> = None;
    loop {
        tokio::select! {
            // Reading comes first: if announced heads were not read, the node would seem to
            // announce none. Neither branch loses an item when dropped.
            biased;
            received = new_heads.recv() => match received {
                Ok(json) => match read_head(json.get()) {
                    Ok(head) => {
                        send(messages, Message::Event(Event::Head(head.number))).await;
                        waiting = match heads.try_send(head.into()) {
                            // The one that waited is an ancestor of this one, and is fetched as
                            // such.
                            Ok(()) => None,
                            Err(TrySendError::Full(head)) => Some(head),
                            Err(TrySendError::Closed(_)) => return,
                        };
                    }
                    Err(_) => context.tally.metrics.malformed_notifications.increment(1),
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
