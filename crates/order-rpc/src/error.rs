//! Errors of the start and the shutdown of the RPC server.

use std::{io, net::SocketAddr, time::Duration};

use thiserror::Error;

use crate::config::ConfigError;

/// Why the RPC server could not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration is invalid.
    #[error("configuration: {0}")]
    Config(#[from] ConfigError),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The runtime or a thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}

/// Why a shutdown was not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ShutdownError {
    /// Not every request was answered in time. Orders that the pool has accepted stay in it.
    #[error("{requests} requests were not answered within {deadline:?}")]
    Deadline {
        /// How many were not answered.
        requests: usize,
        /// The deadline.
        deadline: Duration,
    },
    /// A thread of the RPC server panicked.
    #[error("the thread of the RPC server ended by a panic")]
    Panicked,
}
