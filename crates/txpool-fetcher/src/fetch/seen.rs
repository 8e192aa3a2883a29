//! The hashes that were seen: decides whether an announced or missing hash is fetched, which hashes
//! an audit treats as delivered, and when a hash whose responses ended connections is requested
//! again.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use alloy_primitives::B256;

use super::{Arrival, SourceSet};
use crate::sync::lock;

/// How long after its outcome a hash counts as known, so that announcements of it by other nodes
/// are not fetched. Later the sink may have removed the transaction for lack of room or because of
/// its age (the order pool keeps one for the same time by default), or may accept one that it
/// refused.
const KNOWN_FOR: Duration = Duration::from_secs(60);

/// The state of a hash that was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Waits for a slot, or is being fetched, decoded or delivered.
    InFlight,
    /// Delivered to the sink, and still pending in the node as far as is known. The sink knows that
    /// a node lists it, and keeps it until an event says that no node does.
    Delivered,
    /// Like `Delivered`, but as far as the sink knows no node lists it: it keeps it for a while.
    DeliveredUnlisted,
    /// Like `Delivered`, for a blob transaction, which some nodes do not list.
    DeliveredBlob,
    /// Like `DeliveredUnlisted`, for a blob transaction.
    DeliveredBlobUnlisted,
    /// The sink refused the transaction.
    Refused,
    /// The sink had no room for the transaction.
    Postponed,
    /// In a block, and not delivered to the sink.
    Mined,
    /// In a block, and delivered to the sink before.
    MinedDelivered,
    /// In a block, delivered to the sink before, and announced since it was mined.
    MinedAnnounced,
    /// Delivered to the sink. Since then it has left the node's pool, and no block contains it.
    Vanished,
    /// Delivered and mined, and a reorg removed the block. Announcements and comparisons fetch it
    /// again.
    Undone,
    /// The fetch failed, or the sink panicked. Announcements and comparisons fetch it again.
    Failed,
    /// The responses to its requests ended connections. It is requested again, as a suspect, after
    /// [`KNOWN_FOR`], and after twice that time for each repetition, up to 64 minutes.
    Harmful,
}

impl Seen {
    /// Returns the state of a delivered transaction. `is_listed`: the sink was told that a node
    /// lists it.
    pub(crate) const fn delivered(is_blob: bool, is_listed: bool) -> Self {
        match (is_blob, is_listed) {
            (false, false) => Self::DeliveredUnlisted,
            (false, true) => Self::Delivered,
            (true, false) => Self::DeliveredBlobUnlisted,
            (true, true) => Self::DeliveredBlob,
        }
    }

    /// Returns whether the transaction was delivered, and is still pending in the node as far as is
    /// known.
    pub(crate) const fn is_delivered(self) -> bool {
        self.is_unlisted() || matches!(self, Self::Delivered | Self::DeliveredBlob)
    }

    /// Returns whether the transaction was delivered, and the sink was told that no node lists it.
    pub(crate) const fn is_unlisted(self) -> bool {
        matches!(self, Self::DeliveredUnlisted | Self::DeliveredBlobUnlisted)
    }

    pub(crate) const fn is_blob(self) -> bool {
        matches!(self, Self::DeliveredBlob | Self::DeliveredBlobUnlisted)
    }

    /// Returns whether the sink holds the transaction as pending, as far as is known.
    pub(crate) const fn is_held(self) -> bool {
        self.is_delivered() || matches!(self, Self::Undone)
    }

    /// Returns whether the transaction was delivered to the sink, whatever happened to it since.
    pub(crate) const fn was_delivered(self) -> bool {
        self.is_held()
            || matches!(self, Self::MinedDelivered | Self::MinedAnnounced | Self::Vanished)
    }
}

/// A hash that the sink holds, as far as is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldHash {
    pub(crate) hash: B256,
    /// The number of the latest comparison that had begun when it was delivered. The list of that
    /// comparison, or of an earlier one, may predate the delivery.
    pub(crate) epoch: u32,
    pub(crate) is_blob: bool,
    /// The sources that have announced the hash, or listed it first.
    pub(crate) sources: SourceSet,
}

/// What is known of a hash that has just entered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entered {
    /// The responses to its requests ended connections before.
    pub(crate) is_suspect: bool,
    /// It was announced while a block contained it, and a reorg removed that block.
    pub(crate) is_undone: bool,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    seen: Seen,
    /// The number of the latest comparison that had begun when `seen` was set. The list of that
    /// comparison, or of an earlier one, may predate the delivery.
    epoch: u32,
    /// When `seen` was set, in seconds since the set was created.
    since_secs: u32,
    /// The sources that have announced the hash, or listed it first.
    sources: SourceSet,
    /// How many times in a row its fetch ended as [`Seen::Harmful`].
    harms: u8,
}

impl Entry {
    fn add_source(&mut self, source: usize) {
        self.sources = self.sources.or(SourceSet::single(source));
    }

    /// Returns whether its outcome is so recent that an announcement at `now_secs` is ignored.
    fn is_recent(&self, now_secs: u64) -> bool {
        let doublings = u32::from(self.harms).saturating_sub(1).min(MAX_DOUBLINGS);
        now_secs < u64::from(self.since_secs) + (KNOWN_FOR.as_secs() << doublings)
    }
}

/// How many times the pause before a harmful hash is requested again is doubled at most: from one
/// minute to 64.
const MAX_DOUBLINGS: u32 = 6;

/// A bounded set of hashes with their states, in shards of two generations each. When the younger
/// generation of a shard is full, the older one is forgotten, so the set remembers between half of
/// its capacity and all of it, without keeping an order.
///
/// An attacker who floods the node makes the set forget older hashes. If they are announced again,
/// they are fetched again, and the sink reports them as known: this costs work, but loses nothing.
pub(crate) struct SeenSet {
    shards: Box<[Mutex<Shard>; SHARDS]>,
    /// Capacity of one generation of a shard.
    generation_capacity: usize,
    /// The number of comparisons that have begun.
    epoch: AtomicU32,
    created_at: Instant,
}

/// The number of shards. An audit locks one at a time, for about 50 us when it is full.
pub(crate) const SHARDS: usize = 64;

impl SeenSet {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            shards: Box::new(std::array::from_fn(|_| Mutex::default())),
            generation_capacity: capacity.div_ceil(2 * SHARDS),
            epoch: AtomicU32::new(0),
            created_at: Instant::now(),
        }
    }

    /// Returns the state of a hash. A harmful one whose pause is over counts as unknown.
    pub(crate) fn get(&self, hash: &B256) -> Option<Seen> {
        let entry = self.shard(hash).get(hash)?;
        let is_over = entry.seen == Seen::Harmful && !entry.is_recent(self.seconds(Instant::now()));
        (!is_over).then_some(entry.seen)
    }

    /// Returns the sources that have announced a hash, or listed it first; none for an unknown
    /// hash.
    pub(crate) fn sources(&self, hash: &B256) -> SourceSet {
        self.shard(hash).get(hash).map(|entry| entry.sources).unwrap_or_default()
    }

    /// Records that a source announced a hash that is in a block.
    pub(crate) fn add_mined_announcement(&self, hash: B256, source: usize) {
        let mut shard = self.shard(&hash);
        let Some(entry) = shard.get_mut(&hash) else {
            let sources = SourceSet::single(source);
            return self.insert_with_sources(&mut shard, hash, Seen::Mined, sources);
        };
        entry.add_source(source);
        if entry.seen == Seen::MinedDelivered {
            entry.seen = Seen::MinedAnnounced;
        }
    }

    /// Sets an announced hash in flight, if it is unknown or its outcome is old. Otherwise it only
    /// adds the source, and returns `None`.
    pub(crate) fn insert_announced(&self, arrival: &Arrival) -> Option<Entered> {
        self.insert_if(arrival, |entry| match entry.seen {
            // One request at a time is enough.
            Seen::InFlight => false,
            // The block that contains it is canonical as far as is known.
            Seen::Mined | Seen::MinedDelivered | Seen::MinedAnnounced => false,
            // The sink does not have it, or was told that it left the node's pool.
            Seen::Undone | Seen::Vanished | Seen::Failed => true,
            Seen::Delivered
            | Seen::DeliveredUnlisted
            | Seen::DeliveredBlob
            | Seen::DeliveredBlobUnlisted
            | Seen::Refused
            | Seen::Postponed
            | Seen::Harmful => !entry.is_recent(self.seconds(arrival.received_at)),
        })
    }

    /// Sets a hash in flight that was announced while it was mined and whose block was removed,
    /// unless it has been announced again since.
    pub(crate) fn insert_undone(&self, hash: B256) -> Option<Entered> {
        let mut shard = self.shard(&hash);
        if shard.get(&hash).is_some_and(|entry| entry.seen != Seen::Undone) {
            return None;
        }
        shard.remove(&hash);
        self.insert(&mut shard, hash, Seen::InFlight);
        Some(Entered { is_undone: true, ..Entered::default() })
    }

    /// Sets a hash in flight that the comparison of `epoch` found missing, unless it has come
    /// since.
    pub(crate) fn insert_missing(&self, arrival: &Arrival, epoch: u32) -> Option<Entered> {
        self.insert_if(arrival, |entry| {
            entry.seen != Seen::InFlight
                && (matches!(entry.seen, Seen::Undone | Seen::Failed) || entry.epoch < epoch)
                && !(entry.seen == Seen::Harmful
                    && entry.is_recent(self.seconds(arrival.received_at)))
        })
    }

    /// Sets a hash in flight, if it is unknown or `allows` says so of its entry. Otherwise it only
    /// adds the source, and returns `None`.
    fn insert_if(&self, arrival: &Arrival, allows: impl FnOnce(&Entry) -> bool) -> Option<Entered> {
        let Arrival { hash, source, .. } = *arrival;
        let mut shard = self.shard(&hash);
        let mut is_suspect = false;
        if let Some(entry) = shard.get_mut(&hash) {
            if !allows(entry) {
                entry.add_source(source);
                return None;
            }
            is_suspect = entry.harms > 0;
        }
        let sources = SourceSet::single(source);
        self.insert_with_sources(&mut shard, hash, Seen::InFlight, sources);
        Some(Entered { is_suspect, ..Entered::default() })
    }

    /// Sets the state of a hash. `None` forgets the hash, so that its next announcement is fetched.
    pub(crate) fn settle(&self, hash: B256, seen: Option<Seen>) {
        let mut shard = self.shard(&hash);
        match seen {
            Some(seen) => self.insert(&mut shard, hash, seen),
            None => shard.remove(&hash),
        }
    }

    /// Records that a block contains a hash, if the hash is known and not in flight:
    /// [`Seen::MinedDelivered`] if it was delivered before, otherwise [`Seen::Mined`].
    pub(crate) fn set_mined(&self, hash: B256) {
        let mut shard = self.shard(&hash);
        if shard.get(&hash).is_some_and(|entry| entry.seen != Seen::InFlight) {
            self.insert(&mut shard, hash, Seen::Mined);
        }
    }

    /// Records that a hash that was mined is in no canonical block any more. Returns whether the
    /// caller must fetch it now: it was announced and not fetched because it was mined, and its
    /// source will not announce it again.
    pub(crate) fn forget_mined(&self, hash: B256) -> bool {
        let mut shard = self.shard(&hash);
        let seen = shard.get(&hash).map(|entry| entry.seen);
        match seen {
            Some(Seen::MinedDelivered | Seen::MinedAnnounced) => {
                self.insert(&mut shard, hash, Seen::Undone);
            }
            Some(Seen::Mined) => shard.remove(&hash),
            _ => {}
        }
        matches!(seen, Some(Seen::Mined | Seen::MinedAnnounced))
    }

    /// Begins a comparison, and returns its epoch. Transactions that are delivered from now on may
    /// be newer than the list of this comparison.
    pub(crate) fn begin_epoch(&self) -> u32 {
        self.epoch.fetch_add(1, Relaxed) + 1
    }

    /// Returns the hashes of one shard that the sink holds, as far as is known.
    pub(crate) fn held(&self, shard: usize) -> Vec<HeldHash> {
        let shard = lock(&self.shards[shard]);
        let known = shard.young.iter().chain(&shard.old);
        known
            .filter(|(_, entry)| entry.seen.is_held())
            .map(|(hash, entry)| HeldHash {
                hash: *hash,
                epoch: entry.epoch,
                is_blob: entry.seen.is_blob(),
                sources: entry.sources,
            })
            .collect()
    }

    /// Forgets all hashes that are not in flight.
    pub(crate) fn clear(&self) {
        for shard in self.shards.iter() {
            let mut shard = lock(shard);
            shard.young.retain(|_, entry| entry.seen == Seen::InFlight);
            shard.old.retain(|_, entry| entry.seen == Seen::InFlight);
        }
    }

    /// Records that a hash has left the node's pool, if it was delivered before `epoch` and is
    /// still held.
    pub(crate) fn set_vanished(&self, hash: B256, epoch: u32) {
        let mut shard = self.shard(&hash);
        let known = shard.get(&hash);
        if known.is_some_and(|entry| entry.seen.is_held() && entry.epoch < epoch) {
            self.insert(&mut shard, hash, Seen::Vanished);
        }
    }

    /// Records that a source lists a hash that the sink holds. Returns whether this must be
    /// reported to the sink. That is so in four cases:
    /// - It was reported that no node lists the hash.
    /// - It was reported that the hash had left the node's pool.
    /// - It was reported that its block was removed.
    /// - The hash was forgotten, as by a reset of the chain.
    ///
    /// In the last three cases the hash then counts as one that nodes list, even if it is that of a
    /// blob transaction: this node lists them.
    pub(crate) fn set_listed(&self, hash: B256, source: usize) -> bool {
        self.set_delivered_listed(&hash) || self.set_back(hash, source, Seen::Delivered)
    }

    /// Records that a source lists a hash that the sink holds, and that this is not reported to the
    /// sink.
    pub(crate) fn set_held(&self, hash: B256, source: usize) {
        self.set_back(hash, source, Seen::DeliveredUnlisted);
    }

    /// Sets the state of a hash that had left the node's pool or was forgotten. Returns whether it
    /// had.
    fn set_back(&self, hash: B256, source: usize, seen: Seen) -> bool {
        let mut shard = self.shard(&hash);
        let before = shard.get(&hash).map(|entry| entry.seen);
        let is_back = matches!(before, None | Some(Seen::Undone | Seen::Vanished));
        if is_back {
            self.insert_with_sources(&mut shard, hash, seen, SourceSet::single(source));
        }
        is_back
    }

    /// Records that a node lists a delivered hash. Returns whether this must be reported to the
    /// sink, because the opposite was reported.
    pub(crate) fn set_delivered_listed(&self, hash: &B256) -> bool {
        self.set_if_delivered(hash, true)
    }

    /// Records that no node lists a delivered hash. Returns whether this must be reported to the
    /// sink, because the opposite was reported.
    pub(crate) fn set_delivered_unlisted(&self, hash: &B256) -> bool {
        self.set_if_delivered(hash, false)
    }

    fn set_if_delivered(&self, hash: &B256, is_listed: bool) -> bool {
        let mut shard = self.shard(hash);
        let Some(entry) = shard.get_mut(hash).filter(|entry| entry.seen.is_delivered()) else {
            return false;
        };
        let seen = Seen::delivered(entry.seen.is_blob(), is_listed);
        std::mem::replace(&mut entry.seen, seen) != seen
    }

    fn shard(&self, hash: &B256) -> MutexGuard<'_, Shard> {
        lock(&self.shards[hash[31] as usize % SHARDS])
    }

    fn insert(&self, shard: &mut Shard, hash: B256, seen: Seen) {
        self.insert_with_sources(shard, hash, seen, SourceSet::default());
    }

    /// Sets the state of a hash, and adds `sources` to its sources.
    fn insert_with_sources(&self, shard: &mut Shard, hash: B256, seen: Seen, sources: SourceSet) {
        let since_secs = u32::try_from(self.seconds(Instant::now())).unwrap_or(u32::MAX);
        let epoch = self.epoch.load(Relaxed);
        let mut entry = Entry { seen, epoch, since_secs, sources, harms: 0 };
        let known = shard.get_mut(&hash);
        if let Some(known) = &known {
            entry.sources = sources.or(known.sources);
            entry.harms = known.harms;
            if seen == Seen::Mined && known.seen.was_delivered() {
                entry.seen = Seen::MinedDelivered;
            }
        }
        entry.harms = match seen {
            Seen::InFlight => entry.harms,
            Seen::Harmful => entry.harms.saturating_add(1),
            _ => 0,
        };
        match known {
            Some(known) => *known = entry,
            None => shard.insert_new(hash, entry, self.generation_capacity),
        }
    }

    /// Converts a time to seconds since the set was created.
    fn seconds(&self, time: Instant) -> u64 {
        time.saturating_duration_since(self.created_at).as_secs()
    }
}

/// A part of the set. Like all tables of data from a node it uses the hasher of std: the one of
/// `alloy_primitives::map` has no secret in some versions, so a node could choose hashes that
/// collide.
#[derive(Default)]
struct Shard {
    young: HashMap<B256, Entry>,
    old: HashMap<B256, Entry>,
}

impl Shard {
    fn get(&self, hash: &B256) -> Option<Entry> {
        self.young.get(hash).or_else(|| self.old.get(hash)).copied()
    }

    fn get_mut(&mut self, hash: &B256) -> Option<&mut Entry> {
        self.young.get_mut(hash).or_else(|| self.old.get_mut(hash))
    }

    fn remove(&mut self, hash: &B256) {
        if self.young.remove(hash).is_none() {
            self.old.remove(hash);
        }
    }

    /// Inserts a hash that the shard does not contain. If the younger generation is full, it
    /// becomes the older one, and the older one is forgotten.
    fn insert_new(&mut self, hash: B256, entry: Entry, generation_capacity: usize) {
        if self.young.len() >= generation_capacity {
            let forgotten = std::mem::replace(&mut self.old, std::mem::take(&mut self.young));
            // Two kinds are kept: hashes in flight, whose number the slots bound, and harmful
            // hashes, which must not be fetched again soon, up to half of the generation.
            let mut harmful_room = generation_capacity / 2;
            for (hash, entry) in forgotten {
                let is_kept_as_harmful = entry.harms > 0 && harmful_room > 0;
                harmful_room -= usize::from(is_kept_as_harmful);
                if entry.seen == Seen::InFlight || is_kept_as_harmful {
                    self.young.insert(hash, entry);
                }
            }
        }
        self.young.insert(hash, entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Entry::Announced;

    #[test]
    fn an_entry_has_12_bytes() {
        assert_eq!(size_of::<Entry>(), 12);
    }

    /// Returns hashes of one shard, which the last byte chooses.
    fn hash(n: u64) -> B256 {
        let mut hash = B256::ZERO;
        hash[..8].copy_from_slice(&n.to_be_bytes());
        hash
    }

    fn arrival(n: u64) -> Arrival {
        Arrival { hash: hash(n), entry: Announced, source: 0, received_at: Instant::now() }
    }

    #[test]
    fn a_hash_is_inserted_once_until_it_is_forgotten() {
        let seen = SeenSet::new(1024);
        assert!(seen.insert_announced(&arrival(1)).is_some());
        assert!(seen.insert_announced(&arrival(1)).is_none());
        seen.settle(hash(1), Some(Seen::Delivered));
        assert!(seen.insert_announced(&arrival(1)).is_none());
        let epoch = seen.begin_epoch();
        assert!(seen.insert_missing(&arrival(1), epoch).is_some());
        assert!(seen.insert_missing(&arrival(1), epoch).is_none());
        seen.settle(hash(1), Some(Seen::Delivered));
        assert!(seen.insert_missing(&arrival(1), epoch).is_none(), "it came after the list");
        assert!(seen.insert_missing(&arrival(1), seen.begin_epoch()).is_some());
        for unknown in [None, Some(Seen::Failed)] {
            seen.settle(hash(1), unknown);
            assert!(seen.insert_announced(&arrival(1)).is_some());
            seen.settle(hash(1), unknown);
            assert!(seen.insert_missing(&arrival(1), epoch).is_some(), "of another node's list");
        }
    }

    #[test]
    fn an_old_outcome_is_fetched_again_unless_a_block_contains_it() {
        let seen = SeenSet::new(1024);
        let now = Instant::now();
        let later = now + KNOWN_FOR + Duration::from_secs(1);
        let before = now + KNOWN_FOR - Duration::from_secs(1);
        let states = [
            (Seen::Delivered, true),
            (Seen::Refused, true),
            (Seen::Postponed, true),
            (Seen::Mined, false),
            (Seen::InFlight, false),
        ];
        for (n, (state, is_fetched)) in (0..).zip(states) {
            seen.settle(hash(n), Some(state));
            let again = seen.insert_announced(&Arrival { received_at: before, ..arrival(n) });
            assert_eq!(again, None, "{state:?}: other nodes announce it too");
            let again = seen.insert_announced(&Arrival { received_at: later, ..arrival(n) });
            assert_eq!(again.is_some(), is_fetched, "{state:?}");
        }
    }

    #[test]
    fn a_vanished_hash_is_fetched_at_once_when_it_is_announced() {
        let seen = SeenSet::new(1024);
        (1..=2).for_each(|n| seen.settle(hash(n), Some(Seen::Delivered)));
        let epoch = seen.begin_epoch();
        seen.settle(hash(2), Some(Seen::Delivered));
        (1..=2).for_each(|n| seen.set_vanished(hash(n), epoch));
        assert_eq!(
            [1, 2].map(|n| seen.get(&hash(n))),
            [Some(Seen::Vanished), Some(Seen::Delivered)]
        );
        assert!(seen.insert_announced(&arrival(1)).is_some());
        seen.set_vanished(hash(1), seen.begin_epoch());
        assert_eq!(seen.get(&hash(1)), Some(Seen::InFlight));
    }

    #[test]
    fn each_change_between_listed_and_unlisted_is_reported_once() {
        let seen = SeenSet::new(1024);
        for is_blob in [false, true] {
            seen.settle(hash(1), Some(Seen::delivered(is_blob, false)));
            assert!(seen.set_listed(hash(1), 0) && !seen.set_listed(hash(1), 1));
            assert_eq!(seen.get(&hash(1)), Some(Seen::delivered(is_blob, true)));
            assert!(seen.set_delivered_unlisted(&hash(1)));
            assert!(!seen.set_delivered_unlisted(&hash(1)));
            assert!(seen.set_delivered_listed(&hash(1)));
        }
        seen.set_mined(hash(1));
        assert!(!seen.set_delivered_unlisted(&hash(1)) && !seen.set_delivered_listed(&hash(1)));
    }

    /// Another node still had it, and the sink let it expire.
    #[test]
    fn a_hash_that_has_left_one_pool_or_was_forgotten_is_back_when_a_source_lists_it() {
        let seen = SeenSet::new(1024);
        (1..=2).for_each(|n| seen.settle(hash(n), Some(Seen::Delivered)));
        seen.set_vanished(hash(1), seen.begin_epoch());
        assert_eq!([1, 2, 3].map(|n| seen.set_listed(hash(n), 1)), [true, false, true]);
        for n in [1, 3] {
            assert_eq!(seen.get(&hash(n)), Some(Seen::Delivered));
            assert!(seen.sources(&hash(n)).contains(1));
        }
        assert!(!seen.set_listed(hash(1), 1), "it is reported once");
    }

    #[test]
    fn a_shard_is_bounded_and_keeps_at_least_half_of_its_share() {
        let share = 100;
        let seen = SeenSet::new(share * SHARDS);
        for n in 0..10_000 {
            assert!(seen.insert_announced(&arrival(n)).is_some());
            seen.settle(hash(n), Some(Seen::Delivered));
            let shard = seen.shard(&hash(n));
            assert!(shard.young.len() + shard.old.len() <= share);
            drop(shard);
            for recent in n.saturating_sub(share as u64 / 2 - 1)..=n {
                assert_eq!(seen.get(&hash(recent)), Some(Seen::Delivered));
            }
        }
        assert_eq!(seen.get(&hash(0)), None);
    }

    #[test]
    fn pauses_of_harmful_hashes_grow_and_survive_a_flood() {
        let seen = SeenSet::new(10 * SHARDS);
        let start = Instant::now();
        let after = |minutes: u64| start + Duration::from_secs(60 * minutes + 1);
        let harm = || seen.settle(hash(1_000_000), Some(Seen::Harmful));
        let announced =
            |received_at| seen.insert_announced(&Arrival { received_at, ..arrival(1_000_000) });
        harm();
        for (minutes_within, minutes_after) in [(0, 1), (1, 2), (3, 4)] {
            assert_eq!(announced(after(minutes_within)), None);
            assert_eq!(
                announced(after(minutes_after)),
                Some(Entered { is_suspect: true, is_undone: false }),
                "{minutes_after}"
            );
            harm();
        }
        assert!(seen.insert_announced(&arrival(2_000_000)).is_some());
        for n in 0..1000 {
            seen.settle(hash(n), Some(Seen::Delivered));
        }
        assert_eq!(seen.get(&hash(1_000_000)), Some(Seen::Harmful));
        assert_eq!(seen.get(&hash(2_000_000)), Some(Seen::InFlight));
        assert_eq!(seen.insert_missing(&arrival(1_000_000), seen.begin_epoch()), None);
        seen.settle(hash(1_000_000), Some(Seen::Delivered));
        assert_eq!(announced(after(2)), Some(Entered::default()), "its response was good");
    }

    #[test]
    fn an_audit_sees_only_hashes_that_were_delivered_before_it_began() {
        let seen = SeenSet::new(1024);
        seen.settle(hash(1), Some(Seen::Delivered));
        let epoch = seen.begin_epoch();
        seen.settle(hash(2), Some(Seen::Delivered));
        let delivered_before = |epoch| {
            let held = seen.held(0).into_iter().filter(move |held| held.epoch < epoch);
            held.map(|held| held.hash).collect::<Vec<_>>()
        };
        assert_eq!(delivered_before(epoch), vec![hash(1)]);
        assert_eq!(delivered_before(seen.begin_epoch()).len(), 2);
    }
}
