//! The request connections of all sources.

#![expect(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "indices of the configured sources and of our own connections"
)]

use std::{ops::Deref, sync::Arc, time::Duration};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded, select_biased};
use futures::future::BoxFuture;
use tokio::{sync::watch, time::timeout};

use super::client::RequestConnection;
use crate::{
    connection::Connection,
    error::{ConnectError, LossReason},
};

/// Where the requests of one source go.
pub(crate) enum Requests<T: Send + 'static> {
    /// To a node, over its request connections.
    Node(RequestSet<T>),
    /// To a pool in this process.
    InProcess(PoolQueues<T>),
}

/// The request connections of one source. They are opened together and lost together.
pub(crate) struct RequestSet<T: Send + 'static> {
    /// For every call that does not fetch a transaction.
    pub(crate) calls: Arc<Connection>,
    /// For the fetches, at least one.
    pub(crate) fetches: Box<[OpenConnection<T>]>,
    /// How many of them, counted from the last, also take deferrable fetches.
    pub(crate) deferrable: usize,
    /// Opens one more, for a request that may end it.
    pub(super) opener: Opener<T>,
}

/// Opens connections like those of a set.
pub(super) type Opener<T> =
    Box<dyn Fn() -> BoxFuture<'static, Result<OpenConnection<T>, ConnectError>> + Send + Sync>;

impl<T: Send + 'static> RequestSet<T> {
    /// The connection with the fewest requests in flight. Of equal ones the first is taken: under a
    /// light load a single thread does all the work, and it is not one that a backfill uses.
    pub(crate) fn least_busy(&self, deferrable: bool) -> &RequestConnection<T> {
        let first = if deferrable { self.fetches.len() - self.deferrable } else { 0 };
        let connections = self.fetches[first..].iter();
        connections
            .min_by_key(|connection| connection.in_flight())
            .expect("at least one connection, also for deferrable fetches")
    }

    pub(crate) fn flush(&self) {
        for connection in &self.fetches {
            connection.flush();
        }
    }

    /// Waits until one of them has ended, and returns the reason. Cancel safe.
    pub(crate) async fn closed(&self) -> LossReason {
        let fetches = self.fetches.iter().map(|connection| Box::pin(connection.ended.wait()));
        tokio::select! {
            reason = self.calls.ended().wait() => reason,
            (reason, ..) = futures::future::select_all(fetches) => reason,
        }
    }
}

/// A request connection that ends when this is dropped. Its thread holds the connection too, and
/// would otherwise wait for responses for ever.
pub(crate) struct OpenConnection<T: Send + 'static>(pub(super) Arc<RequestConnection<T>>);

impl<T: Send + 'static> Deref for OpenConnection<T> {
    type Target = RequestConnection<T>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<T: Send + 'static> Drop for OpenConnection<T> {
    fn drop(&mut self) {
        self.0.end(LossReason::Closed);
    }
}

/// Takes the requests. The threads that read them end when it is dropped.
pub(crate) struct PoolQueues<T> {
    live: Sender<T>,
    deferrable: Sender<T>,
}

/// What one thread reads: live requests, and deferrable ones.
pub(crate) type PoolRequests<T> = (Receiver<T>, Receiver<T>);

impl<T> PoolQueues<T> {
    /// Two queues of this many requests each.
    pub(crate) fn new(capacity: usize) -> (Self, PoolRequests<T>) {
        let (live, live_requests) = bounded(capacity);
        let (deferrable, deferrable_requests) = bounded(capacity);
        (Self { live, deferrable }, (live_requests, deferrable_requests))
    }

    /// Returned when the threads have ended.
    pub(crate) fn submit(&self, request: T, deferrable: bool) -> Result<(), T> {
        let requests = if deferrable { &self.deferrable } else { &self.live };
        requests.try_send(request).map_err(TrySendError::into_inner)
    }
}

/// Waits for the next request, live ones first. `None` at the end: deferrable requests that still wait are then
/// dropped.
pub(crate) fn next_of<T>((live, deferrable): &PoolRequests<T>) -> Option<T> {
    select_biased! {
        recv(live) -> request => request.ok(),
        recv(deferrable) -> request => request.ok(),
    }
}

pub(crate) struct RequestConnections<T: Send + 'static> {
    sets: watch::Sender<Vec<Option<Arc<Requests<T>>>>>,
}

impl<T: Send + 'static> RequestConnections<T> {
    pub(crate) fn new(sources: usize) -> Self {
        Self { sets: watch::Sender::new((0..sources).map(|_| None).collect()) }
    }

    pub(crate) fn set(&self, source: usize, set: Option<Arc<Requests<T>>>) {
        self.sets.send_modify(|all| all[source] = set);
    }

    /// Whether the requests of `source` still go there.
    pub(crate) fn is_current(&self, source: usize, requests: &Arc<Requests<T>>) -> bool {
        self.sets.borrow()[source].as_ref().is_some_and(|now| Arc::ptr_eq(now, requests))
    }

    pub(crate) fn is_up(&self, source: usize) -> bool {
        self.sets.borrow()[source].is_some()
    }

    pub(crate) fn of(&self, source: usize) -> Option<Arc<Requests<T>>> {
        self.sets.borrow()[source].clone()
    }

    /// The sources of `untried` that are connected, in order; if there are none, the other
    /// connected ones, beginning with `first`. Waits until there is one.
    pub(crate) async fn connected(&self, untried: &[usize], first: usize) -> Vec<usize> {
        let mut found = Vec::new();
        let find = |all: &Vec<Option<_>>| {
            let up = |source: &usize| all[*source].is_some();
            found.extend(untried.iter().copied().filter(up));
            if found.is_empty() {
                let any = std::iter::once(first).chain((0..all.len()).filter(|i| *i != first));
                found.extend(any.filter(up));
            }
            !found.is_empty()
        };
        // The sender lives as long as this.
        let _ = self.sets.subscribe().wait_for(find).await;
        found
    }

    /// Waits until `source` has had no connections for this long. Cancel safe.
    pub(crate) async fn down_for(&self, source: usize, time: Duration) {
        let mut changes = self.sets.subscribe();
        loop {
            // The sender lives as long as this.
            let _ = changes.wait_for(|all| all[source].is_none()).await;
            if timeout(time, changes.wait_for(|all| all[source].is_some())).await.is_err() {
                return;
            }
        }
    }

    /// The connection for calls of `source`, if it is a node and up.
    pub(crate) fn calls(&self, source: usize) -> Option<Arc<Connection>> {
        match self.of(source).as_deref() {
            Some(Requests::Node(set)) => Some(Arc::clone(&set.calls)),
            _ => None,
        }
    }

    /// Sends what has been submitted, on all connections.
    pub(crate) fn flush(&self) {
        for requests in self.sets.borrow().iter().flatten() {
            if let Requests::Node(set) = &**requests {
                set.flush();
            }
        }
    }

    /// Removes a set, if it is the current one.
    pub(crate) fn remove(&self, source: usize, set: &Arc<Requests<T>>) {
        self.sets
            .send_if_modified(|all| all[source].take_if(|now| Arc::ptr_eq(now, set)).is_some());
    }
}
