//! The metrics of recorder and replay, also as plain counts for the process itself.

use load_control::metric_set;
use txpool_fetcher::Delivery;

use crate::error::BadRow;

/// Indices of [`RecorderCounters::lost`].
pub(crate) const LAGGED: usize = 0;
pub(crate) const IO: usize = 1;

metric_set! {
    /// The name, the unit and the meaning of every metric of this crate. All are counters.
    pub const METRICS;

    #[derive(Debug)]
    pub(crate) struct RecorderCounters {
        count rows = "mempool_recorder_rows_total", Count, "rows in complete segments";
        count bytes = "mempool_recorder_bytes_total", Bytes, "size of the complete segments";
        count segments = "mempool_recorder_segments_total", Count, "complete segments";
        count skipped = "mempool_recorder_skipped_total", Count,
            "transactions left out because no node had announced them";
        count lost[2] = "mempool_recorder_lost_total", Count,
            "what was not recorded, by `reason`: lagged (events of the pool's log), io (rows)",
            "reason": ["lagged", "io"];
    }

    #[derive(Debug)]
    pub(crate) struct ReplayCounters {
        count delivered[5] = "mempool_recorder_replayed_total", Count,
            "transactions replayed, by `outcome`: pooled, known, mined, refused, postponed",
            "outcome": ["pooled", "known", "mined", "refused", "postponed"];
        count left_out = "mempool_recorder_left_out_total", Count,
            "blob transactions that a replay left out as configured";
        count cut_gaps = "mempool_recorder_cut_gaps_total", Count,
            "jumps of the recorded clock that a replay did not follow";
        count bad[BadRow::REASONS.len()] = "mempool_recorder_bad_rows_total", Count,
            "rows that a replay could not read, by `reason` (`BadRow::REASONS`)",
            "reason": BadRow::REASONS;
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
    /// Transactions that were left out because no node had announced them:
    /// `mempool_recorder_skipped_total`.
    pub skipped: u64,
    /// Events of any kind that left the pool's log before the recorder read them:
    /// `mempool_recorder_lost_total{reason="lagged"}`.
    pub lost_events: u64,
    /// Rows of segments that could not be written: `mempool_recorder_lost_total{reason="io"}`.
    pub lost_rows: u64,
}

impl RecorderCounters {
    /// Returns the counts so far, read one by one.
    pub(crate) fn stats(&self) -> RecorderStats {
        RecorderStats {
            rows: self.rows.get(),
            bytes: self.bytes.get(),
            segments: self.segments.get(),
            skipped: self.skipped.get(),
            lost_events: self.lost[LAGGED].get(),
            lost_rows: self.lost[IO].get(),
        }
    }
}

/// The counts of a [`Replay`](crate::Replay) so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplayCounts {
    /// Transactions that the sink accepted: `mempool_recorder_replayed_total{outcome="pooled"}`.
    pub pooled: u64,
    /// Transactions that the sink knew already.
    pub known: u64,
    /// Transactions that are in a block of the sink's chain, or whose nonce is used.
    pub mined: u64,
    /// Transactions that the sink refused.
    pub refused: u64,
    /// Transactions that the sink had no room for.
    pub postponed: u64,
    /// Blob transactions that were left out as configured: `mempool_recorder_left_out_total`.
    pub left_out: u64,
    /// Jumps of the recorded clock that were cut to [`MAX_GAP`](crate::MAX_GAP) or ignored:
    /// `mempool_recorder_cut_gaps_total`.
    pub cut_gaps: u64,
    /// Rows that yielded no transaction, by the reasons of [`BadRow::REASONS`]:
    /// `mempool_recorder_bad_rows_total`.
    pub bad: [u64; BadRow::REASONS.len()],
}

impl ReplayCounts {
    /// Returns the number of all rows that yielded no transaction.
    #[must_use]
    pub fn bad_rows(&self) -> u64 {
        self.bad.iter().sum()
    }
}

impl ReplayCounters {
    pub(crate) fn count_delivery(&self, delivery: &Delivery) {
        let outcome = match delivery {
            Delivery::Pooled => 0,
            Delivery::Known => 1,
            Delivery::Mined => 2,
            Delivery::Refused(_) => 3,
            Delivery::Postponed(_) => 4,
            // The sink is closed and the replay ends, or the delivery is of an unknown kind.
            _ => return,
        };
        self.delivered[outcome].add(1);
    }

    pub(crate) fn count_bad_row(&self, row: &BadRow) {
        let rows = match row {
            BadRow::Unreadable { rows, .. } => (*rows).max(1),
            _ => 1,
        };
        self.bad[row.index()].add(rows);
    }

    pub(crate) fn counts(&self) -> ReplayCounts {
        let [pooled, known, mined, refused, postponed] =
            std::array::from_fn(|outcome| self.delivered[outcome].get());
        ReplayCounts {
            pooled,
            known,
            mined,
            refused,
            postponed,
            left_out: self.left_out.get(),
            cut_gaps: self.cut_gaps.get(),
            bad: std::array::from_fn(|reason| self.bad[reason].get()),
        }
    }
}
