//! Connecting, subscribing, and reading the hashes and heads that the node announces.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use alloy_pubsub::RawSubscription;
use tokio::sync::{
    broadcast::error::{RecvError, TryRecvError},
    mpsc,
};

use super::{
    Message, send,
    status::{Progress, SourceShared},
};
use crate::{
    connection::{Connection, dial},
    error::{CallError, ConnectError},
    fetch::{Arrival, FetchContext},
    heads::{Announced, read_head},
    machine::Event,
    outcome::Entry,
    sink::TransactionSink,
    sync::lock,
};

/// Slots of the buffer for heads: four minutes of a chain with one block per second.
const HEAD_BUFFER: usize = 256;

/// Requests that go out with one write at most: 10 KB, a few microseconds of formatting.
const SUBMITTED_TOGETHER: u32 = 64;

pub(super) async fn dial_on_chain<S>(
    context: &FetchContext<S>,
    index: usize,
    known: bool,
) -> Result<Connection, ConnectError> {
    let endpoint = &context.config.sources[index];
    let connection = dial(endpoint, &context.config, known).await?;
    let expected = *lock(&context.chain_id).get_or_insert(connection.node.chain_id);
    if connection.node.chain_id != expected {
        return Err(ConnectError::OtherChain {
            endpoint: endpoint.to_string(),
            found: connection.node.chain_id,
            expected,
        });
    }
    Ok(connection)
}

/// Connects, subscribes, reports that the subscription is up, and reads until the connection ends.
pub(super) async fn run_subscription<S: TransactionSink>(
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
    let hashes = match connection.subscribe_hashes(slots, limit).await.map_err(refused)? {
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
    let progress =
        Arc::new(Progress { read_times: connection.read_times(), taken: AtomicU64::new(0) });
    *lock(&shared.progress) = Some(Arc::clone(&progress));
    if messages.send(Message::SubscriptionUp(Arc::clone(&connection))).await.is_err() {
        return Ok(());
    }
    // Two readers, so that a wait for a slot does not delay a head.
    tokio::join!(
        read_hashes(context, index, hashes, &progress, messages),
        read_heads(context, new_heads, messages, heads),
    );
    Ok(())
}

async fn read_hashes<S: TransactionSink>(
    context: &Arc<FetchContext<S>>,
    index: usize,
    mut hashes: RawSubscription,
    progress: &Progress,
    messages: &mpsc::Sender<Message>,
) {
    // The number of the next announcement on this connection.
    let mut number = 0;
    let mut lag_logged: Option<Instant> = None;
    let mut in_a_row = 0u32;
    loop {
        // What is at hand is submitted together, and sent before the wait for more.
        let received = match hashes.try_recv() {
            Err(TryRecvError::Empty) => {
                context.requests.flush();
                in_a_row = 0;
                hashes.recv().await
            }
            Err(TryRecvError::Lagged(count)) => Err(RecvError::Lagged(count)),
            Err(TryRecvError::Closed) => Err(RecvError::Closed),
            Ok(notification) => {
                in_a_row += 1;
                if in_a_row % SUBMITTED_TOGETHER == 0 {
                    context.requests.flush();
                    // The sockets come first.
                    tokio::task::yield_now().await;
                }
                Ok(notification)
            }
        };
        match received {
            Ok(notification) => match parse_hash(notification.get()) {
                Some(hash) => {
                    let at = progress.read_times.take(number).unwrap_or_else(Instant::now);
                    number += 1;
                    let arrival = Arrival { hash, entry: Entry::Announced, source: index, at };
                    context
                        .deferral
                        .observe_backlog(index, progress.read_times.read().saturating_sub(number));
                    context.on_announcement(arrival).await;
                    progress.taken.store(number, Relaxed);
                }
                None => {
                    // The backend has noted a read time for every string, whether or not it is a
                    // hash.
                    number += u64::from(notification.get().starts_with('"'));
                    progress.taken.store(number, Relaxed);
                    context.tally.metrics.malformed_notifications.increment(1);
                }
            },
            Err(RecvError::Lagged(count)) => {
                number += count;
                progress.taken.store(number, Relaxed);
                context.tally.lagged(count);
                // A buffer that has overrun overruns again at nearly every read: one log line per
                // second is enough.
                if lag_logged.is_none_or(|logged| logged.elapsed() >= Duration::from_secs(1)) {
                    tracing::warn!(count, "announcement buffer overruns");
                    lag_logged = Some(Instant::now());
                }
                send(messages, Message::Event(Event::Lagged)).await;
            }
            Err(RecvError::Closed) => break,
        }
    }
    context.deferral.observe_backlog(index, 0);
}

fn parse_hash(json: &str) -> Option<B256> {
    let hex = json.strip_prefix("\"0x")?.strip_suffix('"')?;
    const_hex::decode_to_array::<_, 32>(hex).ok().map(B256::from)
}

async fn read_heads<S>(
    context: &Arc<FetchContext<S>>,
    mut new_heads: RawSubscription,
    messages: &mpsc::Sender<Message>,
    heads: &mpsc::Sender<Announced>,
) {
    loop {
        match new_heads.recv().await {
            Ok(json) => match read_head(json.get()) {
                Ok(head) => {
                    send(messages, Message::Event(Event::Head(head.number))).await;
                    if heads.send(head.into()).await.is_err() {
                        return;
                    }
                }
                Err(_) => context.tally.metrics.malformed_notifications.increment(1),
            },
            // The parent of the next head is then unknown, and the missed blocks are fetched.
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_66_characters_in_quotes_and_nothing_else() {
        let hash = B256::repeat_byte(0xab);
        assert_eq!(parse_hash(&format!("\"{hash}\"")), Some(hash));
        for bad in ["null", "\"0x\"", "\"0xab\"", "{}", "\"", "\"0xzz\""] {
            assert_eq!(parse_hash(bad), None);
        }
    }
}
