//! Identifies callers by their address, and tracks what each of them holds: connections, requests
//! and bytes.
//!
//! # Locks
//! `Table`: taken at the start of a connection, when a caller holds nothing any more, and by an
//! order with blobs, for one look-up; never across an await or with another lock.
//! `remembered`: taken by the first request of a known signer at a caller, for one push; never
//! across an await or with another lock.

use std::{
    collections::VecDeque,
    hash::Hash,
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use alloy_primitives::map::HashMap;
use http::HeaderMap;
use load_control::Budget;
use tokio::sync::Semaphore;

use super::{budget::CallerBudget, settings::Limits};

/// The header in which a trusted proxy names the caller, in lower case as HTTP libraries have it.
const FORWARDED_FOR: &str = "x-forwarded-for";

/// Callers that are remembered because a known signer has signed a request there, 300 bytes each.
/// Beyond it the one that was remembered first is forgotten.
const MAX_REMEMBERED: usize = 1_024;

/// The prefix length that identifies one IPv6 subscriber: the smallest network that a provider
/// should assign to one (RIPE-690).
const SUBSCRIBER_PREFIX_BITS: u32 = 56;
/// The prefix length of a site, the largest network that one subscriber is usually assigned.
const SITE_PREFIX_BITS: u32 = 48;
/// The shares that all callers of one site have together, in shares of one caller.
pub(super) const SHARES_PER_SITE: usize = 4;
/// The callers that all signers behind a front whom the host does not know count as, where they
/// wait with those of others; as many as in the pool.
const SHARES_PER_FRONT: usize = 8;

/// Identifies a caller: an IPv4 address, or the /56 of an IPv6 address, which is one subscriber's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CallerId {
    /// The address; for IPv6 the /56, except for a front.
    pub(crate) address: IpAddr,
    /// Whether it is one of `trusted_fronts`, which have no shares.
    pub(crate) is_front: bool,
}

impl From<IpAddr> for CallerId {
    fn from(address: IpAddr) -> Self {
        let address = match address.to_canonical() {
            IpAddr::V6(v6) => prefix(v6, SUBSCRIBER_PREFIX_BITS).into(),
            v4 @ IpAddr::V4(_) => v4,
        };
        Self { address, is_front: false }
    }
}

impl CallerId {
    /// Returns the /48 of an IPv6 caller.
    pub(super) fn site(&self) -> Option<Ipv6Addr> {
        match self.address {
            IpAddr::V6(address) if !self.is_front => Some(prefix(address, SITE_PREFIX_BITS)),
            _ => None,
        }
    }

    /// Returns the network in which one person can be many callers.
    pub(crate) fn network(&self) -> Network {
        match self.site() {
            Some(site) => Network { address: site.into(), shares: SHARES_PER_SITE },
            None => Network { address: self.address, shares: 1 },
        }
    }
}

/// One IPv4 address, or the callers of an IPv6 /48. Who holds the most is compared between
/// networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Network {
    address: IpAddr,
    shares: usize,
}

impl Network {
    /// Returns how many of `count` things each of the network's shares holds, rounded up.
    pub(crate) const fn per_share(&self, count: usize) -> usize {
        count.div_ceil(self.shares)
    }
}

fn prefix(address: Ipv6Addr, bits: u32) -> Ipv6Addr {
    let host_bits = Ipv6Addr::BITS - bits;
    Ipv6Addr::from_bits(address.to_bits() >> host_bits << host_bits)
}

/// The shares of one caller. It exists as long as the caller holds anything.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) id: CallerId,
    pub(crate) connections: CallerBudget,
    pub(crate) requests: CallerBudget,
    /// Bytes of bodies and of responses.
    pub(crate) bytes: CallerBudget,
    /// One order of the caller at a time has its blob proofs verified, of a front
    /// [`SHARES_PER_FRONT`]; the others wait here.
    pub(crate) proofs: Semaphore,
    /// The caller's orders on which the host is asked to decide; further ones wait here.
    pub(crate) admissions: Semaphore,
    pub(crate) site: Option<Arc<Site>>,
    /// Whether a known signer has signed a request here. Relaxed: it orders nothing else.
    is_remembered: AtomicBool,
    table: Arc<Table>,
}

/// The shares of all callers of an IPv6 /48 together, each [`SHARES_PER_SITE`] times a caller's. It
/// exists as long as one of its callers does.
#[derive(Debug)]
pub(crate) struct Site {
    address: Ipv6Addr,
    connections: Arc<Budget>,
    requests: Arc<Budget>,
    bytes: Arc<Budget>,
    pub(crate) proofs: Semaphore,
    pub(crate) admissions: Semaphore,
    table: Arc<Table>,
}

impl Drop for Caller {
    fn drop(&mut self) {
        remove_dropped(&mut self.table.lock().callers, &self.id);
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        remove_dropped(&mut self.table.lock().sites, &self.address);
    }
}

/// Removes the entry of a dropped value, unless another value has taken its key since.
fn remove_dropped<K: Eq + Hash, V>(map: &mut HashMap<K, Weak<V>>, key: &K) {
    if map.get(key).is_some_and(|value| value.strong_count() == 0) {
        map.remove(key);
    }
}

/// The callers that hold something, so it is bounded by connections and requests in flight.
#[derive(Debug, Default)]
struct Table(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    callers: HashMap<CallerId, Weak<Caller>>,
    sites: HashMap<Ipv6Addr, Weak<Site>>,
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All callers that hold something, and those where a known signer has signed.
#[derive(Debug)]
pub(crate) struct Callers {
    table: Arc<Table>,
    /// The callers where a known signer has signed, oldest first.
    remembered: Mutex<VecDeque<Arc<Caller>>>,
    /// Whether there is any trusted caller.
    has_trusted: AtomicBool,
    limits: Limits,
}

impl Callers {
    pub(crate) fn new(limits: Limits) -> Self {
        let has_trusted = AtomicBool::new(!limits.config.trusted_fronts.is_empty());
        Self { table: Arc::default(), remembered: Mutex::default(), has_trusted, limits }
    }

    /// Returns the caller that opened a connection. Only the connection's own address makes it a
    /// front: neither a forwarded address nor a neighbour in the same /56 is one.
    pub(crate) fn connected_from(&self, address: IpAddr) -> Arc<Caller> {
        let address = address.to_canonical();
        if self.limits.config.trusted_fronts.contains(&address) {
            self.get(CallerId { address, is_front: true })
        } else {
            self.with_address(address)
        }
    }

    /// Returns the caller with this address, which is not a front.
    pub(crate) fn with_address(&self, address: IpAddr) -> Arc<Caller> {
        self.get(CallerId::from(address))
    }

    /// Whether a caller is a front, or has sent a request that a known signer has signed.
    pub(crate) fn is_trusted(&self, caller: &Caller) -> bool {
        caller.id.is_front || caller.is_remembered.load(Relaxed)
    }

    /// Whether a caller must leave a part of the limits to trusted callers, if there are any.
    pub(crate) fn is_stranger(&self, caller: &Caller) -> bool {
        !self.is_trusted(caller) && self.has_trusted.load(Relaxed)
    }

    /// Remembers that this caller has sent a request that a known signer has signed.
    pub(crate) fn remember(&self, caller: &Arc<Caller>) {
        if caller.is_remembered.swap(true, Relaxed) {
            return;
        }
        self.has_trusted.store(true, Relaxed);
        let forgotten = {
            let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
            remembered.push_back(Arc::clone(caller));
            if remembered.len() > MAX_REMEMBERED { remembered.pop_front() } else { None }
        };
        // It is dropped here, without the lock, because its drop takes the table's lock.
        if let Some(forgotten) = forgotten {
            forgotten.is_remembered.store(false, Relaxed);
        }
    }

    /// Returns the caller with this id, and creates it if it holds nothing yet.
    pub(crate) fn get(&self, id: CallerId) -> Arc<Caller> {
        let mut entries = self.table.lock();
        if let Some(caller) = entries.callers.get(&id).and_then(Weak::upgrade) {
            return caller;
        }
        let site = id.site().map(|address| self.site(address, &mut entries));
        let limits = &self.limits;
        let new_budget = |limit: usize, site_budget: fn(&Site) -> &Arc<Budget>| {
            let limit = if id.is_front { usize::MAX } else { limit };
            CallerBudget::new(limit, site.as_deref().map(site_budget))
        };
        let connections = new_budget(limits.max_connections_per_caller, |site| &site.connections);
        let requests = new_budget(limits.max_requests_per_caller, |site| &site.requests);
        let bytes = new_budget(limits.max_buffered_bytes_per_caller, |site| &site.bytes);
        let caller = Arc::new(Caller {
            id,
            connections,
            requests,
            bytes,
            proofs: Semaphore::new(if id.is_front { SHARES_PER_FRONT } else { 1 }),
            admissions: Semaphore::new(limits.max_admissions_per_caller),
            site,
            is_remembered: AtomicBool::new(false),
            table: Arc::clone(&self.table),
        });
        entries.callers.insert(id, Arc::downgrade(&caller));
        caller
    }

    fn site(&self, address: Ipv6Addr, entries: &mut Entries) -> Arc<Site> {
        if let Some(site) = entries.sites.get(&address).and_then(Weak::upgrade) {
            return site;
        }
        let limits = &self.limits;
        let site = Arc::new(Site {
            address,
            connections: site_budget(limits.max_connections_per_caller),
            requests: site_budget(limits.max_requests_per_caller),
            bytes: site_budget(limits.max_buffered_bytes_per_caller),
            proofs: Semaphore::new(SHARES_PER_SITE),
            admissions: Semaphore::new(SHARES_PER_SITE * limits.max_admissions_per_caller),
            table: Arc::clone(&self.table),
        });
        entries.sites.insert(address, Arc::downgrade(&site));
        site
    }
}

fn site_budget(caller_limit: usize) -> Arc<Budget> {
    Budget::new(caller_limit.saturating_mul(SHARES_PER_SITE))
}

/// Returns the caller's address that a trusted proxy names in `X-Forwarded-For`: the last one,
/// because earlier ones come from the caller.
pub(crate) fn forwarded_for(headers: &HeaderMap) -> Option<IpAddr> {
    let last_value = headers.get_all(FORWARDED_FOR).iter().next_back()?.to_str().ok()?;
    last_value.rsplit(',').next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::OrderRpcConfig;

    fn callers(fronts: &[&str]) -> Callers {
        let trusted_fronts = fronts.iter().map(|address| address.parse().unwrap()).collect();
        Callers::new(Limits::new(OrderRpcConfig { trusted_fronts, ..OrderRpcConfig::new(1) }))
    }

    #[test]
    fn a_caller_is_an_address_or_prefix_and_is_forgotten_without_holdings() {
        let callers = callers(&[]);
        let get = |address: &str| callers.with_address(address.parse().unwrap());
        let (one, mapped) = (get("10.0.0.1"), get("::ffff:10.0.0.1"));
        assert!(Arc::ptr_eq(&one, &mapped) && !Arc::ptr_eq(&one, &get("10.0.0.2")));
        let (subscriber, same) = (get("2001:db8::1"), get("2001:db8::ffff:1"));
        assert!(Arc::ptr_eq(&subscriber, &same));
        assert!(Arc::ptr_eq(&subscriber, &get("2001:db8:0:ff::1")), "the same /56");
        assert!(!Arc::ptr_eq(&subscriber, &get("2001:db8:0:100::1")));
        assert_eq!(callers.table.lock().callers.len(), 2, "the others hold nothing");
        drop((one, mapped, subscriber, same));
        let entries = callers.table.lock();
        assert_eq!((entries.callers.len(), entries.sites.len()), (0, 0));
    }

    /// A subscriber with an IPv6 /48 has 65,536 networks of /64, each of which was one caller.
    #[test]
    fn all_callers_of_an_ipv6_site_have_four_shares() {
        let callers = callers(&[]);
        let site: Vec<_> = (0..256_u16)
            .map(|number| {
                let address = Ipv6Addr::new(0x2001, 0xdb8, 0, number << 8, 0, 0, 0, 1);
                callers.with_address(address.into())
            })
            .collect();
        let limits = &callers.limits;
        let connections: fn(&Caller) -> &CallerBudget = |caller| &caller.connections;
        for (limit, budget) in [
            (limits.max_connections_per_caller, connections),
            (limits.max_requests_per_caller, |caller| &caller.requests),
            (limits.max_buffered_bytes_per_caller, |caller| &caller.bytes),
        ] {
            let held: Vec<_> =
                site.iter().filter_map(|caller| budget(caller).take(limit)).collect();
            assert_eq!(held.len(), SHARES_PER_SITE);
            let address = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 1);
            let neighbour = callers.with_address(address.into());
            assert!(budget(&neighbour).take(limit).is_some(), "another site");
        }
    }

    #[test]
    fn the_oldest_caller_with_a_known_signer_is_forgotten_first() {
        let callers = callers(&[]);
        let get =
            |number| callers.with_address(Ipv6Addr::new(0x2001, number, 0, 0, 0, 0, 0, 0).into());
        let (first, stranger) = (get(0), get(u16::MAX));
        assert!(!callers.is_stranger(&stranger), "no caller is trusted yet");
        for number in 0..MAX_REMEMBERED as u16 {
            callers.remember(&get(number));
        }
        callers.remember(&first);
        assert!(!callers.is_stranger(&first) && callers.is_stranger(&stranger));
        callers.remember(&get(MAX_REMEMBERED as u16));
        assert!(callers.is_stranger(&first) && !callers.is_stranger(&get(1)));
        drop((first, stranger));
        assert_eq!(callers.table.lock().callers.len(), MAX_REMEMBERED);
    }

    #[test]
    fn only_a_connection_from_its_exact_address_is_a_front() {
        let callers = callers(&["2001:db8::1", "10.0.0.1"]);
        let connect = |address: &str| callers.connected_from(address.parse().unwrap());
        for caller in ["2001:db8::1", "::ffff:10.0.0.1"].map(connect) {
            assert!(caller.id.is_front && caller.requests.take(usize::MAX).is_some());
        }
        for neighbour in ["2001:db8::2", "10.0.0.2"] {
            assert!(!connect(neighbour).id.is_front);
        }
        let named_by_a_proxy = callers.with_address("10.0.0.1".parse().unwrap());
        assert!(!named_by_a_proxy.id.is_front);
    }
}
