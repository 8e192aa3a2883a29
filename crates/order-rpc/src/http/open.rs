//! Which connections of callers are open, and which of them makes room for a new one.
//!
//! # Locks
//! Open connections: taken by start and end of a connection, for a few look-ups; never across an await or with another lock,
//! but the next one, which it only tries.
//! Work: held while a request is in work, and for ever by whoever takes the connection's place.

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

use crate::limits::CallerId;

/// A connection, for a newer one that may take its place.
#[derive(Debug, Default)]
pub(super) struct Place {
    /// Held while a request is in work, and for ever by whoever takes the place.
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
    callers: HashMap<CallerId, BTreeMap<u64, Arc<Place>>>,
    /// By number of connections. Of callers with as many the last is the one whose newest is the oldest.
    by_count: BTreeMap<(usize, Reverse<u64>), CallerId>,
}

impl OpenConnections {
    /// Until the result is dropped.
    pub(super) fn add(self: &Arc<Self>, caller: CallerId, place: Arc<Place>) -> impl Send + use<> {
        let mut open = self.lock();
        open.opened += 1;
        let number = open.opened;
        open.change(caller, |connections| _ = connections.insert(number, place));
        Opened { connections: Arc::clone(self), caller, number }
    }

    /// Takes a place for a new connection of this caller: of those without a request in work the oldest of the
    /// caller that has the most, if that has more than this one, or else of this one. Whoever opens many
    /// connections so takes the places of its own, and cheap requests keep none. Only if there is no other it is one
    /// that a known signer uses.
    pub(super) fn displace(&self, by: &CallerId) -> Option<Arc<Place>> {
        let open = self.lock();
        let own = open.callers.get(by).map_or(0, BTreeMap::len);
        let is_larger = |((count, _), _): &(&(usize, _), _)| *count > own;
        let larger = open.by_count.iter().rev().take_while(is_larger).map(|(_, caller)| caller);
        let callers = larger.chain([by]).filter_map(|caller| open.callers.get(caller));
        let mut places = callers.flat_map(BTreeMap::values);
        let is_known = |place: &&Arc<Place>| place.is_known.load(Relaxed);
        let other = places.clone().find(|place| !is_known(place) && place.take());
        other.or_else(|| places.find(|place| place.take())).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    fn change(&mut self, caller: CallerId, change: impl FnOnce(&mut BTreeMap<u64, Arc<Place>>)) {
        let connections = self.callers.entry(caller).or_default();
        let rank = |of: &BTreeMap<u64, _>| Some((of.len(), Reverse(*of.last_key_value()?.0)));
        rank(connections).map(|rank| self.by_count.remove(&rank));
        change(connections);
        match rank(connections) {
            Some(rank) => _ = self.by_count.insert(rank, caller),
            None => _ = self.callers.remove(&caller),
        }
    }
}

#[derive(Debug)]
struct Opened {
    connections: Arc<OpenConnections>,
    caller: CallerId,
    number: u64,
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.connections.lock().change(self.caller, |open| _ = open.remove(&self.number));
    }
}
