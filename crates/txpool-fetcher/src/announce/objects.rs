//! From the object of a full announcement to an outcome, on a thread of its subscription
//! connection.
//!
//! Parsing and hashing take a few microseconds, but the sink may block and recovery takes 34 us:
//! neither may run on the thread that reads the sockets. That thread passes on everything that has
//! arrived in one batch, so a burst wakes this one once.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::Instant,
};

use alloy_primitives::B256;
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};

use super::{
    backlog::{Progress, Turn},
    pairs::Pairs,
};
use crate::{
    decode::{FullAnnouncement, Malformed, read_object},
    fetch::{Arrival, Deliverer, DeliveryTask, Fetch},
    outcome::Entry,
    sink::TransactionSink,
    tasks::Alive,
};

/// Batches between the announcement reader and the thread. Few, so that announcements that wait for
/// the sink stay in the broadcast buffer, which counts its losses.
const BATCHES_WAITING: usize = 4;

/// One announcement, an object or a hash, and when it was read from the socket.
#[derive(Debug)]
pub(super) struct Notification {
    pub(super) json: Box<RawValue>,
    pub(super) at: Instant,
}

/// What a reader receives: its turn, and then announcements.
pub(super) type ObjectSender = (oneshot::Sender<Turn>, mpsc::Sender<Vec<Notification>>);

/// Processes the announcements of one subscription connection, in their order.
#[derive(Debug)]
pub(super) struct ObjectReader<S: TransactionSink> {
    fetch: Arc<Fetch>,
    deliverer: Arc<Deliverer<S>>,
    source: usize,
    trusts_sender: bool,
    progress: Arc<Progress>,
    pairs: Arc<Pairs>,
    _alive: Alive,
}

impl<S: TransactionSink> ObjectReader<S> {
    /// Starts the thread. It waits for its turn, so that the threads of one source's connections
    /// (one up, others lost) run one after another. It ends when the senders are dropped and
    /// everything sent is processed, or when the fetcher stops.
    pub(super) fn spawn(
        fetch: &Arc<Fetch>,
        deliverer: &Arc<Deliverer<S>>,
        source: usize,
        progress: &Arc<Progress>,
        pairs: &Arc<Pairs>,
    ) -> io::Result<ObjectSender> {
        let reader = Self {
            source,
            trusts_sender: fetch.settings.trusts_sender_of(source),
            progress: Arc::clone(progress),
            pairs: Arc::clone(pairs),
            _alive: fetch.tasks.alive(),
            fetch: Arc::clone(fetch),
            deliverer: Arc::clone(deliverer),
        };
        let (batches, received) = mpsc::channel(BATCHES_WAITING);
        let (take_turn, turn) = oneshot::channel();
        let body = move || {
            // Without a turn there are no announcements either.
            let Ok(_turn) = turn.blocking_recv() else { return };
            reader.run(received);
        };
        thread::Builder::new().name("mempool-object".into()).spawn(body)?;
        Ok((take_turn, batches))
    }

    fn run(self, mut batches: mpsc::Receiver<Vec<Notification>>) {
        let fetch = &self.fetch;
        while let Some(batch) = batches.blocking_recv() {
            fetch.deferral.observe_backlog(self.source, self.progress.backlog());
            for notification in batch {
                if fetch.tasks.stop.is_cancelled() {
                    return;
                }
                // The transaction counts as failed, and the thread goes on. The unwinding drops the
                // captured values.
                if catch_unwind(AssertUnwindSafe(|| self.take(&notification))).is_err() {
                    tracing::error!("an announced object could not be processed");
                }
                self.progress.take(1);
            }
            // Sends the requests that were submitted, for blob transactions.
            fetch.connections.flush();
        }
    }

    fn take(&self, notification: &Notification) {
        let (fetch, deliverer) = (&self.fetch, &*self.deliverer);
        // Requests that are submitted must not wait for those that are not.
        let flush = || fetch.connections.flush();
        let Some(permit) = deliverer.work_permit(flush) else { return };
        let arrival = |hash| Arrival {
            hash,
            entry: Entry::Announced,
            source: self.source,
            at: notification.at,
        };
        let json = notification.json.get();
        // An object; or a hash, if the node announces only hashes.
        let hash = parse_hash(json).map(FullAnnouncement::FetchRaw);
        match hash.unwrap_or_else(|| read_object(json.as_bytes())) {
            FullAnnouncement::Transaction(announced) => {
                let arrival = arrival(*announced.tx.hash());
                let entered = self.pairs.on_object(&fetch.hashes, arrival);
                let Some((arrival, ticket)) = entered else { return };
                let delivery = DeliveryTask::new(deliverer, arrival, ticket);
                let read = match self.trusts_sender {
                    true => Ok(announced.trust_sender()),
                    false => announced.recover_sender(),
                };
                drop(permit);
                match read {
                    Ok((tx, raw)) => delivery.deliver(tx, Some(raw), flush),
                    Err(_) => delivery.malformed(&Malformed::Signature),
                }
            }
            FullAnnouncement::FetchRaw(hash) => {
                drop(permit);
                let entered = self.pairs.on_object(&fetch.hashes, arrival(hash));
                let Some((arrival, ticket)) = entered else { return };
                // Waits while all slots are taken; a stop leaves the hash unfinished.
                let _ = fetch.tasks.wait_for(fetch.request(arrival, ticket), || {});
            }
            // Not paired: its hash is requested as if no object had come.
            FullAnnouncement::Malformed { hash: Some(hash), reason } => {
                let arrival = arrival(hash);
                if let Some(ticket) = fetch.hashes.enter(&arrival) {
                    DeliveryTask::new(deliverer, arrival, ticket).malformed(&reason);
                }
            }
            FullAnnouncement::Malformed { hash: None, reason } => {
                tracing::debug!(%reason, "malformed announcement");
                fetch.metrics.malformed_notifications.increment(1);
            }
        }
    }
}

/// The announcement of a hash.
pub(super) fn parse_hash(json: &str) -> Option<B256> {
    let hex = json.strip_prefix("\"0x")?.strip_suffix('"')?;
    const_hex::decode_to_array::<_, 32>(hex).ok().map(B256::from)
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
