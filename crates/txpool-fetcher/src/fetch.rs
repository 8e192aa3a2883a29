//! The way of one hash: admitted, asked for, decoded, delivered, counted.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Instant, SystemTime},
};

use alloy_primitives::B256;
use futures::FutureExt as _;
use serde_json::value::RawValue;
use tokio::time::sleep;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    config::FetcherConfig,
    connection::Connection,
    deferral::{DeferrableWork, Deferral, DeferralPermit},
    error::CallError,
    limit::{NodeLimit, RequestPermit},
    mined::RecentlyMined,
    outcome::{Entry, Outcome, Tally, Ticket},
    request_connections::RequestConnections,
    seen::{Seen, SeenSet},
    sink::{Delivery, FetchedTransaction, TransactionSink},
    slots::{Slot, Slots},
    sync::lock,
    tx::{Answer, is_on_chain, read_answer},
    workers::{Urgency, Workers},
};

/// What all sources share.
#[derive(Debug)]
pub(crate) struct FetchContext<S> {
    pub(crate) config: FetcherConfig,
    pub(crate) sink: S,
    pub(crate) tally: Arc<Tally>,
    pub(crate) seen: SeenSet,
    pub(crate) slots: Slots,
    pub(crate) deferral: Arc<Deferral>,
    pub(crate) requests: RequestConnections,
    /// What each source may be asked at once.
    pub(crate) limits: Box<[Arc<NodeLimit>]>,
    pub(crate) mined: Mutex<RecentlyMined>,
    pub(crate) chain_id: Mutex<Option<u64>>,
    /// Where decoding and recovery run.
    pub(crate) workers: Workers,
    /// Every fetch, so that a stop can wait for them.
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
    pub(crate) sink_closed: CancellationToken,
    pub(crate) announcement_counts: Box<[Arc<AnnouncementCounts>]>,
}

/// What a source was first with.
#[derive(Debug, Default)]
pub(crate) struct AnnouncementCounts {
    pub(crate) announced: AtomicU64,
    pub(crate) first_seen: AtomicU64,
}

/// A hash under way. Ends with [`finish`](Self::finish); dropped without it (a panic in a sink)
/// the hash counts as failed and may come again, unless the fetcher is stopping.
struct FetchTask<S: TransactionSink> {
    context: Arc<FetchContext<S>>,
    hash: B256,
    ticket: Option<Ticket>,
}

/// What is known of a hash when it enters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) hash: B256,
    pub(crate) entry: Entry,
    pub(crate) source: usize,
    pub(crate) at: Instant,
}

impl<S: TransactionSink> FetchContext<S> {
    /// Takes in one announcement. Waits while all slots are taken: the announcements behind it
    /// stay in the broadcast buffer meanwhile, whose overrun is counted.
    pub(crate) async fn announced(self: &Arc<Self>, arrival: Arrival) {
        let ticket = self.tally.enter(Entry::Announced);
        self.announcement_counts[arrival.source].announced.fetch_add(1, Relaxed);
        if lock(&self.mined).contains(&arrival.hash) {
            return ticket.leave(Outcome::Mined);
        }
        if !self.seen.insert_new(arrival.hash) {
            return ticket.leave(Outcome::Known);
        }
        self.announcement_counts[arrival.source].first_seen.fetch_add(1, Relaxed);
        let task = self.task(arrival.hash, ticket);
        let slot = self.slots.acquire_live(self.deferral.track_live_fetch()).await;
        self.tasks.spawn(task.fetch(arrival, slot));
    }

    /// Brings in a hash that was found missing, when its turn has come. Waits for a deferrable
    /// slot, then for the outcome of earlier ones only as far as the slots demand.
    pub(crate) async fn missed(self: &Arc<Self>, arrival: Arrival, permit: DeferralPermit) {
        let ticket = self.tally.enter(arrival.entry);
        let task = self.task(arrival.hash, ticket);
        let slot = self.slots.acquire_deferrable(permit).await;
        self.tasks.spawn(task.fetch(arrival, slot));
    }

    fn task(self: &Arc<Self>, hash: B256, ticket: Ticket) -> FetchTask<S> {
        FetchTask { context: Arc::clone(self), hash, ticket: Some(ticket) }
    }
}

impl<S: TransactionSink> FetchTask<S> {
    async fn fetch(self, arrival: Arrival, slot: Slot) {
        let context = Arc::clone(&self.context);
        let stop = context.stop.clone();
        let answer = tokio::select! {
            // A stop leaves the hash unfinished, and says so.
            () = stop.cancelled() => return drop(self),
            answer = context.fetch_raw(&arrival, slot) => answer,
        };
        let Some((answer, mut slot)) = answer else {
            return self.finish(Outcome::Failed, None);
        };
        context.slots.set_answer_bytes(&mut slot, answer.get().len());
        // Off the thread that keeps the sockets empty: recovery takes 35 us, a blob 2 ms.
        // There are as many places in the queue as slots, and some: it is never full of these.
        let urgency = match arrival.entry {
            Entry::Announced => Urgency::Live,
            Entry::Backfilled | Entry::AuditRecovered => Urgency::Deferrable,
        };
        let job = self.decode_and_deliver(arrival, answer, slot);
        let queued = context.workers.run(urgency, context.tasks.token(), job);
        debug_assert!(queued, "more jobs than slots");
    }

    async fn decode_and_deliver(self, arrival: Arrival, answer: Box<RawValue>, slot: Slot) {
        let context = Arc::clone(&self.context);
        // For the work of the CPU alone: a sink that waits must not hold a place meanwhile.
        let place = match &context.config.gate {
            None => None,
            Some(gate) => tokio::select! {
                biased;
                place = gate.acquire_internal() => Some(place),
                // Places are out for as long as their holders like.
                () = context.stop.cancelled() => return drop(self),
            },
        };
        let read = read_answer(answer.get(), arrival.hash);
        drop((answer, place));
        let (tx, raw) = match read {
            Answer::Gone => return self.finish(Outcome::Gone, None),
            Answer::Mined => return self.finish(Outcome::Mined, Some(Seen::Mined)),
            Answer::Malformed(reason) => {
                tracing::debug!(hash = %arrival.hash, %reason, "malformed answer");
                return self.finish(Outcome::Malformed, None);
            }
            Answer::Transaction(tx, raw) => (tx, raw),
        };
        let expected_chain = *lock(&context.chain_id);
        if expected_chain.is_some_and(|chain_id| !is_on_chain(tx.inner(), chain_id)) {
            tracing::debug!(hash = %arrival.hash, "transaction of another chain");
            return self.finish(Outcome::Malformed, None);
        }
        if context.was_mined(&arrival.hash, &tx) {
            return self.finish(Outcome::Mined, Some(Seen::Mined));
        }
        let since = arrival.at.elapsed();
        let now = SystemTime::now();
        let fetched = FetchedTransaction {
            tx: *tx,
            raw,
            entry: arrival.entry,
            source: arrival.source,
            announced_at: arrival.at,
            first_seen: now.checked_sub(since).unwrap_or(now),
        };
        let delivery = tokio::select! {
            biased;
            delivery = context.sink.deliver(fetched) => delivery,
            // A sink that waits (a full channel) is not waited for when we stop.
            () = context.stop.cancelled() => return drop(self),
        };
        context.tally.metrics.deliver_seconds.record(arrival.at.elapsed().as_secs_f64());
        let (outcome, seen) = match delivery {
            Delivery::Pooled => (Outcome::Pooled, Some(Seen::Delivered)),
            Delivery::Known => (Outcome::Known, Some(Seen::Delivered)),
            Delivery::Mined => (Outcome::Mined, Some(Seen::Mined)),
            Delivery::Refused(reason) => {
                tracing::debug!(hash = %arrival.hash, reason, "refused by the sink");
                (Outcome::Refused, Some(Seen::Refused))
            }
            Delivery::Closed => {
                context.sink_closed.cancel();
                (Outcome::Refused, None)
            }
        };
        self.finish(outcome, seen);
        drop(slot);
    }

    fn finish(mut self, outcome: Outcome, seen: Option<Seen>) {
        self.context.seen.settle(self.hash, seen);
        if let Some(ticket) = self.ticket.take() {
            ticket.leave(outcome);
        }
        // A block may have come between the look at it and the delivery.
        if seen == Some(Seen::Delivered) && lock(&self.context.mined).contains(&self.hash) {
            self.context.seen.mined(self.hash);
        }
    }
}

impl<S: TransactionSink> Drop for FetchTask<S> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.context.seen.settle(self.hash, None);
            if !self.context.stop.is_cancelled() {
                ticket.leave(Outcome::Failed);
            }
        }
    }
}

impl<S> FetchContext<S> {
    /// Requests one transaction until there is an answer or the last try has failed. A retry that
    /// the load makes wait gives its slot up meanwhile: with it, it would be part of the load.
    async fn fetch_raw(&self, arrival: &Arrival, mut slot: Slot) -> Option<(Box<RawValue>, Slot)> {
        let config = &self.config;
        let mut tries = 0;
        // Who announced it first, then the others: each may hold what another let go.
        let mut untried: Vec<usize> = (0..config.sources.len()).collect();
        untried[..=arrival.source].rotate_right(1);
        loop {
            let (asked, connection, permit) = self.acquire_request(&untried, arrival).await;
            let start = Instant::now();
            let result = connection
                .call("eth_getRawTransactionByHash", (arrival.hash,), config.fetch_timeout)
                .await;
            permit.record(&result);
            let metrics = &self.tally.metrics;
            match &result {
                Ok(_) => metrics.fetch_seconds.record(start.elapsed().as_secs_f64()),
                // Not a try: the question is asked again on the next connection.
                Err(CallError::ConnectionLost) => {
                    metrics.retries_connection_lost.increment(1);
                    self.requests.remove(asked, &connection);
                    continue;
                }
                Err(CallError::Timeout(_)) => metrics.retries_timeout.increment(1),
                Err(CallError::Rpc { .. }) => metrics.retries_rpc.increment(1),
            }
            untried.retain(|source| *source != asked);
            let other = untried.iter().any(|source| self.requests.is_up(*source));
            let error = match result {
                Ok(answer) if other && matches!(answer.get(), "null" | "\"0x\"") => {
                    metrics.retries_other_source.increment(1);
                    continue;
                }
                Ok(answer) => return Some((answer, slot)),
                Err(_) if other => continue,
                Err(error) => error,
            };
            if !error.is_retryable() || tries >= config.fetch_retries {
                tracing::debug!(hash = %arrival.hash, %error, "fetch failed");
                return None;
            }
            let since = Instant::now();
            sleep(config.retry_backoff.delay(tries, rand::random())).await;
            tries += 1;
            if let Some(_parked) = self.deferral.park() {
                drop(slot);
                let permit = self.deferral.acquire(DeferrableWork::Retry, since).await;
                slot = self.slots.acquire_deferrable(permit).await;
            }
        }
    }

    /// Waits until one of the sources may be asked, by preference the first that has room: an
    /// overloaded node must not hold back what another one could answer. With none left untried,
    /// any.
    async fn acquire_request(
        &self,
        untried: &[usize],
        arrival: &Arrival,
    ) -> (usize, Arc<Connection>, RequestPermit<'_>) {
        let deferrable = arrival.entry != Entry::Announced;
        loop {
            let up = self.requests.connected(untried, arrival.source).await;
            let free = up
                .iter()
                .find_map(|source| Some((*source, self.limits[*source].try_acquire(deferrable)?)));
            let (asked, permit) = match free {
                Some(free) => free,
                None => {
                    let first = up.iter().map(|source| {
                        let acquired = self.limits[*source].acquire(deferrable);
                        acquired.map(|permit| (*source, permit)).boxed()
                    });
                    futures::future::select_all(first).await.0
                }
            };
            // Only now: which connection has the least to do, and whether it is up, may have
            // changed meanwhile.
            if let Some(connection) = self.requests.least_busy(asked) {
                return (asked, connection, permit);
            }
        }
    }

    fn was_mined(
        &self,
        hash: &B256,
        tx: &alloy_consensus::transaction::Recovered<crate::tx::PooledTransaction>,
    ) -> bool {
        use alloy_consensus::Transaction as _;
        let mined = lock(&self.mined);
        mined.contains(hash) || mined.is_nonce_used(&tx.signer(), tx.inner().nonce())
    }
}
