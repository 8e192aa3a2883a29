//! Why an intake does not start, or did not end as it should.

use crate::config::ConfigError;
use std::{io, net::SocketAddr, time::Duration};
use thiserror::Error;

/// Why an intake does not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration.
    #[error("configuration: {0}")]
    Config(#[from] ConfigError),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// No thread or runtime.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}

/// A shutdown that had to cut something off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ShutdownError {
    /// Not everything was answered in time. What the pool had accepted is in it all the same.
    #[error("{requests} requests were not answered within {deadline:?}")]
    Deadline {
        /// How many were cut off.
        requests: usize,
        /// What they had.
        deadline: Duration,
    },
    /// A thread of the RPC server panicked.
    #[error("the thread of the RPC server ended by a panic")]
    Panicked,
}
