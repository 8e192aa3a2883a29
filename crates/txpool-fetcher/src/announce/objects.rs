//! Reads announced objects, which are whole transactions in place of their hashes: decides whether
//! an object is delivered as it is, or its transaction requested.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Instant};

use futures::FutureExt as _;
use serde_json::value::RawValue;

use super::{Backlog, hashes::parse_hash, pairs::Pairs};
use crate::{
    context::Context,
    decode::{FullAnnouncement, announced_hash, read_object},
    fetch::{AnnouncedTransaction, Arrival, Fetch},
    node::{LastMessage, Notification, Notifications},
    outcome::Entry,
    sync::OnDrop,
};

/// Longest object, in bytes, that is decoded. Of a longer one only the hash is read, and the
/// transaction is requested: few transactions have 8 kB of data, and anvil announces blob
/// transactions with their sidecars.
const MAX_OBJECT_BYTES: usize = 16 * 1024;

/// The number of waiting objects from which on the thread of the sockets counts as behind.
const BUSY: u64 = 8;

/// Reads the announced objects of one source.
pub(super) struct ObjectReader {
    context: Arc<Context>,
    fetch: Arc<Fetch>,
    source: usize,
    last_message: Arc<LastMessage>,
    pairs: Arc<Pairs>,
}

impl ObjectReader {
    pub(super) fn new(
        context: &Arc<Context>,
        fetch: &Arc<Fetch>,
        source: usize,
        last_message: &Arc<LastMessage>,
        pairs: &Arc<Pairs>,
    ) -> Self {
        Self {
            context: Arc::clone(context),
            fetch: Arc::clone(fetch),
            source,
            last_message: Arc::clone(last_message),
            pairs: Arc::clone(pairs),
        }
    }

    /// Reads the subscription to its end, in the node's order. With `may_fall_back`, it ends at
    /// once if the first object is a hash.
    pub(super) async fn read(
        self,
        mut objects: Notifications,
        mut may_fall_back: bool,
        backlog: Arc<Backlog>,
    ) {
        // On every path, also after a panic: hashes must not wait for objects that nobody reads.
        let _closes = OnDrop(|| self.pairs.close());
        let meter = objects.meter();
        let _removes = OnDrop(|| backlog.remove(&meter));
        loop {
            if objects.is_empty() {
                self.pairs.end_objects();
            }
            // A lost object needs no action: its hash is announced on the other subscription.
            let (json, read_at) = match objects.next().await {
                Some(Notification::Read(json, read_at)) => (json, read_at),
                Some(Notification::Lagged) => continue,
                None => return,
            };
            self.last_message.record();
            if std::mem::take(&mut may_fall_back) && parse_hash(json.get()).is_some() {
                tracing::warn!(
                    "the node announces hashes instead of whole transactions: hashes are used"
                );
                self.pairs.refused.notify_one();
                return;
            }
            self.pairs.begin_object(read_at);
            let is_behind = meter.waiting() >= BUSY;
            let take = self.take(&json, read_at, is_behind);
            // A panic affects this object alone, whose ticket counts as failed.
            if AssertUnwindSafe(take).catch_unwind().await.is_err() {
                tracing::error!("a panic ended the processing of a transaction");
            }
        }
    }

    /// Delivers an object, or requests its transaction.
    async fn take(&self, json: &RawValue, read_at: Instant, is_behind: bool) {
        let hashes = &self.context.hashes;
        let arrival = |hash| Arrival {
            hash,
            entry: Entry::Announced,
            source: self.source,
            received_at: read_at,
        };
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
                let is_trusted = self.context.settings.trusts_sender(self.source);
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
            // It is not paired with its hash, which is requested as if no object had come.
            FullAnnouncement::Malformed(hash, reason) => {
                if let Some(ticket) = hashes.enter(arrival(hash)) {
                    ticket.finish_malformed(&reason);
                }
            }
            FullAnnouncement::NoHash => self.context.metrics.malformed_notifications.increment(1),
        }
    }
}
