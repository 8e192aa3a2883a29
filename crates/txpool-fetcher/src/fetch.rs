//! What happens to one hash: deduplicated, requested, decoded, delivered, counted.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Instant, SystemTime},
};

use alloy_consensus::{Transaction as _, transaction::Recovered};
use alloy_primitives::B256;
use chain_view::{PooledTransaction, RecentBlocks};
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
    outcome::{Entry, Outcome, Tally, Ticket},
    request_connections::RequestConnections,
    seen::{Seen, SeenSet},
    sink::{Delivery, FetchedTransaction, TransactionSink},
    slots::{Slot, Slots},
    sync::lock,
    tx::{Answer, is_on_chain, read_answer},
    workers::{Urgency, Workers},
};

/// The state that all sources share.
#[derive(Debug)]
pub(crate) struct FetchContext<S> {
    pub(crate) config: FetcherConfig,
    pub(crate) sink: S,
    pub(crate) tally: Arc<Tally>,
    pub(crate) seen: SeenSet,
    pub(crate) slots: Slots,
    pub(crate) deferral: Arc<Deferral>,
    pub(crate) requests: RequestConnections,
    /// How many requests may be in flight at each source.
    pub(crate) limits: Box<[Arc<NodeLimit>]>,
    pub(crate) mined: Mutex<RecentBlocks>,
    pub(crate) chain_id: Mutex<Option<u64>>,
    /// The threads on which decoding and sender recovery run.
    pub(crate) workers: Workers,
    /// Every fetch task, so that a stop can wait for them.
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
    pub(crate) sink_closed: CancellationToken,
    pub(crate) announcement_counts: Box<[Arc<AnnouncementCounts>]>,
}

/// How many hashes a source announced, and how many of them before any other source.
#[derive(Debug, Default)]
pub(crate) struct AnnouncementCounts {
    pub(crate) announced: AtomicU64,
    pub(crate) first_seen: AtomicU64,
}

/// One hash between its entry and its outcome. Ends with [`finish`](Self::finish). If it is dropped
/// without that (a sink panicked), the hash counts as failed and is fetched again when it is next
/// announced, unless the fetcher is stopping.
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
    /// Accounts for one announcement and fetches its transaction if it is new. Waits while all
    /// slots are taken: later announcements stay in the broadcast buffer meanwhile, whose overrun
    /// is counted.
    pub(crate) async fn on_announcement(self: &Arc<Self>, arrival: Arrival) {
        let ticket = self.tally.enter(Entry::Announced);
        self.announcement_counts[arrival.source].announced.fetch_add(1, Relaxed);
        if self.is_mined(&arrival.hash) {
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

    /// Fetches a transaction that a comparison found missing. Returns as soon as a deferrable slot
    /// was free and the fetch has begun; the outcome is not waited for.
    pub(crate) async fn fetch_missing(self: &Arc<Self>, arrival: Arrival, permit: DeferralPermit) {
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
            // A stop leaves the hash unfinished; it stays counted as such.
            () = stop.cancelled() => return drop(self),
            answer = context.fetch_raw(&arrival, slot) => answer,
        };
        let Some((answer, mut slot)) = answer else {
            return self.finish(Outcome::Failed, None);
        };
        context.slots.set_answer_bytes(&mut slot, answer.get().len());
        // Not on the thread that reads the sockets: sender recovery takes 35 us, a blob transaction
        // 2 ms. The queue holds one job for each slot and some more, so fetches never fill it.
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
        // Held for the CPU work alone: a sink that waits must not hold a work permit meanwhile.
        let work_permit = match &context.config.gate {
            None => None,
            Some(gate) => tokio::select! {
                biased;
                permit = gate.acquire_internal() => Some(permit),
                // The holders of the permits may take any time, and a stop must not wait for them.
                () = context.stop.cancelled() => return drop(self),
            },
        };
        let read = read_answer(answer.get(), arrival.hash);
        drop((answer, work_permit));
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
        if context.is_taken(&tx) {
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
            // A stop does not wait for a sink that waits (for a full channel).
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
        // A block may have come, or gone, between the look at it and now. And only a block that
        // contains the transaction makes it mined for as long as it is there: what lost its nonce to
        // a block, or was mined in one that we do not know, may be pending again after a reorg.
        match seen {
            Some(Seen::Delivered) if self.context.is_mined(&self.hash) => {
                self.context.seen.mined(self.hash);
            }
            Some(Seen::Mined) if !self.context.is_mined(&self.hash) => {
                self.context.seen.forget_mined(self.hash);
            }
            _ => {}
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
    /// Requests one transaction until there is a response or the last try has failed. A retry that
    /// is deferred because the load is high gives its slot back meanwhile: taken slots are part of
    /// what the load is measured by.
    async fn fetch_raw(&self, arrival: &Arrival, mut slot: Slot) -> Option<(Box<RawValue>, Slot)> {
        let config = &self.config;
        let mut tries = 0;
        // The source that announced it first, then the others: a transaction that one node has
        // evicted may still be in the pool of another.
        let mut untried: Vec<usize> = (0..config.sources.len()).collect();
        untried[..=arrival.source].rotate_right(1);
        loop {
            let (source, connection, permit) = self.acquire_request(&untried, arrival).await;
            let start = Instant::now();
            let result = connection
                .call("eth_getRawTransactionByHash", (arrival.hash,), config.fetch_timeout)
                .await;
            permit.record(&result);
            let metrics = &self.tally.metrics;
            match &result {
                Ok(_) => metrics.fetch_seconds.record(start.elapsed().as_secs_f64()),
                // Does not count as a try: the request is sent again on the next connection.
                Err(CallError::ConnectionLost) => {
                    metrics.retries_connection_lost.increment(1);
                    self.requests.remove(source, &connection);
                    continue;
                }
                Err(CallError::Timeout(_)) => metrics.retries_timeout.increment(1),
                Err(CallError::Rpc { .. }) => metrics.retries_rpc.increment(1),
            }
            untried.retain(|other| *other != source);
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

    /// Waits for a permit to send one request to one of the sources `untried`, or to any source if
    /// none of these is connected. Takes the first one that is below its limit, so that an
    /// overloaded node does not hold back what another node could answer.
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
            let (source, permit) = match free {
                Some(free) => free,
                None => {
                    let first = up.iter().map(|source| {
                        let acquired = self.limits[*source].acquire(deferrable);
                        acquired.map(|permit| (*source, permit)).boxed()
                    });
                    futures::future::select_all(first).await.0
                }
            };
            // The connection is chosen after the wait, during which connections may have come, gone
            // or become busy.
            if let Some(connection) = self.requests.least_busy(source) {
                return (source, connection, permit);
            }
        }
    }

    /// Whether a recent block contains the transaction.
    pub(crate) fn is_mined(&self, hash: &B256) -> bool {
        lock(&self.mined).is_mined(hash)
    }

    /// Whether a recent block contains the transaction, or another one with its nonce.
    fn is_taken(&self, tx: &Recovered<PooledTransaction>) -> bool {
        lock(&self.mined).taken(tx.inner().hash(), &tx.signer(), tx.inner().nonce()).is_some()
    }
}
