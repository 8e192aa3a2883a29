//! The way of one hash: admitted, asked for, decoded, delivered, counted.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
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
    asks::Asks,
    config::FetcherConfig,
    deferral::{Deferral, Turn, Work},
    error::CallError,
    limit::{Leave, NodeLimit},
    link::Link,
    mined::RecentlyMined,
    outcome::{Entry, Outcome, Tally, Ticket},
    seen::{Seen, SeenSet},
    sink::{Delivery, FetchedTransaction, TransactionSink},
    slots::{Slot, Slots},
    tx::{Answer, is_on_chain, read_answer},
    workers::{Urgency, Workers},
};

/// What all sources share.
#[derive(Debug)]
pub(crate) struct Core<S> {
    pub(crate) config: FetcherConfig,
    pub(crate) sink: S,
    pub(crate) tally: Arc<Tally>,
    pub(crate) seen: SeenSet,
    pub(crate) slots: Slots,
    pub(crate) deferral: Arc<Deferral>,
    pub(crate) asks: Asks,
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
    pub(crate) firsts: Box<[Arc<Firsts>]>,
}

/// What a source was first with.
#[derive(Debug, Default)]
pub(crate) struct Firsts {
    pub(crate) announced: AtomicU64,
    pub(crate) first_seen: AtomicU64,
}

/// A hash under way. Ends with [`finish`](Self::finish); dropped without it (a panic in a sink)
/// the hash counts as failed and may come again, unless the fetcher is stopping.
struct Passage<S: TransactionSink> {
    core: Arc<Core<S>>,
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

impl<S: TransactionSink> Core<S> {
    /// Takes in one announcement. Waits while all slots are taken: the announcements behind it
    /// stay in the broadcast buffer meanwhile, whose overrun is counted.
    pub(crate) async fn announced(self: &Arc<Self>, arrival: Arrival) {
        let ticket = self.tally.enter(Entry::Announced);
        self.firsts[arrival.source].announced.fetch_add(1, Relaxed);
        if lock(&self.mined).contains(&arrival.hash) {
            return ticket.leave(Outcome::Mined);
        }
        if !self.seen.admit(arrival.hash) {
            return ticket.leave(Outcome::Known);
        }
        self.firsts[arrival.source].first_seen.fetch_add(1, Relaxed);
        let passage = self.passage(arrival.hash, ticket);
        let slot = self.slots.live(self.deferral.live()).await;
        self.tasks.spawn(passage.fetch(arrival, slot));
    }

    /// Brings in a hash that was found missing, when its turn has come. Waits for a deferrable
    /// slot, then for the outcome of earlier ones only as far as the slots demand.
    pub(crate) async fn missed(self: &Arc<Self>, arrival: Arrival, turn: Turn) {
        let ticket = self.tally.enter(arrival.entry);
        let passage = self.passage(arrival.hash, ticket);
        let slot = self.slots.deferrable(turn).await;
        self.tasks.spawn(passage.fetch(arrival, slot));
    }

    fn passage(self: &Arc<Self>, hash: B256, ticket: Ticket) -> Passage<S> {
        Passage { core: Arc::clone(self), hash, ticket: Some(ticket) }
    }
}

impl<S: TransactionSink> Passage<S> {
    async fn fetch(self, arrival: Arrival, slot: Slot) {
        let core = Arc::clone(&self.core);
        let stop = core.stop.clone();
        let answer = tokio::select! {
            // A stop leaves the hash unfinished, and says so.
            () = stop.cancelled() => return drop(self),
            answer = core.ask(&arrival, slot) => answer,
        };
        let Some((answer, mut slot)) = answer else {
            return self.finish(Outcome::Failed, None);
        };
        core.slots.answered(&mut slot, answer.get().len());
        // Off the thread that keeps the sockets empty: recovery takes 35 us, a blob 2 ms.
        // There are as many places in the queue as slots, and some: it is never full of these.
        let urgency = match arrival.entry {
            Entry::Announced => Urgency::Live,
            Entry::Backfilled | Entry::AuditRecovered => Urgency::Deferrable,
        };
        let job = self.decode_and_deliver(arrival, answer, slot);
        let queued = core.workers.run(urgency, core.tasks.token(), job);
        debug_assert!(queued, "more jobs than slots");
    }

    async fn decode_and_deliver(self, arrival: Arrival, answer: Box<RawValue>, slot: Slot) {
        let core = Arc::clone(&self.core);
        // For the work of the CPU alone: a sink that waits must not hold a place meanwhile.
        let place = match &core.config.gate {
            None => None,
            Some(gate) => tokio::select! {
                biased;
                place = gate.acquire_internal() => Some(place),
                // Places are out for as long as their holders like.
                () = core.stop.cancelled() => return drop(self),
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
        let expected_chain = *lock(&core.chain_id);
        if expected_chain.is_some_and(|chain_id| !is_on_chain(tx.inner(), chain_id)) {
            tracing::debug!(hash = %arrival.hash, "transaction of another chain");
            return self.finish(Outcome::Malformed, None);
        }
        if core.was_mined(&arrival.hash, &tx) {
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
            delivery = core.sink.deliver(fetched) => delivery,
            // A sink that waits (a full channel) is not waited for when we stop.
            () = core.stop.cancelled() => return drop(self),
        };
        core.tally.metrics.deliver_seconds.record(arrival.at.elapsed().as_secs_f64());
        let (outcome, seen) = match delivery {
            Delivery::Pooled => (Outcome::Pooled, Some(Seen::Delivered)),
            Delivery::Known => (Outcome::Known, Some(Seen::Delivered)),
            Delivery::Mined => (Outcome::Mined, Some(Seen::Mined)),
            Delivery::Refused(reason) => {
                tracing::debug!(hash = %arrival.hash, reason, "refused by the sink");
                (Outcome::Refused, Some(Seen::Refused))
            }
            Delivery::Closed => {
                core.sink_closed.cancel();
                (Outcome::Refused, None)
            }
        };
        self.finish(outcome, seen);
        drop(slot);
    }

    fn finish(mut self, outcome: Outcome, seen: Option<Seen>) {
        self.core.seen.settle(self.hash, seen);
        if let Some(ticket) = self.ticket.take() {
            ticket.leave(outcome);
        }
        // A block may have come between the look at it and the delivery.
        if seen == Some(Seen::Delivered) && lock(&self.core.mined).contains(&self.hash) {
            self.core.seen.mined(self.hash);
        }
    }
}

impl<S: TransactionSink> Drop for Passage<S> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.core.seen.settle(self.hash, None);
            if !self.core.stop.is_cancelled() {
                ticket.leave(Outcome::Failed);
            }
        }
    }
}

impl<S> Core<S> {
    /// Asks for one transaction until there is an answer or the last try has failed. A retry that
    /// the load makes wait gives its slot up meanwhile: with it, it would be part of the load.
    async fn ask(&self, arrival: &Arrival, mut slot: Slot) -> Option<(Box<RawValue>, Slot)> {
        let config = &self.config;
        let mut tries = 0;
        // Who announced it first, then the others: each may hold what another let go.
        let mut untried: Vec<usize> = (0..config.sources.len()).collect();
        untried[..=arrival.source].rotate_right(1);
        loop {
            let (asked, link, leave) = self.leave(&untried, arrival).await;
            let start = Instant::now();
            let result = link
                .call("eth_getRawTransactionByHash", (arrival.hash,), config.fetch_timeout)
                .await;
            leave.tell(&result);
            let metrics = &self.tally.metrics;
            match &result {
                Ok(_) => metrics.fetch_seconds.record(start.elapsed().as_secs_f64()),
                // Not a try: the question is asked again on the next connection.
                Err(CallError::LinkLost) => {
                    metrics.retries_link_lost.increment(1);
                    self.asks.lost(asked, &link);
                    continue;
                }
                Err(CallError::Timeout(_)) => metrics.retries_timeout.increment(1),
                Err(CallError::Rpc { .. }) => metrics.retries_rpc.increment(1),
            }
            untried.retain(|source| *source != asked);
            let other = untried.iter().any(|source| self.asks.is_up(*source));
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
                let turn = self.deferral.turn(Work::Retry, since).await;
                slot = self.slots.deferrable(turn).await;
            }
        }
    }

    /// Waits until one of the sources may be asked, by preference the first that has room: an
    /// overloaded node must not hold back what another one could answer. With none left untried,
    /// any.
    async fn leave(&self, untried: &[usize], arrival: &Arrival) -> (usize, Arc<Link>, Leave<'_>) {
        let deferrable = arrival.entry != Entry::Announced;
        loop {
            let up = self.asks.up(untried, arrival.source).await;
            let free = up
                .iter()
                .find_map(|source| Some((*source, self.limits[*source].try_enter(deferrable)?)));
            let (asked, leave) = match free {
                Some(free) => free,
                None => {
                    let first = up.iter().map(|source| {
                        let enters = self.limits[*source].enter(deferrable);
                        enters.map(|leave| (*source, leave)).boxed()
                    });
                    futures::future::select_all(first).await.0
                }
            };
            // Only now: which connection has the least to do, and whether it is up, may have
            // changed meanwhile.
            if let Some(link) = self.asks.of(asked) {
                return (asked, link, leave);
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

/// Plain data behind it, valid after each statement; held for single look-ups, never across an
/// await or a call into the sink.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
