//! Remembers for each replacement key and private transaction what was cancelled, the newest
//! bundle, and the latest message. It is what a source remembers in addition to the pool. Pure.
//!
//! **Cancellations.** Pools remember a cancellation for a minute, and count it against its sender,
//! so that callers cannot fill them. The ingest has applied these limits to everything that it has
//! published. A builder that applied them again would forget cancellations that the ingests have
//! accepted, and an order that arrives late, from a machine that was cut off, would be pooled
//! again. So a source remembers each cancellation for as long as the longest private order lasts,
//! by the time of the stream, and counts it against nobody.
//!
//! **Newest bundles.** A pool remembers the newest bundle of a key while it holds it, and for a
//! minute afterwards. It may have refused that bundle, because of its own head or its own room, and
//! a bundle that it holds may have been sent again later. So a source remembers for each key and
//! block which bundle was sent last, for as long as cancellations: what arrives late and was sent
//! before it is replaced, and a cancellation that was sent before it does not end it.
//!
//! **The sequence of one machine.** The time of a message is too late by as much as its publisher
//! does not know the server's clock, some milliseconds or less, and by the whole delay of the
//! network if the publisher could not read that clock. A second message about the same key could
//! get an earlier time than the first. The machine's own clock knows their sequence, so the times
//! of one machine's messages about one key follow that clock, within one run of its publisher: in
//! the next run the clock may show an earlier time.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    time::{Duration, SystemTime},
};

use alloy_primitives::{Address, B256};
use order_pool::{Cancellation, PrivateCancellation, ReplacementKey};

use crate::{
    streams::DEFAULT_PRIVATE_MAX_AGE,
    wire::{PublisherTime, micros},
};

/// How long an entry is remembered, by the time of the stream: as long as the stream keeps private
/// orders by default.
const RETENTION: Duration = DEFAULT_PRIVATE_MAX_AGE;

/// The most entries of one map. There are two maps of each kind, one for messages of unknown
/// callers and one for all others, so callers cannot displace what known signers have sent. The
/// oldest entry is forgotten first. An entry takes 200 bytes, a full map 26 MB.
const MAX_ENTRIES: usize = 1 << 17;

/// What a message can replace or cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    Bundles(ReplacementKey),
    /// The bundles of a replacement key for one block.
    BlockBundles(ReplacementKey, u64),
    /// A private transaction of a signer.
    PrivateTransaction {
        signer: Address,
        hash: B256,
    },
}

/// A map that forgets entries by age and, above [`MAX_ENTRIES`], the oldest.
#[derive(Debug)]
struct RecentMap<V> {
    entries: HashMap<Key, Entry<V>>,
    /// One element for each change of an entry, the oldest first.
    changes: VecDeque<(SystemTime, Key)>,
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    changed_at: SystemTime,
}

impl<V> Default for RecentMap<V> {
    fn default() -> Self {
        Self { entries: HashMap::new(), changes: VecDeque::new() }
    }
}

impl<V> RecentMap<V> {
    fn get(&self, key: &Key) -> Option<&V> {
        self.entries.get(key).map(|entry| &entry.value)
    }

    fn insert(&mut self, key: Key, value: V, now: SystemTime) {
        self.entries.insert(key, Entry { value, changed_at: now });
        self.changes.push_back((now, key));
        while let Some((oldest_change, key)) = self.changes.front().copied() {
            let is_expired = now.duration_since(oldest_change).is_ok_and(|age| age > RETENTION);
            if !is_expired && self.changes.len() <= MAX_ENTRIES {
                return;
            }
            self.changes.pop_front();
            // An entry that changed later has another element in `changes`.
            if self.entries.get(&key).is_some_and(|entry| entry.changed_at == oldest_change) {
                self.entries.remove(&key);
            }
        }
    }
}

/// The latest message about a key that carries a time.
#[derive(Clone, Debug)]
struct LatestMessage {
    machine: String,
    run: String,
    local_micros: u64,
    time: SystemTime,
}

/// Which bundles of a key, or which submissions of a private transaction, are cancelled.
#[derive(Clone, Copy, Debug, Default)]
struct Cancelled {
    /// Bundles with this nonce, chosen by their searcher, or a lower one.
    up_to_nonce: Option<u64>,
    /// Orders without a chosen nonce that were sent at this time or before.
    until: Option<SystemTime>,
    /// Everything, for ever.
    is_permanent: bool,
}

/// The newest bundle of a key for one block, whether or not the pool has taken it.
#[derive(Clone, Copy, Debug, Default)]
struct NewestBundle {
    /// The highest nonce that a searcher has chosen.
    chosen_nonce: Option<u64>,
    /// When the latest bundle without a chosen nonce was sent.
    sent_at: Option<SystemTime>,
    /// The hash of its fields.
    content: B256,
}

/// What a source remembers of keys. Each array has one map for known holders and one for unknown
/// callers.
#[derive(Debug, Default)]
pub(crate) struct KeyHistory {
    latest: [RecentMap<LatestMessage>; 2],
    cancelled: [RecentMap<Cancelled>; 2],
    newest_bundles: [RecentMap<NewestBundle>; 2],
}

/// Where and when the message that is processed was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageOrigin<'a> {
    pub(crate) machine: &'a str,
    /// The run of the machine's publisher; empty if the message has no unique id.
    pub(crate) run: &'a str,
    pub(crate) publisher_time: PublisherTime,
    /// The time of the message by the server's clock ([`crate::wire::Decoded::stream_time`]).
    pub(crate) stream_time: SystemTime,
    /// When the server stored it.
    pub(crate) stored_at: SystemTime,
    /// Whether an unknown caller sent it.
    pub(crate) is_unknown_caller: bool,
}

impl MessageOrigin<'_> {
    /// The index of the map for this sender.
    fn map_index(&self) -> usize {
        usize::from(self.is_unknown_caller)
    }
}

impl LatestMessage {
    fn is_of_same_run(&self, origin: &MessageOrigin<'_>) -> bool {
        self.machine == origin.machine && self.run == origin.run
    }
}

impl KeyHistory {
    /// Records a message without a nonce chosen by its searcher, and returns its time: the stream
    /// time, changed so that messages of one machine keep their sequence.
    pub(crate) fn record_message(&mut self, key: Key, origin: MessageOrigin<'_>) -> SystemTime {
        const TICK: Duration = Duration::from_micros(1);
        let mut time = origin.stream_time;
        let local_micros = origin.publisher_time.local_micros;
        let latest = &mut self.latest[origin.map_index()];
        if let Some(previous) = latest.get(&key)
            && previous.is_of_same_run(&origin)
        {
            if local_micros > previous.local_micros {
                time = time.max(previous.time + TICK);
            } else if local_micros == previous.local_micros {
                time = previous.time;
            } else {
                return time.min(previous.time - TICK);
            }
        }
        let [machine, run] = [origin.machine, origin.run].map(str::to_owned);
        latest.insert(key, LatestMessage { machine, run, local_micros, time }, origin.stored_at);
        time
    }

    /// Converts a nonce that a searcher has chosen, so that it compares with messages without one.
    ///
    /// On the machine that it was sent to, messages without a nonce have nonces that the machine's
    /// pool assigned, which searchers see in its responses. Here they have their times, which are
    /// somewhat later. A nonce above an assigned one must be above the time too.
    pub(crate) fn convert_chosen_nonce(
        &self,
        key: &Key,
        nonce: u64,
        origin: MessageOrigin<'_>,
    ) -> u64 {
        let Some(latest) = self.latest[origin.map_index()].get(key) else { return nonce };
        if !latest.is_of_same_run(&origin) || nonce <= latest.local_micros {
            return nonce;
        }
        let distance = nonce - latest.local_micros;
        nonce.max(micros(latest.time).saturating_add(distance))
    }

    pub(crate) fn cancel_bundles(
        &mut self,
        cancellation: &Cancellation,
        origin: MessageOrigin<'_>,
    ) {
        self.cancel(Key::Bundles(cancellation.key), origin, |cancelled| {
            if cancellation.nonce.is_none() {
                cancelled.is_permanent = true;
            } else {
                cancelled.up_to_nonce = cancelled.up_to_nonce.max(cancellation.nonce);
                cancelled.until = cancelled.until.max(cancellation.sent_at);
            }
        });
    }

    pub(crate) fn cancel_private(
        &mut self,
        cancellation: &PrivateCancellation,
        origin: MessageOrigin<'_>,
    ) {
        let PrivateCancellation { signer, hash, cancelled_at, .. } = *cancellation;
        self.cancel(Key::PrivateTransaction { signer, hash }, origin, |cancelled| {
            cancelled.until = cancelled.until.max(Some(cancelled_at));
        });
    }

    fn cancel(&mut self, key: Key, origin: MessageOrigin<'_>, change: impl FnOnce(&mut Cancelled)) {
        let map = &mut self.cancelled[origin.map_index()];
        let mut cancelled = map.get(&key).copied().unwrap_or_default();
        change(&mut cancelled);
        map.insert(key, cancelled, origin.stored_at);
    }

    /// Records a bundle that was sent at `sent_at`. Returns since when it counts, or `None` if a
    /// later one of its key and block, which has replaced it, was recorded before. Another copy of
    /// the latest bundle, which another caller may have sent earlier, counts since that was sent.
    ///
    /// A chosen nonce is below the time of each bundle without one, as in a pool.
    pub(crate) fn record_bundle(
        &mut self,
        key: Key,
        content: B256,
        chosen_nonce: Option<u64>,
        sent_at: SystemTime,
        origin: MessageOrigin<'_>,
    ) -> Option<SystemTime> {
        let mut newest = self.newest_bundle(&key).unwrap_or_default();
        let newest_micros = newest.sent_at.map(micros);
        match chosen_nonce {
            Some(nonce) if Some(nonce) < newest.chosen_nonce.max(newest_micros) => return None,
            Some(_) => newest.chosen_nonce = chosen_nonce,
            None if Some(micros(sent_at)) < newest_micros => {
                return newest.sent_at.filter(|_| newest.content == content);
            }
            None => (newest.sent_at, newest.content) = (Some(sent_at), content),
        }
        let map = &mut self.newest_bundles[origin.map_index()];
        map.insert(key, newest, origin.stored_at);
        Some(sent_at)
    }

    /// Whether the latest bundle of this key and block without a chosen nonce was sent after
    /// `time`.
    pub(crate) fn is_sent_after(&self, key: ReplacementKey, block: u64, time: SystemTime) -> bool {
        let newest = self.newest_bundle(&Key::BlockBundles(key, block)).unwrap_or_default();
        newest.sent_at.map(micros) > Some(micros(time))
    }

    /// Returns what is known of the newest bundle, from either map.
    fn newest_bundle(&self, key: &Key) -> Option<NewestBundle> {
        let known = self.newest_bundles.iter().filter_map(|map| map.get(key));
        known.copied().reduce(|one, other| {
            let latest = if one.sent_at < other.sent_at { other } else { one };
            NewestBundle { chosen_nonce: one.chosen_nonce.max(other.chosen_nonce), ..latest }
        })
    }

    /// Whether an order is cancelled: a bundle by its chosen nonce, or an order without one by the
    /// time at which it was sent.
    pub(crate) fn is_cancelled(
        &self,
        key: &Key,
        chosen_nonce: Option<u64>,
        sent_at: SystemTime,
    ) -> bool {
        self.cancelled.iter().filter_map(|map| map.get(key)).any(|cancelled| {
            cancelled.is_permanent
                || match chosen_nonce {
                    Some(nonce) => Some(nonce) <= cancelled.up_to_nonce,
                    None => Some(micros(sent_at)) <= cancelled.until.map(micros),
                }
        })
    }
}

#[cfg(test)]
mod tests {
    use order_pool::Holder;

    use super::*;
    use crate::tests::{KEY, SIGNER, time};

    const BUNDLES: Key = Key::Bundles(KEY);

    /// A message of a machine whose clock shows `local` seconds, stored without delay.
    fn origin(machine: &str, local: u64, stored: u64) -> MessageOrigin<'_> {
        MessageOrigin {
            machine,
            run: "",
            publisher_time: PublisherTime {
                local_micros: local * 1_000_000,
                ..PublisherTime::default()
            },
            stream_time: time(stored),
            stored_at: time(stored),
            is_unknown_caller: false,
        }
    }

    fn private_cancellation(hash: B256, seconds: u64) -> PrivateCancellation {
        let holder = Holder::Signer(SIGNER);
        PrivateCancellation { hash, signer: SIGNER, cancelled_at: time(seconds), holder }
    }

    fn permanent_cancellation(uuid: u64) -> Cancellation {
        Cancellation {
            key: ReplacementKey { uuid: uuid::Uuid::from_u128(uuid.into()), signer: SIGNER },
            nonce: None,
            holder: Holder::Host,
            sent_at: None,
        }
    }

    #[test]
    fn messages_of_one_machine_keep_their_sequence_if_the_first_was_delayed() {
        let mut history = KeyHistory::default();
        let first = history.record_message(BUNDLES, origin("a", 1, 13));
        // It was sent a second after the first, and was not delayed.
        let undelayed = MessageOrigin { stream_time: time(12), ..origin("a", 2, 13) };
        let second = history.record_message(BUNDLES, undelayed);
        assert!(second > first, "{second:?} {first:?}");
        let first_again = MessageOrigin { stream_time: time(14), ..origin("a", 1, 15) };
        assert!(history.record_message(BUNDLES, first_again) < second, "it was stored again");
        let other_machine = history.record_message(BUNDLES, origin("b", 0, 12));
        assert_eq!(other_machine, time(12));
    }

    /// The machine's clock was ahead, was set right, and the machine was restarted. Its later
    /// messages counted as earlier than those of its previous run.
    #[test]
    fn messages_of_a_later_run_are_later_whatever_the_machines_clock_says() {
        let mut history = KeyHistory::default();
        history.record_message(BUNDLES, MessageOrigin { run: "1", ..origin("a", 120, 10) });
        let again = MessageOrigin { run: "2", ..origin("a", 20, 20) };
        assert_eq!(history.record_message(BUNDLES, again), time(20));
        let later = MessageOrigin { run: "2", ..origin("a", 21, 20) };
        assert!(history.record_message(BUNDLES, later) > time(20), "their sequence");
    }

    #[test]
    fn a_cancellation_is_remembered_by_stream_time_and_counted_against_nobody() {
        let mut history = KeyHistory::default();
        let hash = |n: u64| B256::left_padding_from(&n.to_be_bytes());
        for n in 0..10_000 {
            history.cancel_private(&private_cancellation(hash(n), 100), origin("a", 1, 100));
        }
        let is_cancelled = |history: &KeyHistory, n, seconds| {
            let key = Key::PrivateTransaction { signer: SIGNER, hash: hash(n) };
            history.is_cancelled(&key, None, time(seconds))
        };
        assert!((0..10_000).all(|n| is_cancelled(&history, n, 100)));
        assert!(!is_cancelled(&history, 1, 101), "it was sent again later");
        history.cancel_private(&private_cancellation(hash(1), 1_001), origin("a", 1, 1_001));
        assert!(is_cancelled(&history, 1, 1_000) && !is_cancelled(&history, 2, 100));
        assert_eq!(history.cancelled[0].entries.len(), 1);
    }

    #[test]
    fn a_flood_of_unknown_callers_displaces_no_entries_of_others() {
        let mut history = KeyHistory::default();
        history.cancel_bundles(&permanent_cancellation(0), origin("a", 1, 1));
        for n in 1..=2 * MAX_ENTRIES as u64 {
            let flood = MessageOrigin { is_unknown_caller: true, ..origin("a", 1, 2) };
            history.cancel_bundles(&permanent_cancellation(n), flood);
        }
        let is_cancelled = |n| {
            let key = Key::Bundles(permanent_cancellation(n).key);
            history.is_cancelled(&key, None, time(9))
        };
        assert!(is_cancelled(0) && is_cancelled(2 * MAX_ENTRIES as u64) && !is_cancelled(1));
        assert_eq!(history.cancelled[1].entries.len(), MAX_ENTRIES);
    }

    /// A searcher chose the nonce above the one that the machine had assigned, and builders kept
    /// the earlier bundle.
    #[test]
    fn a_nonce_above_an_assigned_nonce_is_above_its_time_too() {
        let mut history = KeyHistory::default();
        let local = |seconds: u64| seconds * 1_000_000;
        let time = history.record_message(BUNDLES, origin("a", 1, 13));
        let convert =
            |machine, nonce| history.convert_chosen_nonce(&BUNDLES, nonce, origin(machine, 0, 14));
        assert_eq!(convert("a", local(1) + 1), micros(time) + 1);
        assert_eq!(convert("a", local(1)), local(1), "it was superseded there");
        assert_eq!(convert("b", local(1) + 1), local(1) + 1, "the other machine assigned none");
        assert_eq!(convert("a", u64::MAX), u64::MAX);
    }

    #[test]
    fn chosen_nonces_are_compared_by_nonce_and_all_else_by_time() {
        let mut history = KeyHistory::default();
        let chosen = Cancellation { key: KEY, nonce: Some(5), holder: Holder::Host, sent_at: None };
        history.cancel_bundles(&chosen, origin("a", 1, 100));
        let is_cancelled = |history: &KeyHistory, nonce, seconds| {
            history.is_cancelled(&BUNDLES, nonce, time(seconds))
        };
        assert!(is_cancelled(&history, Some(5), 200) && !is_cancelled(&history, Some(6), 1));
        assert!(!is_cancelled(&history, None, 1));
        let assigned =
            Cancellation { nonce: Some(micros(time(150))), sent_at: Some(time(150)), ..chosen };
        history.cancel_bundles(&assigned, origin("a", 1, 150));
        assert!(is_cancelled(&history, None, 150) && !is_cancelled(&history, None, 151));
        assert!(is_cancelled(&history, Some(6), 200), "its nonce is below the time");
    }
}
