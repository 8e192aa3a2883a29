//! The hashes that were seen before, so that none is fetched twice, an audit knows which are ours,
//! and nothing requests soon again what has ended connections.

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

/// How long after its outcome a hash is fetched again when it is announced. Until then, other nodes
/// announce it; later the sink may have removed the transaction, for lack of room or by age (the
/// order pool keeps one for the same time by default), or may now accept one that it refused.
const ANNOUNCED_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// The state of a hash that was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Waiting for a slot, being fetched, decoded or delivered.
    InFlight,
    /// Delivered to the sink, and still pending in the node as far as we know.
    Delivered,
    /// The same, for a blob transaction, which some nodes do not list.
    DeliveredBlob,
    Refused,
    /// The sink had no room for the transaction.
    Postponed,
    /// In a block.
    Mined,
    /// In a block, and delivered to the sink before.
    MinedDelivered,
    /// The same, and announced since.
    MinedAnnounced,
    /// Delivered to the sink; since then it left the node's pool, and no block contains it.
    Vanished,
    /// Delivered and mined, and the block was undone: announcements and comparisons bring it again.
    Undone,
    /// No usable response, or a panic of the sink: announcements and comparisons bring it again.
    Failed,
    /// The responses to its requests have ended connections. After [`ANNOUNCED_AGAIN_AFTER`], and
    /// after twice as long each time up to an hour, it is requested over a connection of its own.
    Harmful,
}

impl Seen {
    /// Whether the sink holds it as pending, as far as we know.
    pub(crate) const fn is_held(self) -> bool {
        matches!(self, Self::Delivered | Self::DeliveredBlob | Self::Undone)
    }

    pub(crate) const fn was_delivered(self) -> bool {
        self.is_held()
            || matches!(self, Self::MinedDelivered | Self::MinedAnnounced | Self::Vanished)
    }
}

/// A hash that the sink holds, as far as we know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldHash {
    pub(crate) hash: B256,
    /// The audit epoch in which it was delivered: the list of an earlier audit may predate it.
    pub(crate) epoch: u32,
    pub(crate) is_blob: bool,
    /// The sources that have announced it, or have listed it first.
    pub(crate) sources: SourceSet,
}

/// A hash that is now in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entered {
    /// The responses to its requests have ended connections before.
    pub(crate) is_suspect: bool,
    /// No node has announced it since its block was undone.
    pub(crate) is_undone: bool,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    seen: Seen,
    /// The audit epoch in which it was delivered. The list of an earlier audit may predate it.
    epoch: u32,
    /// When `seen` was set, in seconds since the set was made.
    since_secs: u32,
    /// The sources that have announced it, or have listed it first.
    sources: SourceSet,
    /// How many times in a row its fetch has ended as [`Seen::Harmful`].
    harms: u8,
}

impl Entry {
    fn add_source(&mut self, source: usize) {
        self.sources = self.sources.or(SourceSet::single(source));
    }

    /// Whether its outcome is so recent that an announcement at this time is no news.
    fn rests(&self, now_secs: u64) -> bool {
        let doublings = u32::from(self.harms).saturating_sub(1).min(MAX_DOUBLINGS);
        now_secs < u64::from(self.since_secs) + (ANNOUNCED_AGAIN_AFTER.as_secs() << doublings)
    }
}

/// Of the pause after which a harmful hash is requested again: 64 minutes.
const MAX_DOUBLINGS: u32 = 6;

/// A bounded set of hashes, in shards of two generations each. When the younger one is full, the
/// older one is forgotten: it remembers from half of `capacity` to all of it, without an order.
///
/// An attacker who floods the node makes us forget older hashes. If they are announced again, they
/// are fetched again, and the sink reports them as known: this costs work, and nothing is lost.
pub(crate) struct SeenSet {
    shards: Box<[Mutex<Shard>; SHARDS]>,
    /// Of each shard.
    generation: usize,
    epoch: AtomicU32,
    made: Instant,
}

pub(crate) const SHARDS: usize = 64;

impl SeenSet {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            shards: Box::new(std::array::from_fn(|_| Mutex::default())),
            generation: capacity.div_ceil(2 * SHARDS),
            epoch: AtomicU32::new(0),
            made: Instant::now(),
        }
    }

    /// What is known of a hash. A harmful one whose pause is over is unknown again.
    pub(crate) fn get(&self, hash: &B256) -> Option<Seen> {
        let entry = self.shard(hash).get(hash)?;
        let is_over = entry.seen == Seen::Harmful && !entry.rests(self.secs(Instant::now()));
        (!is_over).then_some(entry.seen)
    }

    /// The sources that have announced a hash, or have listed it first; none if it is not known.
    pub(crate) fn sources(&self, hash: &B256) -> SourceSet {
        self.shard(hash).get(hash).map(|entry| entry.sources).unwrap_or_default()
    }

    /// Records that a source announced a hash that is in a block.
    pub(crate) fn announced_mined(&self, hash: B256, source: usize) {
        let mut shard = self.shard(&hash);
        let Some(entry) = shard.get_mut(&hash) else {
            return self.insert_from(&mut shard, hash, Seen::Mined, SourceSet::single(source));
        };
        entry.add_source(source);
        if entry.seen == Seen::MinedDelivered {
            entry.seen = Seen::MinedAnnounced;
        }
    }

    /// Inserts an announced hash as in flight, if unknown or of old outcome; else adds the source.
    pub(crate) fn insert_announced(&self, arrival: &Arrival) -> Option<Entered> {
        self.insert_if(arrival, |entry| match entry.seen {
            // One request at a time is enough.
            Seen::InFlight => false,
            // Not wanted again.
            Seen::Mined | Seen::MinedDelivered | Seen::MinedAnnounced => false,
            // The sink was told that it has gone, or does not have it.
            Seen::Undone | Seen::Vanished | Seen::Failed => true,
            Seen::Delivered
            | Seen::DeliveredBlob
            | Seen::Refused
            | Seen::Postponed
            | Seen::Harmful => !entry.rests(self.secs(arrival.at)),
        })
    }

    /// Inserts what was announced while it was mined as in flight, unless it was announced since.
    pub(crate) fn insert_undone(&self, hash: B256) -> Option<Entered> {
        let mut shard = self.shard(&hash);
        if shard.get(&hash).is_some_and(|entry| entry.seen != Seen::Undone) {
            return None;
        }
        shard.remove(&hash);
        self.insert(&mut shard, hash, Seen::InFlight);
        Some(Entered { is_undone: true, ..Entered::default() })
    }

    /// Inserts what the comparison of this epoch misses as in flight, unless it has come since.
    pub(crate) fn insert_missing(&self, arrival: &Arrival, epoch: u32) -> Option<Entered> {
        self.insert_if(arrival, |entry| {
            entry.seen != Seen::InFlight
                && (matches!(entry.seen, Seen::Undone | Seen::Failed) || entry.epoch < epoch)
                && !(entry.seen == Seen::Harmful && entry.rests(self.secs(arrival.at)))
        })
    }

    fn insert_if(
        &self,
        &Arrival { hash, source, .. }: &Arrival,
        allows: impl FnOnce(&Entry) -> bool,
    ) -> Option<Entered> {
        let mut shard = self.shard(&hash);
        let mut is_suspect = false;
        if let Some(entry) = shard.get_mut(&hash) {
            if !allows(entry) {
                entry.add_source(source);
                return None;
            }
            is_suspect = entry.harms > 0;
        }
        self.insert_from(&mut shard, hash, Seen::InFlight, SourceSet::single(source));
        Some(Entered { is_suspect, ..Entered::default() })
    }

    /// Sets the state of a hash; `None` forgets it, so that its next announcement is news.
    pub(crate) fn settle(&self, hash: B256, seen: Option<Seen>) {
        let mut shard = self.shard(&hash);
        match seen {
            Some(seen) => self.insert(&mut shard, hash, seen),
            None => shard.remove(&hash),
        }
    }

    /// Records that a block contains a hash, if the hash is known and not in flight.
    pub(crate) fn mined(&self, hash: B256) {
        let mut shard = self.shard(&hash);
        if shard.get(&hash).is_some_and(|entry| entry.seen != Seen::InFlight) {
            self.insert(&mut shard, hash, Seen::Mined);
        }
    }

    /// Records that a hash that was mined is in no canonical block any more. Returns whether it was
    /// announced while it was mined: nobody else brings it again.
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

    /// Begins an audit: what is delivered from now on is newer than the list to compare with.
    pub(crate) fn begin_epoch(&self) -> u32 {
        self.epoch.fetch_add(1, Relaxed) + 1
    }

    /// What the sink holds of one shard, as far as we know.
    pub(crate) fn held(&self, shard: usize) -> Vec<HeldHash> {
        let shard = lock(&self.shards[shard]);
        let known = shard.young.iter().chain(&shard.old);
        known
            .filter(|(_, entry)| entry.seen.is_held())
            .map(|(hash, entry)| HeldHash {
                hash: *hash,
                epoch: entry.epoch,
                is_blob: entry.seen == Seen::DeliveredBlob,
                sources: entry.sources,
            })
            .collect()
    }

    /// Forgets everything but what is in flight.
    pub(crate) fn clear(&self) {
        for shard in self.shards.iter() {
            let mut shard = lock(shard);
            shard.young.retain(|_, entry| entry.seen == Seen::InFlight);
            shard.old.retain(|_, entry| entry.seen == Seen::InFlight);
        }
    }

    /// Records that what was delivered before `epoch`, and is still held, has left the node's pool.
    pub(crate) fn vanished(&self, hash: B256, epoch: u32) {
        let mut shard = self.shard(&hash);
        let known = shard.get(&hash);
        if known.is_some_and(|entry| entry.seen.is_held() && entry.epoch < epoch) {
            self.insert(&mut shard, hash, Seen::Vanished);
        }
    }

    fn shard(&self, hash: &B256) -> MutexGuard<'_, Shard> {
        lock(&self.shards[hash[31] as usize % SHARDS])
    }

    fn insert(&self, shard: &mut Shard, hash: B256, seen: Seen) {
        self.insert_from(shard, hash, seen, SourceSet::default());
    }

    /// The sources are added to those that are known.
    fn insert_from(&self, shard: &mut Shard, hash: B256, seen: Seen, sources: SourceSet) {
        let since_secs = u32::try_from(self.secs(Instant::now())).unwrap_or(u32::MAX);
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
            None => shard.insert_new(hash, entry, self.generation),
        }
    }

    /// Seconds since the set was made.
    fn secs(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.made).as_secs()
    }
}

/// With the hasher of std, like all tables of what a node tells: that of `alloy_primitives::map`
/// has no secret in some versions, so a node could choose hashes that collide.
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

    fn insert_new(&mut self, hash: B256, entry: Entry, generation: usize) {
        if self.young.len() >= generation {
            let forgotten = std::mem::replace(&mut self.old, std::mem::take(&mut self.young));
            // Kept: what is in flight, whose number the slots bound, and what must not be fetched
            // again soon, up to half of the generation.
            let mut harmful = generation / 2;
            for (hash, entry) in forgotten {
                let is_harmful = entry.harms > 0 && harmful > 0;
                harmful -= usize::from(is_harmful);
                if entry.seen == Seen::InFlight || is_harmful {
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

    /// All in one shard, which the last byte chooses.
    fn hash(n: u64) -> B256 {
        let mut hash = B256::ZERO;
        hash[..8].copy_from_slice(&n.to_be_bytes());
        hash
    }

    fn arrival(n: u64) -> Arrival {
        Arrival { hash: hash(n), entry: Announced, source: 0, at: Instant::now() }
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
    fn a_hash_that_is_announced_again_long_after_its_outcome_is_news_unless_a_block_has_it() {
        let seen = SeenSet::new(1024);
        let now = Instant::now();
        let later = now + ANNOUNCED_AGAIN_AFTER + Duration::from_secs(1);
        let before = now + ANNOUNCED_AGAIN_AFTER - Duration::from_secs(1);
        let states = [
            (Seen::Delivered, true),
            (Seen::Refused, true),
            (Seen::Postponed, true),
            (Seen::Mined, false),
            (Seen::InFlight, false),
        ];
        for (n, (state, is_news)) in (0..).zip(states) {
            seen.settle(hash(n), Some(state));
            let again = seen.insert_announced(&Arrival { at: before, ..arrival(n) });
            assert_eq!(again, None, "{state:?}: other nodes tell it too");
            let again = seen.insert_announced(&Arrival { at: later, ..arrival(n) });
            assert_eq!(again.is_some(), is_news, "{state:?}");
        }
    }

    #[test]
    fn what_has_left_the_pool_is_news_at_once_and_what_came_after_the_list_has_not_left() {
        let seen = SeenSet::new(1024);
        (1..=2).for_each(|n| seen.settle(hash(n), Some(Seen::Delivered)));
        let epoch = seen.begin_epoch();
        seen.settle(hash(2), Some(Seen::Delivered));
        (1..=2).for_each(|n| seen.vanished(hash(n), epoch));
        assert_eq!(
            [1, 2].map(|n| seen.get(&hash(n))),
            [Some(Seen::Vanished), Some(Seen::Delivered)]
        );
        assert!(seen.insert_announced(&arrival(1)).is_some());
        seen.vanished(hash(1), seen.begin_epoch());
        assert_eq!(seen.get(&hash(1)), Some(Seen::InFlight));
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
    fn what_ends_connections_rests_ever_longer_and_no_flood_forgets_it_nor_what_is_in_flight() {
        let seen = SeenSet::new(10 * SHARDS);
        let start = Instant::now();
        let after = |minutes: u64| start + Duration::from_secs(60 * minutes + 1);
        let harm = || seen.settle(hash(1_000_000), Some(Seen::Harmful));
        let announced = |at| seen.insert_announced(&Arrival { at, ..arrival(1_000_000) });
        harm();
        for (rests, over) in [(0, 1), (1, 2), (3, 4)] {
            assert_eq!(announced(after(rests)), None);
            assert_eq!(
                announced(after(over)),
                Some(Entered { is_suspect: true, is_undone: false }),
                "{over}"
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
    fn an_audit_sees_only_what_was_delivered_before_it_began() {
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
