//! From the object of a full announcement to an outcome, on a thread for the objects of one source.
//!
//! Parsing and hashing take a few microseconds, but the sink may block and recovery takes 34 us:
//! neither may run on the thread that reads the sockets.

use std::{sync::Arc, time::Instant};

use alloy_consensus::transaction::{Recovered, SignerRecoverable as _};

use super::{Backlog, hashes::parse_hash, pairs::Pairs};
use crate::{
    connection::Listener,
    decode::{FullAnnouncement, Malformed, announced_hash, read_object},
    fetch::{Arrival, Deliverer, Fetch},
    outcome::Entry,
    sink::TransactionSink,
    sync::contain,
};

/// Longest announcement of an object that is kept until it is read. Of a longer one only the hash is
/// kept: few transactions carry 8 kB of data, and anvil announces blob transactions with their sidecars.
const MAX_OBJECT_BYTES: usize = 16 * 1024;

/// Most bytes of all objects that wait: 16,384 of 4 kB. Above that only the hash of one is kept.
const MAX_WAITING_BYTES: usize = 64 * 1024 * 1024;

/// An announced object, and when it was read from the socket.
pub(super) struct Object {
    /// Of one that is too long, or of which the hash alone was announced, an object with no other field.
    pub(super) json: Box<str>,
    pub(super) at: Instant,
    pub(super) pairs: Arc<Pairs>,
}

/// Takes in the announced objects of a subscription. Never waits.
pub(super) struct ObjectListener {
    pub(super) fetch: Arc<Fetch>,
    pub(super) backlog: Arc<Backlog>,
    pub(super) pairs: Arc<Pairs>,
    /// Whether a node that announces hashes here is left at hashes.
    pub(super) may_be_hashes: bool,
}

impl Listener for ObjectListener {
    fn on_notification(&mut self, json: &str, read_at: Instant) {
        let hash = parse_hash(json);
        if self.may_be_hashes && hash.is_some() {
            self.pairs.close();
            return self.pairs.refused.notify_one();
        }
        self.may_be_hashes = false;
        let objects = &self.backlog.objects;
        let is_too_much = || objects.bytes().saturating_add(json.len()) > MAX_WAITING_BYTES;
        let is_kept = hash.is_none() && json.len() <= MAX_OBJECT_BYTES && !is_too_much();
        let kept = if is_kept {
            Some(json.into())
        } else {
            let hash = hash.or_else(|| announced_hash(json));
            hash.map(|hash| format!(r#"{{"hash":"{hash}"}}"#).into())
        };
        match kept {
            Some(kept) => {
                let pairs = Arc::clone(&self.pairs);
                objects.push(Object { json: kept, at: read_at, pairs }, json.len());
            }
            None => self.fetch.metrics.malformed_notifications.increment(1),
        }
    }
}

impl Drop for ObjectListener {
    fn drop(&mut self) {
        self.pairs.close();
    }
}

/// Processes the announced objects of one source, in their order, on a thread of its own. Returns when the source has
/// ended, or when the fetcher stops.
pub(crate) fn process_objects<S: TransactionSink>(
    deliverer: &Deliverer<S>,
    source: usize,
    backlog: &Backlog,
) {
    let (fetch, objects) = (&deliverer.fetch, &backlog.objects);
    // Sends the requests that were submitted, for blob transactions, before a wait.
    while let Some(Some(next)) = fetch.tasks.wait_for(objects.next(), || fetch.connections.flush())
    {
        if fetch.tasks.stop.is_cancelled() {
            return;
        }
        fetch.deferral.observe_backlog(source, || backlog.len());
        // What the buffer has lost is requested: its hash comes by the other subscription.
        let Ok(object) = next else { continue };
        contain(|| take(deliverer, source, &object));
    }
}

fn take<S: TransactionSink>(deliverer: &Deliverer<S>, source: usize, object: &Object) {
    let fetch = &deliverer.fetch;
    // Requests that are submitted must not wait for those that are not.
    let flush = || fetch.connections.flush();
    let Some(permit) = deliverer.work_permit(flush) else { return };
    let arrival = |hash| Arrival { hash, entry: Entry::Announced, source, at: object.at };
    match read_object(&object.json) {
        FullAnnouncement::Transaction(announced) => {
            let arrival = arrival(*announced.tx.hash());
            let entered = object.pairs.on_object(&fetch.hashes, arrival, true);
            let Some(ticket) = entered else { return };
            let is_trusted = fetch.settings.trusts_sender_of(source);
            let claimed = is_trusted.then_some(announced.claimed_sender);
            let sender = claimed.map_or_else(|| announced.tx.recover_signer(), Ok);
            drop(permit);
            match sender {
                Ok(sender) => {
                    let tx = Recovered::new_unchecked(announced.tx, sender);
                    deliverer.deliver(ticket, tx, Some(announced.raw), flush);
                }
                Err(_) => ticket.malformed(&Malformed::Signature),
            }
        }
        FullAnnouncement::FetchRaw(hash) => {
            drop(permit);
            let entered = object.pairs.on_object(&fetch.hashes, arrival(hash), false);
            if let Some(ticket) = entered {
                object.pairs.request(fetch, ticket);
            }
        }
        // Not paired: its hash is requested as if no object had come.
        FullAnnouncement::Malformed(hash, reason) => {
            if let Some(ticket) = fetch.hashes.enter(arrival(hash)) {
                ticket.malformed(&reason);
            }
        }
        FullAnnouncement::NoHash => fetch.metrics.malformed_notifications.increment(1),
    }
}
