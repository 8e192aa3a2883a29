//! The options of a recorder, and their validation.

use std::{path::PathBuf, time::Duration};

use crate::error::RecorderError;

/// The default of [`RecorderConfig::group_age`]. A killed process loses at most 30 s, and a day of
/// recording has at least 2,880 files.
pub const DEFAULT_GROUP_AGE: Duration = Duration::from_secs(30);

/// The most rows of a group: 10 s at 2,000/s. In addition to its transaction, a waiting row takes
/// 16 bytes and an entry in a table of hashes, 2 MB for a full group.
pub const MAX_GROUP_ROWS: usize = 20_000;

/// A group is written when its transactions reach this many bytes; the last one may exceed it. 16
/// MiB are three seconds of 2,000 transactions/s of which 1 in 200 carries blobs. A group is in
/// memory as the pool's orders and, while it is written, one column at a time, compressed: at most
/// 32 MiB, one transaction and a page in total.
pub const MAX_GROUP_BYTES: usize = 16 << 20;

/// How often the recorder reads the pool's events. Events do not wake the recorder, so it adds
/// nothing to the cost of an insert. At 2,000 transactions/s some 400 events wait, and the pool's
/// log holds 262,144.
pub const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The configuration of a [`Recorder`](crate::Recorder).
///
/// Make one with [`Self::new`] and then set its fields: the struct gets more fields in
/// later versions.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(default = "RecorderConfig::without_folder", deny_unknown_fields)
)]
pub struct RecorderConfig {
    /// The folder of the segments. It is created if it does not exist.
    pub folder: PathBuf,
    /// Whether blob transactions are written with their blobs, 131 kB each. Without its blobs a
    /// transaction has the form that it has in a block, and cannot be pooled again. Default true.
    /// Turn it off if disk space is short.
    pub blobs: bool,
    /// Whether transactions are written that only external callers have sent, including private
    /// ones. Default false: a transaction that no node has announced when its group is written is
    /// left out and counted (`mempool_recorder_skipped_total`). Turn it on if you may keep the
    /// order flow of searchers.
    pub external: bool,
    /// How long the first row of a group waits at most until the group is written. A group that
    /// reaches [`MAX_GROUP_ROWS`] or [`MAX_GROUP_BYTES`] is written before. Default
    /// [`DEFAULT_GROUP_AGE`], at least [`POLL_INTERVAL`]. Raise it to get fewer files from a slow
    /// mempool; lower it to lose less when the process is killed.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub group_age: Duration,
}

impl RecorderConfig {
    /// Returns the configuration that records announced transactions, with blobs, into this folder.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), blobs: true, external: false, group_age: DEFAULT_GROUP_AGE }
    }

    #[cfg(feature = "serde")]
    fn without_folder() -> Self {
        Self::new("")
    }

    /// Checks the options.
    ///
    /// # Errors
    /// Names the field that is out of bounds.
    pub fn validate(&self) -> Result<(), RecorderError> {
        if self.folder.as_os_str().is_empty() {
            return Err(RecorderError::NoFolder);
        }
        if self.group_age < POLL_INTERVAL {
            return Err(RecorderError::GroupAge { value: self.group_age, min: POLL_INTERVAL });
        }
        Ok(())
    }
}
