//! Callers by their address, and what each holds: connections, requests and bytes.
//!
//! # Locks
//! Callers: taken by start of a connection, end of a caller that holds nothing more, an order with blobs, for one look-up; never across an await or with another lock.
//! Remembered: taken by the first request of a known signer at a caller, for one push; never across an await or with another lock.

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

use super::Limits;

/// The header in which a trusted proxy names the caller, in lower case as HTTP libraries have it.
const FORWARDED_FOR: &str = "x-forwarded-for";

/// Callers that are remembered because a known signer has signed there, 300 bytes each. Of more the
/// first one is forgotten.
const MAX_REMEMBERED: usize = 1_024;

/// Callers that share one share: an IPv4 address, or an IPv6 /64, which is one subscriber's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CallerId {
    /// Of an IPv6 address, except a front's, the /64.
    pub(crate) address: IpAddr,
    /// One of `trusted_fronts`, which has no shares.
    pub(crate) is_front: bool,
}

impl From<IpAddr> for CallerId {
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
pub(crate) struct Caller {
    pub(crate) id: CallerId,
    pub(crate) connections: Arc<Budget>,
    pub(crate) requests: Arc<Budget>,
    /// Bytes of bodies and of responses.
    pub(crate) bytes: Arc<Budget>,
    pub(crate) slow_bodies: Arc<Budget>,
    /// One of its orders is in the line for proofs of blobs, and the others wait before it.
    pub(crate) proofs: Semaphore,
    /// Whether it is remembered. It orders nothing else.
    is_remembered: AtomicBool,
    known: Arc<Known>,
}

impl Drop for Caller {
    fn drop(&mut self) {
        let mut known = lock(&self.known);
        // The caller may have returned since.
        if known.get(&self.id).is_some_and(|caller| caller.strong_count() == 0) {
            known.remove(&self.id);
        }
    }
}

/// Only callers that hold something, so it is as bounded as connections and requests are.
type Known = Mutex<HashMap<CallerId, Weak<Caller>>>;

fn lock(known: &Known) -> MutexGuard<'_, HashMap<CallerId, Weak<Caller>>> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
pub(crate) struct Callers {
    known: Arc<Known>,
    /// Where a known signer has signed.
    remembered: Mutex<VecDeque<Arc<Caller>>>,
    /// Whether there are others than strangers.
    any_trusted: AtomicBool,
    limits: Limits,
}

impl Callers {
    pub(crate) fn new(limits: Limits) -> Self {
        let any_trusted = AtomicBool::new(!limits.config.trusted_fronts.is_empty());
        Self { known: Arc::default(), remembered: Mutex::default(), any_trusted, limits }
    }

    /// The caller that opened a connection. Only the connection's address makes a front: neither a
    /// forwarded address nor a neighbour in the same /64 is one.
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

    /// Whether this caller leaves a part to fronts, and to where a known signer has signed, if any
    /// are there.
    pub(crate) fn is_stranger(&self, caller: &Caller) -> bool {
        let is_trusted = caller.id.is_front || caller.is_remembered.load(Relaxed);
        !is_trusted && self.any_trusted.load(Relaxed)
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
        let mut known = lock(&self.known);
        if let Some(caller) = known.get(&id).and_then(Weak::upgrade) {
            return caller;
        }
        let share = |limit: usize| Budget::new(if id.is_front { usize::MAX } else { limit });
        let limits = &self.limits;
        let caller = Arc::new(Caller {
            id,
            connections: share(limits.max_connections_per_caller),
            requests: share(limits.max_requests_per_caller),
            bytes: share(limits.max_buffered_bytes_per_caller),
            slow_bodies: share(limits.max_slow_bodies_per_caller),
            proofs: Semaphore::new(1),
            is_remembered: AtomicBool::new(false),
            known: Arc::clone(&self.known),
        });
        known.insert(id, Arc::downgrade(&caller));
        caller
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
        Callers::new(Limits::of(OrderRpcConfig { trusted_fronts, ..OrderRpcConfig::new(1) }))
    }

    #[test]
    fn a_caller_is_an_address_or_a_prefix_and_is_forgotten_when_it_holds_nothing() {
        let callers = callers(&[]);
        let of = |address: &str| callers.of(address.parse().unwrap());
        let (one, mapped) = (of("10.0.0.1"), of("::ffff:10.0.0.1"));
        assert!(Arc::ptr_eq(&one, &mapped) && !Arc::ptr_eq(&one, &of("10.0.0.2")));
        let (subscriber, same) = (of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert!(Arc::ptr_eq(&subscriber, &same));
        assert!(!Arc::ptr_eq(&subscriber, &of("2001:db8:0:1::1")));
        assert_eq!(lock(&callers.known).len(), 2, "the others hold nothing");
        drop((one, mapped, subscriber, same));
        assert_eq!(lock(&callers.known).len(), 0);
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
        assert_eq!(lock(&callers.known).len(), MAX_REMEMBERED);
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
