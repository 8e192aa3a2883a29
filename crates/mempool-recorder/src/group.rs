//! The rows that wait to be written. Pure: takes events and the time, and returns whether it is
//! full.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_primitives::map::B256Map;
use order_pool::{Event, Order, OrderId, RemoveReason, Transaction};

use crate::{
    columns::{Inclusion, STEP_ROWS},
    pages::Pause,
};

/// When a group is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) rows: usize,
    pub(crate) bytes: usize,
    pub(crate) age: Duration,
}

/// Transactions in the order in which the pool accepted them.
#[derive(Debug, Default)]
pub(crate) struct Group {
    rows: Vec<(Arc<Order>, Option<Inclusion>)>,
    /// The latest row of a hash: a return after a reorg or after its expiry adds another.
    by_hash: B256Map<usize>,
    /// Removed by a block whose head has not been published yet.
    mined: Vec<usize>,
    bytes: usize,
    since: Option<Instant>,
}

impl Group {
    pub(crate) fn take(&mut self, event: &Event, now: Instant) {
        match event {
            Event::Added(order) => {
                if let Some(tx) = order.as_tx() {
                    self.since.get_or_insert(now);
                    self.bytes += tx.size_bytes();
                    self.by_hash.insert(*tx.hash(), self.rows.len());
                    self.rows.push((Arc::clone(order), None));
                }
            }
            Event::Removed { order, reason: RemoveReason::Mined } => {
                if let OrderId::Tx(hash) = order.id() {
                    self.mined.extend(self.by_hash.get(&hash));
                }
            }
            // The pool publishes a block's removals before its head.
            Event::Head(head) => {
                // A reorg has undone the blocks from this number on. What the new ones contain of them, the pool does not tell.
                let is_undone = |of: &mut Inclusion| of.block >= head.number;
                for (_, inclusion) in &mut self.rows {
                    inclusion.take_if(is_undone);
                }
                let inclusion = Inclusion { block: head.number, timestamp_s: head.timestamp };
                for row in self.mined.drain(..) {
                    self.rows[row].1 = Some(inclusion);
                }
            }
            _ => {}
        }
    }

    /// Events were missed, the head of what was removed last perhaps among them: the next one may be of another block.
    pub(crate) fn forget_mined(&mut self) {
        self.mined.clear();
    }

    pub(crate) fn is_due(&self, limits: &Limits, now: Instant) -> bool {
        let age = self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        self.rows.len() >= limits.rows || self.bytes >= limits.bytes || age >= limits.age
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = (&Transaction, Option<Inclusion>)> {
        self.rows.iter().filter_map(|(order, inclusion)| Some((order.as_tx()?, *inclusion)))
    }

    /// Clears the group and keeps its memory. What has left the pool is freed here, in steps.
    pub(crate) fn clear(&mut self, pause: Pause<'_>) {
        while !self.rows.is_empty() {
            self.rows.truncate(self.rows.len().saturating_sub(STEP_ROWS));
            pause();
        }
        self.by_hash.clear();
        self.mined.clear();
        self.bytes = 0;
        self.since = None;
    }
}
