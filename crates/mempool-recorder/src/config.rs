//! The configuration of a recorder.

use std::{path::PathBuf, time::Duration};

use crate::error::RecorderError;

/// Default of [`RecorderConfig::group_age`]: a killed process loses at most 30 s, and a day has
/// 2,880 files.
pub const DEFAULT_GROUP_AGE: Duration = Duration::from_secs(30);

/// Most rows of a group: 20,000 rows are 10 s at 2,000/s. A waiting row takes 16 bytes and an entry in
/// a table of hashes, 2 MB in all, beside its transaction.
pub const MAX_GROUP_ROWS: usize = 20_000;

/// A group is written when its transactions reach this many bytes; the last one may exceed it. 16 MiB
/// are three seconds of 2,000 transactions/s of which 1 in 200 carries blobs. A group is held once as
/// the pool's orders and, while it is written, once compressed, a column at a time: at most 32 MiB,
/// one transaction and a page.
pub const MAX_GROUP_BYTES: usize = 16 << 20;

/// How often the recorder reads the pool's events. They do not wake it, so that it adds nothing to
/// the cost of an insert: at 2,000 transactions/s some 400 events wait, and the pool's log holds
/// 262,144.
pub const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The configuration of a [`Recorder`](crate::Recorder).
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(default = "RecorderConfig::of_no_folder", deny_unknown_fields)
)]
pub struct RecorderConfig {
    /// The folder of the segments. Created if it does not exist.
    pub folder: PathBuf,
    /// Whether blob transactions are written with their blobs, 131 kB each. Without them a row has
    /// the form that the transaction has in a block, which cannot be pooled again. Default true; an
    /// operator who is short of disk turns it off.
    pub blobs: bool,
    /// Whether transactions are written that only external callers have sent, private ones
    /// included. Default false: a transaction that the node has not announced when its group is
    /// written is left out, and counted (`mempool_recorder_skipped_total`). An operator who may keep
    /// the order flow of searchers turns it on.
    pub external: bool,
    /// The longest that a group's first row waits until the group is written, unless it reaches
    /// [`MAX_GROUP_ROWS`] or [`MAX_GROUP_BYTES`] before. Default [`DEFAULT_GROUP_AGE`]; at least
    /// [`POLL_INTERVAL`]. Longer where few transactions come, for fewer files; shorter to lose less when
    /// the process is killed.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub group_age: Duration,
}

impl RecorderConfig {
    /// Records announced transactions, with blobs, into this folder.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), blobs: true, external: false, group_age: DEFAULT_GROUP_AGE }
    }

    #[cfg(feature = "serde")]
    fn of_no_folder() -> Self {
        Self::new("")
    }

    /// # Errors
    /// Names the field that is out of bounds.
    pub fn validate(&self) -> Result<(), RecorderError> {
        match self.group_age < POLL_INTERVAL {
            _ if self.folder.as_os_str().is_empty() => Err(RecorderError::NoFolder),
            true => Err(RecorderError::GroupAge { value: self.group_age, least: POLL_INTERVAL }),
            false => Ok(()),
        }
    }
}
