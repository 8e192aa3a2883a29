//! What a node announces: subscribes, and reads hashes, whole transactions and heads. Entry: [`subscribe`].
//!
//! Each subscription has a broadcast buffer of alloy-pubsub, and one task here that reads it. The task
//! of the hashes waits for a fetch slot before it takes the next hash out of the buffer. So the buffer,
//! with [`ANNOUNCEMENT_BUFFER`](crate::ANNOUNCEMENT_BUFFER) places, is the only one where an announcement
//! can be lost on our side: by an overrun, or at the end of the source. Both are counted
//! ([`Counts::lagged`](crate::Counts::lagged)), and an overrun opens a gap.
//!
//! # Locks
//! | lock | who takes it | for how long |
//! |---|---|---|
//! | pairs | the tasks of hashes and of objects | a few look-ups; the locks of a hash that enters (`fetch`) and of all hashes that wait are taken under it |
//! | meters | who subscribes, `status()`, the ticks of a source | a sum over the subscriptions of one source |
//!
//! With full announcements there are two subscriptions, each on a connection of its own, which end
//! together: to hashes, which is the truth, and to objects, of which a node may drop some. A hash whose
//! object does not come in time is requested: [`pairs`] says when. So an overrun of the objects' buffer
//! loses nothing.

mod hashes;
mod heads;
mod objects;
mod pairs;

use std::sync::{Arc, Mutex};

use futures::{FutureExt as _, future::BoxFuture};
use tokio::sync::mpsc;

pub(crate) use self::pairs::AwaitingObjects;
use self::{hashes::HashReader, objects::ObjectReader, pairs::Pairs};
use crate::{
    chain::{HEADS_WAITING, HeadQueue},
    config::{Announcements, Settings},
    context::Context,
    error::{CallError, ConnectError, LossReason},
    fetch::Fetch,
    gap::Report,
    node::{Connection, Dialed, End, Meter, NodeInfo, dial, genesis_of, keep_alive, not_ethereum},
    sync::lock,
};

/// Objects that may wait to be read. They are kept in memory until as many later ones have come, so
/// there are fewer than hashes: 1,024, as many as reth keeps. What overruns is requested by its hash.
const OBJECT_BUFFER: usize = 1_024;

/// The announcements and heads of a source, whichever of its connections they came over: what a lost
/// connection has delivered is processed all the same.
pub(crate) struct Backlog {
    meters: Mutex<Meters>,
    pub(crate) heads: HeadQueue,
    /// To the source.
    pub(crate) reports: mpsc::Sender<Report>,
}

#[derive(Default)]
struct Meters {
    hashes: Vec<Arc<Meter>>,
    objects: Vec<Arc<Meter>>,
    /// Hashes read by subscriptions that are read to their end.
    read_before: u64,
}

impl Backlog {
    pub(crate) fn new(reports: mpsc::Sender<Report>) -> Self {
        Self { meters: Mutex::default(), heads: HeadQueue::new(HEADS_WAITING), reports }
    }

    /// Reports to the source. Cannot deadlock: the source never waits for a task that reports.
    pub(crate) async fn report(&self, report: Report) {
        // A closed channel means that the source has ended, which makes the report irrelevant.
        let _ = self.reports.send(report).await;
    }

    pub(crate) fn add(&self, hashes: &Arc<Meter>) {
        lock(&self.meters).hashes.push(Arc::clone(hashes));
    }

    fn add_objects(&self, objects: &Arc<Meter>) {
        lock(&self.meters).objects.push(Arc::clone(objects));
    }

    /// The subscription is read to its end.
    pub(crate) fn remove(&self, meter: &Arc<Meter>) {
        let mut meters = lock(&self.meters);
        meters.objects.retain(|other| !Arc::ptr_eq(other, meter));
        let before = meters.hashes.len();
        meters.hashes.retain(|other| !Arc::ptr_eq(other, meter));
        if meters.hashes.len() < before {
            meters.read_before += meter.sent();
        }
    }

    /// Hashes that were read from the sockets, also those that wait.
    pub(crate) fn read(&self) -> u64 {
        let meters = lock(&self.meters);
        meters.read_before + meters.hashes.iter().map(|meter| meter.sent()).sum::<u64>()
    }

    /// Hashes and objects that were read from the sockets and are not processed.
    pub(crate) fn len(&self) -> u64 {
        let meters = lock(&self.meters);
        meters.hashes.iter().chain(&meters.objects).map(|meter| meter.waiting()).sum()
    }

    /// How many hashes the buffers have lost since this was called the last time.
    pub(crate) fn newly_lost(&self) -> u64 {
        lock(&self.meters).hashes.iter().map(|meter| meter.newly_lost()).sum()
    }

    /// The source has ended. Returns how many of its hashes are lost, or wait and nobody takes them out.
    pub(crate) fn close(&self) -> u64 {
        let mut meters = lock(&self.meters);
        let left = meters.hashes.iter().map(|meter| meter.newly_lost() + meter.left()).sum();
        *meters = Meters { read_before: meters.read_before, ..Meters::default() };
        left
    }
}

/// Where a source's announcements are read.
pub(crate) struct Subscription {
    pub(crate) node: NodeInfo,
    pub(crate) ended: Arc<End>,
    /// Whether the chain has another genesis block than when this source was last connected.
    pub(crate) was_reset: bool,
    /// Whether the node announces whole transactions too.
    pub(crate) has_objects: bool,
    /// To a node: for hashes and heads, and that for objects, which ends with it.
    pub(crate) connections: Vec<Arc<Connection>>,
}

impl Subscription {
    /// Ends its connections for this reason.
    pub(crate) fn end(&self, reason: LossReason) {
        self.ended.set(reason.clone());
        self.connections.iter().for_each(|connection| connection.end(reason.clone()));
    }
}

/// What reads a subscription until everything that came is processed.
pub(crate) type Readers = Vec<BoxFuture<'static, ()>>;

/// Connects and subscribes. `known`: the source was up before.
pub(crate) async fn subscribe(
    context: &Arc<Context>,
    fetch: &Arc<Fetch>,
    source: usize,
    backlog: &Arc<Backlog>,
    known: bool,
) -> Result<(Subscription, Readers), ConnectError> {
    const HASHES: &str = "newPendingTransactions";
    let (config, limits) = (&context.settings.config, &context.settings.limits);
    let endpoint = &config.sources[source];
    let limit = limits.ping_timeout;
    let refused = |error| match error {
        CallError::Timeout(timeout) => ConnectError::no_answer(endpoint, "eth_subscribe", timeout),
        CallError::ConnectionLost => ConnectError::ClosedAtOnce { endpoint: endpoint.to_string() },
        CallError::Rpc { message: said, .. } | CallError::Unreadable { said } => {
            not_ethereum(endpoint, "eth_subscribe", &said)
        }
    };
    let is_auto = config.announcements == Announcements::Auto;
    let Dialed { connection: hashes, node } = dial(endpoint, limits, known).await?;
    context.chain_id.check(source, endpoint, node.chain_id).await?;
    let was_reset = was_reset(context, source, &hashes).await;
    let mut readers: Readers = Vec::new();
    let mut pairs = None;
    // Objects first: a hash without its object is then one that the node has dropped.
    if context.settings.has_objects(source) {
        let Dialed { connection, node } = dial(endpoint, limits, true).await?;
        context.chain_id.check(source, endpoint, node.chain_id).await?;
        match connection.subscribe((HASHES, true), OBJECT_BUFFER, limit).await {
            Ok(objects) => {
                let meter = objects.meter();
                backlog.add_objects(&meter);
                let paired = Pairs::new(&context.awaiting_objects, Some(meter), limits);
                let reader = ObjectReader::new(context, fetch, source, &connection, &paired);
                readers.push(reader.read(objects, is_auto, Arc::clone(backlog)).boxed());
                pairs = Some((connection, paired));
            }
            Err(CallError::Rpc { code, message }) if is_auto => {
                tracing::warn!(%endpoint, code, message, "the node refuses full objects: taking hashes");
            }
            Err(error) => return Err(refused(error)),
        }
    }
    let stream = hashes.subscribe((HASHES,), limits.announcement_buffer, limit);
    let stream = stream.await.map_err(refused)?;
    backlog.add(&stream.meter());
    let reader = HashReader::new(context, fetch, source, backlog);
    let paired = pairs.as_ref().map(|(_, pairs)| Arc::clone(pairs));
    readers.push(reader.read(stream, Arc::clone(&hashes), paired).boxed());
    let heads_stream = hashes.subscribe(("newHeads",), HEADS_WAITING, limit);
    let heads_stream = heads_stream.await.map_err(refused)?;
    readers.push(
        heads::read(heads_stream, Arc::clone(context), Arc::clone(&hashes), Arc::clone(backlog))
            .boxed(),
    );
    let listings = &context.listings[source];
    let keep_alive = |connection: &Arc<Connection>| {
        keep_alive(Arc::clone(connection), limits.clone(), Arc::clone(listings)).boxed()
    };
    readers.push(keep_alive(&hashes));
    let mut connections = vec![Arc::clone(&hashes)];
    let has_objects = pairs.is_some();
    if let Some((objects, pairs)) = pairs {
        readers.push(keep_alive(&objects));
        connections.push(Arc::clone(&objects));
        readers.push(
            Arc::clone(&pairs).request_overdue(Arc::clone(context), Arc::clone(fetch)).boxed(),
        );
        readers
            .push(end_together(Arc::clone(&hashes), objects, pairs, Arc::clone(backlog)).boxed());
    }
    let up = Subscription {
        node,
        ended: Arc::clone(&hashes.ended),
        was_reset,
        has_objects,
        connections,
    };
    Ok((up, readers))
}

/// Whether the chain of the node was reset since it was last connected: it has another genesis block.
/// Then what is known of it has to be forgotten.
async fn was_reset(context: &Context, source: usize, connection: &Connection) -> bool {
    let Settings { config, limits } = &*context.settings;
    let Some(found) = genesis_of(connection, limits.ping_timeout).await else { return false };
    let Some(before) = context.genesis.replace(source, found) else { return false };
    tracing::error!(
        endpoint = %config.sources[source], %before, %found,
        "the chain was reset: it has another genesis block under the same chain id; everything that \
         was known of it is forgotten"
    );
    true
}

/// Ends each of the two connections with the other, unless the node turns out to announce hashes in
/// place of objects: that ends the one for objects alone.
async fn end_together(
    hashes: Arc<Connection>,
    objects: Arc<Connection>,
    pairs: Arc<Pairs>,
    backlog: Arc<Backlog>,
) {
    tokio::select! {
        // A refusal ends the connection for objects alone.
        biased;
        () = pairs.refused.notified() => {
            backlog.report(Report::NoObjects).await;
            objects.end(LossReason::Closed);
        }
        reason = objects.ended.wait() => hashes.end(reason),
        reason = hashes.ended.wait() => objects.end(reason),
    }
}
