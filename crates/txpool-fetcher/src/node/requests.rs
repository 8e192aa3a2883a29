//! The request connections of each source, or the threads that call a pool in this process: decides
//! which connection carries a request. The table of all sources is the only lock, held for one
//! look-up.

use std::{future::pending, sync::Arc, time::Duration};

use crossbeam_channel::{Sender, TrySendError};
use tokio::{sync::watch, time::timeout};

use super::Connection;
use crate::{error::LossReason, sync::OnDrop};

/// The request connections of one source. `T` is a request to a pool in this process.
pub(crate) enum Requests<T> {
    Node(NodeRequests),
    InProcess(PoolQueues<T>),
}

impl<T> Requests<T> {
    /// Waits until a connection is lost, and returns the reason. The queues to a pool in this
    /// process are never lost. On every path, also when the source is stopped, it removes itself
    /// from the table.
    pub(crate) async fn watch(
        self: Arc<Self>,
        connections: &RequestConnections<T>,
        source: usize,
    ) -> LossReason {
        let _remove = OnDrop(|| connections.remove(source, &self));
        match &*self {
            Self::Node(node) => node.lost().await,
            Self::InProcess(_) => pending().await,
        }
    }
}

/// The request connections of one node. They are opened together, and if one ends, all end.
pub(crate) struct NodeRequests {
    connections: Box<[Arc<Connection>]>,
    /// The number of connections, counted from the last, that also carry deferrable fetches.
    deferrable: usize,
}

impl NodeRequests {
    /// `connections` must not be empty. `deferrable` is brought into its range: 1 to the number of
    /// connections.
    pub(crate) fn new(connections: Vec<Arc<Connection>>, deferrable: usize) -> Self {
        let deferrable = deferrable.clamp(1, connections.len());
        Self { connections: connections.into(), deferrable }
    }

    /// Returns all connections.
    pub(crate) fn all(&self) -> &[Arc<Connection>] {
        &self.connections
    }

    /// Returns the connection with the fewest requests in flight, so that a small transaction does
    /// not wait behind a blob transaction, whose response takes some milliseconds. Of equal ones,
    /// the first.
    pub(crate) fn least_busy(&self, is_deferrable: bool) -> &Arc<Connection> {
        let first = if is_deferrable { self.connections.len() - self.deferrable } else { 0 };
        let carriers = self.connections[first..].iter();
        let least_busy = carriers.min_by_key(|connection| connection.in_flight());
        least_busy.expect("there is at least one connection, also for deferrable fetches")
    }

    /// Returns the connection for calls: the last one, which live fetches use least.
    fn for_calls(&self) -> &Arc<Connection> {
        self.connections.last().expect("there is at least one connection")
    }

    /// Ends all of them for this reason.
    pub(crate) fn end(&self, reason: &LossReason) {
        for connection in &self.connections {
            connection.end(reason.clone());
        }
    }

    /// Waits until one connection has ended, and ends the others.
    ///
    /// # Cancel safety
    /// Cancel safe.
    async fn lost(&self) -> LossReason {
        let ends = self.connections.iter().map(|connection| Box::pin(connection.ended.wait()));
        let (reason, ..) = futures::future::select_all(ends).await;
        self.end(&LossReason::Closed);
        reason
    }
}

/// The queues of requests to a pool in this process. The threads that read them end when this is
/// dropped.
pub(crate) struct PoolQueues<T> {
    pub(crate) live: Sender<T>,
    pub(crate) deferrable: Sender<T>,
}

impl<T> PoolQueues<T> {
    /// Queues a request.
    ///
    /// # Errors
    /// The threads have ended. The request is returned.
    pub(crate) fn submit(&self, request: T, is_deferrable: bool) -> Result<(), T> {
        let requests = if is_deferrable { &self.deferrable } else { &self.live };
        requests.try_send(request).map_err(TrySendError::into_inner)
    }
}

/// The request connections of all sources that are connected.
pub(crate) struct RequestConnections<T> {
    connected: watch::Sender<Vec<Option<Arc<Requests<T>>>>>,
}

impl<T> RequestConnections<T> {
    pub(crate) fn new(sources: usize) -> Self {
        Self { connected: watch::Sender::new((0..sources).map(|_| None).collect()) }
    }

    /// Sets the request connections of a source.
    pub(crate) fn set(&self, source: usize, requests: Option<Arc<Requests<T>>>) {
        self.connected.send_modify(|all| all[source] = requests);
    }

    /// Returns the request connections of a source, if it is connected.
    pub(crate) fn get(&self, source: usize) -> Option<Arc<Requests<T>>> {
        self.connected.borrow()[source].clone()
    }

    /// Returns the connected sources among `untried`, in order. If there is none, returns all
    /// connected sources, `first` before the others. Waits until there is one.
    pub(crate) async fn connected(&self, untried: &[usize], first: usize) -> Vec<usize> {
        let mut found = Vec::new();
        let find = |all: &Vec<Option<_>>| {
            let is_connected = |source: &usize| all[*source].is_some();
            found.extend(untried.iter().copied().filter(is_connected));
            if found.is_empty() {
                let others = (0..all.len()).filter(|source| *source != first);
                found.extend(std::iter::once(first).chain(others).filter(is_connected));
            }
            !found.is_empty()
        };
        // The sender lives as long as `self`.
        let _ = self.connected.subscribe().wait_for(find).await;
        found
    }

    /// Waits until a source has had no connections for `time`.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn down_for(&self, source: usize, time: Duration) {
        let mut changes = self.connected.subscribe();
        loop {
            // The sender lives as long as `self`.
            let _ = changes.wait_for(|all| all[source].is_none()).await;
            if timeout(time, changes.wait_for(|all| all[source].is_some())).await.is_err() {
                return;
            }
        }
    }

    /// Returns the connection for calls to a source, if the source is a connected node.
    pub(crate) fn calls(&self, source: usize) -> Option<Arc<Connection>> {
        match self.get(source).as_deref() {
            Some(Requests::Node(node)) => Some(Arc::clone(node.for_calls())),
            _ => None,
        }
    }

    /// Removes the request connections of a source, if they are still `requests`.
    pub(crate) fn remove(&self, source: usize, requests: &Arc<Requests<T>>) {
        self.connected.send_if_modified(|all| {
            all[source].take_if(|current| Arc::ptr_eq(current, requests)).is_some()
        });
    }
}
