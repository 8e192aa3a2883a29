//! Subscribes to what a node announces, and reads hashes, whole transactions (objects) and heads.
//! Entry: [`subscribe`].
//!
//! Each subscription has a broadcast buffer of alloy-pubsub, and one task here that reads it. The
//! task of the hashes waits for a fetch slot before it takes the next hash out of the buffer. So
//! this buffer, of [`ANNOUNCEMENT_BUFFER`](crate::ANNOUNCEMENT_BUFFER) hashes, is the only place in
//! the fetcher where an announcement can be lost: by an overrun, or at the end of the source. Both
//! are counted ([`Counts::lagged`](crate::Counts::lagged)), and an overrun opens a gap.
//!
//! With full announcements there are two subscriptions on two connections, which end together. The
//! subscription to hashes is complete; of the objects a node may drop some. A hash whose object
//! does not come in time is requested, and [`pairs`] decides when. So an overrun of the objects'
//! buffer loses nothing.
//!
//! # Locks
//! | lock | taken by | for how long |
//! |---|---|---|
//! | pairs | the tasks of hashes and of objects | a few look-ups; the locks of an entering hash (`fetch`) and of all waiting hashes are taken while it is held |
//! | meters | new subscriptions, `status()`, the ticks of a source | a sum over the subscriptions of one source |

mod hashes;
mod heads;
mod objects;
mod pairs;

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use alloy_primitives::B256;
use futures::{FutureExt as _, future::BoxFuture};
use tokio::sync::mpsc;

pub(crate) use self::pairs::AwaitingObjects;
use self::{hashes::HashReader, objects::ObjectReader, pairs::Pairs};
use crate::{
    chain::{HEADS_WAITING, HeadQueue},
    config::{Announcements, Endpoint},
    context::Context,
    error::{CallError, ConnectError, LossReason},
    fetch::Fetch,
    gap::Report,
    node::{Connection, Dialed, End, Meter, NodeInfo, dial, genesis_of, keep_alive, not_ethereum},
    sync::lock,
};

/// Capacity of the broadcast buffer of objects: 1,024, as in reth. It is smaller than that of
/// hashes, because the buffer keeps an object in memory until 1,024 later ones have come. A
/// transaction whose object overruns the buffer is requested by its hash.
const OBJECT_BUFFER: usize = 1_024;

/// The announcements and heads of a source that are read from a socket and not processed yet, over
/// all of its connections: announcements that a lost connection delivered are still processed.
pub(crate) struct Backlog {
    meters: Mutex<Meters>,
    pub(crate) heads: HeadQueue,
    /// The number of resets of the source's chain. A head is of the chain that was followed when
    /// its subscription, or its request, began. Relaxed: all its users run on the same thread.
    resets: AtomicU32,
    /// Sends reports to the source.
    pub(crate) reports: mpsc::Sender<Report>,
}

#[derive(Default)]
struct Meters {
    hashes: Vec<Arc<Meter>>,
    objects: Vec<Arc<Meter>>,
    /// The number of hashes read by subscriptions that have ended and are processed.
    read_before: u64,
}

impl Backlog {
    pub(crate) fn new(reports: mpsc::Sender<Report>) -> Self {
        Self {
            meters: Mutex::default(),
            heads: HeadQueue::new(HEADS_WAITING),
            resets: AtomicU32::new(0),
            reports,
        }
    }

    /// Returns the number of resets of the source's chain.
    pub(crate) fn resets(&self) -> u32 {
        self.resets.load(Relaxed)
    }

    /// Notes that the source's chain was reset: heads from before do not count any more.
    pub(crate) fn reset(&self) {
        self.resets.fetch_add(1, Relaxed);
        self.heads.clear();
    }

    /// Sends a report to the source, and waits for room. This cannot deadlock, because the source
    /// never waits for a task that reports.
    pub(crate) async fn report(&self, report: Report) {
        // A closed channel means that the source has ended, which makes the report irrelevant.
        let _ = self.reports.send(report).await;
    }

    /// Adds a subscription to hashes.
    pub(crate) fn add(&self, meter: &Arc<Meter>) {
        lock(&self.meters).hashes.push(Arc::clone(meter));
    }

    fn add_objects(&self, meter: &Arc<Meter>) {
        lock(&self.meters).objects.push(Arc::clone(meter));
    }

    /// Removes a subscription that has ended and whose announcements are processed.
    pub(crate) fn remove(&self, meter: &Arc<Meter>) {
        let mut meters = lock(&self.meters);
        meters.objects.retain(|other| !Arc::ptr_eq(other, meter));
        let before = meters.hashes.len();
        meters.hashes.retain(|other| !Arc::ptr_eq(other, meter));
        if meters.hashes.len() < before {
            meters.read_before += meter.sent();
        }
    }

    /// Returns the number of hashes that were read from the sockets, processed or not.
    pub(crate) fn hashes_read(&self) -> u64 {
        let meters = lock(&self.meters);
        meters.read_before + meters.hashes.iter().map(|meter| meter.sent()).sum::<u64>()
    }

    /// Returns the number of hashes and objects that were read from the sockets and are not
    /// processed.
    pub(crate) fn len(&self) -> u64 {
        let meters = lock(&self.meters);
        meters.hashes.iter().chain(&meters.objects).map(|meter| meter.waiting()).sum()
    }

    /// Returns the number of hashes that the buffers have lost since the previous call.
    pub(crate) fn newly_lost(&self) -> u64 {
        lock(&self.meters).hashes.iter().map(|meter| meter.newly_lost()).sum()
    }

    /// Closes the backlog at the end of its source. Returns the number of hashes that are lost by
    /// that: those lost since the last count, and those that wait in the buffers.
    pub(crate) fn close(&self) -> u64 {
        let mut meters = lock(&self.meters);
        let lost = meters.hashes.iter().map(|meter| meter.newly_lost() + meter.left()).sum();
        *meters = Meters { read_before: meters.read_before, ..Meters::default() };
        lost
    }
}

/// The subscription of a source to its announcements and heads.
pub(crate) struct Subscription {
    pub(crate) node: NodeInfo,
    pub(crate) ended: Arc<End>,
    /// The hash of the genesis block; `None` if the node did not return it.
    pub(crate) genesis: Option<B256>,
    /// Whether the node announces whole transactions too.
    pub(crate) has_objects: bool,
    /// The connections to a node: the one for hashes and heads and, with full announcements, the
    /// one for objects. Empty for a pool in this process.
    pub(crate) connections: Vec<Arc<Connection>>,
}

impl Subscription {
    /// Ends the subscription and its connections.
    pub(crate) fn end(&self, reason: LossReason) {
        self.ended.set(reason.clone());
        self.connections.iter().for_each(|connection| connection.end(reason.clone()));
    }
}

/// The tasks that read a subscription to its end, and process everything that came.
pub(crate) type Readers = Vec<BoxFuture<'static, ()>>;

/// Connects and subscribes. `was_connected` says that the source was connected before, which
/// shortens the probe: see [`dial`].
pub(crate) async fn subscribe(
    context: &Arc<Context>,
    fetch: &Arc<Fetch>,
    source: usize,
    backlog: &Arc<Backlog>,
    was_connected: bool,
) -> Result<(Subscription, Readers), ConnectError> {
    const HASHES: &str = "newPendingTransactions";
    let (config, limits) = (&context.settings.config, &context.settings.limits);
    let endpoint = &config.sources[source];
    let limit = limits.ping_timeout;
    let is_auto = config.announcements == Announcements::Auto;
    let Dialed { connection: hashes, node } = dial(endpoint, limits, was_connected).await?;
    context.chain_id.check(source, endpoint, node.chain_id).await?;
    let genesis = genesis_of(&hashes, limit).await;
    let mut readers: Readers = Vec::new();
    let mut pairs = None;
    // Objects come first, so that a hash without its object is one whose object the node dropped.
    if context.settings.wants_objects(source) {
        let Dialed { connection, node } = dial(endpoint, limits, true).await?;
        context.chain_id.check(source, endpoint, node.chain_id).await?;
        match connection.subscribe((HASHES, true), OBJECT_BUFFER, limit).await {
            Ok(objects) => {
                let meter = objects.meter();
                backlog.add_objects(&meter);
                let paired = Pairs::new(&context.awaiting_objects, Some(meter), limits);
                let last_message = connection.last_message();
                let reader = ObjectReader::new(context, fetch, source, last_message, &paired);
                readers.push(reader.read(objects, is_auto, Arc::clone(backlog)).boxed());
                pairs = Some((connection, paired));
            }
            Err(CallError::Rpc { code, message }) if is_auto => {
                tracing::warn!(
                    %endpoint, code, message,
                    "the node refuses to announce whole transactions: hashes are used instead"
                );
            }
            Err(error) => return Err(subscribe_error(endpoint, error)),
        }
    }
    let announced = hashes.subscribe((HASHES,), limits.announcement_buffer, limit).await;
    let announced = announced.map_err(|error| subscribe_error(endpoint, error))?;
    backlog.add(&announced.meter());
    let reader = HashReader::new(context, fetch, source, backlog);
    let paired = pairs.as_ref().map(|(_, pairs)| Arc::clone(pairs));
    let last_message = hashes.last_message();
    readers.push(reader.read(announced, Arc::clone(last_message), paired).boxed());
    let heads = hashes.subscribe(("newHeads",), HEADS_WAITING, limit).await;
    let heads = heads.map_err(|error| subscribe_error(endpoint, error))?;
    readers.push(
        heads::read(heads, Arc::clone(context), Arc::clone(last_message), Arc::clone(backlog))
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
    let ended = Arc::clone(&hashes.ended);
    Ok((Subscription { node, ended, genesis, has_objects, connections }, readers))
}

/// Converts the error of a subscription into one of the connect.
fn subscribe_error(endpoint: &Endpoint, error: CallError) -> ConnectError {
    match error {
        CallError::Timeout(timeout) => ConnectError::no_answer(endpoint, "eth_subscribe", timeout),
        CallError::ConnectionLost => ConnectError::ClosedAtOnce { endpoint: endpoint.to_string() },
        CallError::Rpc { message, .. } => not_ethereum(endpoint, "eth_subscribe", &message),
        CallError::Unreadable { response } => not_ethereum(endpoint, "eth_subscribe", &response),
    }
}

/// Ends each of the two connections when the other ends. If the node turns out to announce no
/// objects, it ends the connection for objects alone.
async fn end_together(
    hashes: Arc<Connection>,
    objects: Arc<Connection>,
    pairs: Arc<Pairs>,
    backlog: Arc<Backlog>,
) {
    tokio::select! {
        // The refusal is looked at first: it ends the connection for objects, which must not end
        // the one for hashes.
        biased;
        () = pairs.refused.notified() => {
            backlog.report(Report::NoObjects).await;
            objects.end(LossReason::Closed);
        }
        reason = objects.ended.wait() => hashes.end(reason),
        reason = hashes.ended.wait() => objects.end(reason),
    }
}
