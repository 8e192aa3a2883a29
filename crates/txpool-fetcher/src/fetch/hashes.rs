//! What is known of hashes. Each that enters leaves with exactly one outcome; both are counted.

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

/// A hash that enters, with its origin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) hash: B256,
    pub(crate) entry: Entry,
    pub(crate) source: usize,
    pub(crate) at: Instant,
}

/// How often a source's malformed transactions are reported in the log.
const MALFORMED_REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// How many hashes a source announced, and how many of them before any other source.
#[derive(Debug, Default)]
pub(crate) struct AnnouncementCounts {
    pub(crate) announced: AtomicU64,
    pub(crate) first_seen: AtomicU64,
    /// When a malformed transaction was last reported, see [`Ticket::malformed`].
    malformed_reported: Mutex<Option<Instant>>,
}

impl AnnouncementCounts {
    /// Whether a malformed transaction is to be reported, as the first one in a while.
    fn should_report_malformed(&self, now: Instant) -> bool {
        let mut reported = lock(&self.malformed_reported);
        let is_due = reported.is_none_or(|reported| {
            now.saturating_duration_since(reported) >= MALFORMED_REPORT_INTERVAL
        });
        if is_due {
            *reported = Some(now);
        }
        is_due
    }
}

/// Which hashes were seen, which are in recent blocks, and how many there were. All accesses to the
/// counters are relaxed: each is a sum of its own, and no other memory is published through them.
pub(crate) struct Hashes {
    pub(crate) seen: SeenSet,
    pub(crate) blocks: Mutex<RecentBlocks>,
    unfinished: AtomicU64,
    /// Of each source.
    pub(crate) announcements: Box<[AnnouncementCounts]>,
    stop: CancellationToken,
    metrics: Arc<Metrics>,
}

impl Hashes {
    /// After `stop`, a hash that is dropped without an outcome stays unfinished.
    pub(crate) fn new(stop: CancellationToken, metrics: Arc<Metrics>, sources: usize) -> Arc<Self> {
        Arc::new(Self {
            seen: SeenSet::new(SEEN_CAPACITY),
            blocks: RecentBlocks::new(RECENT_BLOCKS).into(),
            unfinished: AtomicU64::new(0),
            announcements: (0..sources).map(|_| AnnouncementCounts::default()).collect(),
            stop,
            metrics,
        })
    }

    /// Counts an announcement. `None` if it is mined or was seen.
    pub(crate) fn enter(self: &Arc<Self>, arrival: Arrival) -> Option<Ticket> {
        let Arrival { hash, source, .. } = arrival;
        let counts = &self.announcements[source];
        counts.announced.fetch_add(1, Relaxed);
        let is_mined = self.is_mined(&hash) && self.enter_mined(hash, source);
        if !is_mined && let Some(entered) = self.seen.insert_announced(&arrival) {
            counts.first_seen.fetch_add(1, Relaxed);
            return Some(self.ticket(arrival, entered));
        }
        let known = if is_mined { Outcome::Mined } else { Outcome::Known };
        self.metrics.entered[Entry::Announced as usize].add(1);
        self.metrics.left[known as usize].add(1);
        None
    }

    /// Remembers the announcement of a mined hash. False if a reorg has undone its block meanwhile.
    fn enter_mined(&self, hash: B256, source: usize) -> bool {
        self.seen.announced_mined(hash, source);
        let is_mined = self.is_mined(&hash);
        if !is_mined {
            self.seen.forget_mined(hash);
        }
        is_mined
    }

    /// Counts a hash that was announced while a block contained it, and is in none any more.
    pub(super) fn enter_undone(self: &Arc<Self>, arrival: Arrival) -> Option<Ticket> {
        self.seen.insert_undone(arrival.hash).map(|entered| self.ticket(arrival, entered))
    }

    /// Counts a hash that a comparison found missing, as [`SeenSet::insert_missing`].
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

/// A hash in flight, with the right to record its outcome, once. Dropped without one (a panic, the
/// end of a source), it counts as failed and may be fetched again; after a stop it is unfinished.
#[must_use]
pub(crate) struct Ticket {
    pub(crate) arrival: Arrival,
    hashes: Arc<Hashes>,
    pub(super) entered: Entered,
    has_left: bool,
}

impl Ticket {
    /// True for backfill and audits, not for what was announced while an undone block had it.
    pub(super) fn is_deferrable(&self) -> bool {
        self.arrival.entry != Entry::Announced && !self.entered.is_undone
    }

    /// Records the outcome. `seen` is remembered; with `None` the hash is forgotten.
    pub(crate) fn finish(mut self, outcome: Outcome, seen: Option<Seen>) {
        let (hashes, hash) = (Arc::clone(&self.hashes), self.arrival.hash);
        // Before the look-up in the blocks: one that is applied in between finds it settled.
        hashes.seen.settle(hash, seen);
        self.leave(outcome);
        // A block may have been applied, or removed by a reorg, since the look-up. Only a canonical
        // block that contains the transaction makes it mined: one that lost its nonce to a block,
        // or was mined in a block that we do not know, may be pending again after a reorg.
        match seen {
            Some(Seen::Delivered | Seen::Failed) if hashes.is_mined(&hash) => {
                hashes.seen.mined(hash);
            }
            Some(Seen::Mined) => {}
            _ => return,
        }
        if !hashes.is_mined(&hash) {
            hashes.seen.forget_mined(hash);
        }
    }

    /// The announcement or the response cannot be used. The first one of each source and minute is
    /// reported, because a node that sends one usually sends many.
    pub(crate) fn malformed(self, reason: &dyn std::error::Error) {
        let Arrival { hash, source, .. } = self.arrival;
        if self.hashes.announcements[source].should_report_malformed(Instant::now()) {
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
            // The count is that of an end; the gauge is of what goes on.
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
        Arrival { hash, entry, source: 0, at: Instant::now() }
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
    fn a_hash_whose_block_is_undone_while_its_announcement_is_looked_up_is_fetched() {
        let hashes = hashes();
        let arrival = arrival(1, Entry::Announced);
        assert!(!hashes.enter_mined(arrival.hash, 0), "no block has it");
        assert!(hashes.enter(arrival).is_some());
    }
}
