//! Holds the messages that are published and not yet acknowledged, and decides when each is
//! published again. Pure: it takes responses and the time, and opens no socket.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use load_control::Backoff;

use crate::{follow::Item, state::State, worker::CONNECTED_BACKOFF};

/// The most messages: enough for 40,000/s at a round trip of 100 ms.
const MAX_MESSAGES: usize = 4_096;

/// The most bytes of these: 40 transactions with six blobs. The last message may exceed it.
const MAX_BYTES: usize = 32 << 20;

/// The most messages and bytes of unknown callers. Messages of others never wait for more than
/// these.
const MAX_UNKNOWN_MESSAGES: usize = 512;
const MAX_UNKNOWN_BYTES: usize = 1 << 20;

/// How long the oldest message waits for its acknowledgement before it is published again: some
/// hundred times an acknowledgement within a region. A leader that steps down drops messages
/// without a response, and its successor gets the later messages meanwhile.
const FIRST_REPEAT_DELAY: Duration = Duration::from_millis(500);

/// The delays of further repeats. The last one exceeds the timeout of an acknowledgement, so a
/// server that stays slow gets nothing twice.
const REPEAT_BACKOFF: Backoff = Backoff { base: FIRST_REPEAT_DELAY, cap: Duration::from_secs(8) };

/// One attempt to publish a message of the window. A response to an earlier attempt is not a
/// response to the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attempt {
    /// The number of the message in the window.
    pub(crate) message: u64,
    /// How often the message was published before.
    pub(crate) repeats: u32,
}

/// An attempt that repeats an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Repeat {
    pub(crate) attempt: Attempt,
    /// How long the acknowledgement has been waited for already. It shortens the timeout.
    pub(crate) waited: Duration,
}

#[derive(Debug)]
struct Unacknowledged {
    item: Item,
    size_bytes: usize,
    /// Whether an unknown caller sent it. It is the answer at the time of publishing, because a
    /// node may announce the transaction meanwhile.
    is_unknown_callers: bool,
    repeats: u32,
    /// Since when its acknowledgement is waited for.
    waiting_since: Instant,
    /// When it was last published.
    published_at: Instant,
}

/// The messages that the stream may not have, in the order of their first publishing.
///
/// A message stays until the stream has it or will never have it.
///
/// While the stream stores nothing, only the oldest message is published, after growing pauses.
/// When the stream has stored it, all others are published in their order. Otherwise a stream
/// without a leader, which responds at once, would refuse 4,096 messages in a loop.
///
/// While the stream stores messages, an oldest message without a response is published again early,
/// before its timeout. That adds little load to a slow server: there is one such message at a time,
/// and each waits twice as long as the one before it. The delay is reset only by a message whose
/// first copy was lost, or by an acknowledgement that came in time.
#[derive(Debug, Default)]
pub(crate) struct Window {
    messages: BTreeMap<u64, Unacknowledged>,
    /// The numbers of the messages that must be published again.
    to_republish: BTreeSet<u64>,
    bytes: usize,
    /// How many messages and bytes unknown callers have in the window.
    unknown_messages: usize,
    unknown_bytes: usize,
    next_number: u64,
    outage: Option<Outage>,
    /// How often an oldest message was published again since the delay was reset.
    early_repeats: u32,
}

/// A period in which the stream stores nothing.
#[derive(Debug)]
struct Outage {
    /// [`State::Unavailable`] or [`State::Full`].
    state: State,
    /// When the oldest message is tried next.
    retry_at: Instant,
    /// How many attempts in a row have failed.
    failures: u32,
}

impl Window {
    pub(crate) fn len(&self) -> usize {
        self.messages.len()
    }

    /// Returns why the stream stores nothing; `None` if it does.
    pub(crate) fn outage(&self) -> Option<State> {
        self.outage.as_ref().map(|outage| outage.state)
    }

    /// Whether a new message may be published. Messages that must be published again come first.
    pub(crate) fn has_room(&self) -> bool {
        self.outage.is_none()
            && self.to_republish.is_empty()
            && self.messages.len() < MAX_MESSAGES
            && self.bytes < MAX_BYTES
    }

    /// Whether a new message of an unknown caller may be published.
    pub(crate) fn has_room_for_unknown_callers(&self) -> bool {
        self.has_room()
            && self.unknown_messages < MAX_UNKNOWN_MESSAGES
            && self.unknown_bytes < MAX_UNKNOWN_BYTES
    }

    /// Adds a message that is published for the first time.
    pub(crate) fn add(&mut self, item: Item, size_bytes: usize, now: Instant) -> Attempt {
        let message = self.next_number;
        self.next_number += 1;
        self.bytes += size_bytes;
        let is_unknown_callers = item.unknown_caller().is_some();
        if is_unknown_callers {
            self.unknown_messages += 1;
            self.unknown_bytes += size_bytes;
        }
        let unacknowledged = Unacknowledged {
            item,
            size_bytes,
            is_unknown_callers,
            repeats: 0,
            waiting_since: now,
            published_at: now,
        };
        self.messages.insert(message, unacknowledged);
        Attempt { message, repeats: 0 }
    }

    pub(crate) fn get(&self, attempt: Attempt) -> Option<&Item> {
        self.messages.get(&attempt.message).map(|unacknowledged| &unacknowledged.item)
    }

    /// Returns the next message to publish again now, and counts it as published.
    pub(crate) fn next_repeat(&mut self, now: Instant) -> Option<Repeat> {
        match self.republish_next(now) {
            Some(attempt) => Some(Repeat { attempt, waited: Duration::ZERO }),
            None => self.repeat_oldest(now),
        }
    }

    /// Returns the next message that the stream may not have.
    fn republish_next(&mut self, now: Instant) -> Option<Attempt> {
        if let Some(outage) = &self.outage
            && (self.has_message_in_flight() || now < outage.retry_at)
        {
            return None;
        }
        let message = self.to_republish.pop_first()?;
        let unacknowledged = self.messages.get_mut(&message)?;
        unacknowledged.repeats += 1;
        unacknowledged.waiting_since = now;
        unacknowledged.published_at = now;
        Some(Attempt { message, repeats: unacknowledged.repeats })
    }

    fn has_message_in_flight(&self) -> bool {
        self.messages.len() > self.to_republish.len()
    }

    /// Returns when the oldest message is published again although it has neither a response nor a
    /// failure.
    fn early_repeat_at(&self) -> Option<Instant> {
        if self.outage.is_some() || !self.to_republish.is_empty() {
            return None;
        }
        let (_, oldest) = self.messages.first_key_value()?;
        Some(oldest.published_at + REPEAT_BACKOFF.delay(self.early_repeats, 1.0))
    }

    /// Returns the oldest message, if it has waited for long. Its wait is not restarted, so that a
    /// stream that stores nothing is noticed no later.
    fn repeat_oldest(&mut self, now: Instant) -> Option<Repeat> {
        if self.early_repeat_at()? > now {
            return None;
        }
        let mut oldest = self.messages.first_entry()?;
        let message = *oldest.key();
        let unacknowledged = oldest.get_mut();
        unacknowledged.repeats += 1;
        unacknowledged.published_at = now;
        self.early_repeats = self.early_repeats.saturating_add(1);
        Some(Repeat {
            attempt: Attempt { message, repeats: unacknowledged.repeats },
            waited: now.saturating_duration_since(unacknowledged.waiting_since),
        })
    }

    /// Returns when [`Self::next_repeat`] may return a message without a response before.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        match &self.outage {
            Some(outage) if !self.has_message_in_flight() && !self.to_republish.is_empty() => {
                Some(outage.retry_at)
            }
            _ => self.early_repeat_at(),
        }
    }

    /// Removes a message that the stream has or will never have. `stored_at` is the time of the
    /// response if the stream stored this attempt. Returns whether the message was in the window.
    pub(crate) fn settle(&mut self, attempt: Attempt, stored_at: Option<Instant>) -> bool {
        let Some(unacknowledged) = self.messages.get(&attempt.message) else { return false };
        if let Some(stored_at) = stored_at {
            let took = stored_at.saturating_duration_since(unacknowledged.waiting_since);
            if took < FIRST_REPEAT_DELAY || attempt.repeats > 0 {
                self.early_repeats = 0;
            }
        }
        // A late response to a message that must be published again does not show that the stream
        // stores messages now.
        if !self.to_republish.contains(&attempt.message) {
            self.outage = None;
        }
        self.remove(attempt.message)
    }

    /// Marks a message to be published again, if it is in the window.
    pub(crate) fn requeue(&mut self, attempt: Attempt) {
        if self.messages.contains_key(&attempt.message) {
            self.to_republish.insert(attempt.message);
        }
    }

    /// Records that the stream has not stored this attempt and may store the message later. All
    /// messages are published again after the oldest: if the leader was killed, the responses to
    /// all of them are lost.
    pub(crate) fn fail(&mut self, attempt: Attempt, state: State, now: Instant, jitter: f64) {
        let is_last_attempt = self
            .messages
            .get(&attempt.message)
            .is_some_and(|unacknowledged| unacknowledged.repeats == attempt.repeats);
        if !is_last_attempt || self.to_republish.contains(&attempt.message) {
            return;
        }
        self.to_republish = self.messages.keys().copied().collect();
        let failures = self.outage.as_ref().map_or(0, |outage| outage.failures);
        let retry_at = now + CONNECTED_BACKOFF.delay(failures, jitter);
        self.outage = Some(Outage { state, retry_at, failures: failures.saturating_add(1) });
    }

    fn remove(&mut self, message: u64) -> bool {
        self.to_republish.remove(&message);
        let Some(removed) = self.messages.remove(&message) else { return false };
        self.bytes -= removed.size_bytes;
        if removed.is_unknown_callers {
            self.unknown_messages -= 1;
            self.unknown_bytes -= removed.size_bytes;
        }
        if self.messages.is_empty() {
            self.outage = None;
        }
        true
    }

    /// Removes the messages that must not be published again. The stream may have some of them.
    /// Returns how many were removed.
    pub(crate) fn withdraw(&mut self, is_withdrawn: impl Fn(&Item) -> bool) -> u64 {
        let withdrawn: Vec<u64> = self
            .messages
            .iter()
            .filter(|(_, unacknowledged)| is_withdrawn(&unacknowledged.item))
            .map(|(message, _)| *message)
            .collect();
        for message in &withdrawn {
            self.remove(*message);
        }
        withdrawn.len() as u64
    }

    /// There is a new connection, over which everything is published again.
    pub(crate) fn on_connected(&mut self) {
        self.outage = None;
        self.to_republish = self.messages.keys().copied().collect();
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
        Item::shared(Record::CancelPrivate(PrivateCancellation {
            hash: B256::repeat_byte(n),
            signer: Address::ZERO,
            cancelled_at: SystemTime::UNIX_EPOCH,
            holder: Holder::Host,
        }))
    }

    fn first_attempt(message: u64) -> Attempt {
        Attempt { message, repeats: 0 }
    }

    /// A window of so many messages, numbered from 0, and the time of their publishing.
    fn window(count: u8) -> (Window, Instant) {
        let mut window = Window::default();
        let now = Instant::now();
        for n in 0..count {
            window.add(item(n), 100, now);
        }
        (window, now)
    }

    /// The numbers of the messages that are published again now.
    fn republished(window: &mut Window, now: Instant) -> Vec<u64> {
        std::iter::from_fn(|| window.republish_next(now)).map(|attempt| attempt.message).collect()
    }

    #[test]
    fn a_message_leaves_once_and_frees_its_room() {
        let (mut window, now) = window(1);
        assert!(window.settle(first_attempt(0), None));
        assert!(!window.settle(first_attempt(0), None), "a second response");
        assert_eq!((window.len(), window.bytes), (0, 0));
        window.add(item(1), MAX_BYTES, now);
        assert!(!window.has_room(), "the bytes are used up");
        let mut full = Window::default();
        for _ in 0..MAX_MESSAGES {
            full.add(item(0), 1, now);
        }
        assert!(!full.has_room(), "the messages are used up");
        full.settle(first_attempt(7), None);
        assert!(full.has_room());
    }

    /// The node's announcement used to change who had sent a message, so its room was never freed.
    #[test]
    fn unknown_callers_fill_only_a_part_of_the_window() {
        let (pool, tx) = (pool(), txs(1).remove(0));
        let transaction = |origin| Transaction::new(tx.clone(), origin, SystemTime::UNIX_EPOCH);
        pool.insert_transaction(transaction(Origin::Rpc).held_by(caller(1)));
        let order = pool.get(tx.hash()).expect("it is pooled");
        let (mut window, now) = (Window::default(), Instant::now());
        let attempt = window.add(Item::shared(Record::Order(order)), MAX_UNKNOWN_BYTES, now);
        assert!(window.has_room() && !window.has_room_for_unknown_callers());
        pool.insert_transaction(transaction(Origin::Mempool));
        assert!(window.settle(attempt, None));
        assert_eq!((window.unknown_messages, window.unknown_bytes), (0, 0));
        window.add(item(1), MAX_UNKNOWN_BYTES, now);
        assert!(window.has_room_for_unknown_callers());
    }

    #[test]
    fn a_new_connection_publishes_everything_again_in_order() {
        let (mut window, now) = window(3);
        assert!(republished(&mut window, now).is_empty());
        window.settle(first_attempt(1), None);
        window.on_connected();
        assert!(!window.has_room(), "new messages follow");
        assert_eq!(republished(&mut window, now), [0, 2]);
        assert!(republished(&mut window, now).is_empty() && window.has_room());
    }

    #[test]
    fn messages_without_a_response_are_repeated_one_after_the_other() {
        let (mut window, begin) = window(4);
        window.settle(first_attempt(1), Some(begin));
        assert_eq!(window.next_wake(), Some(begin + FIRST_REPEAT_DELAY));
        assert_eq!(window.repeat_oldest(begin + FIRST_REPEAT_DELAY / 2), None);
        let mut now = begin + FIRST_REPEAT_DELAY;
        for message in [0, 2, 3] {
            let repeat = window.repeat_oldest(now).expect("the oldest");
            let attempt = Attempt { message, repeats: 1 };
            assert_eq!(repeat, Repeat { attempt, waited: now - begin });
            assert_eq!(window.repeat_oldest(now), None, "one at a time");
            assert!(window.has_room(), "new messages do not wait for it");
            now += Duration::from_millis(1);
            assert!(window.settle(attempt, Some(now)));
        }
        assert_eq!((window.repeat_oldest(now), window.next_wake()), (None, None));
        // The repeated message fails: only its last attempt counts.
        let first = window.add(item(5), 100, now);
        let repeat = window.repeat_oldest(now + FIRST_REPEAT_DELAY).expect("the oldest");
        window.fail(first, UNAVAILABLE, now, 1.0);
        assert_eq!(window.outage(), None, "its last attempt has no response");
        window.fail(repeat.attempt, UNAVAILABLE, now, 1.0);
        assert_eq!(window.outage(), Some(UNAVAILABLE));
        assert_eq!(window.repeat_oldest(now + 2 * REPEAT_BACKOFF.cap), None);
    }

    /// 2,000 messages/s, each stored after two seconds.
    #[test]
    fn a_slow_stream_gets_only_a_few_messages_twice() {
        let (mut window, begin) = (Window::default(), Instant::now());
        let mut repeated = 0;
        for n in 0..40_000_u64 {
            let now = begin + Duration::from_micros(500 * n);
            window.add(item(0), 1, now);
            if let Some(stored) = n.checked_sub(4_000) {
                window.settle(first_attempt(stored), Some(now));
            }
            repeated += u32::from(window.repeat_oldest(now).is_some());
        }
        assert!((1..5).contains(&repeated), "{repeated}");
    }

    #[test]
    fn a_stream_without_a_leader_gets_the_oldest_message_after_growing_pauses() {
        let (mut window, mut now) = window(3);
        window.fail(first_attempt(2), UNAVAILABLE, now, 1.0);
        assert_eq!(window.outage(), Some(UNAVAILABLE));
        // The response to the first message is lost, and that to the second is late.
        window.fail(first_attempt(1), UNAVAILABLE, now, 1.0);
        for (repeats, pause_ms) in (1..).zip([250, 500, 1_000, 1_000]) {
            assert!(republished(&mut window, now).is_empty() && !window.has_room());
            now += Duration::from_millis(pause_ms);
            assert_eq!(window.next_wake(), Some(now));
            assert_eq!(republished(&mut window, now), [0]);
            window.fail(Attempt { message: 0, repeats: repeats - 1 }, UNAVAILABLE, now, 1.0);
            assert_eq!(window.next_wake(), None, "that was the response to an earlier attempt");
            window.fail(Attempt { message: 0, repeats }, UNAVAILABLE, now, 1.0);
        }
        now += Duration::from_secs(1);
        assert_eq!(republished(&mut window, now), [0]);
        assert!(window.settle(first_attempt(0), None));
        assert_eq!(window.outage(), None);
        assert_eq!(republished(&mut window, now), [1, 2], "the others follow at once");
        assert!(window.has_room());
    }

    #[test]
    fn a_withdrawn_message_is_not_published_again() {
        let (mut window, now) = window(2);
        let first_hash = B256::repeat_byte(0);
        let withdrawn = window.withdraw(|item| match &item.record {
            Record::CancelPrivate(cancellation) => cancellation.hash == first_hash,
            _ => false,
        });
        assert_eq!(withdrawn, 1);
        window.on_connected();
        assert_eq!(republished(&mut window, now), [1]);
        window.fail(Attempt { message: 0, repeats: 1 }, UNAVAILABLE, now, 1.0);
        assert!(!window.settle(first_attempt(0), None), "a late response is ignored");
        assert_eq!(window.outage(), None);
    }

    #[test]
    fn a_late_response_ends_an_outage_only_for_the_last_message() {
        let (mut window, now) = window(2);
        window.fail(first_attempt(1), UNAVAILABLE, now, 1.0);
        assert!(window.settle(first_attempt(1), None));
        assert!(window.outage().is_some());
        assert!(window.settle(first_attempt(0), None));
        assert!(window.outage().is_none() && window.has_room());
    }
}
