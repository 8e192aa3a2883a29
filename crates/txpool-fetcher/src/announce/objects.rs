//! Reads announced objects: whole transactions in place of their hashes.

use std::sync::Arc;

use futures::FutureExt as _;
use serde_json::value::RawValue;

use super::{Backlog, hashes::parse_hash, pairs::Pairs};
use crate::{
    context::Context,
    decode::{FullAnnouncement, announced_hash, read_object},
    fetch::{AnnouncedTransaction, Arrival, Fetch},
    node::{Connection, Notification, Notifications},
    outcome::Entry,
    sync::OnDrop,
};

/// Longest announcement of an object that is read. Of a longer one only the hash is: few transactions
/// carry 8 kB of data, and anvil announces blob transactions with their sidecars.
const MAX_OBJECT_BYTES: usize = 16 * 1024;

/// So many objects that wait are the sign that the thread of the sockets is behind.
const BUSY: u64 = 8;

/// Reads the announced objects of one source.
pub(super) struct ObjectReader {
    context: Arc<Context>,
    fetch: Arc<Fetch>,
    source: usize,
    connection: Arc<Connection>,
    pairs: Arc<Pairs>,
}

impl ObjectReader {
    pub(super) fn new(
        context: &Arc<Context>,
        fetch: &Arc<Fetch>,
        source: usize,
        connection: &Arc<Connection>,
        pairs: &Arc<Pairs>,
    ) -> Self {
        Self {
            context: Arc::clone(context),
            fetch: Arc::clone(fetch),
            source,
            connection: Arc::clone(connection),
            pairs: Arc::clone(pairs),
        }
    }

    /// Reads the subscription to its end, in the node's order. `may_be_hashes`: a node whose first
    /// object is a hash is left at hashes.
    pub(super) async fn read(
        self,
        mut objects: Notifications,
        mut may_be_hashes: bool,
        backlog: Arc<Backlog>,
    ) {
        // On every path: hashes must not wait for objects that nobody reads.
        let _closes = OnDrop(|| self.pairs.close());
        let meter = objects.meter();
        let _removes = OnDrop(|| backlog.remove(&meter));
        loop {
            if objects.is_empty() {
                self.pairs.objects_are_processed();
            }
            // What the buffer has lost is requested: its hash comes by the other subscription.
            let (json, read_at) = match objects.next().await {
                Some(Notification::Read(json, read_at)) => (json, read_at),
                Some(Notification::Lagged) => continue,
                None => return,
            };
            self.connection.heard();
            if std::mem::take(&mut may_be_hashes) && parse_hash(json.get()).is_some() {
                tracing::warn!("the node announces hashes instead of objects: taking hashes");
                self.pairs.refused.notify_one();
                return;
            }
            self.pairs.object_is_read(read_at);
            let is_behind = meter.waiting() >= BUSY;
            let take = self.take(&json, read_at, is_behind);
            // A panic costs this object alone: its ticket counts as failed.
            if std::panic::AssertUnwindSafe(take).catch_unwind().await.is_err() {
                tracing::error!("a transaction could not be processed");
            }
        }
    }

    async fn take(&self, json: &RawValue, read_at: std::time::Instant, is_behind: bool) {
        let hashes = &self.context.hashes;
        let arrival =
            |hash| Arrival { hash, entry: Entry::Announced, source: self.source, at: read_at };
        let json = json.get();
        let read = if json.len() <= MAX_OBJECT_BYTES && !json.starts_with('"') {
            read_object(json)
        } else {
            parse_hash(json)
                .or_else(|| announced_hash(json))
                .map_or(FullAnnouncement::NoHash, FullAnnouncement::FetchRaw)
        };
        match read {
            FullAnnouncement::Transaction(announced) => {
                let arrival = arrival(*announced.tx.hash());
                let Some(ticket) = self.pairs.on_object(hashes, arrival, true) else { return };
                let is_trusted = self.context.settings.trusts_sender_of(self.source);
                let announced = AnnouncedTransaction {
                    tx: announced.tx,
                    raw: announced.raw,
                    trusted_sender: is_trusted.then_some(announced.claimed_sender),
                };
                self.fetch.deliver_announced(ticket, announced, is_behind).await;
            }
            FullAnnouncement::FetchRaw(hash) => {
                if let Some(ticket) = self.pairs.on_object(hashes, arrival(hash), false) {
                    self.pairs.fetch(&self.fetch, ticket).await;
                }
            }
            // Not paired: its hash is requested as if no object had come.
            FullAnnouncement::Malformed(hash, reason) => {
                if let Some(ticket) = hashes.enter(arrival(hash)) {
                    ticket.malformed(&reason);
                }
            }
            FullAnnouncement::NoHash => self.context.metrics.malformed_notifications.increment(1),
        }
    }
}
