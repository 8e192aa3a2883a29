//! What a source remembers of keys, beside the pool: cancellations, and the latest message of each machine. Pure.
//!
//! **Cancellations.** Pools remember a cancellation for a minute, and count it against whoever sent it, so that callers
//! cannot fill them. The ingest has done that for what it has published. A builder that applied the limits again would
//! forget cancellations that each ingest has accepted, and an order that comes late, from a machine that was cut off,
//! would be there again. So a source remembers each for as long as the longest private order lasts, by the time of the
//! stream, and counts it against nobody.
//!
//! **One machine's sequence.** The time of a message is the time at which it was stored, less its age when it was sent.
//! It is late by the time that the message was on its way, a few milliseconds, or seconds if the connection stalled. A
//! second message about the same key that was not held up would get an earlier time than the first. The machine's own
//! clock knows their sequence, so the times of messages of one machine about one key follow that.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    time::{Duration, SystemTime},
};

use alloy_primitives::{Address, B256};
use order_pool::{Cancellation, PrivateCancellation, ReplacementKey};

use crate::{
    streams::DEFAULT_PRIVATE_MAX_AGE,
    wire::{Sent, micros},
};

/// How long an entry is remembered, by the time of the stream: as long as it keeps private orders by default.
const RETENTION: Duration = DEFAULT_PRIVATE_MAX_AGE;

/// Most entries of one kind, of callers of whom only the address is known, and of all others: 200 bytes each, 26 MB. The
/// oldest is forgotten first. Callers cannot displace what signers that the host knows have sent.
const MAX_ENTRIES: usize = 1 << 17;

/// What replaces or cancels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    Bundles(ReplacementKey),
    /// A private transaction, by its signer.
    Private(Address, B256),
}

/// A map that forgets entries by age and, if there are too many, the oldest.
#[derive(Debug)]
struct Recent<V> {
    entries: HashMap<Key, (V, SystemTime)>,
    /// One for each change of an entry, the oldest first.
    changes: VecDeque<(SystemTime, Key)>,
}

impl<V> Default for Recent<V> {
    fn default() -> Self {
        Self { entries: HashMap::new(), changes: VecDeque::new() }
    }
}

impl<V> Recent<V> {
    fn get(&self, key: &Key) -> Option<&V> {
        self.entries.get(key).map(|(value, _)| value)
    }

    fn insert(&mut self, key: Key, value: V, stored: SystemTime) {
        self.entries.insert(key, (value, stored));
        self.changes.push_back((stored, key));
        while let Some((oldest, key)) = self.changes.front().copied() {
            let is_due = stored.duration_since(oldest).is_ok_and(|age| age > RETENTION);
            if !is_due && self.changes.len() <= MAX_ENTRIES {
                return;
            }
            self.changes.pop_front();
            if self.entries.get(&key).is_some_and(|(_, changed)| *changed == oldest) {
                self.entries.remove(&key);
            }
        }
    }
}

/// The latest message of a key that has a time.
#[derive(Clone, Debug)]
struct Latest {
    machine: String,
    local_micros: u64,
    time: SystemTime,
}

/// Which bundles of a key, or which of a signer's copies of a private transaction, are cancelled.
#[derive(Clone, Copy, Debug, Default)]
struct Cancelled {
    /// Those with this nonce of their searcher's, or a lower one.
    up_to_nonce: Option<u64>,
    /// Those without a nonce that were sent at this time or before.
    until: Option<SystemTime>,
    /// All.
    is_final: bool,
}

/// By whether only the sender's address is known.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    latest: [Recent<Latest>; 2],
    cancelled: [Recent<Cancelled>; 2],
}

/// The message that is being processed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin<'a> {
    pub(crate) machine: &'a str,
    pub(crate) sent: Sent,
    /// The time by the stream.
    pub(crate) time: SystemTime,
    /// When the server stored it.
    pub(crate) stored: SystemTime,
    /// Whether it counts for a caller of whom only the address is known.
    pub(crate) is_strangers: bool,
}

impl Memory {
    /// The time of a message that has no nonce of its searcher's: by the stream, and between those of the same machine.
    pub(crate) fn time(&mut self, key: Key, origin: Origin<'_>) -> SystemTime {
        const TICK: Duration = Duration::from_micros(1);
        let Origin { machine, sent: Sent { local_micros, .. }, mut time, stored, .. } = origin;
        let latest = &mut self.latest[usize::from(origin.is_strangers)];
        if let Some(before) = latest.get(&key).filter(|before| before.machine == machine) {
            if local_micros > before.local_micros {
                time = time.max(before.time + TICK);
            } else if local_micros == before.local_micros {
                time = before.time;
            } else {
                return time.min(before.time - TICK);
            }
        }
        latest.insert(key, Latest { machine: machine.to_owned(), local_micros, time }, stored);
        time
    }

    /// The place of a message with a nonce of its searcher's among messages without one. For the machine that it came to, these
    /// have the nonces that its pool has assigned, which searchers see in its responses; here they have their times, which
    /// are somewhat later. One that is above the former is above the latter.
    pub(crate) fn chosen_nonce(&self, key: &Key, nonce: u64, origin: Origin<'_>) -> u64 {
        let latest = self.latest[usize::from(origin.is_strangers)].get(key);
        let Some(latest) = latest.filter(|latest| latest.machine == origin.machine) else {
            return nonce;
        };
        match nonce.checked_sub(latest.local_micros) {
            Some(above) if above > 0 => nonce.max(micros(latest.time).saturating_add(above)),
            _ => nonce,
        }
    }

    pub(crate) fn cancel_bundles(&mut self, cancellation: &Cancellation, origin: Origin<'_>) {
        let Cancellation { key, nonce, sent_at, .. } = *cancellation;
        self.cancel(Key::Bundles(key), origin, |cancelled| match (nonce, sent_at) {
            (None, _) => cancelled.is_final = true,
            (Some(nonce), sent_at) => {
                cancelled.up_to_nonce = cancelled.up_to_nonce.max(Some(nonce));
                cancelled.until = cancelled.until.max(sent_at);
            }
        });
    }

    pub(crate) fn cancel_private(
        &mut self,
        PrivateCancellation { hash, signer, cancelled_at: at, .. }: &PrivateCancellation,
        origin: Origin<'_>,
    ) {
        let key = Key::Private(*signer, *hash);
        self.cancel(key, origin, |cancelled| cancelled.until = cancelled.until.max(Some(*at)));
    }

    fn cancel(&mut self, key: Key, origin: Origin<'_>, change: impl FnOnce(&mut Cancelled)) {
        let recent = &mut self.cancelled[usize::from(origin.is_strangers)];
        let mut cancelled = recent.get(&key).copied().unwrap_or_default();
        change(&mut cancelled);
        recent.insert(key, cancelled, origin.stored);
    }

    /// Whether an order was cancelled: a bundle with this nonce, or if it has none, what was sent at this time.
    pub(crate) fn is_cancelled(&self, key: &Key, nonce: Option<u64>, time: SystemTime) -> bool {
        self.cancelled.iter().filter_map(|recent| recent.get(key)).any(|cancelled| {
            cancelled.is_final
                || match nonce {
                    Some(nonce) => Some(nonce) <= cancelled.up_to_nonce,
                    None => Some(micros(time)) <= cancelled.until.map(micros),
                }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{KEY, SIGNER};

    const BUNDLES: Key = Key::Bundles(KEY);

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    /// A message of a machine whose clock says `local` seconds, stored without delay.
    fn origin(machine: &str, local: u64, stored: u64) -> Origin<'_> {
        let sent = Sent { age: Duration::ZERO, local_micros: local * 1_000_000 };
        Origin { machine, sent, time: at(stored), stored: at(stored), is_strangers: false }
    }

    #[test]
    fn messages_of_one_machine_keep_its_sequence_though_the_first_was_held_up() {
        let mut memory = Memory::default();
        let first = memory.time(BUNDLES, origin("a", 1, 13));
        // It was sent a second after the first, and was not held up.
        let held = Origin { time: at(12), ..origin("a", 2, 13) };
        let second = memory.time(BUNDLES, held);
        assert!(second > first, "{second:?} {first:?}");
        let again = Origin { time: at(14), ..origin("a", 1, 15) };
        assert!(memory.time(BUNDLES, again) < second, "the first, stored again");
        assert_eq!(memory.time(BUNDLES, origin("b", 0, 12)), at(12), "of another machine");
    }

    #[test]
    fn a_cancellation_is_remembered_by_the_time_of_the_stream_and_counted_against_nobody() {
        let mut memory = Memory::default();
        let hash = |n: u64| B256::left_padding_from(&n.to_be_bytes());
        let holder = order_pool::Holder::Signer(SIGNER);
        for n in 0..10_000 {
            let cancellation = PrivateCancellation {
                hash: hash(n),
                signer: SIGNER,
                cancelled_at: at(100),
                holder,
            };
            memory.cancel_private(&cancellation, origin("a", 1, 100));
        }
        let is_cancelled = |memory: &Memory, n, seconds| {
            memory.is_cancelled(&Key::Private(SIGNER, hash(n)), None, at(seconds))
        };
        assert!((0..10_000).all(|n| is_cancelled(&memory, n, 100)));
        assert!(!is_cancelled(&memory, 1, 101), "sent again later");
        let cancellation =
            PrivateCancellation { hash: hash(1), signer: SIGNER, cancelled_at: at(1_001), holder };
        memory.cancel_private(&cancellation, origin("a", 1, 1_001));
        assert!(is_cancelled(&memory, 1, 1_000) && !is_cancelled(&memory, 2, 100));
        assert_eq!(memory.cancelled[0].entries.len(), 1);
    }

    #[test]
    fn a_flood_of_strangers_displaces_nothing_of_others() {
        let mut memory = Memory::default();
        let cancellation = |n: u64| Cancellation {
            key: ReplacementKey { uuid: uuid::Uuid::from_u128(n.into()), signer: SIGNER },
            nonce: None,
            holder: order_pool::Holder::Host,
            sent_at: None,
        };
        memory.cancel_bundles(&cancellation(0), origin("a", 1, 1));
        for n in 1..=2 * MAX_ENTRIES as u64 {
            let flood = Origin { is_strangers: true, ..origin("a", 1, 2) };
            memory.cancel_bundles(&cancellation(n), flood);
        }
        let is_cancelled = |n| memory.is_cancelled(&Key::Bundles(cancellation(n).key), None, at(9));
        assert!(is_cancelled(0) && is_cancelled(2 * MAX_ENTRIES as u64) && !is_cancelled(1));
        assert_eq!(memory.cancelled[1].entries.len(), MAX_ENTRIES);
    }

    /// A searcher took the nonce above the one that the machine had named, and builders kept the bundle before it.
    #[test]
    fn a_nonce_above_the_one_that_the_machine_has_assigned_is_above_the_time_too() {
        let mut memory = Memory::default();
        let local = |seconds: u64| seconds * 1_000_000;
        let time = memory.time(BUNDLES, origin("a", 1, 13));
        let chosen = |machine, nonce| memory.chosen_nonce(&BUNDLES, nonce, origin(machine, 0, 14));
        assert_eq!(chosen("a", local(1) + 1), micros(time) + 1);
        assert_eq!(chosen("a", local(1)), local(1), "it was superseded there");
        assert_eq!(chosen("b", local(1) + 1), local(1) + 1, "another machine knows nothing of it");
        assert_eq!(chosen("a", u64::MAX), u64::MAX);
    }

    #[test]
    fn what_a_searcher_numbers_is_compared_by_number_and_the_rest_by_time() {
        let mut memory = Memory::default();
        let holder = order_pool::Holder::Host;
        let chosen = Cancellation { key: KEY, nonce: Some(5), holder, sent_at: None };
        memory.cancel_bundles(&chosen, origin("a", 1, 100));
        let is_cancelled =
            |memory: &Memory, nonce, seconds| memory.is_cancelled(&BUNDLES, nonce, at(seconds));
        assert!(is_cancelled(&memory, Some(5), 200) && !is_cancelled(&memory, Some(6), 1));
        assert!(!is_cancelled(&memory, None, 1));
        let sent_at = Some(at(150));
        let empty = Cancellation { nonce: Some(micros(at(150))), sent_at, ..chosen };
        memory.cancel_bundles(&empty, origin("a", 1, 150));
        assert!(is_cancelled(&memory, None, 150) && !is_cancelled(&memory, None, 151));
        assert!(is_cancelled(&memory, Some(6), 200), "its nonce is below the time");
    }
}
