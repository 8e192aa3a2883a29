//! Errors of starting and of set-up. Everything that fails later is a [`State`](crate::State).

use std::io;

/// Why a publisher or a source cannot be started, or a stream cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// A name cannot be part of a subject.
    #[error("{field} is {value:?}, must be 1 to 32 of the characters a-z, A-Z, 0-9, - and _")]
    Name {
        /// The option.
        field: &'static str,
        /// Its value, at most 64 characters of it.
        value: String,
    },
    /// A number is out of its bounds.
    #[error("{field} is {value}, must be {min} to {max}")]
    OutOfBounds {
        /// The option.
        field: &'static str,
        /// Its value; a duration is in milliseconds.
        value: u64,
        /// The lowest accepted value.
        min: u64,
        /// The highest accepted value.
        max: u64,
    },
    /// No server is configured.
    #[error("servers is empty")]
    NoServer,
    /// The URL of a server cannot be parsed.
    #[error("servers[{index}] is not a URL of a NATS server: {source}")]
    Url {
        /// The index of the URL.
        index: usize,
        /// The parser's error.
        source: io::Error,
    },
    /// The credentials of a URL differ from credentials that are configured elsewhere.
    #[error("the credentials of servers[{index}] and of {other} differ")]
    ConflictingCredentials {
        /// The index of the URL.
        index: usize,
        /// The option with the other credentials.
        other: &'static str,
    },
    /// The operating system reports an error.
    #[error("cannot {action}: {source}")]
    Io {
        /// The action that failed: "read the credentials" or "start a thread".
        action: &'static str,
        /// The error.
        source: io::Error,
    },
    /// The server cannot be reached, or rejects the connection.
    #[error("cannot connect: {source}")]
    Connect {
        /// The client's error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The server rejects the configuration of a stream.
    #[error("cannot set up the stream {stream}: {source}")]
    Stream {
        /// The name of the stream.
        stream: String,
        /// The client's error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The server does not know lifetimes of messages.
    #[error("cannot set up the stream {stream}: it needs nats-server 2.11 or later")]
    ServerTooOld {
        /// The name of the stream.
        stream: String,
    },
}
