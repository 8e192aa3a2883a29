//! Connecting, and reading what the node announces.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use alloy_pubsub::RawSubscription;
use tokio::sync::{broadcast::error::RecvError, mpsc};

use super::{
    Message,
    status::{Progress, Shared},
    tell,
};
use crate::{
    core::{Arrival, Core, lock},
    error::{CallError, ConnectError},
    heads::{Announced, Header},
    link::{Link, dial},
    machine::Event,
    outcome::Entry,
    sink::TransactionSink,
};

/// Slots of the buffer for heads: four minutes of a chain with a block a second.
const HEAD_BUFFER: usize = 256;

pub(super) async fn dial_all<S>(
    core: &Core<S>,
    index: usize,
    known: bool,
) -> Result<Vec<Arc<Link>>, ConnectError> {
    let mut links = Vec::new();
    for _ in 0..core.config.ask_connections {
        links.push(Arc::new(dial_on_chain(core, index, known).await?));
    }
    Ok(links)
}

async fn dial_on_chain<S>(core: &Core<S>, index: usize, known: bool) -> Result<Link, ConnectError> {
    let endpoint = &core.config.sources[index];
    let link = dial(endpoint, &core.config, known).await?;
    let expected = *lock(&core.chain_id).get_or_insert(link.node.chain_id);
    if link.node.chain_id != expected {
        return Err(ConnectError::OtherChain {
            endpoint: endpoint.to_string(),
            found: link.node.chain_id,
            expected,
        });
    }
    Ok(link)
}

/// Connects, subscribes, says that it is up, and reads until the connection ends.
pub(super) async fn listen<S: TransactionSink>(
    core: &Arc<Core<S>>,
    index: usize,
    shared: &Arc<Shared>,
    messages: &mpsc::Sender<Message>,
    heads: &mpsc::Sender<Announced>,
) -> Result<(), ConnectError> {
    let config = &core.config;
    let endpoint = &config.sources[index];
    let known = lock(&shared.status).node.is_some();
    let link = Arc::new(dial_on_chain(core, index, known).await?);
    let slots = config.announcement_buffer;
    let refused = |error: CallError| ConnectError::NotEthereum {
        endpoint: endpoint.to_string(),
        method: "eth_subscribe",
        answer: error.to_string(),
    };
    let limit = config.ping_timeout;
    let hashes = match link.subscribe_hashes(slots, limit).await.map_err(refused)? {
        Ok(subscription) => subscription,
        Err(probed) => {
            return Err(ConnectError::BufferNotInEffect {
                endpoint: endpoint.to_string(),
                probed,
                wanted: slots,
            });
        }
    };
    let new_heads = link.subscribe_heads(HEAD_BUFFER, limit).await.map_err(refused)?;
    let progress = Arc::new(Progress { stamps: link.stamps(), taken: AtomicU64::new(0) });
    *lock(&shared.listening) = Some(Arc::clone(&progress));
    if messages.send(Message::Listening(Arc::clone(&link))).await.is_err() {
        return Ok(());
    }
    // Two readers: a wait for a slot must not hold back a head.
    tokio::join!(
        read_hashes(core, index, hashes, &progress, messages),
        read_heads(core, index, new_heads, messages, heads),
    );
    Ok(())
}

async fn read_hashes<S: TransactionSink>(
    core: &Arc<Core<S>>,
    index: usize,
    mut hashes: RawSubscription,
    progress: &Progress,
    messages: &mpsc::Sender<Message>,
) {
    // The number of the next announcement on this connection.
    let mut number = 0;
    let mut lag_told: Option<Instant> = None;
    loop {
        match hashes.recv().await {
            Ok(notification) => match parse_hash(notification.get()) {
                Some(hash) => {
                    let at = progress.stamps.take(number).unwrap_or_else(Instant::now);
                    number += 1;
                    let arrival = Arrival { hash, entry: Entry::Announced, source: index, at };
                    core.deferral.backlog(index, progress.stamps.read().saturating_sub(number));
                    core.announced(arrival).await;
                    progress.taken.store(number, Relaxed);
                }
                None => {
                    // Strings are stamped, whatever they say.
                    number += u64::from(notification.get().starts_with('"'));
                    progress.taken.store(number, Relaxed);
                    core.tally.metrics.malformed_notifications.increment(1);
                }
            },
            Err(RecvError::Lagged(count)) => {
                number += count;
                progress.taken.store(number, Relaxed);
                core.tally.lagged(count);
                // While it lasts, it overruns at every turn: one line a second says so.
                if lag_told.is_none_or(|told| told.elapsed() >= Duration::from_secs(1)) {
                    tracing::warn!(count, "announcement buffer overruns");
                    lag_told = Some(Instant::now());
                }
                tell(messages, Message::Event(Event::Lagged)).await;
            }
            Err(RecvError::Closed) => break,
        }
    }
    core.deferral.backlog(index, 0);
}

fn parse_hash(json: &str) -> Option<B256> {
    let hex = json.strip_prefix("\"0x")?.strip_suffix('"')?;
    const_hex::decode_to_array::<_, 32>(hex).ok().map(B256::from)
}

async fn read_heads<S>(
    core: &Arc<Core<S>>,
    index: usize,
    mut new_heads: RawSubscription,
    messages: &mpsc::Sender<Message>,
    heads: &mpsc::Sender<Announced>,
) {
    let (events, mut relayed) = mpsc::channel(16);
    let relay = async {
        while let Some(event) = relayed.recv().await {
            tell(messages, Message::Event(event)).await;
        }
    };
    let read = async move {
        loop {
            match new_heads.recv().await {
                Ok(json) => match serde_json::from_str::<Header>(json.get()) {
                    Ok(header) => {
                        let number = header.number.to();
                        tell(messages, Message::Event(Event::Head(number))).await;
                        let head = Announced { source: index, header, events: events.clone() };
                        if heads.send(head).await.is_err() {
                            return;
                        }
                    }
                    Err(_) => core.tally.metrics.malformed_notifications.increment(1),
                },
                // The next head's parent is then unknown, and the missed ones are fetched.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            }
        }
    };
    tokio::join!(relay, read);
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
