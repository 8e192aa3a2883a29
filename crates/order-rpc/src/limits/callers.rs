//! Callers by their address, and what each holds: connections, requests and bytes.
//!
//! # Locks
//! Callers: taken at the start of a connection, at the end of a caller that holds nothing more, and by an order with
//! blobs, for one look-up; never across an await or with another lock.
//! Remembered: taken by the first request of a known signer at a caller, for one push; never across an await or with
//! another lock.

use std::{
    collections::VecDeque,
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

use super::{CallerBudget, Limits};

/// The header in which a trusted proxy names the caller, in lower case as HTTP libraries have it.
const FORWARDED_FOR: &str = "x-forwarded-for";

/// Callers that are remembered because a known signer has signed there, 300 bytes each. Of more the
/// first one is forgotten.
const MAX_REMEMBERED: usize = 1_024;

/// The bits of an IPv6 address that one subscriber has: the least that a provider should give to one
/// (RIPE-690).
const SUBSCRIBER_BITS: u32 = 56;
/// The bits of a site, the most that one subscriber is usually given.
const SITE_BITS: u32 = 48;
/// How many callers' shares all callers of one site have together.
pub(super) const SHARES_PER_SITE: usize = 4;

/// A caller: an IPv4 address, or an IPv6 /56, which is one subscriber's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CallerId {
    /// Of an IPv6 address, except a front's, the /56.
    pub(crate) address: IpAddr,
    /// One of `trusted_fronts`, which has no shares.
    pub(crate) is_front: bool,
}

impl From<IpAddr> for CallerId {
    fn from(address: IpAddr) -> Self {
        let address = match address.to_canonical() {
            IpAddr::V6(v6) => prefix(v6, SUBSCRIBER_BITS).into(),
            v4 @ IpAddr::V4(_) => v4,
        };
        Self { address, is_front: false }
    }
}

impl CallerId {
    /// The /48 of an IPv6 caller.
    pub(super) fn site(&self) -> Option<Ipv6Addr> {
        match self.address {
            IpAddr::V6(address) if !self.is_front => Some(prefix(address, SITE_BITS)),
            _ => None,
        }
    }

    /// The network in which one person can be many callers.
    pub(crate) fn network(&self) -> Network {
        match self.site() {
            Some(site) => Network { address: site.into(), shares: SHARES_PER_SITE },
            None => Network { address: self.address, shares: 1 },
        }
    }
}

/// The callers of an IPv6 /48, or one IPv4 address. Comparisons of who has the most are between
/// networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Network {
    address: IpAddr,
    shares: usize,
}

impl Network {
    /// The size of each of its shares if they divide `count` things.
    pub(crate) const fn shares(&self, count: usize) -> usize {
        count.div_ceil(self.shares)
    }
}

fn prefix(address: Ipv6Addr, bits: u32) -> Ipv6Addr {
    let rest = Ipv6Addr::BITS - bits;
    Ipv6Addr::from_bits(address.to_bits() >> rest << rest)
}

/// A caller's shares. It exists as long as the caller holds anything.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) id: CallerId,
    pub(crate) connections: CallerBudget,
    pub(crate) requests: CallerBudget,
    /// Bytes of bodies and of responses.
    pub(crate) bytes: CallerBudget,
    /// One of its orders is in the line for proofs of blobs, and the others wait before it.
    pub(crate) proofs: Semaphore,
    /// Its orders on which the host decides; the others wait before them.
    pub(crate) admissions: Semaphore,
    pub(crate) site: Option<Arc<Site>>,
    /// Whether it is remembered. It orders nothing else.
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
        remove(&mut self.table.lock().callers, &self.id);
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        remove(&mut self.table.lock().sites, &self.address);
    }
}

/// Removes the entry of a value that was dropped, unless the key has a new value since.
fn remove<K: Eq + std::hash::Hash, V>(map: &mut HashMap<K, Weak<V>>, key: &K) {
    if map.get(key).is_some_and(|value| value.strong_count() == 0) {
        map.remove(key);
    }
}

/// Only callers that hold something, so it is as bounded as connections and requests are.
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

#[derive(Debug)]
pub(crate) struct Callers {
    table: Arc<Table>,
    /// Where a known signer has signed.
    remembered: Mutex<VecDeque<Arc<Caller>>>,
    /// Whether there are others than strangers.
    any_trusted: AtomicBool,
    limits: Limits,
}

impl Callers {
    pub(crate) fn new(limits: Limits) -> Self {
        let any_trusted = AtomicBool::new(!limits.config.trusted_fronts.is_empty());
        Self { table: Arc::default(), remembered: Mutex::default(), any_trusted, limits }
    }

    /// The caller that opened a connection. Only the connection's address makes a front: neither a
    /// forwarded address nor a neighbour in the same /56 is one.
    pub(crate) fn of_connection(&self, address: IpAddr) -> Arc<Caller> {
        let address = address.to_canonical();
        if self.limits.config.trusted_fronts.contains(&address) {
            self.with_id(CallerId { address, is_front: true })
        } else {
            self.of(address)
        }
    }

    /// The caller with this address, which is not a front.
    pub(crate) fn of(&self, address: IpAddr) -> Arc<Caller> {
        self.with_id(CallerId::from(address))
    }

    /// Whether a caller is a front, or a known signer has signed there.
    pub(crate) fn is_trusted(&self, caller: &Caller) -> bool {
        caller.id.is_front || caller.is_remembered.load(Relaxed)
    }

    /// Whether a caller must leave a part of the limits to those that are trusted, if there are any.
    pub(crate) fn is_stranger(&self, caller: &Caller) -> bool {
        !self.is_trusted(caller) && self.any_trusted.load(Relaxed)
    }

    /// A known signer has signed at this caller.
    pub(crate) fn remember(&self, caller: &Arc<Caller>) {
        if caller.is_remembered.swap(true, Relaxed) {
            return;
        }
        self.any_trusted.store(true, Relaxed);
        let forgotten = {
            let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
            remembered.push_back(Arc::clone(caller));
            let first = remembered.len() > MAX_REMEMBERED;
            first.then(|| remembered.pop_front()).flatten()
        };
        if let Some(forgotten) = forgotten {
            forgotten.is_remembered.store(false, Relaxed);
        }
    }

    pub(crate) fn with_id(&self, id: CallerId) -> Arc<Caller> {
        let mut entries = self.table.lock();
        if let Some(caller) = entries.callers.get(&id).and_then(Weak::upgrade) {
            return caller;
        }
        let site = id.site().map(|address| self.site(address, &mut entries));
        let limits = &self.limits;
        let budget = |limit: usize, of_site: fn(&Site) -> &Arc<Budget>| {
            let limit = if id.is_front { usize::MAX } else { limit };
            CallerBudget::new(limit, site.as_deref().map(of_site))
        };
        let caller = Arc::new(Caller {
            id,
            connections: budget(limits.max_connections_per_caller, |site| &site.connections),
            requests: budget(limits.max_requests_per_caller, |site| &site.requests),
            bytes: budget(limits.max_buffered_bytes_per_caller, |site| &site.bytes),
            proofs: Semaphore::new(1),
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
        let budget = |limit: usize| Budget::new(limit.saturating_mul(SHARES_PER_SITE));
        let site = Arc::new(Site {
            address,
            connections: budget(limits.max_connections_per_caller),
            requests: budget(limits.max_requests_per_caller),
            bytes: budget(limits.max_buffered_bytes_per_caller),
            proofs: Semaphore::new(SHARES_PER_SITE),
            admissions: Semaphore::new(SHARES_PER_SITE * limits.max_admissions_per_caller),
            table: Arc::clone(&self.table),
        });
        entries.sites.insert(address, Arc::downgrade(&site));
        site
    }
}

/// The address that a trusted proxy names: the last one. Earlier ones come from the caller.
pub(crate) fn forwarded_for(headers: &HeaderMap) -> Option<IpAddr> {
    let last = headers.get_all(FORWARDED_FOR).iter().next_back()?.to_str().ok()?;
    last.rsplit(',').next()?.trim().parse().ok()
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
    fn a_caller_is_an_address_or_a_prefix_and_is_forgotten_when_it_holds_nothing() {
        let callers = callers(&[]);
        let of = |address: &str| callers.of(address.parse().unwrap());
        let (one, mapped) = (of("10.0.0.1"), of("::ffff:10.0.0.1"));
        assert!(Arc::ptr_eq(&one, &mapped) && !Arc::ptr_eq(&one, &of("10.0.0.2")));
        let (subscriber, same) = (of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert!(Arc::ptr_eq(&subscriber, &same));
        assert!(Arc::ptr_eq(&subscriber, &of("2001:db8:0:ff::1")), "of the same /56");
        assert!(!Arc::ptr_eq(&subscriber, &of("2001:db8:0:100::1")));
        assert_eq!(callers.table.lock().callers.len(), 2, "the others hold nothing");
        drop((one, mapped, subscriber, same));
        let entries = callers.table.lock();
        assert_eq!((entries.callers.len(), entries.sites.len()), (0, 0));
    }

    /// Whoever has an IPv6 line has 65,536 networks of /64, each of which was a caller.
    #[test]
    fn all_callers_of_an_ipv6_site_have_the_shares_of_four() {
        let callers = callers(&[]);
        let of = |number: u16| {
            callers.of(Ipv6Addr::new(0x2001, 0xdb8, 0, number << 8, 0, 0, 0, 1).into())
        };
        let site: Vec<_> = (0..256).map(of).collect();
        let limits = &callers.limits;
        for (limit, budget) in [
            (
                limits.max_connections_per_caller,
                (|caller| &caller.connections) as fn(&Caller) -> &CallerBudget,
            ),
            (limits.max_requests_per_caller, |caller| &caller.requests),
            (limits.max_buffered_bytes_per_caller, |caller| &caller.bytes),
        ] {
            let held: Vec<_> =
                site.iter().filter_map(|caller| budget(caller).take(limit)).collect();
            assert_eq!(held.len(), SHARES_PER_SITE);
            let neighbour = callers.of(Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 1).into());
            assert!(budget(&neighbour).take(limit).is_some(), "another site");
        }
    }

    #[test]
    fn where_a_known_signer_has_signed_is_remembered_until_there_are_too_many() {
        let callers = callers(&[]);
        let of = |number| callers.of(Ipv6Addr::new(0x2001, number, 0, 0, 0, 0, 0, 0).into());
        let (first, stranger) = (of(0), of(u16::MAX));
        assert!(!callers.is_stranger(&stranger), "to nobody");
        for number in 0..MAX_REMEMBERED as u16 {
            callers.remember(&of(number));
        }
        callers.remember(&first);
        assert!(!callers.is_stranger(&first) && callers.is_stranger(&stranger));
        callers.remember(&of(MAX_REMEMBERED as u16));
        assert!(callers.is_stranger(&first) && !callers.is_stranger(&of(1)));
        drop((first, stranger));
        assert_eq!(callers.table.lock().callers.len(), MAX_REMEMBERED);
    }

    #[test]
    fn a_front_is_who_connects_from_its_address_and_nobody_near_it() {
        let callers = callers(&["2001:db8::1", "10.0.0.1"]);
        let of = |address: &str| callers.of_connection(address.parse().unwrap());
        let connects = |address: &str| of(address).id.is_front;
        for caller in ["2001:db8::1", "::ffff:10.0.0.1"].map(of) {
            assert!(caller.id.is_front && caller.requests.take(usize::MAX).is_some());
        }
        assert!(!connects("2001:db8::2") && !connects("10.0.0.2"));
        assert!(!callers.of("10.0.0.1".parse().unwrap()).id.is_front, "named by a proxy");
    }
}
