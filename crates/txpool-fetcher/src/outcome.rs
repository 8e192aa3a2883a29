//! Counts hashes: each one that enters leaves with exactly one outcome, and both are counted.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use alloy_primitives::B256;
use tokio_util::sync::CancellationToken;

use crate::{fetch::seen::SeenSet, metrics::Metrics};

/// How a hash entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Entry {
    /// The node announced it.
    Announced,
    /// A comparison at start-up or after a reconnect found it pending in the node's pool.
    Backfilled,
    /// An audit, or the comparison after a lag, a reorg or missed heads, found it missing.
    AuditRecovered,
}

impl Entry {
    pub(crate) const ALL: [Self; 3] = [Self::Announced, Self::Backfilled, Self::AuditRecovered];

    /// The value of the label in metrics: one of a closed set.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Announced => "announced",
            Self::Backfilled => "backfilled",
            Self::AuditRecovered => "audit_recovered",
        }
    }
}

/// How a hash left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// Delivered to the sink, which accepted it.
    Pooled,
    /// Seen before, by the fetcher in the last 60 s or by the sink.
    Known,
    /// No longer in the node's pool: replaced or evicted (`null`, or geth's `"0x"`).
    Gone,
    /// Already in a block, or another transaction with its sender and nonce is.
    Mined,
    /// Does not decode, has no valid signature, is for another chain, or is not the transaction
    /// that was requested.
    Malformed,
    /// Refused by the sink.
    Refused,
    /// The sink had no room for it; comparisons offer it again.
    Postponed,
    /// No usable answer after the last retry, the sink panicked, or its source gave up.
    Failed,
}

impl Outcome {
    pub(crate) const ALL: [Self; 8] = [
        Self::Pooled,
        Self::Known,
        Self::Gone,
        Self::Mined,
        Self::Malformed,
        Self::Refused,
        Self::Postponed,
        Self::Failed,
    ];

    /// The value of the label in metrics: one of a closed set.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pooled => "pooled",
            Self::Known => "known",
            Self::Gone => "gone",
            Self::Mined => "mined",
            Self::Malformed => "malformed",
            Self::Refused => "refused",
            Self::Postponed => "postponed",
            Self::Failed => "failed",
        }
    }
}

/// The numbers of hashes by entry and by outcome at one moment, see [`Counts::balance`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Counts {
    /// Hashes announced by the sources and read from their buffers.
    pub announced: u64,
    /// Hashes that entered by a backfill.
    pub backfilled: u64,
    /// Hashes that entered by an audit or after a lag, a reorg or missed heads.
    pub audit_recovered: u64,
    /// Accepted by the sink.
    pub pooled: u64,
    /// Seen before, by the fetcher or by the sink.
    pub known: u64,
    /// No longer in the node's pool.
    pub gone: u64,
    /// Mined already.
    pub mined: u64,
    /// Not decodable, or another transaction.
    pub malformed: u64,
    /// Refused by the sink.
    pub refused: u64,
    /// The sink had no room; each offer that fails counts.
    pub postponed: u64,
    /// Without a usable answer after the last retry.
    pub failed: u64,
    /// Entered and not yet left. It has a counter of its own, and is not computed from the others.
    pub unfinished: u64,
    /// Announcements that our own buffer lost before they could enter, or that the stream of a pool
    /// in this process reported as lost.
    pub lagged: u64,
}

impl Counts {
    /// Hashes that entered, less those that left and those unfinished. Zero whenever no hash enters
    /// or leaves at the same time; otherwise it may be off by those that do so between the reads of
    /// two counters.
    #[must_use]
    pub const fn balance(&self) -> i64 {
        let entered = self.announced + self.backfilled + self.audit_recovered;
        let left = self.pooled
            + self.known
            + self.gone
            + self.mined
            + self.malformed
            + self.refused
            + self.postponed
            + self.failed;
        entered as i64 - left as i64 - self.unfinished as i64
    }
}

/// The counters. All accesses are relaxed: each counter is a sum of its own, and no other memory is
/// published through them.
#[derive(Debug)]
pub(crate) struct Tally {
    entered: [AtomicU64; 3],
    left: [AtomicU64; 8],
    unfinished: AtomicU64,
    lagged: AtomicU64,
    stop: CancellationToken,
    pub(crate) metrics: Metrics,
}

impl Tally {
    /// After `stop`, a hash that is dropped without an outcome stays unfinished.
    pub(crate) fn new(stop: CancellationToken) -> Arc<Self> {
        Arc::new(Self {
            entered: Default::default(),
            left: Default::default(),
            unfinished: AtomicU64::new(0),
            lagged: AtomicU64::new(0),
            stop,
            metrics: Metrics::new(),
        })
    }

    /// Counts a hash that enters. Its outcome is recorded with the ticket.
    pub(crate) fn enter(self: &Arc<Self>, entry: Entry) -> Ticket {
        self.entered[entry as usize].fetch_add(1, Relaxed);
        self.unfinished.fetch_add(1, Relaxed);
        self.metrics.entered[entry as usize].increment(1);
        self.metrics.unfinished.increment(1.0);
        Ticket { tally: Arc::clone(self), in_flight: None, has_left: false }
    }

    pub(crate) fn lagged(&self, count: u64) {
        self.lagged.fetch_add(count, Relaxed);
        self.metrics.lagged.increment(count);
    }

    pub(crate) fn counts(&self) -> Counts {
        let entered = |entry: Entry| self.entered[entry as usize].load(Relaxed);
        let left = |outcome: Outcome| self.left[outcome as usize].load(Relaxed);
        Counts {
            announced: entered(Entry::Announced),
            backfilled: entered(Entry::Backfilled),
            audit_recovered: entered(Entry::AuditRecovered),
            pooled: left(Outcome::Pooled),
            known: left(Outcome::Known),
            gone: left(Outcome::Gone),
            mined: left(Outcome::Mined),
            malformed: left(Outcome::Malformed),
            refused: left(Outcome::Refused),
            postponed: left(Outcome::Postponed),
            failed: left(Outcome::Failed),
            unfinished: self.unfinished.load(Relaxed),
            lagged: self.lagged.load(Relaxed),
        }
    }
}

/// Records the outcome of one hash, once. If it is dropped without one (a panic, a source that has
/// ended), the hash counts as failed and may be fetched again; after a stop it stays unfinished.
#[derive(Debug)]
#[must_use]
pub(crate) struct Ticket {
    tally: Arc<Tally>,
    /// The set in which the hash is marked as in flight.
    in_flight: Option<(Arc<SeenSet>, B256)>,
    has_left: bool,
}

impl Ticket {
    /// Marks the hash as in flight in that set until it has an outcome.
    pub(crate) fn in_flight(mut self, seen: &Arc<SeenSet>, hash: B256) -> Self {
        self.in_flight = Some((Arc::clone(seen), hash));
        self
    }

    pub(crate) fn leave(mut self, outcome: Outcome) {
        self.record(outcome);
    }

    fn record(&mut self, outcome: Outcome) {
        self.has_left = true;
        let tally = &self.tally;
        tally.left[outcome as usize].fetch_add(1, Relaxed);
        tally.unfinished.fetch_sub(1, Relaxed);
        tally.metrics.left[outcome as usize].increment(1);
        tally.metrics.unfinished.decrement(1.0);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.has_left {
            return;
        }
        if let Some((seen, hash)) = self.in_flight.take() {
            seen.settle(hash, None);
        }
        if !self.tally.stop.is_cancelled() {
            self.record(Outcome::Failed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_counts_balance_whatever_enters_and_leaves(
            steps in proptest::collection::vec((0usize..3, proptest::option::of(0usize..8)), 0..200)
        ) {
            let tally = Tally::new(CancellationToken::new());
            for (entry, outcome) in steps {
                let ticket = tally.enter(Entry::ALL[entry]);
                if let Some(outcome) = outcome {
                    ticket.leave(Outcome::ALL[outcome]);
                }
                prop_assert_eq!(tally.counts().balance(), 0);
            }
        }
    }

    #[test]
    fn a_ticket_dropped_without_an_outcome_has_failed_and_is_unfinished_after_a_stop() {
        let stop = CancellationToken::new();
        let tally = Tally::new(stop.clone());
        let seen = Arc::new(SeenSet::new(1024));
        let hash = B256::repeat_byte(1);
        let enter = || {
            assert!(seen.insert_announced(hash, std::time::Instant::now()), "it may come again");
            tally.enter(Entry::Announced).in_flight(&seen, hash)
        };
        drop(enter());
        assert_eq!((tally.counts().failed, tally.counts().unfinished), (1, 0));
        let ticket = enter();
        stop.cancel();
        drop(ticket);
        assert_eq!((tally.counts().failed, tally.counts().unfinished), (1, 1));
        assert_eq!(tally.counts().balance(), 0);
    }

    #[test]
    fn every_label_stands_at_its_own_index() {
        for (index, outcome) in Outcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, index);
        }
        for (index, entry) in Entry::ALL.into_iter().enumerate() {
            assert_eq!(entry as usize, index);
        }
    }
}
