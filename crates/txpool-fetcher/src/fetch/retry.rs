//! Retries fetches without a usable response. Not the hot path, so each may spawn a task.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::select_all;
use tokio::time::{sleep, timeout};

use super::{Fetch, FetchRequest, FetchTask, Seen, SourceSet, limit::RequestPermit};
use crate::{
    error::CallError,
    limits::FETCH_RETRIES,
    metrics::{DeferrableWork, Retry},
    outcome::Outcome,
    request::{RequestSet, Requests},
};

/// After so many lost connections of its own, a hash is refused: the first may be chance.
pub(super) const HARMFUL_LOSSES: u32 = 3;

/// How many requests are sent over connections of their own at once. The rest wait: after a node's
/// restart, all that were in flight.
pub(crate) const REQUESTED_ALONE: usize = 8;

/// How often a request over a connection of its own is looked at.
const ALONE_TICK: Duration = Duration::from_millis(10);

/// How soon a fetch that waits for a node looks whether another one has announced its transaction
/// since: about as long as one takes from one node of a place to another.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Steps of the delay that are skipped when the node is overloaded: with the default delays, three
/// retries within 140 ms would only add to its load before the fetch fails.
const OVERLOAD_STEPS: u32 = 3;

impl Fetch {
    pub(crate) fn failed(self: &Arc<Self>, request: FetchRequest, error: CallError) {
        let FetchRequest { task, permit, .. } = request;
        permit.record(Some(&error), task.ticket.is_deferrable());
        self.spawn_retry(task, Some(error));
    }

    /// `error` is that of the call; `None`: the node does not have the transaction, and another source may.
    pub(super) fn spawn_retry(self: &Arc<Self>, task: FetchTask, error: Option<CallError>) {
        let fetch = Arc::clone(self);
        // A stop leaves the hash unfinished, and counts it so.
        self.tasks.spawn(async move { fetch.retry(task, error).await });
    }

    /// Requests the transaction again, from another source or after a delay, or ends the fetch.
    /// With its slot, a retry that waits because of the load would count as load itself.
    async fn retry(self: &Arc<Self>, mut task: FetchTask, error: Option<CallError>) {
        let retry = match &error {
            None => Retry::OtherSource,
            Some(CallError::ConnectionLost | CallError::Suspect) => Retry::ConnectionLost,
            Some(CallError::Timeout(_)) => Retry::Timeout,
            Some(CallError::Rpc { .. }) => Retry::RpcError,
        };
        self.metrics.retries[retry as usize].increment(1);
        if matches!(error, Some(CallError::Suspect)) {
            if task.alone.is_some() {
                // Another node's gateway may let it pass.
                task.untried.remove(task.source);
            }
            let losses = task.alone.map_or(0, |losses| losses + 1);
            task.alone = Some(losses);
            if losses >= HARMFUL_LOSSES {
                let hash = task.ticket.arrival.hash;
                tracing::warn!(%hash, "the response to the request for this transaction ends connections");
                self.metrics.harmful.increment(1);
                return task.ticket.finish(Outcome::Refused, Some(Seen::Harmful));
            }
        }
        if matches!(retry, Retry::ConnectionLost) {
            // Bounded by the pauses before connections are opened again.
            return self.submit_when_possible(task).await;
        }
        // Without an error it may be asked again at once.
        if let Some(error) = &error {
            task.untried.remove(task.source);
            if error.is_retryable() {
                task.unanswered = task.unanswered.or(SourceSet::of(task.source));
            }
        }
        self.ask_again(&mut task);
        if self.is_any_up(task.untried) {
            return self.submit_when_possible(task).await;
        }
        let left = task.untried.or(task.unanswered);
        let may_pass = match &error {
            Some(error) => error.is_retryable(),
            None if self.is_any_up(task.unanswered) => true,
            None if left != SourceSet::default() && !task.ticket.entered.is_undone => false,
            // Nobody has it.
            None => return task.ticket.finish(Outcome::Gone, None),
        };
        if !may_pass || task.retries >= FETCH_RETRIES {
            tracing::debug!(hash = %task.ticket.arrival.hash, ?error, "fetch failed");
            return task.ticket.finish(Outcome::Failed, Some(Seen::Failed));
        }
        let since = Instant::now();
        let is_overload = error.as_ref().is_some_and(CallError::is_overload);
        let step = task.retries + if is_overload { OVERLOAD_STEPS } else { 0 };
        sleep(self.settings.limits.retry_backoff.random_delay(step)).await;
        task.retries += 1;
        // The others have answered that they do not have it, or are away.
        task.untried = left;
        if let Some(_parked) = self.deferral.park() {
            drop(task.slot);
            self.deferral.wait(DeferrableWork::Retry, since).await;
            task.slot = self.slots.acquire_deferrable(task.ticket.arrival.source).await;
        }
        self.submit_when_possible(task).await;
    }

    pub(super) fn is_any_up(&self, sources: SourceSet) -> bool {
        sources.iter().any(|source| self.connections.of(source).is_some())
    }

    pub(super) async fn submit_when_possible(self: &Arc<Self>, mut task: FetchTask) {
        // Never closed, so this is always a permit.
        let _one = if task.alone.is_some() { self.alone.acquire().await.ok() } else { None };
        loop {
            let permit = self.acquire_request(&mut task).await;
            if task.alone.is_some()
                && let Some(requests) = self.connections.of(task.source)
                && let Requests::Node(set) = &*requests
            {
                let request = self.request_of(task, permit);
                return self.request_alone(&requests, set, request).await;
            }
            match self.submit_to(task, permit) {
                Ok(()) => return self.connections.flush(),
                Err(back) => task = back,
            }
            // The connection was lost since the look-up: the next one finds another, or waits.
            tokio::task::yield_now().await;
        }
    }

    /// Sends a request over a connection of its own, with whose end nothing else is lost. Returns
    /// when it has its response or has failed.
    async fn request_alone(
        self: &Arc<Self>,
        requests: &Arc<Requests<FetchRequest>>,
        set: &RequestSet<FetchRequest>,
        request: FetchRequest,
    ) {
        let (hash, source, losses) = (request.hash(), request.task.source, request.task.alone);
        let limits = &self.settings.limits;
        let late = CallError::Timeout(limits.fetch_timeout);
        let Ok(Ok(connection)) = timeout(limits.fetch_timeout, (set.opener)()).await else {
            return self.failed(request, late);
        };
        if let Err(request) = connection.submit_fetch(&hash, request) {
            return self.failed(request, late);
        }
        connection.flush();
        while connection.in_flight() > 0 && connection.ended.reason().is_none() {
            sleep(ALONE_TICK).await;
        }
        let Some(request) = connection.take_all().pop() else { return };
        // A node that goes away ends every connection, this one perhaps first.
        sleep(limits.retry_backoff.random_delay(losses.unwrap_or_default())).await;
        let now = self.connections.of(source);
        let is_up = now.is_some_and(|now| Arc::ptr_eq(&now, requests));
        let error = if is_up { CallError::Suspect } else { CallError::ConnectionLost };
        self.failed(request, error);
    }

    /// A source that did not have it when it was asked, and has announced it since, is asked again:
    /// the one that announced it first may be overloaded or silent.
    pub(super) fn ask_again(&self, task: &mut FetchTask) {
        if task.early != SourceSet::default() {
            let again = task.early.and(self.hashes.seen.sources(&task.ticket.arrival.hash));
            task.untried = task.untried.or(again);
            again.iter().for_each(|source| task.early.remove(source));
        }
    }

    /// Waits until one of the untried sources, or of all if none is untried, has a free permit, and
    /// prefers the first: an overloaded node must not delay what another one could return.
    async fn acquire_request(&self, task: &mut FetchTask) -> RequestPermit {
        let first = task.ticket.arrival.source;
        loop {
            self.ask_again(task);
            let untried: Vec<usize> = task.untried.iter_from(first).collect();
            let up = self.connections.connected(&untried, first).await;
            let limits = up.iter().map(|source| Arc::clone(&self.limits[*source]));
            // Polled in this order.
            let acquired = select_all(limits.map(|limit| Box::pin(limit.acquire())));
            // It keeps its place in the queue, unless there is one to look for again.
            let is_any_early = task.early != SourceSet::default();
            let patience = if is_any_early { LOOK_AGAIN } else { Duration::MAX };
            if let Ok((permit, first_free, _)) = timeout(patience, acquired).await {
                task.source = up[first_free];
                return permit;
            }
        }
    }
}
