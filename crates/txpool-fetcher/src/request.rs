//! The requests for transactions: over the connections of a node, or to a pool in this process. Entry: [`RequestSet`],
//! and [`RequestConnections`], those of all sources. It does not know what is kept with a request.
//!
//! When the node ends a connection, or sends a value above 32 MiB, the response to one of the requests in flight on it may
//! be the cause. Each of them is sent again over a connection of its own, so the culprit is found and no other request is
//! lost with it.
//!
//! The connections in use are in a `watch` channel, whose lock a flush holds while it sends.

use std::{future::pending, sync::Arc, time::Duration};

use crossbeam_channel::{Sender, TrySendError};
use futures::future::BoxFuture;
use tokio::{sync::watch, time::timeout};

use crate::{
    config::Settings,
    connection::{Calls, Connection, Open},
    error::{CallError, ConnectError, LossReason},
    sync::OnDrop,
};

/// Where the requests of one source go.
pub(crate) enum Requests<T: Send + 'static> {
    Node(RequestSet<T>),
    InProcess(PoolQueues<T>),
}

impl<T: Send + 'static> Requests<T> {
    /// Waits until one of the connections is lost; then closes the others and returns the reason. `on_failure` gets
    /// the requests that were in flight. Those to a pool in this process are never lost.
    pub(crate) async fn watch(
        self: Arc<Self>,
        connections: &RequestConnections<T>,
        index: usize,
        on_failure: impl Fn(T, CallError) + Send + Sync,
    ) -> LossReason {
        // On every path, also when the source is stopped meanwhile.
        let _hands_on = OnDrop(|| {
            connections.remove(index, &self);
            if let Self::Node(set) = &*self {
                set.hand_on(&on_failure);
            }
        });
        match &*self {
            Self::Node(set) => set.closed().await,
            Self::InProcess(_) => pending().await,
        }
    }
}

/// The request connections of one source. They are opened together and lost together.
pub(crate) struct RequestSet<T: Send + 'static> {
    /// For every call that does not fetch a transaction.
    pub(crate) calls: Arc<Calls>,
    /// For the fetches, at least one.
    fetches: Box<[Open<T>]>,
    /// How many of them, counted from the last, also take deferrable fetches.
    deferrable: usize,
    /// Opens one more, for a request that may end it.
    pub(crate) opener: Opener<T>,
}

/// Opens a connection like those of a set.
pub(crate) type Opener<T> =
    Box<dyn Fn() -> BoxFuture<'static, Result<Open<T>, ConnectError>> + Send + Sync>;

impl<T: Send + 'static> RequestSet<T> {
    /// Opens all request connections of a source beside the one for calls.
    pub(crate) async fn open(
        calls: Calls,
        opener: Opener<T>,
        settings: &Settings,
    ) -> Result<Self, ConnectError> {
        let mut fetches = Vec::new();
        for _ in 0..settings.config.request_connections {
            fetches.push(opener().await?);
        }
        let deferrable = settings.deferrable_connections();
        Ok(Self { calls: calls.into(), fetches: fetches.into(), deferrable, opener })
    }

    /// The connection with the fewest requests in flight. Of equal ones the first is taken: under a
    /// light load a single thread does all the work, and it is not one that a backfill uses.
    pub(crate) fn least_busy(&self, deferrable: bool) -> &Connection<T> {
        let first = if deferrable { self.fetches.len() - self.deferrable } else { 0 };
        let least = self.fetches[first..].iter().min_by_key(|connection| connection.in_flight());
        least.expect("at least one connection, also for deferrable fetches")
    }

    pub(crate) fn flush(&self) {
        for connection in &self.fetches {
            connection.flush();
        }
    }

    /// Waits until one of them has ended, and returns the reason. Cancel safe.
    async fn closed(&self) -> LossReason {
        let fetches = self.fetches.iter().map(|connection| Box::pin(connection.ended.wait()));
        tokio::select! {
            reason = self.calls.ended.wait() => reason,
            (reason, ..) = futures::future::select_all(fetches) => reason,
        }
    }

    fn hand_on(&self, on_failure: impl Fn(T, CallError)) {
        self.calls.end(LossReason::Closed);
        for connection in &self.fetches {
            let is_suspect = connection.ended.reason().is_some_and(|reason| reason.is_by_peer());
            let error = if is_suspect { CallError::Suspect } else { CallError::ConnectionLost };
            connection.end(LossReason::Closed);
            for request in connection.take_all() {
                on_failure(request, error.clone());
            }
        }
    }
}

/// Takes the requests. The threads that read them end when it is dropped.
pub(crate) struct PoolQueues<T> {
    pub(crate) live: Sender<T>,
    pub(crate) deferrable: Sender<T>,
}

impl<T> PoolQueues<T> {
    /// Returned when the threads have ended.
    pub(crate) fn submit(&self, request: T, deferrable: bool) -> Result<(), T> {
        let requests = if deferrable { &self.deferrable } else { &self.live };
        requests.try_send(request).map_err(TrySendError::into_inner)
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
    pub(crate) fn calls(&self, source: usize) -> Option<Arc<Calls>> {
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
