//! What is published and not yet acknowledged. Pure: it takes responses and the time, and opens no socket.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use load_control::Backoff;

use crate::{follow::Item, running::CONNECTED_BACKOFF, state::State};

/// Most messages: at a round trip of 100 ms, enough for 40,000/s.
const MAX_MESSAGES: usize = 4_096;

/// Most bytes of them, 40 transactions with six blobs. One message more may exceed it.
const MAX_BYTES: usize = 32 << 20;

/// Most of them that strangers have sent, in the same way: what others send waits for no more than these.
const MAX_STRANGERS_MESSAGES: usize = 512;
const MAX_STRANGERS_BYTES: usize = 1 << 20;

/// How long the oldest message waits for its acknowledgement before it is published again: some hundred times what one takes
/// within a region. A leader that steps down drops messages without a word, and the next one has the later ones meanwhile.
const FIRST_PATIENCE: Duration = Duration::from_millis(500);

/// How long it waits after so many times: at last longer than for a failure, so that a server which
/// is slow to the last gets nothing twice.
const PATIENCE: Backoff = Backoff { base: FIRST_PATIENCE, cap: Duration::from_secs(8) };

/// A message by its number, and how often it was published again: a response to an earlier time is not one to the last.
pub(crate) type Sent = (u64, u32);

#[derive(Debug)]
struct Slot {
    item: Item,
    size: usize,
    /// As of when it was taken: the node may announce it meanwhile.
    is_strangers: bool,
    attempt: u32,
    /// When its acknowledgement was first waited for, and when it was last published.
    since: Instant,
    published: Instant,
}

/// The messages that the stream may not have, in the order in which they were published first.
///
/// A message stays until the stream has it, or will never have it. While the stream stores nothing, the
/// oldest message alone is published, after pauses that grow; then all others, in their order.
///
/// While it stores something, the oldest message is published again without waiting for a failure. A slow server gets no more
/// to do by that: it is one message at a time, each waits twice as long as the one before it, and only a first copy that proves
/// to be lost, or an acknowledgement that comes in time, takes that back.
#[derive(Debug, Default)]
pub(crate) struct Window {
    slots: BTreeMap<u64, Slot>,
    /// The numbers of those that are to be published again.
    unsent: BTreeSet<u64>,
    bytes: usize,
    /// How many strangers have sent, and their bytes.
    of_strangers: (usize, usize),
    next: u64,
    closed: Option<Closed>,
    /// How often an oldest message was published again since that proved to be needed.
    repeats: u32,
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

    /// The same, of a stranger.
    pub(crate) fn has_room_for_strangers(&self) -> bool {
        let (count, bytes) = self.of_strangers;
        self.has_room() && count < MAX_STRANGERS_MESSAGES && bytes < MAX_STRANGERS_BYTES
    }

    /// Takes a message that is published for the first time.
    pub(crate) fn add(&mut self, item: Item, size: usize, now: Instant) -> Sent {
        let number = self.next;
        self.next += 1;
        self.bytes += size;
        let is_strangers = item.stranger().is_some();
        if is_strangers {
            self.of_strangers.0 += 1;
            self.of_strangers.1 += size;
        }
        let slot = Slot { item, size, is_strangers, attempt: 0, since: now, published: now };
        self.slots.insert(number, slot);
        (number, 0)
    }

    pub(crate) fn get(&self, (number, _): Sent) -> Option<&Item> {
        self.slots.get(&number).map(|slot| &slot.item)
    }

    /// The next message that is to be published again now, and how long its acknowledgement has been waited for. It counts
    /// as published.
    pub(crate) fn again(&mut self, now: Instant) -> Option<(Sent, Duration)> {
        let resent = self.resend(now).map(|sent| (sent, Duration::ZERO));
        resent.or_else(|| self.repeat(now))
    }

    /// One that the stream may not have.
    fn resend(&mut self, now: Instant) -> Option<Sent> {
        let is_idle = self.slots.len() == self.unsent.len();
        let may_send = self.closed.as_ref().is_none_or(|closed| is_idle && closed.until <= now);
        let number = may_send.then(|| self.unsent.pop_first())??;
        let slot = self.slots.get_mut(&number)?;
        slot.attempt += 1;
        (slot.since, slot.published) = (now, now);
        Some((number, slot.attempt))
    }

    /// When the oldest message is published again without a response or a failure.
    fn repeats_at(&self) -> Option<Instant> {
        let is_open = self.closed.is_none() && self.unsent.is_empty();
        let (_, oldest) = self.slots.first_key_value().filter(|_| is_open)?;
        Some(oldest.published + PATIENCE.delay(self.repeats, 1.0))
    }

    /// The oldest, if it has waited for long. The wait goes on: a stream that stores nothing is found no later.
    fn repeat(&mut self, now: Instant) -> Option<(Sent, Duration)> {
        self.repeats_at().filter(|at| *at <= now)?;
        let mut oldest = self.slots.first_entry()?;
        let number = *oldest.key();
        let slot = oldest.get_mut();
        slot.attempt += 1;
        slot.published = now;
        self.repeats = self.repeats.saturating_add(1);
        Some(((number, slot.attempt), now.saturating_duration_since(slot.since)))
    }

    /// When [`Self::again`] may return something without a response.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        let is_idle = self.slots.len() == self.unsent.len() && !self.unsent.is_empty();
        let opens = self.closed.as_ref().map(|closed| closed.until).filter(|_| is_idle);
        opens.or_else(|| self.repeats_at())
    }

    /// The stream has it, stored at this time for this attempt, or will never have it. Returns
    /// whether it was here.
    pub(crate) fn settle(&mut self, sent: Sent, stored_at: Option<Instant>) -> bool {
        let (number, attempt) = sent;
        let Some(slot) = self.slots.get(&number) else { return false };
        let took = stored_at.map(|at| at.saturating_duration_since(slot.since));
        if took.is_some_and(|took| took < FIRST_PATIENCE || attempt > 0) {
            self.repeats = 0;
        }
        // A late response to what is to be published again says nothing of the stream as it is now.
        if !self.unsent.contains(&number) {
            self.closed = None;
        }
        self.remove(number)
    }

    /// It is to be published again, if it is here.
    pub(crate) fn unsend(&mut self, (number, _): Sent) {
        if self.slots.contains_key(&number) {
            self.unsent.insert(number);
        }
    }

    /// The stream has not stored what was published at this attempt, and may later. All others are published again too,
    /// behind the oldest: with a leader that was killed, their responses are lost.
    pub(crate) fn fail(&mut self, sent: Sent, trouble: State, now: Instant, jitter: f64) {
        let (number, attempt) = sent;
        let is_last = self.slots.get(&number).is_some_and(|slot| slot.attempt == attempt);
        if !is_last || self.unsent.contains(&number) {
            return;
        }
        self.unsent = self.slots.keys().copied().collect();
        let failures = self.closed.as_ref().map_or(0, |closed| closed.failures);
        let until = now + CONNECTED_BACKOFF.delay(failures, jitter);
        self.closed = Some(Closed { trouble, until, failures: failures.saturating_add(1) });
    }

    fn remove(&mut self, number: u64) -> bool {
        self.unsent.remove(&number);
        let Some(slot) = self.slots.remove(&number) else { return false };
        let Slot { size, is_strangers, .. } = slot;
        self.bytes -= size;
        if is_strangers {
            self.of_strangers.0 -= 1;
            self.of_strangers.1 -= size;
        }
        if self.slots.is_empty() {
            self.closed = None;
        }
        true
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
    use std::time::{Duration, SystemTime};

    use alloy_primitives::{Address, B256};
    use order_pool::{Holder, Origin, PrivateCancellation, Transaction};

    use super::*;
    use crate::{
        tests::{caller, pool, txs},
        wire::Record,
    };

    const UNAVAILABLE: State = State::Unavailable;

    fn item(n: u8) -> Item {
        let (hash, signer, at) = (B256::repeat_byte(n), Address::ZERO, SystemTime::UNIX_EPOCH);
        let holder = Holder::Host;
        let record =
            Record::CancelPrivate(PrivateCancellation { hash, signer, cancelled_at: at, holder });
        Item { record, number: None, hold: None, arrived: None }
    }

    fn window(count: u8) -> (Window, Vec<u64>, Instant) {
        let mut window = Window::default();
        let now = Instant::now();
        let numbers = (0..count).map(|n| window.add(item(n), 100, now).0).collect();
        (window, numbers, now)
    }

    /// The numbers of what is published again now.
    fn resent(window: &mut Window, now: Instant) -> Vec<u64> {
        std::iter::from_fn(|| window.resend(now)).map(|(number, _)| number).collect()
    }

    #[test]
    fn a_message_leaves_once_and_frees_its_place() {
        let (mut window, numbers, now) = window(1);
        assert!(
            window.settle((numbers[0], 0), None) && !window.settle((numbers[0], 0), None),
            "a late response"
        );
        assert_eq!((window.len(), window.bytes), (0, 0));
        window.add(item(1), MAX_BYTES, now);
        assert!(!window.has_room(), "by bytes");
        let mut many = Window::default();
        for _ in 0..MAX_MESSAGES {
            many.add(item(0), 1, now);
        }
        assert!(!many.has_room(), "by number");
        many.settle((7, 0), None);
        assert!(many.has_room());
    }

    /// What the node announced meanwhile was not subtracted, until nothing of any stranger was published.
    #[test]
    fn strangers_fill_a_part_of_the_window_until_the_stream_has_what_they_sent() {
        let (pool, tx) = (pool(), txs(1).remove(0));
        let of = |origin| Transaction::new(tx.clone(), origin, SystemTime::UNIX_EPOCH);
        pool.insert_transaction(of(Origin::Rpc).held_by(caller(1)));
        let order = pool.get(tx.hash()).expect("it is pooled");
        let (mut window, now) = (Window::default(), Instant::now());
        let record = Record::Order(order);
        let of_stranger = Item { record, number: None, hold: None, arrived: None };
        let sent = window.add(of_stranger, MAX_STRANGERS_BYTES, now);
        assert!(window.has_room() && !window.has_room_for_strangers());
        pool.insert_transaction(of(Origin::Mempool));
        assert!(window.settle(sent, None));
        assert_eq!(window.of_strangers, (0, 0));
        window.add(item(1), MAX_STRANGERS_BYTES, now);
        assert!(window.has_room_for_strangers());
    }

    #[test]
    fn a_new_connection_publishes_everything_again_in_its_order() {
        let (mut window, numbers, now) = window(3);
        assert!(resent(&mut window, now).is_empty());
        window.settle((numbers[1], 0), None);
        window.connected();
        assert!(!window.has_room(), "the new ones follow");
        assert_eq!(resent(&mut window, now), [numbers[0], numbers[2]]);
        assert!(resent(&mut window, now).is_empty() && window.has_room());
    }

    #[test]
    fn what_the_stream_lost_is_published_again_after_half_a_second_one_behind_the_other() {
        let (mut window, numbers, begin) = window(4);
        window.settle((numbers[1], 0), Some(begin));
        assert_eq!(window.next_wake(), Some(begin + FIRST_PATIENCE));
        assert_eq!(window.repeat(begin + FIRST_PATIENCE / 2), None);
        let mut now = begin + FIRST_PATIENCE;
        for number in [numbers[0], numbers[2], numbers[3]] {
            let (sent, waited) = window.repeat(now).expect("the oldest");
            assert_eq!((sent, waited), ((number, 1), now - begin));
            assert_eq!(window.repeat(now), None, "one at a time");
            assert!(window.has_room(), "new ones do not wait for it");
            now += Duration::from_millis(1);
            assert!(window.settle(sent, Some(now)));
        }
        assert_eq!((window.repeat(now), window.next_wake()), (None, None));
        // It is lost again: the failure counts from the first time.
        let (number, _) = window.add(item(5), 100, now);
        let (again, _) = window.repeat(now + FIRST_PATIENCE).expect("the oldest");
        window.fail((number, 0), UNAVAILABLE, now, 1.0);
        assert_eq!(window.trouble(), None, "its last attempt has no response");
        window.fail(again, UNAVAILABLE, now, 1.0);
        assert_eq!(
            (window.trouble(), window.repeat(now + 2 * PATIENCE.cap)),
            (Some(UNAVAILABLE), None)
        );
    }

    /// 2,000 messages/s, each stored after two seconds.
    #[test]
    fn a_slow_stream_gets_a_few_messages_twice_and_not_its_load() {
        let (mut window, begin) = (Window::default(), Instant::now());
        let mut repeated = 0;
        for n in 0..40_000_u64 {
            let now = begin + Duration::from_micros(500 * n);
            window.add(item(0), 1, now);
            if let Some(done) = n.checked_sub(4_000) {
                window.settle((done, 0), Some(now));
            }
            repeated += u32::from(window.repeat(now).is_some());
        }
        assert!((1..5).contains(&repeated), "{repeated}");
    }

    #[test]
    fn a_stream_without_a_leader_gets_the_oldest_message_alone_after_pauses_that_grow() {
        let (mut window, numbers, mut now) = window(3);
        window.fail((numbers[2], 0), UNAVAILABLE, now, 1.0);
        assert_eq!(window.trouble(), Some(UNAVAILABLE));
        // The response to the first is lost, and that to the second is late.
        window.fail((numbers[1], 0), UNAVAILABLE, now, 1.0);
        for (attempt, pause) in (1..).zip([250, 500, 1_000, 1_000]) {
            assert!(resent(&mut window, now).is_empty() && !window.has_room());
            now += Duration::from_millis(pause);
            assert_eq!(window.next_wake(), Some(now));
            assert_eq!(resent(&mut window, now), numbers[..1]);
            window.fail((numbers[0], attempt - 1), UNAVAILABLE, now, 1.0);
            assert_eq!(window.next_wake(), None, "that was the response to an earlier time");
            window.fail((numbers[0], attempt), UNAVAILABLE, now, 1.0);
        }
        now += Duration::from_secs(1);
        assert_eq!(resent(&mut window, now), numbers[..1]);
        assert!(window.settle((numbers[0], 0), None));
        assert_eq!(window.trouble(), None);
        assert_eq!(resent(&mut window, now), numbers[1..], "the others at once");
        assert!(window.has_room());
    }

    #[test]
    fn what_is_withdrawn_is_not_published_again_and_its_late_response_is_ignored() {
        let (mut window, numbers, now) = window(2);
        let first = B256::repeat_byte(0);
        let is_first =
            |item: &Item| matches!(item.record, Record::CancelPrivate(it) if it.hash == first);
        assert_eq!(window.withdraw(is_first), 1);
        window.connected();
        assert_eq!(resent(&mut window, now), numbers[1..]);
        window.fail((numbers[0], 1), UNAVAILABLE, now, 1.0);
        assert!(!window.settle((numbers[0], 0), None) && window.trouble().is_none());
    }

    #[test]
    fn a_late_response_does_not_open_a_stream_that_stores_nothing_unless_nothing_is_left() {
        let (mut window, numbers, now) = window(2);
        window.fail((numbers[1], 0), UNAVAILABLE, now, 1.0);
        assert!(window.settle((numbers[1], 0), None) && window.trouble().is_some());
        assert!(
            window.settle((numbers[0], 0), None) && window.trouble().is_none() && window.has_room()
        );
    }
}
