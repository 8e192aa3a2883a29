//! The requests in flight on one connection.

use std::time::{Duration, Instant};

use alloy_primitives::map::HashMap;

/// The id of pings, which are in no [`InFlight`]. Every other id is used once, so a late response finds nothing.
pub(super) const PING_ID: u64 = 0;

/// The requests by id, which ascend, with the time at which each was sent. Each holds a fetch slot, which
/// bounds their number.
pub(super) struct InFlight<T> {
    requests: HashMap<u64, (T, Instant)>,
    last_id: u64,
    is_closed: bool,
}

impl<T> InFlight<T> {
    pub(super) fn new() -> Self {
        Self { requests: HashMap::default(), last_id: PING_ID, is_closed: false }
    }

    /// Inserts a request that is sent now, and returns its id; returns the request when the connection has
    /// ended.
    pub(super) fn insert(&mut self, request: T) -> Result<u64, T> {
        if self.is_closed {
            return Err(request);
        }
        self.last_id = self.last_id.wrapping_add(1);
        self.requests.insert(self.last_id, (request, Instant::now()));
        Ok(self.last_id)
    }

    /// Removes and returns the request with this id. Any number is allowed.
    pub(super) fn remove(&mut self, id: u64) -> Option<(T, Instant)> {
        self.requests.remove(&id)
    }

    /// Removes the requests that were sent `timeout` before `until` or earlier, the oldest first.
    pub(super) fn take_expired(&mut self, timeout: Duration, until: Instant) -> Vec<T> {
        let Some(due) = until.checked_sub(timeout) else { return Vec::new() };
        let expired = self.requests.iter().filter(|(_, (_, sent))| *sent <= due);
        let mut ids: Vec<u64> = expired.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids.into_iter().filter_map(|id| self.remove(id)).map(|(request, _)| request).collect()
    }

    /// Removes all requests, the oldest first, and accepts no more.
    pub(super) fn close(&mut self) -> Vec<T> {
        self.is_closed = true;
        self.take_expired(Duration::ZERO, Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_leaves_once_by_its_id_or_its_age_and_none_enters_after_the_end() {
        let mut in_flight = InFlight::new();
        let ids: Vec<u64> = (0..10).map(|n| in_flight.insert(n).expect("open")).collect();
        assert!(!ids.contains(&PING_ID) && ids.is_sorted());
        assert_eq!(in_flight.remove(ids[3]).map(|(n, _)| n), Some(3));
        for id in [ids[3], PING_ID, u64::MAX] {
            assert!(in_flight.remove(id).is_none());
        }
        let minute = Duration::from_secs(60);
        let sent = in_flight.requests[&ids[4]].1;
        assert!(in_flight.take_expired(minute, sent).is_empty());
        let expired = in_flight.take_expired(minute, sent + minute);
        assert_eq!(expired[..4], [0, 1, 2, 4]);
        let again = in_flight.insert(10).expect("open");
        assert!(!ids.contains(&again), "an id is never used twice");
        assert_eq!(expired.len() + in_flight.close().len(), 10);
        assert!(matches!(in_flight.insert(0), Err(0)));
    }
}
