//! Why a real node or server is not there.

use std::{
    io,
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

/// Names a directory with `anvil`, `geth` and `nats-server` in it, instead of `target/nodes/bin`.
pub(crate) const NODES_VARIABLE: &str = "MEMPOOL_INGEST_NODES";

/// Why a real node or server is not there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RealNodeError {
    /// Not installed.
    #[error("{} is missing: run scripts/real-nodes.sh, or set {NODES_VARIABLE} to a directory that has it", path.display())]
    Missing {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// A file, process or port could not be had.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It ended, or a command of its ended badly.
    #[error("{what} ended with {status}; the end of its log {}:\n{tail}", log.display())]
    Exited {
        /// Which command.
        what: String,
        /// Its exit status.
        status: ExitStatus,
        /// Where it wrote.
        log: PathBuf,
        /// The last 2 KiB of that.
        tail: String,
    },
    /// It runs and does not answer.
    #[error("no answer on {at} after {waited:?}; the end of its log {}:\n{tail}", log.display())]
    Silent {
        /// Its socket or address.
        at: String,
        /// For how long it was asked.
        waited: Duration,
        /// Where it wrote.
        log: PathBuf,
        /// The last 2 KiB of that.
        tail: String,
    },
}

impl RealNodeError {
    pub(crate) fn exited(what: &str, status: ExitStatus, log: &Path) -> Self {
        Self::Exited { what: what.to_owned(), status, log: log.to_owned(), tail: tail(log) }
    }

    pub(crate) fn silent(at: &str, waited: Duration, log: &Path) -> Self {
        Self::Silent { at: at.to_owned(), waited, log: log.to_owned(), tail: tail(log) }
    }
}

/// The end of a log, which may lie in a folder that is deleted with the test that failed.
fn tail(log: &Path) -> String {
    const MAX_BYTES: usize = 2048;
    let bytes = std::fs::read(log).unwrap_or_default();
    String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(MAX_BYTES)..]).into_owned()
}

pub(crate) fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> RealNodeError {
    let what = what.into();
    move |source| RealNodeError::Io { what, source }
}
