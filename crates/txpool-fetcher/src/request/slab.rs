//! The requests in flight on one connection, by id and by age.

use std::time::{Duration, Instant};

/// The index of a request in a [`Slab`] and the generation of that entry: an answer to an earlier
/// generation finds nothing. Below 2^48, since not every node accepts ids up to 2^64 (anvil does
/// not).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RequestId(u64);

const INDEX_BITS: u32 = 16;

/// Most requests that one connection can have in flight; more than the most fetch slots.
pub(crate) const MAX_IN_FLIGHT: usize = (1 << INDEX_BITS) - 1;

impl RequestId {
    /// Never the id of a request in a slab: it is the id of pings, which are in none.
    pub(crate) const PING: Self = Self(MAX_IN_FLIGHT as u64);

    fn new(index: usize, generation: u32) -> Self {
        Self(u64::from(generation) << INDEX_BITS | index as u64)
    }

    fn index(self) -> usize {
        self.0 as usize & MAX_IN_FLIGHT
    }

    pub(crate) const fn get(self) -> u64 {
        self.0
    }
}

impl From<u64> for RequestId {
    fn from(id: u64) -> Self {
        Self(id)
    }
}

/// Why a request was not inserted. It is returned.
#[derive(Debug)]
pub(crate) enum NotInserted<T> {
    /// The connection has ended.
    Closed(T),
    /// [`MAX_IN_FLIGHT`] requests are in flight.
    Full(T),
}

/// Insertion, removal and the search for the oldest take constant time; a linked list through the
/// entries keeps the order of insertion. All requests have the same time-out, so the oldest is due
/// first. Memory is that of the most requests that were in flight at once.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u16>,
    oldest: Option<u16>,
    newest: Option<u16>,
    closed: bool,
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    used: Option<Used<T>>,
}

#[derive(Debug)]
struct Used<T> {
    request: T,
    sent: Instant,
    older: Option<u16>,
    newer: Option<u16>,
}

#[expect(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "entries are found by the slab's own links; a number from outside enters by `remove`, which looks it up"
)]
impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self { entries: Vec::new(), free: Vec::new(), oldest: None, newest: None, closed: false }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// The most that were in flight at once.
    #[cfg(test)]
    pub(super) fn entries(&self) -> usize {
        self.entries.len()
    }

    /// Inserts a request. `sent` must not be before that of an earlier insertion.
    pub(crate) fn insert(
        &mut self,
        request: T,
        sent: Instant,
    ) -> Result<RequestId, NotInserted<T>> {
        if self.closed {
            return Err(NotInserted::Closed(request));
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.entries.len() == MAX_IN_FLIGHT => return Err(NotInserted::Full(request)),
            None => {
                // From 1, so that no id is as small as an index: `RequestId::PING` is one.
                self.entries.push(Entry { generation: 1, used: None });
                (self.entries.len() - 1) as u16
            }
        };
        let older = self.newest.replace(index);
        match older {
            Some(older) => self.used(older).newer = Some(index),
            None => self.oldest = Some(index),
        }
        let entry = &mut self.entries[usize::from(index)];
        entry.used = Some(Used { request, sent, older, newer: None });
        Ok(RequestId::new(usize::from(index), entry.generation))
    }

    /// Removes and returns the request with this id, if it is in flight. Any number is allowed.
    pub(crate) fn remove(&mut self, id: RequestId) -> Option<(T, Instant)> {
        let entry = self.entries.get(id.index())?;
        let is_current = RequestId::new(id.index(), entry.generation) == id;
        (is_current && entry.used.is_some()).then(|| self.take(id.index() as u16))
    }

    /// Removes and returns the oldest request, if it was sent `timeout` before `now`.
    pub(crate) fn pop_expired(&mut self, timeout: Duration, now: Instant) -> Option<(T, Instant)> {
        let (due, oldest) = (now.checked_sub(timeout)?, self.oldest?);
        (self.used(oldest).sent <= due).then(|| self.take(oldest))
    }

    /// Removes all requests, the oldest first, and accepts no more.
    pub(crate) fn close(&mut self) -> Vec<(T, Instant)> {
        self.closed = true;
        let mut all = Vec::with_capacity(self.len());
        while let Some(oldest) = self.oldest {
            all.push(self.take(oldest));
        }
        all
    }

    fn used(&mut self, index: u16) -> &mut Used<T> {
        self.entries[usize::from(index)].used.as_mut().expect("linked entries are in use")
    }

    fn take(&mut self, index: u16) -> (T, Instant) {
        let entry = &mut self.entries[usize::from(index)];
        let Used { request, sent, older, newer } =
            entry.used.take().expect("the caller has found it in use");
        // After 4 billion uses of one entry an id is reused; no answer is that late.
        entry.generation = entry.generation.wrapping_add(1).max(1);
        match older {
            Some(older) => self.used(older).newer = newer,
            None => self.oldest = newer,
        }
        match newer {
            Some(newer) => self.used(newer).older = older,
            None => self.newest = older,
        }
        self.free.push(index);
        (request, sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[derive(Clone, Debug)]
    enum Step {
        Insert,
        /// Remove one of all ids that ever were.
        Remove(prop::sample::Index),
        Guess(u64),
        Expire(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => Just(Step::Insert),
            4 => any::<prop::sample::Index>().prop_map(Step::Remove),
            1 => any::<u64>().prop_map(Step::Guess),
            1 => (0u64..30).prop_map(Step::Expire),
        ]
    }

    proptest! {
        #[test]
        fn it_holds_what_a_plain_list_holds(steps in proptest::collection::vec(step(), 0..300)) {
            let start = Instant::now();
            let mut slab = Slab::new();
            let mut model: VecDeque<(RequestId, u64, Instant)> = VecDeque::new();
            let mut ids = Vec::new();
            let mut most = 0;
            for (number, step) in (0u64..).zip(steps) {
                let now = start + Duration::from_millis(number);
                match step {
                    Step::Insert => {
                        let id = slab.insert(number, now).expect("open");
                        prop_assert!(id != RequestId::PING && id.get() < 1 << 53);
                        prop_assert!(!ids.contains(&id), "an id is never used twice");
                        ids.push(id);
                        model.push_back((id, number, now));
                    }
                    Step::Remove(index) if !ids.is_empty() => {
                        let id = ids[index.index(ids.len())];
                        let at = model.iter().position(|(other, ..)| *other == id);
                        let expected = at.and_then(|at| model.remove(at)).map(|(_, n, at)| (n, at));
                        prop_assert_eq!(slab.remove(id), expected);
                    }
                    Step::Remove(_) => {}
                    Step::Guess(id) => {
                        let id = RequestId::from(id);
                        if !ids.contains(&id) {
                            prop_assert_eq!(slab.remove(id), None);
                        }
                    }
                    Step::Expire(age) => {
                        let age = Duration::from_millis(age);
                        while let Some((n, sent)) = slab.pop_expired(age, now) {
                            prop_assert!(sent + age <= now);
                            let (_, expected, _) = model.pop_front().expect("it is in the model");
                            prop_assert_eq!(n, expected, "the oldest first");
                        }
                        prop_assert!(model.front().is_none_or(|(.., sent)| *sent + age > now));
                    }
                }
                most = most.max(model.len());
                prop_assert_eq!(slab.len(), model.len());
                prop_assert_eq!(slab.entries.len(), most, "entries are used again");
            }
            let left: Vec<_> = slab.close().into_iter().map(|(n, _)| n).collect();
            let expected: Vec<_> = model.iter().map(|(_, n, _)| *n).collect();
            prop_assert_eq!(left, expected);
            prop_assert!(matches!(slab.insert(0, start), Err(NotInserted::Closed(0))));
        }
    }

    #[test]
    fn a_full_slab_hands_the_request_back() {
        let mut slab = Slab::new();
        let now = Instant::now();
        for number in 0..MAX_IN_FLIGHT {
            slab.insert(number, now).expect("room");
        }
        assert!(matches!(slab.insert(7, now), Err(NotInserted::Full(7))));
        assert_eq!(slab.close().len(), MAX_IN_FLIGHT);
        assert_eq!(slab.len(), 0);
    }
}
