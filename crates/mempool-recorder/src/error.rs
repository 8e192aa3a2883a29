//! The errors of recorder and replay, and of rows that cannot be read.

use std::{io, path::PathBuf, time::Duration};

use alloy_primitives::B256;

/// Why a [`Recorder`](crate::Recorder) cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecorderError {
    /// Groups would be written more often than the pool is read.
    #[error("group_age is {value:?}, must be at least {min:?}")]
    GroupAge {
        /// The configured age.
        value: Duration,
        /// The lower bound.
        min: Duration,
    },
    /// No folder is configured.
    #[error("folder is empty, must name a folder")]
    NoFolder,
    /// The folder cannot be written to, or its file system has no hard links.
    #[error("cannot write in {path}")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The thread cannot be started.
    #[error("cannot start the thread that records")]
    Thread(#[source] io::Error),
}

/// Why a recording cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The file or folder cannot be opened or read.
    #[error("cannot read {path}")]
    Open {
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The folder contains no complete segment.
    #[error("{path} holds no file that ends in .parquet")]
    NoSegment {
        /// The folder.
        path: PathBuf,
    },
    /// The file is not a Parquet file, or it is truncated: a Parquet file ends with its footer.
    #[error("{path} is not a complete Parquet file: {reason}")]
    NotParquet {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A required column is missing, has another type, or is compressed with another codec than
    /// gzip.
    #[error("column {column} of {path} {reason}")]
    Column {
        /// The file.
        path: PathBuf,
        /// The column.
        column: String,
        /// What the column is, and what was expected.
        reason: String,
    },
    /// The thread cannot be started.
    #[error("cannot start the thread that replays")]
    Thread(#[source] io::Error),
}

/// Why a row yields no transaction. The row is counted (`mempool_recorder_bad_rows_total`), and
/// reading continues with the next one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadRow {
    /// A required value is null.
    #[error("{column} is null")]
    Null {
        /// The column.
        column: &'static str,
    },
    /// The hash is not 0x and 64 hex digits.
    #[error("hash is not 0x and 64 hex digits")]
    Hash,
    /// Senders are trusted, and this one is not 0x and 40 hex digits.
    #[error("from is not 0x and 40 hex digits")]
    Sender,
    /// The time is before 1970.
    #[error("timestamp is {value}, before 1970")]
    Timestamp {
        /// The value, in the unit of the column.
        value: i64,
    },
    /// The bytes cannot be decoded as a transaction.
    #[error("rawTx of {hash} is not a transaction: {reason}")]
    Transaction {
        /// The hash of the row.
        hash: B256,
        /// The error.
        reason: String,
    },
    /// The bytes are a transaction with another hash.
    #[error("rawTx is transaction {found}, hash is {hash}")]
    OtherHash {
        /// The hash of the row.
        hash: B256,
        /// The hash of the bytes.
        found: B256,
    },
    /// The signature is invalid, so no sender can be recovered.
    #[error("the signature of {hash} is invalid")]
    Signature {
        /// The hash of the row.
        hash: B256,
    },
    /// The blobs do not match the transaction.
    #[error("the sidecar of {hash} does not match the transaction")]
    Sidecar {
        /// The hash of the row.
        hash: B256,
    },
    /// It is a blob transaction without its blobs. mempool-dumpster recorded these before version
    /// 0.8.0 (June 2024).
    #[error("{hash} carries blobs and was recorded without them")]
    NoSidecar {
        /// The hash of the row.
        hash: B256,
    },
    /// The rest of a row group cannot be read, or a whole file of a folder.
    #[error("{}{path} cannot be read: {reason}", rows_of(*rows))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The number of lost rows according to the file; 0 if it is the whole file.
        rows: u64,
        /// The error.
        reason: String,
    },
}

/// Returns the beginning of the message about lost rows: empty if they are a whole file, whose
/// number of rows is not known.
fn rows_of(rows: u64) -> String {
    if rows == 0 { String::new() } else { format!("{rows} rows of ") }
}

load_control::labels_of! {
    BadRow::REASONS {
        Null = "null",
        Hash = "hash",
        Sender = "sender",
        Timestamp = "timestamp",
        Transaction = "transaction",
        OtherHash = "other_hash",
        Signature = "signature",
        Sidecar = "sidecar",
        NoSidecar = "no_sidecar",
        Unreadable = "unreadable",
    }
}
