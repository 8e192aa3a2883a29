//! The connections on which requests can be sent now.

use std::sync::Arc;

use tokio::sync::watch;

use crate::connection::Connection;

/// The request connections of all sources, as far as they are up.
#[derive(Debug)]
pub(crate) struct RequestConnections {
    connections: watch::Sender<Vec<Vec<Arc<Connection>>>>,
}

impl RequestConnections {
    pub(crate) fn new(sources: usize) -> Self {
        Self { connections: watch::Sender::new(vec![Vec::new(); sources]) }
    }

    pub(crate) fn set(&self, source: usize, connections: Vec<Arc<Connection>>) {
        self.connections.send_modify(|all| all[source] = connections);
    }

    pub(crate) fn is_up(&self, source: usize) -> bool {
        !self.connections.borrow()[source].is_empty()
    }

    /// The sources of `untried` that are connected, in their order. If none is, all connected
    /// sources, `first` before the others. Waits until there is one.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn connected(&self, untried: &[usize], first: usize) -> Vec<usize> {
        let find = |all: &Vec<Vec<Arc<Connection>>>| {
            let up = |source: &usize| !all[*source].is_empty();
            let mut found: Vec<usize> = untried.iter().copied().filter(up).collect();
            if found.is_empty() {
                let any = std::iter::once(first).chain((0..all.len()).filter(|i| *i != first));
                found.extend(any.filter(up));
            }
            found
        };
        let found = find(&self.connections.borrow());
        if !found.is_empty() {
            return found;
        }
        let mut changes = self.connections.subscribe();
        loop {
            let found = find(&changes.borrow_and_update());
            if !found.is_empty() {
                return found;
            }
            changes.changed().await.expect("`self` owns the sender");
        }
    }

    /// A connection of `source`, or of another source if it has none. Waits until there is one.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn pick(&self, source: usize) -> Arc<Connection> {
        loop {
            let up = self.connected(&[source], source).await;
            if let Some(connection) = self.least_busy(up[0]) {
                return connection;
            }
        }
    }

    /// The connection of `source` with the fewest calls in flight, if it has one.
    pub(crate) fn least_busy(&self, source: usize) -> Option<Arc<Connection>> {
        self.connections.borrow()[source]
            .iter()
            .min_by_key(|connection| connection.in_flight())
            .cloned()
    }

    /// Removes a connection that a call found lost, before its source has noticed.
    pub(crate) fn remove(&self, source: usize, connection: &Arc<Connection>) {
        self.connections.send_if_modified(|all| {
            let before = all[source].len();
            all[source].retain(|other| !Arc::ptr_eq(other, connection));
            all[source].len() != before
        });
    }
}
