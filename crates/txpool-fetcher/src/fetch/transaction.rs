//! The way of one hash, from its slot to its outcome. Entry: [`Fetch::transaction`].

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

/// A hash that was requested when the node ended the connection so many times is not requested again for
/// a while. The first time, up to 64 others are in flight too, and the node may only have been restarted;
/// then it is requested while no other suspect is, and twice is no chance any more.
const HARMFUL_LOSSES: u32 = 3;

/// How soon a fetch that waits for a node looks whether another one has announced its transaction
/// since: about as long as one takes from one node of a place to another.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Steps of the delay that are skipped when the node is overloaded: with the default delays, three
/// retries within 140 ms would only add to its load before the fetch fails.
const OVERLOAD_STEPS: u32 = 3;

/// Pauses before a live hash without a transaction is requested again. A proxy or a load balancer may
/// announce what the node behind it does not have yet, and some clients announce before they serve.
const ANNOUNCED_TOO_EARLY: [Duration; 2] = [Duration::from_millis(25), Duration::from_millis(100)];

/// Pauses before a pending blob transaction is requested again of which the node has no sidecar yet, or
/// not all blobs: nodes of sparse pools fetch them from their peers.
const WITHOUT_SIDECAR: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_secs(2), Duration::from_secs(8)];

/// Requests of a hash that may time out before it only waits for their answers.
const LATE_REQUESTS: usize = 2;

/// Fetches that may wait for late answers alone, without a slot. Each holds about 2 KB.
pub(super) const LATE_WAITING: usize = 4_096;

/// A hash on its way to its outcome.
pub(crate) struct FetchTask {
    pub(super) ticket: Ticket,
    /// `None` while it waits for something other than its node.
    pub(super) slot: Option<Slot>,
    /// The source that is asked, or was asked last.
    source: usize,
    retries: u32,
    /// How often a connection was ended while the hash was requested over it.
    losses: u32,
    /// How often all sources answered that they do not have it.
    absences: usize,
    /// How often it came without its sidecar.
    bare_blobs: usize,
    /// Sources that have not been asked yet.
    untried: SourceSet,
    /// Those that did not have it when they were asked, and had not announced it.
    early: SourceSet,
    /// Those whose latest response was an error that may pass, or none.
    unanswered: SourceSet,
    /// Requests that have timed out. An answer to one of them still counts.
    late: Vec<LateCall>,
}

/// A request that has timed out.
struct LateCall {
    call: RawTransactionCall,
    /// Ready at the end of its connection.
    ended: BoxFuture<'static, ()>,
    source: usize,
    sent: Instant,
}

/// A request to a pool in this process.
pub(crate) struct PoolRequest {
    task: FetchTask,
    /// Its source had not announced the transaction when it was asked.
    is_early: bool,
    permit: RequestPermit,
    sent: Instant,
}

impl PoolRequest {
    pub(super) fn into_task(self) -> FetchTask {
        self.task
    }

    pub(crate) fn hash(&self) -> B256 {
        self.task.ticket.arrival.hash
    }
}

impl FetchTask {
    pub(super) fn new(ticket: Ticket, slot: Slot, sources: usize) -> Self {
        Self {
            source: ticket.arrival.source,
            // A suspect gets a single attempt.
            losses: if ticket.entered.is_suspect { HARMFUL_LOSSES - 1 } else { 0 },
            slot: Some(slot),
            retries: 0,
            absences: 0,
            bare_blobs: 0,
            untried: SourceSet::all(sources),
            early: SourceSet::default(),
            unanswered: SourceSet::default(),
            late: Vec::new(),
            ticket,
        }
    }

    pub(super) fn source(&self) -> usize {
        self.source
    }

    fn hash(&self) -> B256 {
        self.ticket.arrival.hash
    }

    /// A block contains it.
    pub(crate) fn mined(self) {
        self.ticket.finish(Outcome::Mined, Some(Seen::Mined));
    }
}

/// What follows a response without a transaction.
enum Next {
    /// The hash is requested again, from another source or after a pause.
    Request,
    /// The answer to an earlier request has come.
    Deliver(Bytes),
    /// The fetch is over.
    Finish(Outcome, Option<Seen>),
}

impl Fetch {
    /// Takes one hash to its outcome.
    ///
    /// # Cancel safety
    /// Dropped, it counts as failed; after a stop, as unfinished.
    pub(super) async fn transaction(self: Arc<Self>, mut task: FetchTask) {
        loop {
            // 1. A connected node, and a permit of its own limit; for a suspect, while no other is requested.
            let suspect = if task.losses > 0 { self.suspects.acquire().await.ok() } else { None };
            let (requests, permit) = self.acquire_node(&mut task).await;
            let connection = match &*requests {
                Requests::Node(node) => node.least_busy(task.ticket.is_deferrable()),
                Requests::InProcess(queues) => {
                    // One of the pool's threads gets and delivers it.
                    let is_deferrable = task.ticket.is_deferrable();
                    match queues.submit(self.pool_request(task, permit), is_deferrable) {
                        Ok(()) => return,
                        Err(back) => task = back.task,
                    }
                    self.context.connections.remove(task.source, &requests);
                    tokio::task::yield_now().await;
                    continue;
                }
            };

            if connection.ended.is_set() {
                // Its source has not noticed yet. Nothing was requested, so nothing was lost.
                self.context.connections.remove(task.source, &requests);
                continue;
            }

            // 2. The request, within its time.
            let is_early = self.is_early(&task);
            let sent = Instant::now();
            let answer = self.request(&mut task, connection).await;
            permit.record(answer.as_ref().err(), task.ticket.is_deferrable(), sent.elapsed());
            if let Some(slot) = &mut task.slot {
                self.slots.answered(slot, answer.is_ok().then(|| sent.elapsed()));
            }
            drop(suspect);

            // 3. No transaction: another source, another time, or the end.
            let next = match answer {
                Ok(Some(raw)) if !raw.is_empty() => {
                    task.unanswered.remove(task.source);
                    self.context.metrics.fetch_seconds.record(sent.elapsed().as_secs_f64());
                    // 4. Decoded, compared with the hash, and delivered.
                    return self.read_and_deliver(task, raw).await;
                }
                // geth answers an unknown hash with "0x", the others with null.
                Ok(_) => {
                    task.unanswered.remove(task.source);
                    self.context.metrics.fetch_seconds.record(sent.elapsed().as_secs_f64());
                    self.absent(&mut task, is_early).await
                }
                Err(CallError::ConnectionLost) => {
                    // The source has to see it too.
                    tokio::task::yield_now().await;
                    self.connection_lost(&mut task, connection.ended.is_by_peer())
                }
                Err(error) => self.failed(&mut task, error).await,
            };
            match next {
                Next::Request => self.acquire_slot(&mut task).await,
                Next::Deliver(raw) => return self.read_and_deliver(task, raw).await,
                Next::Finish(outcome, seen) => return task.ticket.finish(outcome, seen),
            }
        }
    }

    /// Sends the request, and waits for its answer or for one to an earlier request that was late.
    async fn request(
        &self,
        task: &mut FetchTask,
        connection: &Arc<Connection>,
    ) -> Result<Option<Bytes>, CallError> {
        let (source, sent) = (task.source, Instant::now());
        let limit = self.limits[source].time_limit(&self.context.settings.limits);
        let mut call = connection.raw_transaction(task.hash());
        tokio::select! {
            // What has come counts, however late.
            biased;
            answer = &mut call => answer,
            Some(raw) = self.late_answer(&mut task.late), if !task.late.is_empty() => Ok(Some(raw)),
            // By us, because the node is silent.
            _ = connection.ended.wait() => Err(CallError::ConnectionLost),
            () = sleep(limit) => {
                let ended = Arc::clone(&connection.ended);
                let ended = async move { _ = ended.wait().await }.boxed();
                task.late.push(LateCall { call, ended, source, sent });
                Err(CallError::Timeout(limit))
            }
        }
    }

    /// Waits for a transaction that answers a request that had timed out. `None` once none can come any
    /// more: all answers were of no use, or their connections are lost.
    async fn late_answer(&self, late: &mut Vec<LateCall>) -> Option<Bytes> {
        poll_fn(|context| {
            let mut found = None;
            late.retain_mut(|request| match Pin::new(&mut request.call).poll(context) {
                Poll::Pending => request.ended.poll_unpin(context).is_pending(),
                Poll::Ready(Err(CallError::ConnectionLost)) => false,
                Poll::Ready(answer) => {
                    self.context.metrics.late_answers.increment(1);
                    self.limits[request.source].answered_after(request.sent.elapsed());
                    found = found.take().or(answer.ok().flatten().filter(|raw| !raw.is_empty()));
                    false
                }
            });
            match found {
                None if !late.is_empty() => Poll::Pending,
                found => Poll::Ready(found),
            }
        })
        .await
    }

    /// A source without the transaction was asked. Others that announced it are asked; if there is none,
    /// it may have been announced too early.
    async fn absent(self: &Arc<Self>, task: &mut FetchTask, is_early: bool) -> Next {
        if is_early {
            task.early = task.early.or(SourceSet::single(task.source));
        }
        match self.ask_other(task).await {
            Next::Finish(Outcome::Gone, seen)
                if !task.ticket.is_deferrable() && !task.ticket.entered.is_undone =>
            {
                let Some(pause) = ANNOUNCED_TOO_EARLY.get(task.absences) else {
                    return Next::Finish(Outcome::Gone, seen);
                };
                task.absences += 1;
                self.context.metrics.retries[Retry::Absent as usize].increment(1);
                self.request_after(task, *pause).await
            }
            next => next,
        }
    }

    /// Releases the slot for a pause, after which those are asked who announced the hash.
    async fn request_after(&self, task: &mut FetchTask, pause: Duration) -> Next {
        task.slot = None;
        sleep(pause).await;
        task.untried = self.context.hashes.seen.sources(&task.hash());
        if task.untried.is_empty() {
            task.untried = SourceSet::single(task.ticket.arrival.source);
        }
        Next::Request
    }

    /// Continues a fetch whose answer was of no use: from another source that announced it, or the
    /// fetch is over. It has failed if a source that is not connected may have it: it comes again with
    /// its announcement or a comparison.
    async fn ask_other(self: &Arc<Self>, task: &mut FetchTask) -> Next {
        task.untried.remove(task.source);
        self.ask_again(task);
        if !task.ticket.entered.is_undone {
            // Nothing waits for one that would have to have what it has not announced.
            let sources = self.context.hashes.seen.sources(&task.hash());
            task.untried = task.untried.and(sources);
            task.unanswered = task.unanswered.and(sources);
        }
        let left = task.untried.or(task.unanswered);
        let is_any_up = self.is_any_up(left);
        if is_any_up {
            self.context.metrics.retries[Retry::OtherSource as usize].increment(1);
        }
        if self.is_any_up(task.untried) {
            return Next::Request;
        }
        if is_any_up && task.retries < FETCH_RETRIES {
            self.pause_before_retry(task, None).await;
            task.untried = left;
            return Next::Request;
        }
        if is_any_up || !left.is_empty() && !task.ticket.entered.is_undone {
            return Next::Finish(Outcome::Failed, Some(Seen::Failed));
        }
        Next::Finish(Outcome::Gone, None)
    }

    /// The answer cannot be used: another source that announced the hash is asked, in a task of its own.
    pub(super) fn request_elsewhere(self: Arc<Self>, mut task: FetchTask, reason: Malformed) {
        let fetch = Arc::clone(&self);
        self.context.tasks.spawn(async move {
            match fetch.ask_other(&mut task).await {
                Next::Finish(Outcome::Gone, _) => task.ticket.malformed(&reason),
                next => fetch.go_on(task, next).await,
            }
        });
    }

    /// A blob transaction came without its sidecar, and no known block has it: another source that
    /// announced it is asked, or the same ones after a pause, in a task of its own.
    pub(super) fn request_sidecar(self: Arc<Self>, mut task: FetchTask) {
        let fetch = Arc::clone(&self);
        self.context.tasks.spawn(async move {
            let next = match fetch.ask_other(&mut task).await {
                Next::Finish(Outcome::Gone, _) => match WITHOUT_SIDECAR.get(task.bare_blobs) {
                    Some(pause) => {
                        task.bare_blobs += 1;
                        fetch.context.metrics.retries[Retry::Sidecar as usize].increment(1);
                        fetch.request_after(&mut task, *pause).await
                    }
                    // An announcement or a comparison brings it again.
                    None => Next::Finish(Outcome::NoSidecar, Some(Seen::Failed)),
                },
                next => next,
            };
            fetch.go_on(task, next).await;
        });
    }

    async fn go_on(self: Arc<Self>, mut task: FetchTask, next: Next) {
        match next {
            Next::Request => {
                self.acquire_slot(&mut task).await;
                self.transaction(task).await;
            }
            Next::Deliver(raw) => self.read_and_deliver(task, raw).await,
            Next::Finish(outcome, seen) => task.ticket.finish(outcome, seen),
        }
    }

    /// The connection was lost while the hash was requested. If the node ended it, the response to this
    /// request may be why: then the hash is requested while no other suspect is, and in the end not at
    /// all for a while. Otherwise it is requested again, as often as connections are lost: that is
    /// bounded by the pauses before they are opened again.
    fn connection_lost(&self, task: &mut FetchTask, is_by_peer: bool) -> Next {
        self.context.metrics.retries[Retry::ConnectionLost as usize].increment(1);
        task.losses += u32::from(is_by_peer);
        if task.losses < HARMFUL_LOSSES {
            return Next::Request;
        }
        tracing::warn!(
            hash = %task.hash(),
            "connections end while this transaction is requested: it is not requested for a while"
        );
        self.context.metrics.harmful.increment(1);
        Next::Finish(Outcome::Failed, Some(Seen::Harmful))
    }

    /// The request had an error response, or no response in time.
    async fn failed(self: &Arc<Self>, task: &mut FetchTask, error: CallError) -> Next {
        let is_timeout = matches!(error, CallError::Timeout(_));
        let retry = if is_timeout { Retry::Timeout } else { Retry::RpcError };
        task.untried.remove(task.source);
        if error.is_retryable() {
            task.unanswered = task.unanswered.or(SourceSet::single(task.source));
        }
        self.ask_again(task);
        let left = task.untried.or(task.unanswered);
        if !self.is_any_up(task.untried) {
            if let CallError::Unreadable { said } = &error {
                tracing::debug!(hash = %task.hash(), said, "malformed transaction");
                return Next::Finish(Outcome::Malformed, None);
            }
            if task.late.len() >= LATE_REQUESTS {
                return self.wait_for_late(task).await;
            }
            if !error.is_retryable() || task.retries >= FETCH_RETRIES {
                tracing::debug!(hash = %task.hash(), %error, "fetch failed");
                return Next::Finish(Outcome::Failed, Some(Seen::Failed));
            }
            if !is_timeout {
                self.pause_before_retry(task, Some(&error)).await;
            }
            // The others have answered that they do not have it, or are away.
            task.untried = left;
        }
        self.context.metrics.retries[retry as usize].increment(1);
        Next::Request
    }

    /// A node that answers late is not asked a third time. Waits for the answers without a slot.
    async fn wait_for_late(self: &Arc<Self>, task: &mut FetchTask) -> Next {
        let limit = self.context.settings.limits.late_answer_timeout();
        task.slot = None;
        if let Ok(_room) = self.late.try_acquire()
            && let Ok(answer) = timeout(limit, self.late_answer(&mut task.late)).await
        {
            if let Some(raw) = answer {
                return Next::Deliver(raw);
            }
            // The node was not slow, but away.
            if task.retries < FETCH_RETRIES {
                task.retries += 1;
                task.untried = task.untried.or(task.unanswered);
                return Next::Request;
            }
        }
        tracing::debug!(hash = %task.hash(), "no answer, however late");
        Next::Finish(Outcome::Failed, Some(Seen::Failed))
    }

    /// Waits before the node is asked again. While the load is high, the retry releases its slot: with
    /// it, a retry that waits because of the load would count as load itself.
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

    /// Whether the source of the task has not announced its transaction. It may do so while its response
    /// is under way.
    fn is_early(&self, task: &FetchTask) -> bool {
        let is_own = task.source == task.ticket.arrival.source && !task.ticket.entered.is_undone;
        !is_own && !self.context.hashes.seen.sources(&task.hash()).contains(task.source)
    }

    fn is_any_up(&self, sources: SourceSet) -> bool {
        sources.iter().any(|source| self.context.connections.get(source).is_some())
    }

    /// A source that did not have it when it was asked, and has announced it since, is asked again:
    /// the one that announced it first may be overloaded or silent.
    fn ask_again(&self, task: &mut FetchTask) {
        if !task.early.is_empty() {
            let again = task.early.and(self.context.hashes.seen.sources(&task.hash()));
            task.untried = task.untried.or(again);
            again.iter().for_each(|source| task.early.remove(source));
        }
    }

    /// Waits until one of the untried sources, or of all if none is untried, is connected and has a free
    /// permit, and prefers the first: an overloaded node must not delay what another one could return.
    async fn acquire_node(
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
            self.ask_again(task);
            let untried: Vec<usize> = task.untried.iter_from(first).collect();
            let up = self.context.connections.connected(&untried, first).await;
            let limits = up.iter().map(|source| Arc::clone(&self.limits[*source]));
            // Polled in this order.
            let acquired = select_all(limits.map(|limit| Box::pin(limit.acquire())));
            // It keeps its place in the queue, unless there is one to look for again.
            let patience = if task.early.is_empty() { Duration::MAX } else { LOOK_AGAIN };
            if let Ok((permit, first_free, _)) = timeout(patience, acquired).await {
                task.source = up[first_free];
                // The connection may have been lost meanwhile.
                if let Some(requests) = self.context.connections.get(task.source) {
                    return (requests, permit);
                }
            }
        }
    }

    pub(super) fn pool_request(&self, task: FetchTask, permit: RequestPermit) -> PoolRequest {
        PoolRequest { is_early: self.is_early(&task), task, permit, sent: Instant::now() }
    }

    /// Counts the answer of a pool in this process to its request. Returns the task, unless the
    /// transaction is absent and another source is asked.
    pub(crate) fn answered_in_process(
        self: &Arc<Self>,
        request: PoolRequest,
        is_absent: bool,
    ) -> Option<FetchTask> {
        let PoolRequest { mut task, is_early, permit, sent } = request;
        permit.record(None, task.ticket.is_deferrable(), sent.elapsed());
        self.context.metrics.fetch_seconds.record(sent.elapsed().as_secs_f64());
        task.unanswered.remove(task.source);
        if !is_absent || self.context.hashes.is_mined(&task.hash()) {
            return Some(task);
        }
        let fetch = Arc::clone(self);
        self.context.tasks.spawn(async move {
            let next = fetch.absent(&mut task, is_early).await;
            fetch.go_on(task, next).await;
        });
        None
    }
}
