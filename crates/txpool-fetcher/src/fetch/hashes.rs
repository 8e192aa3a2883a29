//! The entry and the outcome of hashes: decides whether a hash is new, and counts that each hash
//! that enters leaves with exactly one outcome.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use chain_view::RecentBlocks;
use tokio_util::sync::CancellationToken;

use super::seen::{Entered, Seen, SeenSet};
use crate::{
    limits::{RECENT_BLOCKS, SEEN_CAPACITY},
    metrics::Metrics,
    outcome::{Counts, Entry, Outcome},
    sync::lock,
};

/// A hash that enters, and where it came from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) hash: B256,
    pub(crate) entry: Entry,
    pub(crate) source: usize,
    /// When the announcement was read from the socket, or when the hash was found missing.
    pub(crate) received_at: Instant,
}

/// The interval at which malformed transactions of a source are logged as warnings.
const MALFORMED_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The number of hashes that a source announced, and of those that it announced before any other
/// source.
#[derive(Debug, Default)]
pub(crate) struct AnnouncementCounts {
    pub(crate) announced: AtomicU64,
    pub(crate) first_seen: AtomicU64,
    /// When a malformed transaction was last logged, see [`Ticket::finish_malformed`].
    malformed_logged_at: Mutex<Option<Instant>>,
    /// Hashes that it announced although the sink has them already, as transactions that no node
    /// lists ([`Seen::is_unlisted`]).
    unlisted: Mutex<Vec<B256>>,
}

/// The number of such hashes of a source that are kept until its next tick. Its next comparison
/// finds the others.
const MAX_UNLISTED: usize = 4_096;

impl AnnouncementCounts {
    /// Returns whether a malformed transaction is logged as a warning: at most once in the
    /// interval.
    fn should_log_malformed(&self, now: Instant) -> bool {
        let mut logged_at = lock(&self.malformed_logged_at);
        let is_due = logged_at.is_none_or(|logged_at| {
            now.saturating_duration_since(logged_at) >= MALFORMED_LOG_INTERVAL
        });
        if is_due {
            *logged_at = Some(now);
        }
        is_due
    }
}

/// The hashes that were seen, those of recent blocks, and the counts. All accesses to the counters
/// are relaxed: each is a sum of its own, and no other memory is published through them.
pub(crate) struct Hashes {
    pub(crate) seen: SeenSet,
    pub(crate) blocks: Mutex<RecentBlocks>,
    unfinished: AtomicU64,
    /// The counts of each source.
    pub(crate) announcements: Box<[AnnouncementCounts]>,
    stop: CancellationToken,
    metrics: Arc<Metrics>,
}

impl Hashes {
    /// After `stop` is cancelled, a hash that is dropped without an outcome stays unfinished.
    pub(crate) fn new(
        stop: CancellationToken,
        metrics: Arc<Metrics>,
        source_count: usize,
    ) -> Arc<Self> {
        Arc::new(Self {
            seen: SeenSet::new(SEEN_CAPACITY),
            blocks: RecentBlocks::new(RECENT_BLOCKS).into(),
            unfinished: AtomicU64::new(0),
            announcements: (0..source_count).map(|_| AnnouncementCounts::default()).collect(),
            stop,
            metrics,
        })
    }

    /// Counts an announcement. Returns `None` if the hash is mined or was seen before.
    pub(crate) fn enter(self: &Arc<Self>, arrival: Arrival) -> Option<Ticket> {
        let Arrival { hash, source, .. } = arrival;
        let counts = &self.announcements[source];
        counts.announced.fetch_add(1, Relaxed);
        let is_mined = self.is_mined(&hash) && self.enter_mined(hash, source);
        if !is_mined && let Some(entered) = self.seen.insert_announced(&arrival) {
            counts.first_seen.fetch_add(1, Relaxed);
            return Some(self.ticket(arrival, entered));
        }
        let has_others = self.announcements.len() > 1;
        if has_others && !is_mined && self.seen.get(&hash).is_some_and(Seen::is_unlisted) {
            let mut unlisted = lock(&counts.unlisted);
            if unlisted.len() < MAX_UNLISTED {
                unlisted.push(hash);
            }
        }
        let outcome = if is_mined { Outcome::Mined } else { Outcome::Known };
        self.metrics.entered[Entry::Announced as usize].add(1);
        self.metrics.left[outcome as usize].add(1);
        None
    }

    /// Takes the hashes that a source has announced since the previous call although the sink has
    /// them already, as transactions that no node lists.
    pub(crate) fn take_unlisted(&self, source: usize) -> Vec<B256> {
        std::mem::take(&mut lock(&self.announcements[source].unlisted))
    }

    /// Remembers the announcement of a mined hash. Returns false if a reorg has undone its block
    /// meanwhile.
    fn enter_mined(&self, hash: B256, source: usize) -> bool {
        self.seen.add_mined_announcement(hash, source);
        let is_mined = self.is_mined(&hash);
        if !is_mined {
            self.seen.forget_mined(hash);
        }
        is_mined
    }

    /// Lets a hash enter that was announced while a block contained it, and is in no block any
    /// more.
    pub(super) fn enter_undone(self: &Arc<Self>, arrival: Arrival) -> Option<Ticket> {
        self.seen.insert_undone(arrival.hash).map(|entered| self.ticket(arrival, entered))
    }

    /// Lets a hash enter that the comparison of `epoch` found missing. Returns `None` if it has
    /// come since: see [`SeenSet::insert_missing`].
    pub(crate) fn enter_missing(self: &Arc<Self>, arrival: Arrival, epoch: u32) -> Option<Ticket> {
        self.seen.insert_missing(&arrival, epoch).map(|entered| self.ticket(arrival, entered))
    }

    fn ticket(self: &Arc<Self>, arrival: Arrival, entered: Entered) -> Ticket {
        self.metrics.entered[arrival.entry as usize].add(1);
        self.unfinished.fetch_add(1, Relaxed);
        self.metrics.unfinished.increment(1.0);
        Ticket { arrival, hashes: Arc::clone(self), entered, has_left: false }
    }

    pub(crate) fn is_mined(&self, hash: &B256) -> bool {
        lock(&self.blocks).is_mined(hash)
    }

    pub(crate) fn counts(&self) -> Counts {
        let entered = |entry: Entry| self.metrics.entered[entry as usize].get();
        let left = |outcome: Outcome| self.metrics.left[outcome as usize].get();
        Counts {
            announced: entered(Entry::Announced),
            backfilled: entered(Entry::Backfilled),
            audit_recovered: entered(Entry::AuditRecovered),
            pooled: left(Outcome::Pooled),
            known: left(Outcome::Known),
            gone: left(Outcome::Gone),
            mined: left(Outcome::Mined),
            no_sidecar: left(Outcome::NoSidecar),
            malformed: left(Outcome::Malformed),
            refused: left(Outcome::Refused),
            postponed: left(Outcome::Postponed),
            failed: left(Outcome::Failed),
            unfinished: self.unfinished.load(Relaxed),
            lagged: self.metrics.lagged.get(),
            objects_missed: self.metrics.objects_missed.get(),
        }
    }
}

/// A hash in flight, with the right to record its one outcome. If it is dropped without an outcome
/// (by a panic or the end of a source), the hash counts as failed and may be fetched again; after a
/// stop it stays unfinished.
#[must_use]
pub(crate) struct Ticket {
    pub(crate) arrival: Arrival,
    hashes: Arc<Hashes>,
    pub(super) entered: Entered,
    has_left: bool,
}

impl Ticket {
    /// Returns whether the fetch may be deferred: true for backfill and audits, but not for a hash
    /// that was announced while an undone block contained it.
    pub(super) fn is_deferrable(&self) -> bool {
        self.arrival.entry != Entry::Announced && !self.entered.is_undone
    }

    /// Records the outcome and remembers the hash as `seen`; `None` forgets the hash.
    pub(crate) fn finish(mut self, outcome: Outcome, seen: Option<Seen>) {
        let (hashes, hash) = (Arc::clone(&self.hashes), self.arrival.hash);
        // The hash is settled before the blocks are looked up below. So a block that contains it is
        // either found there, or finds the hash settled when it is applied.
        hashes.seen.settle(hash, seen);
        self.leave(outcome);
        // Since the caller looked the hash up, a block may have been applied or removed. A hash
        // stays mined only while a canonical block contains it: a transaction whose nonce another
        // one used, or that was mined in an unknown block, may be pending again after a reorg.
        match seen {
            Some(seen)
                if (seen.is_delivered() || seen == Seen::Failed) && hashes.is_mined(&hash) =>
            {
                hashes.seen.set_mined(hash);
            }
            Some(Seen::Mined) => {}
            _ => return,
        }
        if !hashes.is_mined(&hash) {
            hashes.seen.forget_mined(hash);
        }
    }

    /// Records [`Outcome::Malformed`]: the announcement or the response cannot be used. The first
    /// one of each source and minute is logged as a warning, because a node that sends one usually
    /// sends many.
    pub(crate) fn finish_malformed(self, reason: &dyn std::error::Error) {
        let Arrival { hash, source, .. } = self.arrival;
        if self.hashes.announcements[source].should_log_malformed(Instant::now()) {
            tracing::warn!(
                %hash, source, %reason,
                "a malformed transaction is not delivered; further ones of this source are reported \
                 once a minute (counted as `malformed`)"
            );
        } else {
            tracing::debug!(%hash, source, %reason, "malformed transaction");
        }
        self.finish(Outcome::Malformed, None);
    }

    fn leave(&mut self, outcome: Outcome) {
        self.has_left = true;
        let metrics = &self.hashes.metrics;
        metrics.left[outcome as usize].add(1);
        self.hashes.unfinished.fetch_sub(1, Relaxed);
        metrics.unfinished.decrement(1.0);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.has_left {
            return;
        }
        self.hashes.seen.settle(self.arrival.hash, Some(Seen::Failed));
        if self.hashes.stop.is_cancelled() {
            // The count of unfinished hashes stays for the final report. The gauge shows work that
            // continues, and this does not.
            self.hashes.metrics.unfinished.decrement(1.0);
        } else {
            self.leave(Outcome::Failed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hashes() -> Arc<Hashes> {
        Hashes::new(CancellationToken::new(), Metrics::new().into(), 1)
    }

    fn arrival(number: u64, entry: Entry) -> Arrival {
        let hash = B256::left_padding_from(&number.to_be_bytes());
        Arrival { hash, entry, source: 0, received_at: Instant::now() }
    }

    proptest! {
        #[test]
        fn the_counts_balance_whatever_enters_and_leaves(
            steps in proptest::collection::vec((0usize..3, proptest::option::of(0usize..8)), 0..200)
        ) {
            let hashes = hashes();
            let epoch = hashes.seen.begin_epoch();
            for (number, (entry, outcome)) in steps.into_iter().enumerate() {
                let arrival = arrival(number as u64, Entry::ALL[entry]);
                let ticket = match arrival.entry {
                    Entry::Announced => hashes.enter(arrival),
                    _ => hashes.enter_missing(arrival, epoch),
                };
                if let (Some(ticket), Some(outcome)) = (ticket, outcome) {
                    ticket.finish(Outcome::ALL[outcome], Some(Seen::Delivered));
                }
                prop_assert!(hashes.enter(arrival).is_none() || outcome.is_none());
                prop_assert_eq!(hashes.counts().balance(), 0);
            }
        }
    }

    #[test]
    fn a_hash_that_is_mined_during_its_delivery_is_remembered_as_mined() {
        let hashes = hashes();
        for (number, delivered) in [(1, Seen::Delivered), (2, Seen::DeliveredBlob)] {
            let arrival = arrival(number, Entry::Announced);
            let ticket = hashes.enter(arrival).expect("new");
            let head = chain_view::Head { number, hash: arrival.hash, ..Default::default() };
            lock(&hashes.blocks).push(chain_view::Block::new(head, vec![arrival.hash]));
            hashes.seen.set_mined(arrival.hash);
            ticket.finish(Outcome::Pooled, Some(delivered));
            let seen = hashes.seen.get(&arrival.hash);
            assert_eq!(seen, Some(Seen::MinedDelivered), "{delivered:?}");
        }
    }

    #[test]
    fn a_hash_is_fetched_if_a_reorg_removes_its_block_meanwhile() {
        let hashes = hashes();
        let arrival = arrival(1, Entry::Announced);
        assert!(!hashes.enter_mined(arrival.hash, 0), "no block contains it");
        assert!(hashes.enter(arrival).is_some());
    }
}
