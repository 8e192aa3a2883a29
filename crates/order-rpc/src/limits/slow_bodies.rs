//! Bodies that arrive slowly: how many may, and which of them gives way.
//!
//! # Locks
//! Bodies: taken when a body becomes slow and when it ends, for one pass over at most 65 entries;
//! never across an await or with another lock.

use std::{
    cmp::Reverse,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Instant,
};

use tokio::sync::oneshot;

use super::{CallerId, Limits, Network};
use crate::reply::Reason;

/// How much of a body has arrived since its head was read.
#[derive(Debug)]
pub(crate) struct Progress {
    started: Instant,
    bytes: AtomicUsize,
}

impl Progress {
    pub(crate) fn new(started: Instant) -> Self {
        Self { started, bytes: AtomicUsize::new(0) }
    }

    pub(crate) fn add(&self, bytes: usize) {
        // A count that orders nothing else.
        self.bytes.fetch_add(bytes, Relaxed);
    }

    /// Bytes per second. A body that came in a burst and then stalled falls behind by the second.
    fn rate(&self, now: Instant) -> u128 {
        let micros = now.saturating_duration_since(self.started).as_micros().max(1);
        self.bytes.load(Relaxed) as u128 * 1_000_000 / micros
    }
}

/// The slow bodies of strangers, and those of callers where a known signer has signed.
///
/// Each of the two has half of the places, so that strangers take none of the others'. When a half is
/// full, the body with the least progress of the caller that has the most slow bodies gives way,
/// which may be the one that has just become slow. An honest upload over a long line makes progress;
/// a body that is held open makes none.
#[derive(Debug)]
pub(crate) struct SlowBodies {
    strangers: Arc<Half>,
    trusted: Arc<Half>,
}

#[derive(Debug)]
struct Half {
    bodies: Mutex<Vec<SlowBody>>,
    max_bodies: usize,
    max_per_caller: usize,
}

#[derive(Debug)]
struct SlowBody {
    caller: CallerId,
    progress: Arc<Progress>,
    evict: oneshot::Sender<Reason>,
}

/// The place of a slow body, until dropped.
#[derive(Debug)]
pub(crate) struct SlowBodyPlace {
    half: Arc<Half>,
    progress: Arc<Progress>,
    evicted: oneshot::Receiver<Reason>,
}

impl SlowBodyPlace {
    /// Returns the reason when the body must give way to another one.
    ///
    /// # Cancel safety
    /// No eviction is lost.
    pub(crate) async fn evicted(&mut self) -> Reason {
        // The sender is dropped only with this place.
        (&mut self.evicted).await.unwrap_or(Reason::SlowBodies)
    }
}

impl Drop for SlowBodyPlace {
    fn drop(&mut self) {
        self.half.lock().retain(|body| !Arc::ptr_eq(&body.progress, &self.progress));
    }
}

impl SlowBodies {
    pub(crate) fn new(limits: &Limits) -> Self {
        let half = || {
            let max_bodies = limits.max_slow_bodies / 2;
            let max_per_caller = limits.max_slow_bodies_per_caller;
            Arc::new(Half { bodies: Mutex::default(), max_bodies, max_per_caller })
        };
        Self { strangers: half(), trusted: half() }
    }

    /// Takes a place for a body that has just become slow. `is_trusted`: a known signer has signed at
    /// its caller, or the caller is a front.
    ///
    /// # Errors
    /// This body is the one that must give way.
    pub(crate) fn enter(
        &self,
        caller: CallerId,
        is_trusted: bool,
        progress: &Arc<Progress>,
        now: Instant,
    ) -> Result<SlowBodyPlace, Reason> {
        let half = if is_trusted { &self.trusted } else { &self.strangers };
        let (evict, mut evicted) = oneshot::channel();
        let entrant = SlowBody { caller, progress: Arc::clone(progress), evict };
        half.enter(entrant, now);
        match evicted.try_recv() {
            Ok(reason) => Err(reason),
            Err(_) => {
                let (half, progress) = (Arc::clone(half), Arc::clone(progress));
                Ok(SlowBodyPlace { half, progress, evicted })
            }
        }
    }
}

impl Half {
    fn lock(&self) -> MutexGuard<'_, Vec<SlowBody>> {
        self.bodies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a body, and evicts one if that makes too many.
    fn enter(&self, entrant: SlowBody, now: Instant) {
        let (caller, network) = (entrant.caller, entrant.caller.network());
        let mut bodies = self.lock();
        bodies.push(entrant);
        let shares_of = |network: Network| {
            let count = bodies.iter().filter(|body| body.caller.network() == network).count();
            network.shares(count)
        };
        let own = bodies.iter().filter(|body| body.caller == caller).count();
        let (reason, victim) = if !caller.is_front && own > self.max_per_caller {
            let victim = slowest(&bodies, now, |body| body.caller == caller);
            (Reason::CallerSlowBodies, victim)
        } else if !caller.is_front && shares_of(network) > self.max_per_caller {
            let victim = slowest(&bodies, now, |body| body.caller.network() == network);
            (Reason::CallerSlowBodies, victim)
        } else if bodies.len() > self.max_bodies {
            let most = bodies.iter().map(|body| shares_of(body.caller.network())).max();
            let has_most = |body: &SlowBody| Some(shares_of(body.caller.network())) == most;
            (Reason::SlowBodies, slowest(&bodies, now, has_most))
        } else {
            return;
        };
        if let Some(victim) = victim {
            let victim = bodies.swap_remove(victim);
            // Its request may have ended meanwhile.
            let _ = victim.evict.send(reason);
        }
    }
}

/// The index of the body with the least progress among those that may be evicted; of equals the
/// youngest.
fn slowest(
    bodies: &[SlowBody],
    now: Instant,
    may_be_evicted: impl Fn(&SlowBody) -> bool,
) -> Option<usize> {
    let candidates = bodies.iter().enumerate().filter(|(_, body)| may_be_evicted(body));
    let rank = |body: &SlowBody| (body.progress.rate(now), Reverse(body.progress.started));
    candidates.min_by_key(|(_, body)| rank(body)).map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use std::{net::IpAddr, time::Duration};

    use super::*;
    use crate::config::OrderRpcConfig;

    fn caller(address: &str) -> CallerId {
        CallerId::from(address.parse::<IpAddr>().unwrap())
    }

    fn after_100_ms(bytes: usize, now: Instant) -> Arc<Progress> {
        let progress = Progress::new(now - Duration::from_millis(100));
        progress.add(bytes);
        Arc::new(progress)
    }

    #[test]
    fn the_body_with_the_least_progress_of_the_caller_with_the_most_gives_way() {
        let limits = Limits::new(OrderRpcConfig::new(1));
        let (bodies, now) = (SlowBodies::new(&limits), Instant::now());
        let enter = |address: &str, bytes| {
            bodies.enter(caller(address), false, &after_100_ms(bytes, now), now)
        };
        let mut held = Vec::new();
        for number in 0..32 {
            // Four of each of eight addresses.
            held.push(enter(&format!("10.0.0.{}", number % 8), 100 + number).unwrap());
        }
        let mut honest = enter("10.1.0.1", 1).unwrap();
        assert_eq!(held[0].evicted.try_recv(), Ok(Reason::SlowBodies), "not the slowest of all");
        assert!(honest.evicted.try_recv().is_err());
        assert_eq!(enter("10.0.0.1", 5).unwrap_err(), Reason::SlowBodies, "it is the slowest");
        // The other half is not theirs.
        let trusted = bodies.enter(caller("10.0.0.1"), true, &after_100_ms(0, now), now);
        assert!(trusted.is_ok());
        // A burst does not last.
        let later = now + Duration::from_secs(1);
        let burst = Arc::new(Progress::new(now));
        burst.add(10_000);
        let _burst = bodies.enter(caller("10.2.0.1"), false, &burst, later).unwrap();
        assert_eq!(burst.rate(later), 10_000);
        assert_eq!(bodies.strangers.lock().len(), 32);
    }

    #[test]
    fn one_caller_has_its_places_and_an_ipv6_site_those_of_four() {
        let limits = Limits::new(OrderRpcConfig::new(1));
        let (bodies, now) = (SlowBodies::new(&limits), Instant::now());
        let mut refused = 0;
        let mut held = Vec::new();
        for number in 0..64 {
            let address = format!("2001:db8:0:{:x}00::1", number % 16);
            match bodies.enter(caller(&address), false, &after_100_ms(1_000 - number, now), now) {
                Ok(place) => held.push(place),
                Err(reason) => {
                    assert_eq!(reason, Reason::CallerSlowBodies);
                    refused += 1;
                }
            }
        }
        assert_eq!((held.len(), refused), (32, 32));
        drop(held);
        let mut own = Vec::new();
        for number in 0..9 {
            own.push(bodies.enter(caller("10.0.0.1"), false, &after_100_ms(9 - number, now), now));
        }
        assert_eq!(own[8].as_ref().unwrap_err(), &Reason::CallerSlowBodies);
        assert!(own[..8].iter().all(Result::is_ok));
    }
}
