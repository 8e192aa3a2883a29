//! One hash, from its fetch slot to its outcome. Start reading at [`Fetch::transaction`], which
//! contains all steps.
//!
//! # Which source is asked
//! First the source that announced or listed the hash, then the others that have announced it. A
//! task keeps three sets of sources for that:
//!
//! | set | sources in it | when they are asked |
//! |---|---|---|
//! | `untried` | not asked yet | next |
//! | `asked_early` | did not have the transaction, and had not announced it either | again, once they announce it |
//! | `unanswered` | returned a temporary error, or nothing in time | again, after a pause, when nobody is untried |
//!
//! A hash is [`Outcome::Gone`] only when every source that announced it has answered that it does
//! not have it. It is [`Outcome::Failed`] when one of them may still have it.
//!
//! # Late responses
//! A request that timed out stays open: its response still settles the hash. After two such
//! requests the task sends no more, releases its slot, and only waits for their responses.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::{Duration, Instant},
};

use alloy_primitives::{B256, Bytes};
use futures::{
    FutureExt as _,
    future::{BoxFuture, select_all},
};
use tokio::time::{sleep, timeout};

use super::{Fetch, RequestPermit, Seen, Slot, SourceSet, Ticket};
use crate::{
    decode::Malformed,
    error::CallError,
    limits::FETCH_RETRIES,
    metrics::{DeferrableWork, Retry},
    node::{Connection, RawTransactionCall, Requests},
    outcome::Outcome,
};

/// The number of times that a node may end the connection while a hash is requested over it. Then
/// the hash is not requested for a while, because its response may be the cause.
///
/// The first time proves nothing: up to 64 other hashes are in flight too, and the node may only
/// have been restarted. From then on the hash is a suspect, which is requested while no other
/// suspect is, so two more times are not a coincidence.
const HARMFUL_LOSSES: u32 = 3;

/// How often a fetch that waits for a permit looks whether another source has announced its
/// transaction since: about the time that a transaction takes from one node to another in the same
/// data centre.
const ANNOUNCER_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// The number of steps of the backoff that are skipped when the node is overloaded. With the
/// default delays, three retries within 140 ms would only add to its load before the fetch fails.
const OVERLOAD_STEPS: u32 = 3;

/// Pauses before an announced hash that no source has is requested again. A proxy or a load
/// balancer may announce a transaction that the node behind it does not have yet, and some clients
/// announce transactions before they serve them.
const ABSENT_PAUSES: [Duration; 2] = [Duration::from_millis(25), Duration::from_millis(100)];

/// Pauses before a pending blob transaction that came without its sidecar, or without all blobs, is
/// requested again: nodes of sparse pools fetch the blobs from their peers.
const SIDECAR_PAUSES: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_secs(2), Duration::from_secs(8)];

/// The number of requests of one hash that may time out before the task only waits for their
/// responses.
const MAX_LATE_REQUESTS: usize = 2;

/// The number of fetches that may wait for late responses without a slot. Each holds about 2 KB.
pub(super) const MAX_WAITING_FOR_LATE: usize = 4_096;

/// A hash on its way to its outcome.
pub(crate) struct FetchTask {
    pub(super) ticket: Ticket,
    /// `None` while the task waits for something other than its node.
    pub(super) slot: Option<Slot>,
    /// The source that is asked, or was asked last; the one that answered, if it answered late.
    source: usize,
    /// Retries after errors and time-outs, at most [`FETCH_RETRIES`].
    retries: u32,
    /// How many times a node ended the connection while the hash was requested over it.
    losses: u32,
    /// How many times all sources answered that they do not have the transaction.
    absences: usize,
    /// How many times the transaction came without its sidecar from all sources.
    missing_sidecars: usize,
    /// Sources that have not been asked yet.
    untried: SourceSet,
    /// Sources that answered that they do not have the transaction before they announced it.
    asked_early: SourceSet,
    /// Sources whose latest response was a temporary error, or that did not respond in time.
    unanswered: SourceSet,
    /// Requests that timed out, whose responses still count.
    late_requests: Vec<LateRequest>,
}

/// A request that timed out.
struct LateRequest {
    call: RawTransactionCall,
    /// Ready at the end of the request's connection.
    connection_ended: BoxFuture<'static, ()>,
    source: usize,
    sent_at: Instant,
}

/// A request to a pool in this process.
pub(crate) struct PoolRequest {
    task: FetchTask,
    /// The source had not announced the transaction when it was asked.
    is_early: bool,
    permit: RequestPermit,
    sent_at: Instant,
}

impl PoolRequest {
    pub(super) fn into_task(self) -> FetchTask {
        self.task
    }

    pub(crate) fn hash(&self) -> B256 {
        self.task.hash()
    }
}

impl FetchTask {
    pub(super) fn new(ticket: Ticket, slot: Slot, source_count: usize) -> Self {
        Self {
            source: ticket.arrival.source,
            // A suspect gets a single attempt.
            losses: if ticket.entered.is_suspect { HARMFUL_LOSSES - 1 } else { 0 },
            slot: Some(slot),
            retries: 0,
            absences: 0,
            missing_sidecars: 0,
            untried: SourceSet::all(source_count),
            asked_early: SourceSet::default(),
            unanswered: SourceSet::default(),
            late_requests: Vec::new(),
            ticket,
        }
    }

    pub(super) fn source(&self) -> usize {
        self.source
    }

    fn hash(&self) -> B256 {
        self.ticket.arrival.hash
    }

    /// Ends the fetch with [`Outcome::Mined`].
    pub(crate) fn finish_mined(self) {
        self.ticket.finish(Outcome::Mined, Some(Seen::Mined));
    }
}

/// What follows a response without a transaction.
enum Next {
    /// Request the transaction again.
    Request,
    /// The response to an earlier request has come.
    Deliver(Bytes),
    /// The fetch ends.
    Finish(Outcome, Option<Seen>),
}

impl Fetch {
    /// Takes one hash to its outcome.
    ///
    /// # Cancel safety
    /// If the future is dropped, the hash counts as failed; after a stop, as unfinished.
    pub(super) async fn transaction(self: Arc<Self>, mut task: FetchTask) {
        loop {
            // 1. Wait for a connected source, and for a permit of its own limit. A suspect also
            //    waits until no other suspect is requested.
            let suspect_permit =
                if task.losses > 0 { self.suspects.acquire().await.ok() } else { None };
            let (requests, permit) = self.acquire_source(&mut task).await;
            let connection = match &*requests {
                Requests::Node(node) => node.least_busy(task.ticket.is_deferrable()),
                Requests::InProcess(queues) => {
                    // One of the pool's threads requests and delivers the transaction.
                    let is_deferrable = task.ticket.is_deferrable();
                    match queues.submit(self.pool_request(task, permit), is_deferrable) {
                        Ok(()) => return,
                        Err(rejected) => task = rejected.task,
                    }
                    // The threads have ended, and the source has not noticed yet.
                    self.context.connections.remove(task.source, &requests);
                    tokio::task::yield_now().await;
                    continue;
                }
            };
            if connection.ended.is_set() {
                // The source has not noticed yet. No request was sent, so this is not a loss.
                self.context.connections.remove(task.source, &requests);
                continue;
            }

            // 2. Request the transaction.
            let is_early = self.is_early(&task);
            let sent_at = Instant::now();
            let response = self.request(&mut task, connection).await;
            permit.record(response.as_ref().err(), task.ticket.is_deferrable(), sent_at.elapsed());
            if let Some(slot) = &mut task.slot {
                self.slots.record_response(slot, response.is_ok().then(|| sent_at.elapsed()));
            }
            drop(suspect_permit);

            // 3. Deliver the transaction; without one, decide what follows.
            let next = match response {
                Ok(transaction) => {
                    task.unanswered.remove(task.source);
                    self.context.metrics.fetch_seconds.record(sent_at.elapsed().as_secs_f64());
                    // geth answers an unknown hash with "0x", the other clients with null.
                    match transaction.filter(|raw| !raw.is_empty()) {
                        Some(raw) => return self.read_and_deliver(task, raw).await,
                        None => self.on_absent(&mut task, is_early).await,
                    }
                }
                Err(CallError::ConnectionLost) => {
                    // Let the source notice the loss before the next attempt.
                    tokio::task::yield_now().await;
                    self.on_connection_lost(&mut task, connection.ended.is_by_peer())
                }
                Err(error) => self.on_error(&mut task, error).await,
            };
            match next {
                Next::Request => self.acquire_slot(&mut task).await,
                Next::Deliver(raw) => return self.read_and_deliver(task, raw).await,
                Next::Finish(outcome, seen) => return task.ticket.finish(outcome, seen),
            }
        }
    }

    /// Sends the request. Waits for its response, or for a transaction that answers an earlier
    /// request of the task.
    async fn request(
        &self,
        task: &mut FetchTask,
        connection: &Arc<Connection>,
    ) -> Result<Option<Bytes>, CallError> {
        let (source, sent_at) = (task.source, Instant::now());
        let limit = self.limits[source].time_limit(&self.context.settings.limits);
        let mut call = connection.raw_transaction(task.hash());
        let late_requests = &mut task.late_requests;
        tokio::select! {
            // A response that has come counts, however late it is and whatever has happened since.
            biased;
            response = &mut call => response,
            Some((raw, source)) = self.late_response(late_requests),
                if !late_requests.is_empty() =>
            {
                task.source = source;
                Ok(Some(raw))
            }
            // The fetcher ends a connection whose node is silent; then the call never returns.
            _ = connection.ended.wait() => Err(CallError::ConnectionLost),
            () = sleep(limit) => {
                let ended = Arc::clone(&connection.ended);
                let connection_ended = async move { _ = ended.wait().await }.boxed();
                task.late_requests.push(LateRequest { call, connection_ended, source, sent_at });
                Err(CallError::Timeout(limit))
            }
        }
    }

    /// Waits for a transaction that answers one of the late requests, and removes those that are
    /// answered or whose connection has ended. Returns it with its source, or `None` when no late
    /// request is left.
    async fn late_response(&self, late_requests: &mut Vec<LateRequest>) -> Option<(Bytes, usize)> {
        poll_fn(|context| {
            let mut found = None;
            late_requests.retain_mut(|request| match Pin::new(&mut request.call).poll(context) {
                Poll::Pending => request.connection_ended.poll_unpin(context).is_pending(),
                Poll::Ready(Err(CallError::ConnectionLost)) => false,
                Poll::Ready(response) => {
                    self.context.metrics.late_answers.increment(1);
                    self.limits[request.source].record_response_time(request.sent_at.elapsed());
                    let raw = response.ok().flatten().filter(|raw| !raw.is_empty());
                    found = found.take().or(raw.map(|raw| (raw, request.source)));
                    false
                }
            });
            match found {
                None if !late_requests.is_empty() => Poll::Pending,
                found => Poll::Ready(found),
            }
        })
        .await
    }

    /// The source answered that it does not have the transaction. Tries the other sources. If all
    /// of them answered so, the node may have announced the hash before it can serve the
    /// transaction: a live announcement is requested again after each of [`ABSENT_PAUSES`].
    ///
    /// `is_early`: the source had not announced the hash when it was asked.
    async fn on_absent(self: &Arc<Self>, task: &mut FetchTask, is_early: bool) -> Next {
        if is_early {
            task.asked_early = task.asked_early.or(SourceSet::single(task.source));
        }
        let next = self.try_other_sources(task).await;
        // Not a hash of a backfill or an audit, nor one that a reorg put back: these were announced
        // long ago.
        let is_live = !task.ticket.is_deferrable() && !task.ticket.entered.is_undone;
        if matches!(next, Next::Finish(Outcome::Gone, _))
            && is_live
            && let Some(pause) = ABSENT_PAUSES.get(task.absences)
        {
            task.absences += 1;
            self.context.metrics.retries[Retry::Absent as usize].increment(1);
            return self.request_after(task, *pause).await;
        }
        next
    }

    /// Waits without a slot. Then every source that has announced the hash may be asked again.
    async fn request_after(&self, task: &mut FetchTask, pause: Duration) -> Next {
        task.slot = None;
        sleep(pause).await;
        task.untried = self.announcers(task);
        if task.untried.is_empty() {
            task.untried = SourceSet::single(task.ticket.arrival.source);
        }
        Next::Request
    }

    /// The response of the source was of no use. Tries the other sources that announced the hash;
    /// if there are none, the fetch ends: as failed, if a source that may have the transaction did
    /// not answer or is not connected, so that an announcement or a comparison fetches it again.
    async fn try_other_sources(self: &Arc<Self>, task: &mut FetchTask) -> Next {
        task.untried.remove(task.source);
        self.readmit_announcers(task);
        if !task.ticket.entered.is_undone {
            // A source that has not announced the transaction probably does not have it, so the
            // task does not wait for one.
            let announcers = self.announcers(task);
            task.untried = task.untried.and(announcers);
            task.unanswered = task.unanswered.and(announcers);
        }
        let left = task.untried.or(task.unanswered);
        let is_any_connected = self.is_any_connected(left);
        if is_any_connected {
            self.context.metrics.retries[Retry::OtherSource as usize].increment(1);
        }
        if self.is_any_connected(task.untried) {
            return Next::Request;
        }
        if is_any_connected && task.retries < FETCH_RETRIES {
            self.pause_before_retry(task, None).await;
            task.untried = left;
            return Next::Request;
        }
        if is_any_connected || !left.is_empty() && !task.ticket.entered.is_undone {
            return Next::Finish(Outcome::Failed, Some(Seen::Failed));
        }
        Next::Finish(Outcome::Gone, None)
    }

    /// The response cannot be read. Tries the other sources in a separate task; if none has the
    /// transaction, the hash is malformed.
    pub(super) fn request_elsewhere(self: Arc<Self>, mut task: FetchTask, reason: Malformed) {
        let fetch = Arc::clone(&self);
        self.context.tasks.spawn(async move {
            match fetch.try_other_sources(&mut task).await {
                Next::Finish(Outcome::Gone, _) => task.ticket.finish_malformed(&reason),
                next => fetch.resume(task, next).await,
            }
        });
    }

    /// A blob transaction came without its sidecar, and no known block contains it. Tries the other
    /// sources in a separate task, and then all of them again after a pause.
    pub(super) fn request_sidecar(self: Arc<Self>, mut task: FetchTask) {
        let fetch = Arc::clone(&self);
        self.context.tasks.spawn(async move {
            let mut next = fetch.try_other_sources(&mut task).await;
            if matches!(next, Next::Finish(Outcome::Gone, _)) {
                next = match SIDECAR_PAUSES.get(task.missing_sidecars) {
                    Some(pause) => {
                        task.missing_sidecars += 1;
                        fetch.context.metrics.retries[Retry::Sidecar as usize].increment(1);
                        fetch.request_after(&mut task, *pause).await
                    }
                    // Its next announcement or a comparison fetches it again.
                    None => Next::Finish(Outcome::NoSidecar, Some(Seen::Failed)),
                };
            }
            fetch.resume(task, next).await;
        });
    }

    /// Continues a fetch outside of [`Self::transaction`].
    async fn resume(self: Arc<Self>, mut task: FetchTask, next: Next) {
        match next {
            Next::Request => {
                self.acquire_slot(&mut task).await;
                self.transaction(task).await;
            }
            Next::Deliver(raw) => self.read_and_deliver(task, raw).await,
            Next::Finish(outcome, seen) => task.ticket.finish(outcome, seen),
        }
    }

    /// The connection was lost while the hash was requested. If the node ended it, the response to
    /// this request may be the cause: the hash becomes a suspect, and in the end is not requested
    /// for a while. Otherwise it is requested again, without a limit of its own: the pauses before
    /// connections are opened again bound the attempts.
    fn on_connection_lost(&self, task: &mut FetchTask, is_by_peer: bool) -> Next {
        self.context.metrics.retries[Retry::ConnectionLost as usize].increment(1);
        task.losses += u32::from(is_by_peer);
        if task.losses < HARMFUL_LOSSES {
            return Next::Request;
        }
        tracing::warn!(
            hash = %task.hash(),
            losses = task.losses,
            "the node ends connections while this transaction is requested: it is not requested \
             for a while"
        );
        self.context.metrics.harmful.increment(1);
        Next::Finish(Outcome::Failed, Some(Seen::Harmful))
    }

    /// The request had an error response, or no response in time.
    async fn on_error(self: &Arc<Self>, task: &mut FetchTask, error: CallError) -> Next {
        let is_timeout = matches!(error, CallError::Timeout(_));
        let retry = if is_timeout { Retry::Timeout } else { Retry::RpcError };
        task.untried.remove(task.source);
        if error.is_retryable() {
            task.unanswered = task.unanswered.or(SourceSet::single(task.source));
        }
        self.readmit_announcers(task);
        let left = task.untried.or(task.unanswered);
        if !self.is_any_connected(task.untried) {
            if let CallError::Unreadable { response } = &error {
                tracing::debug!(hash = %task.hash(), response, "malformed transaction");
                return Next::Finish(Outcome::Malformed, None);
            }
            if task.late_requests.len() >= MAX_LATE_REQUESTS {
                return self.wait_for_late_responses(task).await;
            }
            if !error.is_retryable() || task.retries >= FETCH_RETRIES {
                let (hash, retries) = (task.hash(), task.retries);
                tracing::debug!(%hash, %error, retries, "fetch failed");
                return Next::Finish(Outcome::Failed, Some(Seen::Failed));
            }
            if !is_timeout {
                self.pause_before_retry(task, Some(&error)).await;
            }
            // The other sources have answered that they do not have it, or are not connected.
            task.untried = left;
        }
        self.context.metrics.retries[retry as usize].increment(1);
        Next::Request
    }

    /// A node that answers late is not asked a third time. Waits for its responses without a slot.
    async fn wait_for_late_responses(self: &Arc<Self>, task: &mut FetchTask) -> Next {
        let limit = self.context.settings.limits.late_answer_timeout();
        task.slot = None;
        if let Ok(_room) = self.late_room.try_acquire()
            && let Ok(response) = timeout(limit, self.late_response(&mut task.late_requests)).await
        {
            if let Some((raw, source)) = response {
                task.source = source;
                return Next::Deliver(raw);
            }
            // All late requests are over without a transaction: the node was not slow, but away.
            if task.retries < FETCH_RETRIES {
                task.retries += 1;
                task.untried = task.untried.or(task.unanswered);
                return Next::Request;
            }
        }
        tracing::debug!(hash = %task.hash(), ?limit, "fetch failed: no late response came");
        Next::Finish(Outcome::Failed, Some(Seen::Failed))
    }

    /// Waits before a source is asked again. While the load is high, the retry releases its slot:
    /// with its slot, a retry that waits because of the load would itself count as load.
    async fn pause_before_retry(&self, task: &mut FetchTask, error: Option<&CallError>) {
        let since = Instant::now();
        let is_overload = error.is_some_and(CallError::is_overload);
        let step = task.retries + if is_overload { OVERLOAD_STEPS } else { 0 };
        sleep(self.context.settings.limits.retry_backoff.random_delay(step)).await;
        task.retries += 1;
        if let Some(_parked) = self.context.deferral.park() {
            task.slot = None;
            self.context.deferral.wait(DeferrableWork::Retry, since).await;
            task.slot = Some(self.slots.acquire_deferrable(task.ticket.arrival.source).await);
        }
    }

    /// Waits for a slot, if the task has released its own.
    async fn acquire_slot(&self, task: &mut FetchTask) {
        if task.slot.is_none() {
            let source = task.ticket.arrival.source;
            task.slot = Some(if task.ticket.is_deferrable() {
                self.slots.acquire_deferrable(source).await
            } else {
                self.slots.acquire_live(source).await
            });
        }
    }

    /// The sources that have announced the task's hash until now, or have listed it first.
    fn announcers(&self, task: &FetchTask) -> SourceSet {
        self.context.hashes.seen.sources(&task.hash())
    }

    /// Returns whether the task's source has not announced the transaction yet. It may do so while
    /// its response is under way, and is then asked again.
    fn is_early(&self, task: &FetchTask) -> bool {
        let is_first = task.source == task.ticket.arrival.source && !task.ticket.entered.is_undone;
        !is_first && !self.announcers(task).contains(task.source)
    }

    fn is_any_connected(&self, sources: SourceSet) -> bool {
        sources.iter().any(|source| self.context.connections.get(source).is_some())
    }

    /// Makes sources untried again if they did not have the transaction when they were asked, and
    /// have announced it since: the source that announced it first may be overloaded or silent.
    fn readmit_announcers(&self, task: &mut FetchTask) {
        if !task.asked_early.is_empty() {
            let readmitted = task.asked_early.and(self.announcers(task));
            task.untried = task.untried.or(readmitted);
            readmitted.iter().for_each(|source| task.asked_early.remove(source));
        }
    }

    /// Waits until one of the untried sources (of all, if none is untried) is connected and has a
    /// free permit. The source that announced the hash comes first, but an overloaded one must not
    /// delay what another one could return.
    async fn acquire_source(
        &self,
        task: &mut FetchTask,
    ) -> (Arc<Requests<PoolRequest>>, RequestPermit) {
        let first = task.ticket.arrival.source;
        for source in task.untried.iter_from(first) {
            if let Some(requests) = self.context.connections.get(source)
                && let Some(permit) = self.limits[source].try_acquire()
            {
                task.source = source;
                return (requests, permit);
            }
        }
        loop {
            self.readmit_announcers(task);
            let untried: Vec<usize> = task.untried.iter_from(first).collect();
            let connected = self.context.connections.connected(&untried, first).await;
            let limits = connected.iter().map(|source| Arc::clone(&self.limits[*source]));
            // `select_all` polls in this order.
            let acquired = select_all(limits.map(|limit| Box::pin(limit.acquire())));
            // The wait is only interrupted, and loses its places in the queues, if a source may be
            // readmitted.
            let patience =
                if task.asked_early.is_empty() { Duration::MAX } else { ANNOUNCER_CHECK_INTERVAL };
            if let Ok((permit, index, _)) = timeout(patience, acquired).await {
                task.source = connected[index];
                // The connection may have been lost meanwhile.
                if let Some(requests) = self.context.connections.get(task.source) {
                    return (requests, permit);
                }
            }
        }
    }

    pub(super) fn pool_request(&self, task: FetchTask, permit: RequestPermit) -> PoolRequest {
        PoolRequest { is_early: self.is_early(&task), task, permit, sent_at: Instant::now() }
    }

    /// Records the response of a pool in this process. Returns the task, unless the pool does not
    /// have the transaction and the fetch continues in a separate task.
    pub(crate) fn on_pool_response(
        self: &Arc<Self>,
        request: PoolRequest,
        is_absent: bool,
    ) -> Option<FetchTask> {
        let PoolRequest { mut task, is_early, permit, sent_at } = request;
        permit.record(None, task.ticket.is_deferrable(), sent_at.elapsed());
        self.context.metrics.fetch_seconds.record(sent_at.elapsed().as_secs_f64());
        task.unanswered.remove(task.source);
        if !is_absent {
            self.limits[task.source].record_transaction();
        }
        if !is_absent || self.context.hashes.is_mined(&task.hash()) {
            return Some(task);
        }
        let fetch = Arc::clone(self);
        self.context.tasks.spawn(async move {
            let next = fetch.on_absent(&mut task, is_early).await;
            fetch.resume(task, next).await;
        });
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each fetch is spawned, which copies its future. It had 23 KB when each future held the one
    /// that it runs, and at 10,000 transactions/s the copies made the fetcher fall behind.
    #[test]
    fn the_future_of_a_fetch_is_small() {
        fn future_bytes<F>(_: impl FnOnce(Arc<Fetch>, FetchTask) -> F) -> usize {
            size_of::<F>()
        }
        let bytes = future_bytes(Fetch::transaction);
        assert!(bytes <= 2_048, "{bytes} bytes");
    }
}
