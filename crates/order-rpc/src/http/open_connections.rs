//! Tracks which connections of callers are open, and chooses which of them gives way to a new one.
//!
//! # Locks
//! `OpenConnections`: taken at the start and the end of a connection, for a few look-ups; never
//! across an await. Under it only `ConnectionSlot::work` is taken, and only by `try_lock`.
//! `ConnectionSlot::work`: held while a complete request is in progress, and for ever by whoever
//! displaces the connection.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use alloy_primitives::map::HashMap;
use tokio_util::sync::CancellationToken;

use crate::limits::{CallerId, Network};

/// The slot of a connection, which a newer connection may take over.
#[derive(Debug, Default)]
pub(super) struct ConnectionSlot {
    /// Held while a request with a complete body is in progress, and for ever by whoever displaces
    /// the connection.
    pub(super) work: tokio::sync::Mutex<()>,
    /// Whether a known signer has signed a request of this connection.
    pub(super) is_known: AtomicBool,
    /// Cancelled to close the connection.
    pub(super) close: CancellationToken,
    /// Cancelled when the connection is closed.
    pub(super) closed: CancellationToken,
}

impl ConnectionSlot {
    /// Closes the connection, unless a request is in progress. Returns whether it is closed.
    fn try_displace(&self) -> bool {
        let Ok(work) = self.work.try_lock() else { return false };
        // Never released, so that the connection starts no other request.
        mem::forget(work);
        self.close.cancel();
        true
    }

    fn is_known(&self) -> bool {
        // Relaxed: it orders nothing else.
        self.is_known.load(Relaxed)
    }
}

/// The open connections of callers, without those of trusted proxies and fronts.
#[derive(Debug, Default)]
pub(super) struct OpenConnections(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    /// The number of the connection that was opened last.
    last_number: u64,
    /// The connections of each network, in the order in which they were opened.
    networks: HashMap<Network, BTreeMap<u64, Arc<ConnectionSlot>>>,
    /// The networks, ascending by [`Rank`].
    by_rank: BTreeMap<Rank, Network>,
}

/// The number of connections for each of a network's shares. Among networks with equal numbers the
/// highest rank is that whose newest connection is the oldest.
type Rank = (usize, Reverse<u64>);

impl OpenConnections {
    /// Adds a connection, until the result is dropped.
    pub(super) fn add(
        self: &Arc<Self>,
        caller: CallerId,
        slot: Arc<ConnectionSlot>,
    ) -> OpenConnection {
        let network = caller.network();
        let mut open = self.lock();
        open.last_number += 1;
        let number = open.last_number;
        open.update(network, |connections| {
            connections.insert(number, slot);
        });
        OpenConnection { connections: Arc::clone(self), network, number }
    }

    /// Closes a connection to make room for a new one of this caller, and returns its slot; `None`
    /// if every candidate has a request in progress.
    ///
    /// It is the oldest connection without a request in progress of the network that has the most,
    /// if that has more than the caller's, and otherwise of the caller's own network. So whoever
    /// opens many connections displaces its own, and neither cheap nor incomplete requests protect
    /// one. A connection that a known signer uses is displaced only if there is no other.
    pub(super) fn displace(&self, caller: CallerId) -> Option<Arc<ConnectionSlot>> {
        let network = caller.network();
        let open = self.lock();
        let own_count = open.networks.get(&network).map_or(0, |slots| slots.len());
        let own_count = network.per_share(own_count);
        let larger = open.by_rank.iter().rev().take_while(|((count, _), _)| *count > own_count);
        let larger = larger.map(|(_, network)| network);
        let networks = larger.chain([&network]).filter_map(|network| open.networks.get(network));
        let mut slots = networks.flat_map(BTreeMap::values);
        let unknown = slots.clone().find(|slot| !slot.is_known() && slot.try_displace());
        unknown.or_else(|| slots.find(|slot| slot.try_displace())).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    /// Changes the connections of a network, and keeps `by_rank` consistent with them.
    fn update(
        &mut self,
        network: Network,
        change: impl FnOnce(&mut BTreeMap<u64, Arc<ConnectionSlot>>),
    ) {
        let connections = self.networks.entry(network).or_default();
        if let Some(rank) = rank(network, connections) {
            self.by_rank.remove(&rank);
        }
        change(connections);
        match rank(network, connections) {
            Some(rank) => {
                self.by_rank.insert(rank, network);
            }
            None => {
                self.networks.remove(&network);
            }
        }
    }
}

/// Returns the rank of a network with these connections; `None` if it has none.
fn rank(network: Network, connections: &BTreeMap<u64, Arc<ConnectionSlot>>) -> Option<Rank> {
    let (newest, _) = connections.last_key_value()?;
    Some((network.per_share(connections.len()), Reverse(*newest)))
}

/// An open connection, until dropped.
#[derive(Debug)]
pub(super) struct OpenConnection {
    connections: Arc<OpenConnections>,
    network: Network,
    number: u64,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.connections.lock().update(self.network, |connections| {
            connections.remove(&self.number);
        });
    }
}
