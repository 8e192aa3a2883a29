//! What is published and not yet acknowledged. Pure: it takes responses and the time, and opens no socket.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use crate::{follow::Item, running::CONNECTED_BACKOFF, state::State};

/// Most messages: at a round trip of 100 ms, enough for 40,000/s.
const MAX_MESSAGES: usize = 4_096;

/// Most bytes of them, 40 transactions with six blobs. One message more may exceed it.
const MAX_BYTES: usize = 32 << 20;

#[derive(Debug)]
struct Slot {
    item: Item,
    size: usize,
}

/// The messages that the stream may not have, in the order in which they were published first.
///
/// A message stays until the stream has it, or will never have it. While the stream stores nothing, the
/// oldest message alone is published, after pauses that grow; then all others, in their order.
#[derive(Debug, Default)]
pub(crate) struct Window {
    slots: BTreeMap<u64, Slot>,
    /// The numbers of those that are to be published again.
    unsent: BTreeSet<u64>,
    bytes: usize,
    next: u64,
    closed: Option<Closed>,
}

/// While the stream stores nothing.
#[derive(Debug)]
struct Closed {
    /// [`State::Unavailable`] or [`State::Full`].
    trouble: State,
    /// Nothing is published before.
    until: Instant,
    /// Responses without success, of one message after the other.
    failures: u32,
}

impl Window {
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn trouble(&self) -> Option<State> {
        self.closed.as_ref().map(|closed| closed.trouble)
    }

    /// Whether a new message may be published: not before those that are to be published again.
    pub(crate) fn has_room(&self) -> bool {
        self.closed.is_none()
            && self.unsent.is_empty()
            && self.slots.len() < MAX_MESSAGES
            && self.bytes < MAX_BYTES
    }

    /// Takes a message that is published for the first time. Returns its number.
    pub(crate) fn add(&mut self, item: Item, size: usize) -> u64 {
        let number = self.next;
        self.next += 1;
        self.slots.insert(number, Slot { item, size });
        self.bytes += size;
        number
    }

    pub(crate) fn get(&self, number: u64) -> Option<&Item> {
        self.slots.get(&number).map(|slot| &slot.item)
    }

    /// The number of the next message that is to be published again now. It counts as published.
    pub(crate) fn resend(&mut self, now: Instant) -> Option<u64> {
        let is_idle = self.slots.len() == self.unsent.len();
        let may_send = self.closed.as_ref().is_none_or(|closed| is_idle && closed.until <= now);
        may_send.then(|| self.unsent.pop_first())?
    }

    /// When [`Self::resend`] may return something without a response.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        let is_idle = self.slots.len() == self.unsent.len() && !self.unsent.is_empty();
        self.closed.as_ref().map(|closed| closed.until).filter(|_| is_idle)
    }

    /// The stream has it, or will never have it. Returns whether it was here.
    pub(crate) fn settle(&mut self, number: u64) -> bool {
        let is_here = self.remove(number);
        if is_here {
            self.closed = None;
        }
        is_here
    }

    /// It is to be published again, if it is here.
    pub(crate) fn unsend(&mut self, number: u64) {
        if self.slots.contains_key(&number) {
            self.unsent.insert(number);
        }
    }

    /// The stream has not stored it now, and may later.
    pub(crate) fn fail(&mut self, number: u64, trouble: State, now: Instant, jitter: f64) {
        if !self.slots.contains_key(&number) {
            return;
        }
        self.unsent.insert(number);
        let new = Closed { trouble, until: now, failures: 0 };
        let closed = self.closed.get_or_insert(new);
        closed.trouble = trouble;
        // Responses to the messages that were on their way tell nothing new.
        if closed.until <= now {
            closed.until = now + CONNECTED_BACKOFF.delay(closed.failures, jitter);
            closed.failures = closed.failures.saturating_add(1);
        }
    }

    fn remove(&mut self, number: u64) -> bool {
        self.unsent.remove(&number);
        let slot = self.slots.remove(&number);
        self.bytes -= slot.as_ref().map_or(0, |slot| slot.size);
        slot.is_some()
    }

    /// Takes out what is not to be published again, of which the stream may have some. Returns how many.
    pub(crate) fn withdraw(&mut self, is_withdrawn: impl Fn(&Item) -> bool) -> u64 {
        let found = self.slots.iter().filter(|(_, slot)| is_withdrawn(&slot.item));
        let found: Vec<u64> = found.map(|(number, _)| *number).collect();
        found.iter().map(|number| u64::from(self.remove(*number))).sum()
    }

    /// A new connection: everything is published again.
    pub(crate) fn connected(&mut self) {
        self.closed = None;
        self.unsent = self.slots.keys().copied().collect();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use alloy_primitives::{Address, B256};

    use super::*;
    use crate::wire::Record;

    const UNAVAILABLE: State = State::Unavailable;

    fn item(n: u8) -> Item {
        let record = Record::CancelPrivate { hash: B256::repeat_byte(n), signer: Address::ZERO };
        Item { record, again: 0 }
    }

    fn window(count: u8) -> (Window, Vec<u64>, Instant) {
        let mut window = Window::default();
        let numbers = (0..count).map(|n| window.add(item(n), 100)).collect();
        (window, numbers, Instant::now())
    }

    /// The numbers of what is published again now.
    fn resent(window: &mut Window, now: Instant) -> Vec<u64> {
        std::iter::from_fn(|| window.resend(now)).collect()
    }

    #[test]
    fn a_message_leaves_once_and_frees_its_place() {
        let (mut window, numbers, _) = window(1);
        assert!(window.settle(numbers[0]) && !window.settle(numbers[0]), "a late response");
        assert_eq!((window.len(), window.bytes), (0, 0));
        window.add(item(1), MAX_BYTES);
        assert!(!window.has_room(), "by bytes");
        let mut many = Window::default();
        for _ in 0..MAX_MESSAGES {
            many.add(item(0), 1);
        }
        assert!(!many.has_room(), "by number");
        many.settle(7);
        assert!(many.has_room());
    }

    #[test]
    fn a_new_connection_publishes_everything_again_in_its_order() {
        let (mut window, numbers, now) = window(3);
        assert!(resent(&mut window, now).is_empty());
        window.settle(numbers[1]);
        window.connected();
        assert!(!window.has_room(), "the new ones follow");
        assert_eq!(resent(&mut window, now), [numbers[0], numbers[2]]);
        assert!(resent(&mut window, now).is_empty() && window.has_room());
    }

    #[test]
    fn a_stream_without_a_leader_gets_the_oldest_message_alone_after_pauses_that_grow() {
        let (mut window, numbers, mut now) = window(3);
        window.fail(numbers[2], UNAVAILABLE, now, 1.0);
        assert_eq!(
            (window.trouble(), window.next_wake()),
            (Some(UNAVAILABLE), None),
            "others are in flight"
        );
        assert!(resent(&mut window, now + Duration::from_secs(9)).is_empty());
        for number in &numbers[..2] {
            window.fail(*number, UNAVAILABLE, now, 1.0);
        }
        for pause in [250, 500, 1_000, 1_000] {
            assert!(resent(&mut window, now).is_empty() && !window.has_room());
            now += Duration::from_millis(pause);
            assert_eq!(window.next_wake(), Some(now));
            assert_eq!(resent(&mut window, now), numbers[..1]);
            window.fail(numbers[0], UNAVAILABLE, now, 1.0);
        }
        now += Duration::from_secs(1);
        assert_eq!(resent(&mut window, now), numbers[..1]);
        assert!(window.settle(numbers[0]));
        assert_eq!(window.trouble(), None);
        assert_eq!(resent(&mut window, now), numbers[1..], "the others at once");
        assert!(window.has_room());
    }

    #[test]
    fn what_is_withdrawn_is_not_published_again_and_its_late_response_is_ignored() {
        let (mut window, numbers, now) = window(2);
        let first = B256::repeat_byte(0);
        let is_first = |item: &Item| matches!(item.record, Record::CancelPrivate { hash, .. } if hash == first);
        assert_eq!(window.withdraw(is_first), 1);
        window.connected();
        assert_eq!(resent(&mut window, now), numbers[1..]);
        window.fail(numbers[0], UNAVAILABLE, now, 1.0);
        assert!(!window.settle(numbers[0]) && window.trouble().is_none());
    }
}
