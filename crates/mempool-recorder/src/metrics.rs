//! Counters, for the process itself and through the `metrics` facade. Handles are made once.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use metrics::{Counter, Unit, counter, describe_counter};
use txpool_fetcher::Delivery;

use crate::error::BadRow;

/// The name, the unit and the meaning of every metric of this crate. All are counters.
pub const METRICS: &[(&str, Unit, &str)] = &[
    ("mempool_recorder_rows_total", Unit::Count, "rows in complete segments"),
    ("mempool_recorder_bytes_total", Unit::Bytes, "size of the complete segments"),
    ("mempool_recorder_segments_total", Unit::Count, "complete segments"),
    (
        "mempool_recorder_skipped_total",
        Unit::Count,
        "transactions left out because no node had announced them",
    ),
    (
        "mempool_recorder_lost_total",
        Unit::Count,
        "what was not recorded, by `reason`: lagged (events of the pool's log), io (rows)",
    ),
    (
        "mempool_recorder_replayed_total",
        Unit::Count,
        "transactions replayed, by `outcome`: pooled, known, mined, refused, postponed",
    ),
    (
        "mempool_recorder_left_out_total",
        Unit::Count,
        "blob transactions that a replay left out as configured",
    ),
    (
        "mempool_recorder_bad_rows_total",
        Unit::Count,
        "rows that a replay could not read, by `reason` (`BadRow::REASONS`)",
    ),
];

fn describe() {
    for (name, unit, text) in METRICS {
        describe_counter!(*name, *unit, *text);
    }
}

/// One count, kept for the stats and for the metrics exporter.
pub(crate) struct Count {
    value: AtomicU64,
    exported: Counter,
}

impl Count {
    const fn new(exported: Counter) -> Self {
        Self { value: AtomicU64::new(0), exported }
    }

    pub(crate) fn add(&self, more: u64) {
        // Relaxed: no other memory is published through it.
        self.value.fetch_add(more, Relaxed);
        self.exported.increment(more);
    }

    fn get(&self) -> u64 {
        self.value.load(Relaxed)
    }
}

impl fmt::Debug for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

/// The counts of a [`Recorder`](crate::Recorder) so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecorderStats {
    /// Rows in complete segments: `mempool_recorder_rows_total`.
    pub rows: u64,
    /// The size of the complete segments, in bytes: `mempool_recorder_bytes_total`.
    pub bytes: u64,
    /// Complete segments: `mempool_recorder_segments_total`.
    pub segments: u64,
    /// Transactions left out because no node had announced them: `mempool_recorder_skipped_total`.
    pub skipped: u64,
    /// Events that left the pool's log before the recorder read them, additions, removals and heads
    /// alike: `mempool_recorder_lost_total{reason="lagged"}`.
    pub lost_events: u64,
    /// Rows of segments that could not be written: `mempool_recorder_lost_total{reason="io"}`.
    pub lost_rows: u64,
}

#[derive(Debug)]
pub(crate) struct RecorderCounters {
    pub(crate) rows: Count,
    pub(crate) bytes: Count,
    pub(crate) segments: Count,
    pub(crate) skipped: Count,
    pub(crate) lost_events: Count,
    pub(crate) lost_rows: Count,
}

impl RecorderCounters {
    pub(crate) fn new() -> Self {
        describe();
        let lost = |reason: &'static str| {
            Count::new(counter!("mempool_recorder_lost_total", "reason" => reason))
        };
        Self {
            rows: Count::new(counter!("mempool_recorder_rows_total")),
            bytes: Count::new(counter!("mempool_recorder_bytes_total")),
            segments: Count::new(counter!("mempool_recorder_segments_total")),
            skipped: Count::new(counter!("mempool_recorder_skipped_total")),
            lost_events: lost("lagged"),
            lost_rows: lost("io"),
        }
    }

    pub(crate) fn stats(&self) -> RecorderStats {
        RecorderStats {
            rows: self.rows.get(),
            bytes: self.bytes.get(),
            segments: self.segments.get(),
            skipped: self.skipped.get(),
            lost_events: self.lost_events.get(),
            lost_rows: self.lost_rows.get(),
        }
    }
}

/// The counts of a [`Replay`](crate::Replay) so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplayCounts {
    /// Transactions that the sink accepted: `mempool_recorder_replayed_total{outcome="pooled"}`.
    pub pooled: u64,
    /// Transactions that the sink had before.
    pub known: u64,
    /// Transactions that a block of the sink's chain contains, or whose nonce was used.
    pub mined: u64,
    /// Transactions that the sink refused.
    pub refused: u64,
    /// Transactions that the sink had no room for.
    pub postponed: u64,
    /// Blob transactions that the configuration leaves out: `mempool_recorder_left_out_total`.
    pub left_out: u64,
    /// Rows that yielded no transaction, by the reasons of [`BadRow::REASONS`]:
    /// `mempool_recorder_bad_rows_total`.
    pub bad: [u64; BadRow::REASONS.len()],
}

impl ReplayCounts {
    /// All rows that yielded no transaction.
    #[must_use]
    pub fn bad_rows(&self) -> u64 {
        self.bad.iter().sum()
    }
}

#[derive(Debug)]
pub(crate) struct ReplayCounters {
    pooled: Count,
    known: Count,
    mined: Count,
    refused: Count,
    postponed: Count,
    left_out: Count,
    bad: [Count; BadRow::REASONS.len()],
}

impl ReplayCounters {
    pub(crate) fn new() -> Self {
        describe();
        let outcome = |name: &'static str| {
            Count::new(counter!("mempool_recorder_replayed_total", "outcome" => name))
        };
        let bad = |reason: &'static str| {
            Count::new(counter!("mempool_recorder_bad_rows_total", "reason" => reason))
        };
        Self {
            pooled: outcome("pooled"),
            known: outcome("known"),
            mined: outcome("mined"),
            refused: outcome("refused"),
            postponed: outcome("postponed"),
            left_out: Count::new(counter!("mempool_recorder_left_out_total")),
            bad: BadRow::REASONS.map(bad),
        }
    }

    pub(crate) fn delivered(&self, delivery: &Delivery) {
        match delivery {
            Delivery::Pooled => self.pooled.add(1),
            Delivery::Known => self.known.add(1),
            Delivery::Mined => self.mined.add(1),
            Delivery::Refused(_) => self.refused.add(1),
            Delivery::Postponed(_) => self.postponed.add(1),
            // Not counted: the replay ends, after a closed sink or an unknown delivery.
            _ => {}
        }
    }

    pub(crate) fn bad(&self, row: &BadRow) {
        let rows = match row {
            BadRow::Unreadable { rows, .. } => (*rows).max(1),
            _ => 1,
        };
        self.bad[row.index()].add(rows);
    }

    pub(crate) fn left_out(&self, all: u64) {
        self.left_out.add(all.saturating_sub(self.left_out.get()));
    }

    pub(crate) fn counts(&self) -> ReplayCounts {
        ReplayCounts {
            pooled: self.pooled.get(),
            known: self.known.get(),
            mined: self.mined.get(),
            refused: self.refused.get(),
            postponed: self.postponed.get(),
            left_out: self.left_out.get(),
            bad: std::array::from_fn(|index| self.bad[index].get()),
        }
    }
}
