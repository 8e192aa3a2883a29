//! Counts the open connections, in all and of each address.

use std::{
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};

use alloy_primitives::map::HashMap;
use metrics::Gauge;

use crate::metrics::OpenCount;

#[derive(Debug)]
pub(crate) struct Peers {
    open: Mutex<Open>,
    max: usize,
    max_per_peer: usize,
}

#[derive(Debug, Default)]
struct Open {
    total: usize,
    /// Only addresses with open connections, so as bounded as these.
    of: HashMap<IpAddr, usize>,
}

/// Which limit of connections is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TooMany {
    Connections,
    OfPeer,
}

/// Counts a connection as open until it is dropped.
#[derive(Debug)]
pub(crate) struct PeerPermit {
    peers: Arc<Peers>,
    peer: IpAddr,
}

impl Peers {
    pub(crate) fn new(max: usize, max_per_peer: usize) -> Self {
        Self { open: Mutex::default(), max, max_per_peer }
    }

    pub(crate) fn enter(self: &Arc<Self>, peer: IpAddr) -> Result<PeerPermit, TooMany> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let of = open.of.get(&peer).copied().unwrap_or(0);
        if of >= self.max_per_peer {
            return Err(TooMany::OfPeer);
        }
        if open.total >= self.max {
            return Err(TooMany::Connections);
        }
        open.total += 1;
        open.of.insert(peer, of + 1);
        Ok(PeerPermit { peers: Arc::clone(self), peer })
    }
}

impl Drop for PeerPermit {
    fn drop(&mut self) {
        let mut open = self.peers.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.total -= 1;
        let left = open.of.get_mut(&self.peer).map_or(0, |of| {
            *of -= 1;
            *of
        });
        if left == 0 {
            open.of.remove(&self.peer);
        }
    }
}

/// Counts a connection until the last task that serves it has ended: a WebSocket's task goes on after
/// the HTTP connection that it was upgraded from has ended.
#[derive(Debug)]
pub(crate) struct OpenConnection {
    _count: OpenCount,
    _permit: PeerPermit,
}

impl OpenConnection {
    pub(crate) fn new(permit: PeerPermit, gauge: &Gauge) -> Self {
        Self { _count: OpenCount::new(gauge), _permit: permit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_counted_by_address_and_in_all_until_they_end() {
        let peers = Arc::new(Peers::new(3, 2));
        let (one, other) = (IpAddr::from([1; 4]), IpAddr::from([2; 4]));
        let first = peers.enter(one).unwrap();
        let _second = peers.enter(one).unwrap();
        assert_eq!(peers.enter(one).unwrap_err(), TooMany::OfPeer);
        let third = peers.enter(other).unwrap();
        assert_eq!(peers.enter(other).unwrap_err(), TooMany::Connections);
        drop(first);
        drop(third);
        let again = (peers.enter(one).unwrap(), peers.enter(other).unwrap());
        drop(again);
        assert_eq!(peers.open.lock().unwrap().of.len(), 1);
    }
}
