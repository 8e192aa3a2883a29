//! Which connections of callers are open, and which of them makes room for a new one.
//!
//! # Locks
//! Open connections: taken by start and end of a connection, for a few look-ups; never across an await or with another lock,
//! but the next one, which it only tries.
//! Work: held while a complete request is in work, and for ever by whoever takes the connection's place.

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

/// A connection, for a newer one that may take its place.
#[derive(Debug, Default)]
pub(super) struct Place {
    /// Held while a request is in work whose body is complete, and for ever by whoever takes the
    /// place.
    pub(super) work: tokio::sync::Mutex<()>,
    /// Whether a known signer has signed one of its requests.
    pub(super) is_known: AtomicBool,
    pub(super) close: CancellationToken,
    pub(super) closed: CancellationToken,
}

impl Place {
    /// Has the connection closed, unless a request is in work.
    fn take(&self) -> bool {
        let Ok(work) = self.work.try_lock() else { return false };
        mem::forget(work);
        self.close.cancel();
        true
    }
}

/// The open connections of callers, but those of trusted proxies and fronts.
#[derive(Debug, Default)]
pub(super) struct OpenConnections(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    opened: u64,
    /// By the order in which they were opened.
    networks: HashMap<Network, BTreeMap<u64, Arc<Place>>>,
    /// By the number of connections for each of the network's shares. Among networks with as many,
    /// the last is the one whose newest connection is the oldest.
    by_count: BTreeMap<Rank, Network>,
}

type Rank = (usize, Reverse<u64>);

impl OpenConnections {
    /// Until the result is dropped.
    pub(super) fn add(self: &Arc<Self>, caller: CallerId, place: Arc<Place>) -> impl Send + use<> {
        let network = caller.network();
        let mut open = self.lock();
        open.opened += 1;
        let number = open.opened;
        open.change(network, |connections| _ = connections.insert(number, place));
        Opened { connections: Arc::clone(self), network, number }
    }

    /// Takes a place for a new connection of this caller. It is the oldest connection without a
    /// request in work of the network that has the most, if that has more than the caller's, or else
    /// of the caller's own network. So whoever opens many connections takes the places of its own, and
    /// cheap requests and incomplete ones keep none. A connection that a known signer uses goes only
    /// if there is no other.
    pub(super) fn displace(&self, caller: CallerId) -> Option<Arc<Place>> {
        let network = caller.network();
        let open = self.lock();
        let own = open.networks.get(&network).map_or(0, |places| network.shares(places.len()));
        let is_larger = |((count, _), _): &(&Rank, _)| *count > own;
        let larger = open.by_count.iter().rev().take_while(is_larger).map(|(_, network)| network);
        let networks = larger.chain([&network]).filter_map(|network| open.networks.get(network));
        let mut places = networks.flat_map(BTreeMap::values);
        let is_known = |place: &&Arc<Place>| place.is_known.load(Relaxed);
        let other = places.clone().find(|place| !is_known(place) && place.take());
        other.or_else(|| places.find(|place| place.take())).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    fn change(&mut self, network: Network, change: impl FnOnce(&mut BTreeMap<u64, Arc<Place>>)) {
        let connections = self.networks.entry(network).or_default();
        let rank = |places: &BTreeMap<u64, _>| {
            Some((network.shares(places.len()), Reverse(*places.last_key_value()?.0)))
        };
        rank(connections).map(|rank| self.by_count.remove(&rank));
        change(connections);
        match rank(connections) {
            Some(rank) => _ = self.by_count.insert(rank, network),
            None => _ = self.networks.remove(&network),
        }
    }
}

#[derive(Debug)]
struct Opened {
    connections: Arc<OpenConnections>,
    network: Network,
    number: u64,
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.connections.lock().change(self.network, |open| _ = open.remove(&self.number));
    }
}
