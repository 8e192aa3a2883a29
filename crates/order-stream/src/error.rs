//! Why something cannot be started or set up. Everything that happens later is a [`State`](crate::State).

use std::io;

/// Why a publisher or a source cannot be started, or a stream cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// A name that becomes part of a subject.
    #[error("{field} is {value:?}, must be 1 to 32 of the characters a-z, A-Z, 0-9, - and _")]
    Name {
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
    },
    /// A number out of its bounds.
    #[error("{field} is {value}, must be {min} to {max}")]
    OutOfBounds {
        /// The field.
        field: &'static str,
        /// Its value; of a duration in milliseconds.
        value: u64,
        /// The lowest accepted value.
        min: u64,
        /// The highest accepted value.
        max: u64,
    },
    /// No server is configured.
    #[error("servers is empty")]
    NoServer,
    /// The URL of a server does not parse.
    #[error("servers[{index}] is not a URL of a NATS server: {source}")]
    Url {
        /// Its index.
        index: usize,
        /// The parser's error.
        source: io::Error,
    },
    /// A URL has credentials, and other ones are configured too.
    #[error("the credentials of servers[{index}] and of {other} differ")]
    TwoCredentials {
        /// The index of the URL.
        index: usize,
        /// The option with the others.
        other: &'static str,
    },
    /// The operating system refuses something.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was tried: to read the credentials, or to start a thread.
        action: &'static str,
        /// The error.
        source: io::Error,
    },
    /// The server cannot be reached, or refuses the connection.
    #[error("cannot connect: {source}")]
    Connect {
        /// The client's error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The server refuses a stream.
    #[error("cannot set up the stream {stream}: {source}")]
    Stream {
        /// The stream.
        stream: String,
        /// The client's error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}
