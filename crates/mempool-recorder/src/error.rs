//! Why nothing is recorded or replayed, and why a row is not.

use std::{io, path::PathBuf, time::Duration};

use alloy_primitives::B256;

/// Why a [`Recorder`](crate::Recorder) does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecorderError {
    /// A bound of zero.
    #[error("{field} is 0, must be at least 1")]
    Zero {
        /// The field of the configuration.
        field: &'static str,
    },
    /// Groups would be written more often than the pool is read.
    #[error("group_age is {value:?}, must be at least {least:?}")]
    GroupAge {
        /// The configured age.
        value: Duration,
        /// The least one.
        least: Duration,
    },
    /// The folder cannot be written.
    #[error("cannot write in {path}: {source}")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The system refuses the thread.
    #[error("cannot start the thread that records: {0}")]
    Thread(#[source] io::Error),
}

/// Why a recording cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The file or folder cannot be opened or read.
    #[error("cannot read {path}: {source}")]
    Open {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A folder without one complete segment.
    #[error("{path} holds no file that ends in .parquet")]
    NoSegment {
        /// The folder.
        path: PathBuf,
    },
    /// The file is no Parquet file, or is cut short: a Parquet file ends with its footer.
    #[error("{path} is no complete Parquet file: {reason}")]
    NotParquet {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        reason: String,
    },
    /// The file lacks a column that is needed.
    #[error("{path} has no column {column}")]
    MissingColumn {
        /// The file.
        path: PathBuf,
        /// The column.
        column: &'static str,
    },
    /// A column that is needed has another type.
    #[error("column {column} of {path} is {found}, expected {expected}")]
    ColumnType {
        /// The file.
        path: PathBuf,
        /// The column.
        column: &'static str,
        /// What it is.
        found: String,
        /// What it must be.
        expected: &'static str,
    },
    /// The system refuses the thread.
    #[error("cannot start the thread that replays: {0}")]
    Thread(#[source] io::Error),
}

/// Why a row gives no transaction. It is counted (`mempool_recorder_bad_rows_total`), and the next one is read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadRow {
    /// A column that is needed holds nothing here.
    #[error("{column} is null")]
    Null {
        /// The column.
        column: &'static str,
    },
    /// The hash is not 0x and 64 hex digits.
    #[error("hash is not 0x and 64 hex digits")]
    Hash,
    /// The sender is to be trusted and is not 0x and 40 hex digits.
    #[error("from is not 0x and 40 hex digits")]
    Sender,
    /// The time is before 1970.
    #[error("timestamp is {value}, before 1970")]
    Timestamp {
        /// In the unit of the column.
        value: i64,
    },
    /// The bytes are no transaction.
    #[error("rawTx of {hash} is no transaction: {reason}")]
    Transaction {
        /// The hash of the row.
        hash: B256,
        /// What does not fit.
        reason: String,
    },
    /// The bytes are another transaction.
    #[error("rawTx is transaction {found}, hash is {hash}")]
    OtherHash {
        /// The hash of the row.
        hash: B256,
        /// That of the bytes.
        found: B256,
    },
    /// No sender can be recovered.
    #[error("the signature of {hash} is invalid")]
    Signature {
        /// The hash of the row.
        hash: B256,
    },
    /// The blobs are not those that the transaction names.
    #[error("the sidecar of {hash} is of other blobs")]
    Sidecar {
        /// The hash of the row.
        hash: B256,
    },
    /// A blob transaction without its blobs, as public archives have them.
    #[error("{hash} carries blobs and was recorded without them")]
    NoSidecar {
        /// The hash of the row.
        hash: B256,
    },
    /// The rest of a row group cannot be read, or a whole file of the folder.
    #[error("{rows} rows of {path} cannot be read: {reason}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Rows that are lost, as the file counts them; 0 if it is the whole file.
        rows: u64,
        /// Why.
        reason: String,
    },
}

impl BadRow {
    /// Every value of the label `reason`.
    pub const REASONS: [&str; 10] = [
        "null",
        "hash",
        "sender",
        "timestamp",
        "transaction",
        "other_hash",
        "signature",
        "sidecar",
        "no_sidecar",
        "unreadable",
    ];

    /// The value of the label `reason`.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        Self::REASONS[self.index()]
    }

    pub(crate) const fn index(&self) -> usize {
        match self {
            Self::Null { .. } => 0,
            Self::Hash => 1,
            Self::Sender => 2,
            Self::Timestamp { .. } => 3,
            Self::Transaction { .. } => 4,
            Self::OtherHash { .. } => 5,
            Self::Signature { .. } => 6,
            Self::Sidecar { .. } => 7,
            Self::NoSidecar { .. } => 8,
            Self::Unreadable { .. } => 9,
        }
    }
}
