//! Decides how many bodies may arrive slowly, and which of them is evicted. The same rule decides
//! on responses that are read slowly.
//!
//! # Locks
//! `Half::bodies`: taken when a body becomes slow and when it ends, to compare at most 33 entries
//! with each other; never across an await or with another lock.

use std::{
    cmp::Reverse,
    future::poll_fn,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Instant,
};

use futures::FutureExt;
use tokio::sync::oneshot;

use super::{
    callers::{CallerId, Network},
    settings::Limits,
};
use crate::reply::Reason;

/// A body below this rate, in bytes per second, is stalled: within the six seconds that a body may
/// take, less than 60 kB of it would arrive.
const STALLED_BELOW: u128 = 10_000;

/// The bytes by which a body counts as ahead of what has arrived, when two are compared: those of
/// 300 ms at the rate above, because the first come a round trip after the head.
const HEAD_START_BYTES: u128 = 3_000;

/// Counts the bytes of a body that have arrived since its head was read.
#[derive(Debug)]
pub(crate) struct Progress {
    started_at: Instant,
    bytes: AtomicUsize,
}

impl Progress {
    pub(crate) fn new(started_at: Instant) -> Self {
        Self { started_at, bytes: AtomicUsize::new(0) }
    }

    pub(crate) fn add(&self, bytes: usize) {
        // Relaxed: the count orders nothing else.
        self.bytes.fetch_add(bytes, Relaxed);
    }

    fn is_stalled(&self, now: Instant) -> bool {
        self.rate(now) < STALLED_BELOW
    }

    /// Returns the bytes per second. The rate of a body that stalls after a burst falls with time.
    fn rate(&self, now: Instant) -> u128 {
        self.rate_with(0, now)
    }

    /// Returns the rate as if this many bytes more had arrived.
    fn rate_with(&self, more_bytes: u128, now: Instant) -> u128 {
        let micros = now.saturating_duration_since(self.started_at).as_micros().max(1);
        (self.bytes.load(Relaxed) as u128 + more_bytes) * 1_000_000 / micros
    }
}

/// The slow bodies, of strangers and of trusted callers.
///
/// Each of the two groups has half of the places, so that strangers take none of the others'. When
/// a half is full, the body with the lowest rate is evicted, among those of the network with the
/// most slow bodies; that may be the one that has just become slow.
///
/// If a network has more than half as many *stalled* bodies as that, and any has several, it loses
/// one of them instead. So several uploads from one address do not give way to bodies that
/// strangers hold open from many addresses. A single upload that has just begun does not give way
/// to older bodies that are a little faster than stalled.
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

/// The place of one slow body, released when dropped.
#[derive(Debug)]
pub(crate) struct SlowBodyPlace {
    half: Arc<Half>,
    progress: Arc<Progress>,
    evicted: oneshot::Receiver<Reason>,
}

impl SlowBodyPlace {
    /// Returns the reason when the body is evicted.
    ///
    /// # Cancel safety
    /// No eviction is lost.
    pub(crate) async fn evicted(&mut self) -> Reason {
        poll_fn(|context| self.poll_evicted(context)).await
    }

    /// The same, and wakes the task then.
    pub(crate) fn poll_evicted(&mut self, context: &mut Context<'_>) -> Poll<Reason> {
        // The sender is dropped only with this place, so it has always sent before.
        self.evicted.poll_unpin(context).map(|reason| reason.unwrap_or(Reason::SlowBodies))
    }
}

impl Drop for SlowBodyPlace {
    fn drop(&mut self) {
        self.half.lock().retain(|body| !Arc::ptr_eq(&body.progress, &self.progress));
    }
}

impl SlowBodies {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self { strangers: Half::new(limits), trusted: Half::new(limits) }
    }

    /// Takes a place for a body that has just become slow. `is_trusted`: its caller is a front, or
    /// a known signer has signed a request there.
    ///
    /// # Errors
    /// This body is the one that is evicted.
    pub(crate) fn enter(
        &self,
        caller: CallerId,
        is_trusted: bool,
        progress: &Arc<Progress>,
        now: Instant,
    ) -> Result<SlowBodyPlace, Reason> {
        let half = if is_trusted { &self.trusted } else { &self.strangers };
        let (evict, mut evicted) = oneshot::channel();
        half.enter(SlowBody { caller, progress: Arc::clone(progress), evict }, now);
        if let Ok(reason) = evicted.try_recv() {
            return Err(reason);
        }
        Ok(SlowBodyPlace { half: Arc::clone(half), progress: Arc::clone(progress), evicted })
    }
}

impl Half {
    fn new(limits: &Limits) -> Arc<Self> {
        Arc::new(Self {
            bodies: Mutex::default(),
            max_bodies: limits.max_slow_bodies / 2,
            max_per_caller: limits.max_slow_bodies_per_caller,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<SlowBody>> {
        self.bodies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a body, and evicts one if that makes too many.
    fn enter(&self, entrant: SlowBody, now: Instant) {
        let caller = entrant.caller;
        let network = caller.network();
        let mut bodies = self.lock();
        bodies.push(entrant);
        let caller_bodies = bodies.iter().filter(|body| body.caller == caller).count();
        let is_above_share =
            !caller.is_front && bodies_per_share(bodies.iter(), network) > self.max_per_caller;
        let all = || bodies.iter().enumerate();
        let (reason, victim) = if !caller.is_front && caller_bodies > self.max_per_caller {
            let victim = slowest(all().filter(|(_, body)| body.caller == caller), now);
            (Reason::CallerSlowBodies, victim)
        } else if is_above_share {
            let victim = slowest(all().filter(|(_, body)| body.caller.network() == network), now);
            (Reason::CallerSlowBodies, victim)
        } else if bodies.len() > self.max_bodies {
            let stalled: Vec<_> = all().filter(|(_, body)| body.progress.is_stalled(now)).collect();
            let (most, of_largest) = of_largest_network(all().collect());
            let (most_stalled, of_most_stalled) = of_largest_network(stalled);
            // If each network has one, the slowest is found without this rule.
            let is_held_open = most > 1 && 2 * most_stalled > most;
            let candidates = if is_held_open { of_most_stalled } else { of_largest };
            (Reason::SlowBodies, slowest(candidates.into_iter(), now))
        } else {
            return;
        };
        if let Some(victim) = victim {
            let victim = bodies.swap_remove(victim);
            // The send fails if the request has ended meanwhile. Then there is nothing to evict.
            let _ = victim.evict.send(reason);
        }
    }
}

/// Returns how many of the bodies each share of a network has.
fn bodies_per_share<'a>(bodies: impl Iterator<Item = &'a SlowBody>, network: Network) -> usize {
    network.per_share(bodies.filter(|body| body.caller.network() == network).count())
}

/// Returns how many of the bodies each share of the largest network has, and the bodies of that
/// network, or of those that are as large. Each body is with its index.
fn of_largest_network(bodies: Vec<(usize, &SlowBody)>) -> (usize, Vec<(usize, &SlowBody)>) {
    let per_share = |(_, body): &(usize, &SlowBody)| {
        bodies_per_share(bodies.iter().map(|(_, body)| *body), body.caller.network())
    };
    let most = bodies.iter().map(per_share).max().unwrap_or(0);
    (most, bodies.iter().copied().filter(|body| per_share(body) == most).collect())
}

/// Returns the index of the body with the lowest rate among these, each with its index and a head
/// start; of equal ones the youngest.
fn slowest<'a>(
    candidates: impl Iterator<Item = (usize, &'a SlowBody)>,
    now: Instant,
) -> Option<usize> {
    let slowest = candidates.min_by_key(|(_, body)| {
        let rate = body.progress.rate_with(HEAD_START_BYTES, now);
        (rate, Reverse(body.progress.started_at))
    });
    slowest.map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use std::{net::IpAddr, time::Duration};

    use super::*;
    use crate::config::OrderRpcConfig;

    fn caller(address: &str) -> CallerId {
        CallerId::from(address.parse::<IpAddr>().unwrap())
    }

    fn progress_after_100_ms(bytes: usize, now: Instant) -> Arc<Progress> {
        let progress = Progress::new(now - Duration::from_millis(100));
        progress.add(bytes);
        Arc::new(progress)
    }

    #[test]
    fn the_slowest_body_of_the_network_with_the_most_is_evicted() {
        let limits = Limits::new(OrderRpcConfig::new(1));
        let (bodies, now) = (SlowBodies::new(&limits), Instant::now());
        let enter = |address: &str, bytes| {
            bodies.enter(caller(address), false, &progress_after_100_ms(bytes, now), now)
        };
        let mut held = Vec::new();
        for number in 0..32 {
            // Eight addresses with four bodies each.
            held.push(enter(&format!("10.0.0.{}", number % 8), 100 + number).unwrap());
        }
        let mut honest = enter("10.1.0.1", 1).unwrap();
        assert_eq!(
            held[0].evicted.try_recv(),
            Ok(Reason::SlowBodies),
            "the slowest of the network with the most"
        );
        assert!(honest.evicted.try_recv().is_err());
        assert_eq!(enter("10.0.0.1", 5).unwrap_err(), Reason::SlowBodies, "it is the slowest");
        // Trusted callers have places of their own.
        let trusted = bodies.enter(caller("10.0.0.1"), true, &progress_after_100_ms(0, now), now);
        assert!(trusted.is_ok());
        // The rate of a burst falls with time.
        let later = now + Duration::from_secs(1);
        let burst = Arc::new(Progress::new(now));
        burst.add(10_000);
        let _burst = bodies.enter(caller("10.2.0.1"), false, &burst, later).unwrap();
        assert_eq!(burst.rate(later), 10_000);
        assert_eq!(bodies.strangers.lock().len(), 32);
    }

    /// Searchers behind one address had more bodies than each of the strangers, and lost uploads.
    #[test]
    fn uploads_of_one_address_do_not_give_way_to_stalled_bodies() {
        let limits = Limits::new(OrderRpcConfig::new(1));
        let (bodies, now) = (SlowBodies::new(&limits), Instant::now());
        let enter = |address: &str, bytes| {
            bodies.enter(caller(address), false, &progress_after_100_ms(bytes, now), now)
        };
        let mut stalled: Vec<_> =
            (0..27).map(|number| enter(&format!("10.0.0.{}", number % 8), 2).unwrap()).collect();
        let mut uploads: Vec<_> =
            (0..6).map(|number| enter("10.1.0.1", 14_000 + number).unwrap()).collect();
        assert!(uploads.iter_mut().all(|upload| upload.evicted.try_recv().is_err()));
        let evicted = stalled.iter_mut().map(|body| body.evicted.try_recv().is_ok());
        assert_eq!(evicted.filter(|is_evicted| *is_evicted).count(), 1);
        // One of its bodies that stalls is its own loss only if nobody has more of them.
        assert!(enter("10.1.0.1", 0).is_ok());
    }

    #[test]
    fn an_upload_that_has_just_begun_does_not_give_way_to_many_faster_ones() {
        let limits = Limits::new(OrderRpcConfig::new(1));
        let (bodies, now) = (SlowBodies::new(&limits), Instant::now());
        let enter = |address: &str, bytes| {
            bodies.enter(caller(address), false, &progress_after_100_ms(bytes, now), now)
        };
        // Each is a little faster than stalled.
        let _held: Vec<_> = (0..32)
            .map(|number| enter(&format!("10.0.0.{}", number % 8), 1_010).unwrap())
            .collect();
        let _first = enter("10.1.0.1", 0).expect("its body comes a round trip after the head");
        assert!(enter("10.1.0.1", 0).is_ok());
    }

    /// The upload lost its place to one slow body from each of many addresses, though not to
    /// several from each.
    #[test]
    fn an_upload_that_has_just_begun_does_not_give_way_to_one_slow_body_of_each_of_many() {
        let limits = Limits::new(OrderRpcConfig::new(1));
        let (bodies, start) = (SlowBodies::new(&limits), Instant::now());
        let now = start + Duration::from_secs(1);
        let mut held: Vec<_> = (0..32)
            .map(|number| {
                let progress = Progress::new(start);
                // Each is a little faster than stalled.
                progress.add(11_000 + number);
                let address = format!("10.0.0.{number}");
                bodies.enter(caller(&address), false, &Arc::new(progress), now).unwrap()
            })
            .collect();
        let mut begun = Vec::new();
        for address in ["10.1.0.1", "10.1.0.2"] {
            let progress = progress_after_100_ms(500, now);
            begun.push(bodies.enter(caller(address), false, &progress, now).expect("it is new"));
        }
        let mut is_evicted = |index: usize| held[index].evicted.try_recv().is_ok();
        assert!(is_evicted(0) && is_evicted(1) && !is_evicted(2));
        // One that stalls does give way.
        let stalled = progress_after_100_ms(500, now - Duration::from_millis(900));
        assert!(bodies.enter(caller("10.1.0.3"), false, &stalled, now).is_err());
    }

    #[test]
    fn an_ipv6_site_has_the_slow_bodies_of_four_callers() {
        let limits = Limits::new(OrderRpcConfig::new(1));
        let (bodies, now) = (SlowBodies::new(&limits), Instant::now());
        let mut refused = 0;
        let mut held = Vec::new();
        for number in 0..64 {
            let address = format!("2001:db8:0:{:x}00::1", number % 16);
            match bodies.enter(
                caller(&address),
                false,
                &progress_after_100_ms(1_000 - number, now),
                now,
            ) {
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
            own.push(bodies.enter(
                caller("10.0.0.1"),
                false,
                &progress_after_100_ms(9 - number, now),
                now,
            ));
        }
        assert_eq!(own[8].as_ref().unwrap_err(), &Reason::CallerSlowBodies);
        assert!(own[..8].iter().all(Result::is_ok));
    }
}
