//! When this machine saw the transactions that another one published first. Pure.

use std::time::{Duration, Instant, SystemTime};

use alloy_primitives::B256;
use bytes::Bytes;

use crate::wire::{MAX_SEEN, encode_seen};

/// How long a report waits for more entries.
const REPORT_AFTER: Duration = Duration::from_millis(200);

/// The next report.
#[derive(Debug, Default)]
pub(super) struct Report {
    entries: Vec<(B256, SystemTime)>,
    due: Option<Instant>,
}

impl Report {
    /// One that finds no room is left out: reports change only who is said to have been how much later.
    pub(super) fn add(&mut self, hash: B256, seen: SystemTime, now: Instant) {
        if self.entries.len() < MAX_SEEN {
            self.entries.push((hash, seen));
        }
        let after = if self.entries.len() < MAX_SEEN { REPORT_AFTER } else { Duration::ZERO };
        self.due = Some(self.due.unwrap_or(now + REPORT_AFTER).min(now + after));
    }

    pub(super) const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// The bytes of the report, unless it is empty.
    pub(super) fn take(&mut self) -> Option<Bytes> {
        self.due = None;
        let entries = std::mem::take(&mut self.entries);
        (!entries.is_empty()).then(|| encode_seen(&entries))
    }
}
