//! What is known of hashes: which were seen, which are in recent blocks, and how many there were.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use alloy_consensus::{Transaction as _, transaction::Recovered};
use alloy_primitives::B256;
use chain_view::{PooledTransaction, RecentBlocks};

use super::{
    seen::{Seen, SeenSet},
    tally::{Tally, Ticket},
};
use crate::{
    limits::{RECENT_BLOCKS, SEEN_CAPACITY},
    outcome::{Entry, Outcome},
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

impl Arrival {
    /// True for backfill and audits; a live announcement stays live when it is requested again.
    pub(super) fn is_deferrable(&self) -> bool {
        self.entry != Entry::Announced
    }
}

/// How many hashes a source announced, and how many of them before any other source.
#[derive(Debug, Default)]
pub(crate) struct AnnouncementCounts {
    pub(crate) announced: AtomicU64,
    pub(crate) first_seen: AtomicU64,
}

/// What is known of hashes.
#[derive(Debug)]
pub(crate) struct Hashes {
    pub(crate) seen: Arc<SeenSet>,
    pub(crate) blocks: Mutex<RecentBlocks>,
    tally: Arc<Tally>,
    /// Of each source.
    announcements: Box<[Arc<AnnouncementCounts>]>,
}

impl Hashes {
    pub(crate) fn new(
        tally: Arc<Tally>,
        announcements: impl IntoIterator<Item = Arc<AnnouncementCounts>>,
    ) -> Self {
        Self {
            seen: SeenSet::new(SEEN_CAPACITY).into(),
            blocks: RecentBlocks::new(RECENT_BLOCKS).into(),
            tally,
            announcements: announcements.into_iter().collect(),
        }
    }

    /// Counts an announcement. `None` when its outcome is already known: mined or seen.
    pub(crate) fn enter(&self, arrival: &Arrival) -> Option<Ticket> {
        let ticket = self.tally.enter(Entry::Announced);
        let counts = &self.announcements[arrival.source];
        counts.announced.fetch_add(1, Relaxed);
        if self.is_mined(&arrival.hash) {
            self.seen.add_source(&arrival.hash, arrival.source);
            ticket.leave(Outcome::Mined);
            return None;
        }
        let Arrival { hash, source, at, .. } = *arrival;
        let Some(entered) = self.seen.insert_announced(hash, source, at) else {
            ticket.leave(Outcome::Known);
            return None;
        };
        counts.first_seen.fetch_add(1, Relaxed);
        Some(ticket.in_flight(&self.seen, hash, entered))
    }

    /// Counts a hash that the comparison of this epoch found missing. `None` if another source or an
    /// announcement has brought it since.
    pub(crate) fn enter_missing(&self, arrival: &Arrival, epoch: u32) -> Option<Ticket> {
        let entered = self.seen.insert_missing(arrival.hash, arrival.source, epoch)?;
        Some(self.tally.enter(arrival.entry).in_flight(&self.seen, arrival.hash, entered))
    }

    /// Records the outcome of a hash, unless it was dropped without one.
    pub(super) fn finish(&self, hash: B256, ticket: Ticket, outcome: Outcome, seen: Option<Seen>) {
        self.seen.settle(hash, seen);
        ticket.leave(outcome);
        // A block may have been applied, or removed by a reorg, since the look-up. Only a block
        // that contains the transaction makes it mined, and only while the block is canonical: a
        // transaction that lost its nonce to a block, or was mined in a block that we do not know,
        // may be pending again after a reorg.
        match seen {
            Some(Seen::Delivered) if self.is_mined(&hash) => _ = self.seen.mined(hash),
            Some(Seen::Mined) if !self.is_mined(&hash) => self.seen.forget_mined(hash),
            _ => {}
        }
    }

    /// Whether a recent block contains the transaction.
    pub(crate) fn is_mined(&self, hash: &B256) -> bool {
        lock(&self.blocks).is_mined(hash)
    }

    /// Whether a recent block contains the transaction, or another transaction with its sender and
    /// nonce.
    pub(super) fn is_taken(&self, tx: &Recovered<PooledTransaction>) -> bool {
        lock(&self.blocks).taken(tx.inner().hash(), &tx.signer(), tx.inner().nonce()).is_some()
    }
}
