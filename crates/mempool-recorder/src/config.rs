//! The configuration of a recorder.

use std::{path::PathBuf, time::Duration};

use crate::error::RecorderError;

/// Default of [`RecorderConfig::group_rows`]: 20,000 rows are 10 s at 2,000/s. A waiting row takes
/// 16 bytes and an entry in a table of hashes, 2 MB in all, beside its transaction.
pub const DEFAULT_GROUP_ROWS: usize = 20_000;

/// Default of [`RecorderConfig::group_bytes`]: 16 MiB are three seconds of 2,000 transactions/s of
/// which 1 in 200 carries blobs. A group is held once as the pool's orders and, while it is
/// written, once compressed, a column at a time: at most 32 MiB, one transaction and a page.
pub const DEFAULT_GROUP_BYTES: usize = 16 << 20;

/// Default of [`RecorderConfig::group_age`]: a killed process loses at most 30 s, and a day has
/// 2,880 files.
pub const DEFAULT_GROUP_AGE: Duration = Duration::from_secs(30);

/// How often the recorder reads the pool's events. They do not wake it, so that it adds nothing to
/// the cost of an insert: at 2,000 transactions/s some 400 events wait, and the pool's log holds
/// 262,144.
pub const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The configuration of a [`Recorder`](crate::Recorder).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecorderConfig {
    /// The folder of the segments. Created if it does not exist.
    pub folder: PathBuf,
    /// Whether blob transactions are written with their blobs, 131 kB each. Without them a row has
    /// the form that the transaction has in a block, which cannot be pooled again. Default true.
    pub blobs: bool,
    /// Whether transactions are written that only external callers have sent, private ones
    /// included. Default false: a transaction that the node has not announced when its group is
    /// written is left out, and counted (`mempool_recorder_skipped_total`).
    pub external: bool,
    /// Most rows of a group. Default [`DEFAULT_GROUP_ROWS`]; at least 1.
    pub group_rows: usize,
    /// A group is written when its transactions reach this many bytes; the last one may exceed it.
    /// Default [`DEFAULT_GROUP_BYTES`]; at least 1.
    pub group_bytes: usize,
    /// The longest that a group's first row waits until the group is written. Default
    /// [`DEFAULT_GROUP_AGE`]; at least [`POLL_INTERVAL`].
    pub group_age: Duration,
}

impl RecorderConfig {
    /// Records announced transactions, with blobs, into this folder.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            blobs: true,
            external: false,
            group_rows: DEFAULT_GROUP_ROWS,
            group_bytes: DEFAULT_GROUP_BYTES,
            group_age: DEFAULT_GROUP_AGE,
        }
    }

    /// Sets [`Self::blobs`].
    #[must_use]
    pub fn with_blobs(mut self, blobs: bool) -> Self {
        self.blobs = blobs;
        self
    }

    /// Sets [`Self::external`].
    #[must_use]
    pub fn with_external(mut self, external: bool) -> Self {
        self.external = external;
        self
    }

    /// Sets [`Self::group_rows`].
    #[must_use]
    pub fn with_group_rows(mut self, rows: usize) -> Self {
        self.group_rows = rows;
        self
    }

    /// Sets [`Self::group_bytes`].
    #[must_use]
    pub fn with_group_bytes(mut self, bytes: usize) -> Self {
        self.group_bytes = bytes;
        self
    }

    /// Sets [`Self::group_age`].
    #[must_use]
    pub fn with_group_age(mut self, age: Duration) -> Self {
        self.group_age = age;
        self
    }

    pub(crate) fn check(&self) -> Result<(), RecorderError> {
        for (field, value) in [("group_rows", self.group_rows), ("group_bytes", self.group_bytes)] {
            if value == 0 {
                return Err(RecorderError::Zero { field });
            }
        }
        match self.group_age < POLL_INTERVAL {
            true => Err(RecorderError::GroupAge { value: self.group_age, least: POLL_INTERVAL }),
            false => Ok(()),
        }
    }
}
