//! Collects the rows that wait to be written, and decides when they are due. Pure: it takes events
//! and the time.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_primitives::map::B256Map;
use order_pool::{Event, Order, OrderId, RemoveReason};

use crate::{
    columns::{Inclusion, Row, STEP_ROWS},
    pages::Pause,
};

/// The limits at which a group is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) rows: usize,
    pub(crate) bytes: usize,
    pub(crate) age: Duration,
}

/// Transactions in the order in which the pool accepted them.
#[derive(Debug, Default)]
pub(crate) struct Group {
    rows: Vec<WaitingRow>,
    /// The index of the latest row of each hash. A transaction that is pooled again, after a reorg
    /// or after it expired, gets another row.
    by_hash: B256Map<usize>,
    /// The indices of rows that were removed by a block whose head has not been read yet.
    mined: Vec<usize>,
    bytes: usize,
    /// When the first row was added.
    started_at: Option<Instant>,
}

#[derive(Debug)]
struct WaitingRow {
    order: Arc<Order>,
    inclusion: Option<Inclusion>,
}

impl Group {
    pub(crate) fn on_event(&mut self, event: &Event, now: Instant) {
        match event {
            Event::Added(order) => {
                if let Some(tx) = order.as_tx() {
                    self.started_at.get_or_insert(now);
                    self.bytes += tx.size_bytes();
                    self.by_hash.insert(*tx.hash(), self.rows.len());
                    self.rows.push(WaitingRow { order: Arc::clone(order), inclusion: None });
                }
            }
            Event::Removed { order, reason: RemoveReason::Mined } => {
                if let OrderId::Tx(hash) = order.id() {
                    self.mined.extend(self.by_hash.get(&hash));
                }
            }
            // The pool emits the removals of a block before its head.
            Event::Head(head) => {
                // If this is a reorg, it has undone the blocks from this number on. The pool does
                // not report which of their transactions the new blocks contain.
                for row in &mut self.rows {
                    row.inclusion.take_if(|inclusion| inclusion.block >= head.number);
                }
                let inclusion = Inclusion { block: head.number, timestamp_s: head.timestamp };
                for index in self.mined.drain(..) {
                    self.rows[index].inclusion = Some(inclusion);
                }
            }
            _ => {}
        }
    }

    /// Events were missed, perhaps including the head of the latest removals. The next head may be
    /// that of another block, so these rows name no block.
    pub(crate) fn forget_mined(&mut self) {
        self.mined.clear();
    }

    pub(crate) fn is_due(&self, limits: &Limits, now: Instant) -> bool {
        let age = match self.started_at {
            Some(started_at) => now.saturating_duration_since(started_at),
            None => Duration::ZERO,
        };
        self.rows.len() >= limits.rows || self.bytes >= limits.bytes || age >= limits.age
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows.iter().filter_map(|WaitingRow { order, inclusion }| {
            Some(Row { tx: order.as_tx()?, inclusion: *inclusion })
        })
    }

    /// Clears the group and keeps its capacity. Transactions that have left the pool are freed
    /// here, in steps.
    pub(crate) fn clear(&mut self, pause: Pause<'_>) {
        while !self.rows.is_empty() {
            self.rows.truncate(self.rows.len().saturating_sub(STEP_ROWS));
            pause();
        }
        self.by_hash.clear();
        self.mined.clear();
        self.bytes = 0;
        self.started_at = None;
    }
}
