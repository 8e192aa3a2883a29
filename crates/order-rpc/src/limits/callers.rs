//! Callers by their address, and what each holds: connections, requests and bytes.

use std::{
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use alloy_primitives::map::HashMap;
use http::HeaderMap;

use crate::{config::OrderRpcConfig, limits::budget::Budget};

/// The header in which a trusted proxy names the caller, in lower case as HTTP libraries compare
/// it.
const FORWARDED_FOR: &str = "x-forwarded-for";

/// Callers that share one share: an IPv4 address, or an IPv6 /64, which is what one subscriber is
/// assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PeerId {
    address: IpAddr,
    /// One of [`OrderRpcConfig::trusted_fronts`], which has no shares.
    pub(crate) is_front: bool,
}

impl From<IpAddr> for PeerId {
    fn from(address: IpAddr) -> Self {
        let address = match address.to_canonical() {
            IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
            v4 @ IpAddr::V4(_) => v4,
        };
        Self { address, is_front: false }
    }
}

/// A caller's shares. It exists as long as the caller holds anything.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) id: PeerId,
    pub(crate) connections: Arc<Budget>,
    pub(crate) requests: Arc<Budget>,
    /// Bytes of bodies and of responses.
    pub(crate) bytes: Arc<Budget>,
    pub(crate) slow_bodies: Arc<Budget>,
    peers: Arc<Known>,
}

impl Drop for Peer {
    fn drop(&mut self) {
        let mut known = self.peers.lock();
        // The caller may have returned since.
        if known.get(&self.id).is_some_and(|peer| peer.strong_count() == 0) {
            known.remove(&self.id);
        }
    }
}

/// Only peers that hold something, so it is as bounded as connections and requests are.
#[derive(Debug, Default)]
struct Known {
    peers: Mutex<HashMap<PeerId, Weak<Peer>>>,
}

impl Known {
    fn lock(&self) -> MutexGuard<'_, HashMap<PeerId, Weak<Peer>>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Peers(Arc<Known>);

impl Peers {
    /// The peer that opened a connection. Only the connection's address makes a front: neither a
    /// forwarded address nor a neighbour in the same /64 is one.
    pub(crate) fn of_connection(&self, address: IpAddr, config: &OrderRpcConfig) -> Arc<Peer> {
        let address = address.to_canonical();
        if config.trusted_fronts.contains(&address) {
            self.with_id(PeerId { address, is_front: true }, config)
        } else {
            self.of(address, config)
        }
    }

    /// The peer with this address, which is not a front.
    pub(crate) fn of(&self, address: IpAddr, config: &OrderRpcConfig) -> Arc<Peer> {
        self.with_id(PeerId::from(address), config)
    }

    fn with_id(&self, id: PeerId, config: &OrderRpcConfig) -> Arc<Peer> {
        let mut known = self.0.lock();
        if let Some(peer) = known.get(&id).and_then(Weak::upgrade) {
            return peer;
        }
        let share = |limit: usize| Budget::new(if id.is_front { usize::MAX } else { limit });
        let peer = Arc::new(Peer {
            id,
            connections: share(config.max_connections_per_peer),
            requests: share(config.max_requests_per_peer),
            bytes: share(config.max_buffered_bytes_per_peer),
            slow_bodies: share(config.max_slow_bodies_per_peer),
            peers: Arc::clone(&self.0),
        });
        known.insert(id, Arc::downgrade(&peer));
        peer
    }
}

/// The address that a trusted proxy names: the last one of the header, which the proxy added
/// itself. Earlier ones come from the caller.
pub(crate) fn forwarded_for(headers: &HeaderMap) -> Option<IpAddr> {
    let last = headers.get_all(FORWARDED_FOR).iter().next_back()?.to_str().ok()?;
    last.rsplit(',').next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_an_address_or_a_prefix_and_is_forgotten_when_it_holds_nothing() {
        let (peers, config) = (Peers::default(), OrderRpcConfig::new(1));
        let of = |address: &str| peers.of(address.parse().unwrap(), &config);
        let (one, mapped) = (of("10.0.0.1"), of("::ffff:10.0.0.1"));
        assert!(Arc::ptr_eq(&one, &mapped) && !Arc::ptr_eq(&one, &of("10.0.0.2")));
        let (subscriber, same) = (of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert!(Arc::ptr_eq(&subscriber, &same));
        assert!(!Arc::ptr_eq(&subscriber, &of("2001:db8:0:1::1")));
        assert_eq!(peers.0.lock().len(), 2, "the others hold nothing");
        drop((one, mapped, subscriber, same));
        assert_eq!(peers.0.lock().len(), 0);
    }

    #[test]
    fn a_front_is_who_connects_from_its_address_and_nobody_near_it() {
        let fronts = ["2001:db8::1", "10.0.0.1"].map(|address| address.parse().unwrap());
        let (peers, config) =
            (Peers::default(), OrderRpcConfig::new(1).with_trusted_fronts(fronts));
        let connects =
            |address: &str| peers.of_connection(address.parse().unwrap(), &config).id.is_front;
        let held = ["2001:db8::1", "::ffff:10.0.0.1"]
            .map(|address| peers.of_connection(address.parse().unwrap(), &config));
        assert!(held.iter().all(|peer| peer.id.is_front && peer.requests.limit() == usize::MAX));
        assert!(!connects("2001:db8::2") && !connects("10.0.0.2"));
        assert!(!peers.of("10.0.0.1".parse().unwrap(), &config).id.is_front, "named by a proxy");
    }

    #[test]
    fn of_a_forwarding_header_the_last_address_counts() {
        let mut headers = HeaderMap::new();
        assert_eq!(forwarded_for(&headers), None);
        headers.append(FORWARDED_FOR, "1.1.1.1, 2.2.2.2".parse().unwrap());
        assert_eq!(forwarded_for(&headers), Some(IpAddr::from([2; 4])));
        headers.append(FORWARDED_FOR, "3.3.3.3".parse().unwrap());
        assert_eq!(forwarded_for(&headers), Some(IpAddr::from([3; 4])));
        headers.append(FORWARDED_FOR, "nobody".parse().unwrap());
        assert_eq!(forwarded_for(&headers), None);
    }
}
