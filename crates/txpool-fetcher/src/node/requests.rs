//! Where the requests of each source go: the request connections of a node, or the threads that call a
//! pool in this process. The table of all sources is the only lock, held for one look-up.

use std::{future::pending, sync::Arc, time::Duration};

use crossbeam_channel::{Sender, TrySendError};
use tokio::{sync::watch, time::timeout};

use super::Connection;
use crate::{error::LossReason, sync::OnDrop};

/// Where the requests of one source go. `T` is a request to a pool in this process.
pub(crate) enum Requests<T> {
    Node(NodeRequests),
    InProcess(PoolQueues<T>),
}

impl<T> Requests<T> {
    /// Waits until a connection is lost, and returns the reason. Those to a pool in this process are
    /// never lost. Removes these from the table on every path, also when the source is stopped.
    pub(crate) async fn watch(
        self: Arc<Self>,
        connections: &RequestConnections<T>,
        source: usize,
    ) -> LossReason {
        let _removes = OnDrop(|| connections.remove(source, &self));
        match &*self {
            Self::Node(node) => node.lost().await,
            Self::InProcess(_) => pending().await,
        }
    }
}

/// The request connections of one node. They are opened together and lost together.
pub(crate) struct NodeRequests {
    connections: Box<[Arc<Connection>]>,
    /// How many of them, counted from the last, also take deferrable fetches.
    deferrable: usize,
}

impl NodeRequests {
    /// `connections`: at least one. `deferrable`: at least one and at most as many as there are.
    pub(crate) fn new(connections: Vec<Arc<Connection>>, deferrable: usize) -> Self {
        let deferrable = deferrable.clamp(1, connections.len());
        Self { connections: connections.into(), deferrable }
    }

    pub(crate) fn all(&self) -> &[Arc<Connection>] {
        &self.connections
    }

    /// The connection with the fewest requests in flight: so a small transaction does not wait behind
    /// a blob transaction, whose response takes some milliseconds. Of equal ones it is the first.
    pub(crate) fn least_busy(&self, is_deferrable: bool) -> &Arc<Connection> {
        let first = if is_deferrable { self.connections.len() - self.deferrable } else { 0 };
        let least = self.connections[first..].iter().min_by_key(|it| it.in_flight());
        least.expect("there is at least one connection, also for deferrable fetches")
    }

    /// The connection for calls: the last one, which live fetches use least.
    fn for_calls(&self) -> &Arc<Connection> {
        self.connections.last().expect("there is at least one connection")
    }

    /// Ends all of them for this reason.
    pub(crate) fn end(&self, reason: &LossReason) {
        for connection in &self.connections {
            connection.end(reason.clone());
        }
    }

    /// Waits until one of them has ended, and ends the others. Cancel safe.
    async fn lost(&self) -> LossReason {
        let ends = self.connections.iter().map(|connection| Box::pin(connection.ended.wait()));
        let (reason, ..) = futures::future::select_all(ends).await;
        self.end(&LossReason::Closed);
        reason
    }
}

/// Takes the requests. The threads that read them end when it is dropped.
pub(crate) struct PoolQueues<T> {
    pub(crate) live: Sender<T>,
    pub(crate) deferrable: Sender<T>,
}

impl<T> PoolQueues<T> {
    /// Returns the request if the threads have ended.
    pub(crate) fn submit(&self, request: T, is_deferrable: bool) -> Result<(), T> {
        let requests = if is_deferrable { &self.deferrable } else { &self.live };
        requests.try_send(request).map_err(TrySendError::into_inner)
    }
}

/// What is connected, for each source.
pub(crate) struct RequestConnections<T> {
    connected: watch::Sender<Vec<Option<Arc<Requests<T>>>>>,
}

impl<T> RequestConnections<T> {
    pub(crate) fn new(sources: usize) -> Self {
        Self { connected: watch::Sender::new((0..sources).map(|_| None).collect()) }
    }

    pub(crate) fn set(&self, source: usize, requests: Option<Arc<Requests<T>>>) {
        self.connected.send_modify(|all| all[source] = requests);
    }

    pub(crate) fn get(&self, source: usize) -> Option<Arc<Requests<T>>> {
        self.connected.borrow()[source].clone()
    }

    /// The sources of `untried` that are connected, in order; if there are none, the other
    /// connected ones, beginning with `first`. Waits until there is one.
    pub(crate) async fn connected(&self, untried: &[usize], first: usize) -> Vec<usize> {
        let mut found = Vec::new();
        let find = |all: &Vec<Option<_>>| {
            let is_up = |source: &usize| all[*source].is_some();
            found.extend(untried.iter().copied().filter(is_up));
            if found.is_empty() {
                let any = std::iter::once(first).chain((0..all.len()).filter(|i| *i != first));
                found.extend(any.filter(is_up));
            }
            !found.is_empty()
        };
        // The sender lives as long as this.
        let _ = self.connected.subscribe().wait_for(find).await;
        found
    }

    /// Waits until `source` has had no connections for this long. Cancel safe.
    pub(crate) async fn down_for(&self, source: usize, time: Duration) {
        let mut changes = self.connected.subscribe();
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
        match self.get(source).as_deref() {
            Some(Requests::Node(node)) => Some(Arc::clone(node.for_calls())),
            _ => None,
        }
    }

    /// Removes these, if they are the current ones.
    pub(crate) fn remove(&self, source: usize, requests: &Arc<Requests<T>>) {
        self.connected.send_if_modified(|all| {
            all[source].take_if(|now| Arc::ptr_eq(now, requests)).is_some()
        });
    }
}
