//! What a node announces: subscribes, and takes in hashes, whole transactions and heads. Entry:
//! [`subscribe`], and [`process_waiting`] for each source.
//!
//! A [`HashReader`] leaves a hash in the buffer of the source, the [`Backlog`], while no fetch slot is free;
//! [`process_waiting`] waits for slots for them: in their order, or, of more than 1,024 hashes without objects, for
//! the newest first. That is the only place where announcements can be lost on our side, displaced by later ones or at
//! the end of the source: [`Counts::lagged`](crate::Counts::lagged).
//!
//! # Locks
//! | lock | who takes it | for how long |
//! |---|---|---|
//! | pairs | who reads hashes, the thread of objects | a few look-ups; the locks of a hash that enters (`fetch`), of all hashes that wait and of the objects' buffer are taken under it |
//!
//! With full announcements there are two subscriptions, each on a connection of its own, which one thread reads and
//! which end together: to hashes, which is the truth, and to objects, of which a node may drop some. A hash whose
//! object does not come in time is requested: [`pairs`] says when. So an overrun of the objects' buffer loses nothing.

mod hashes;
mod objects;
mod pairs;

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Instant,
};

use futures::{FutureExt as _, future::BoxFuture};
use tokio::sync::mpsc;

pub(crate) use self::{
    hashes::{HashReader, process_waiting},
    objects::process_objects,
};
use self::{
    objects::{Object, ObjectListener},
    pairs::Pairs,
};
use crate::{
    buffer::Buffer,
    chain::{HEADS_WAITING, HeadQueue, read_head},
    config::{Announcements, Settings},
    connection::{Listener, Subscription, dial, not_ethereum},
    error::{CallError, ConnectError, LossReason},
    fetch::{Arrival, Deliverer, Fetch},
    gap::Report,
    sink::TransactionSink,
};

/// The announcements of a source that wait, whichever of its connections they came over: what a lost
/// connection has delivered is processed all the same.
pub(crate) struct Backlog {
    /// With full announcements: each with where its object may have come.
    hashes: Buffer<(Arrival, Option<Arc<Pairs>>)>,
    objects: Buffer<Object>,
    pub(crate) heads: Arc<HeadQueue>,
    /// To the source.
    pub(crate) reports: mpsc::Sender<Report>,
    /// Announcements that were read; with full announcements those of hashes.
    pub(crate) read: AtomicU64,
}

/// The part of the buffer above which the newest announcement is processed first.
const CROWDED: usize = 16;

impl Backlog {
    /// `slots` for announcements of hashes, and as many for those of objects. With objects the hashes keep the
    /// node's order, by which it is known which objects are overdue.
    pub(crate) fn new(slots: usize, has_objects: bool, reports: mpsc::Sender<Report>) -> Self {
        let few = if has_objects { slots } else { slots / CROWDED };
        Self {
            hashes: Buffer::newest_first_above(few, slots),
            objects: Buffer::new(slots),
            heads: Buffer::new(HEADS_WAITING).into(),
            reports,
            read: AtomicU64::new(0),
        }
    }

    /// Reports to the source. Cannot deadlock: the source never waits for a task that reports.
    pub(crate) async fn report(&self, report: Report) {
        // A closed channel means that the source has ended, which makes the report irrelevant.
        let _ = self.reports.send(report).await;
    }

    /// Announcements read from the sockets and not yet processed.
    pub(crate) fn len(&self) -> u64 {
        self.hashes.len() + self.objects.len()
    }

    /// The source has ended. Returns how many of its hashes nobody takes out: they are load no longer.
    pub(crate) fn close(&self) -> u64 {
        self.objects.close();
        let left = self.hashes.close();
        while self.hashes.try_next().is_some() {}
        left
    }
}

/// Connects and subscribes. `known`: the source was up before. The future requests the hashes whose objects are overdue,
/// until one of the two connections ends, which ends the other one; or, with [`Announcements::Auto`], until the node
/// turns out to announce hashes in place of objects.
pub(crate) async fn subscribe<S: TransactionSink>(
    deliverer: &Arc<Deliverer<S>>,
    index: usize,
    backlog: &Arc<Backlog>,
    known: bool,
) -> Result<(Subscription, BoxFuture<'static, ()>), ConnectError> {
    const HASHES: &str = "newPendingTransactions";
    let fetch = &deliverer.fetch;
    let Settings { config, limits } = &*fetch.settings;
    let (endpoint, limit) = (&config.sources[index], limits.ping_timeout);
    let thread = ("mempool-announce", &*fetch.tasks);
    let patience = (limits, &fetch.listings[index]);
    let is_auto = config.announcements == Announcements::Auto;
    let ((connection, node), second) = if config.announcements == Announcements::Hashes {
        let [dialed] = dial(endpoint, patience, known, thread).await?;
        (dialed, None)
    } else {
        let [dialed, objects] = dial(endpoint, patience, known, thread).await?;
        (dialed, Some(objects))
    };
    let refused = |error: CallError| not_ethereum(endpoint, "eth_subscribe", &error.to_string());
    deliverer.chain_id.check(index, endpoint, node.chain_id).await?;
    let mut full = None;
    // Objects first: a hash without its object is then one that the node has dropped.
    if let Some((connection, node)) = second {
        deliverer.chain_id.check(index, endpoint, node.chain_id).await?;
        let paired = Pairs::new(backlog, &fetch.waiting, limits);
        let listener = ObjectListener {
            fetch: Arc::clone(fetch),
            backlog: Arc::clone(backlog),
            pairs: Arc::clone(&paired),
            may_be_hashes: is_auto,
        };
        match connection.subscribe((HASHES, true), listener, limit).await {
            Ok(()) => full = Some((Arc::new(connection), paired)),
            Err(CallError::Rpc { code, message }) if is_auto => {
                tracing::warn!(%endpoint, code, message, "the node refuses full objects: taking hashes");
            }
            Err(error) => return Err(refused(error)),
        }
    }
    let pairs = full.as_ref().map(|(_, pairs)| pairs);
    let reader = HashReader::new(fetch, index, backlog, pairs);
    connection.subscribe((HASHES,), reader, limit).await.map_err(refused)?;
    let listener = HeadListener { fetch: Arc::clone(fetch), backlog: Arc::clone(backlog) };
    connection.subscribe(("newHeads",), listener, limit).await.map_err(refused)?;
    let hashes = Arc::new(connection);
    let objects = full.as_ref().map(|(objects, _)| objects);
    let up = Subscription {
        node,
        ended: Arc::clone(&hashes.ended),
        connections: std::iter::once(&hashes).chain(objects).cloned().collect(),
    };
    let (fetch, backlog) = (Arc::clone(fetch), Arc::clone(backlog));
    let read = async move {
        let Some((objects, pairs)) = full else { return };
        let until_one_ends = async {
            tokio::select! {
                // A refusal ends the connection for objects alone.
                biased;
                () = pairs.refused.notified() => {
                    tracing::warn!("the node announces hashes instead of objects: taking hashes");
                    backlog.report(Report::NoObjects).await;
                    objects.end(LossReason::Closed);
                }
                reason = objects.ended.wait() => hashes.end(reason),
                reason = hashes.ended.wait() => objects.end(reason),
            }
        };
        tokio::join!(pairs.request_overdue(&fetch), until_one_ends);
    };
    Ok((up, read.boxed()))
}

/// Longest head, else it is malformed. anvil's carry their transactions' hashes: 200 kB for 3,000.
const MAX_HEAD_BYTES: usize = 1024 * 1024;

struct HeadListener {
    fetch: Arc<Fetch>,
    backlog: Arc<Backlog>,
}

impl Listener for HeadListener {
    fn on_notification(&mut self, json: &str, _: Instant) {
        let read = Some(json).filter(|json| json.len() <= MAX_HEAD_BYTES).map(read_head);
        let Some(Ok(head)) = read else {
            return self.fetch.metrics.malformed_notifications.increment(1);
        };
        // The source reads its reports at once; of 256 that wait one more head is no news.
        let _ = self.backlog.reports.try_send(Report::Head(head));
        self.backlog.heads.push(head.into(), 0);
    }
}
