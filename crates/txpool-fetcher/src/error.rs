//! What can go wrong, who is to blame, and what is tried again.

use std::{io, time::Duration};

/// A field of [`FetcherConfig`](crate::FetcherConfig) that cannot be.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A number outside its bounds.
    #[error("`{field}` is {value}, it must be between {min} and {max}")]
    OutOfRange {
        /// The field.
        field: &'static str,
        /// Its value.
        value: usize,
        /// The least it may be.
        min: usize,
        /// The most it may be.
        max: usize,
    },
    /// A size that would be rounded up in silence.
    #[error("`{field}` is {value}, it must be a power of two")]
    NotAPowerOfTwo {
        /// The field.
        field: &'static str,
        /// Its value.
        value: usize,
    },
    /// A time too short to mean anything.
    #[error("`{field}` is {value:?}, it must be at least {min:?}")]
    TooShort {
        /// The field.
        field: &'static str,
        /// Its value.
        value: Duration,
        /// The least it may be.
        min: Duration,
    },
    /// No node to ask.
    #[error("`sources` is empty, at least one endpoint is needed")]
    NoSource,
    /// The same node twice.
    #[error("`sources` names {endpoint} twice")]
    DuplicateSource {
        /// The endpoint.
        endpoint: String,
    },
    /// An endpoint without text.
    #[error("an endpoint is empty: give the path of an IPC socket or a ws:// URL")]
    EmptyEndpoint,
    /// A URL that is not a WebSocket's.
    #[error(
        "endpoint scheme `{scheme}` is not supported: give the path of an IPC socket or a ws:// URL"
    )]
    UnknownScheme {
        /// What stood before `://`.
        scheme: String,
    },
    /// The monitor has no place for our queues: one for each source and one more.
    #[error("`monitor`: {0}")]
    Monitor(#[from] load_control::ConfigError),
}

/// Why a connection to a node could not be made or is of no use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The path does not exist.
    #[error("{endpoint}: no such socket (is the node running, and is this its --ipcpath?)")]
    Missing {
        /// Where.
        endpoint: String,
    },
    /// The path exists and is no socket.
    #[error("{endpoint}: not a socket (a file or folder stands at this path)")]
    NotASocket {
        /// Where.
        endpoint: String,
    },
    /// The socket may not be opened.
    #[error("{endpoint}: permission denied (run as the node's user, or change the socket's mode)")]
    PermissionDenied {
        /// Where.
        endpoint: String,
    },
    /// A socket that nobody listens on.
    #[error("{endpoint}: connection refused (the socket is left over from a node that is gone)")]
    Refused {
        /// Where.
        endpoint: String,
    },
    /// Any other I/O error.
    #[error("{endpoint}: {source}")]
    Io {
        /// Where.
        endpoint: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The peer closed the connection before it answered.
    #[error(
        "{endpoint}: the peer closed the connection before it answered (is it at its connection limit?)"
    )]
    ClosedAtOnce {
        /// Where.
        endpoint: String,
    },
    /// The peer does not speak JSON-RPC.
    #[error("{endpoint}: the peer does not speak JSON-RPC, it said: {said:?}")]
    NotJsonRpc {
        /// Where.
        endpoint: String,
        /// The start of what it said, at most 120 characters.
        said: String,
    },
    /// The peer accepted and never answered.
    #[error(
        "{endpoint}: no answer to {method} in {timeout:?} (is the node stopped or overloaded?)"
    )]
    NoAnswer {
        /// Where.
        endpoint: String,
        /// What was asked.
        method: &'static str,
        /// How long was waited.
        timeout: Duration,
    },
    /// The peer speaks JSON-RPC but is no execution node.
    #[error("{endpoint}: not an Ethereum execution node: {method} answered {answer:?}")]
    NotEthereum {
        /// Where.
        endpoint: String,
        /// What was asked.
        method: &'static str,
        /// What it answered, at most 120 characters.
        answer: String,
    },
    /// Two sources are on different chains.
    #[error("{endpoint}: is on chain {found}, the other sources are on chain {expected}")]
    OtherChain {
        /// Where.
        endpoint: String,
        /// The chain of this source.
        found: u64,
        /// The chain of the others.
        expected: u64,
    },
    /// The subscription's buffer is not of the size that was set.
    #[error(
        "{endpoint}: the announcement buffer lost one of {probed} probes, it is smaller than {wanted} slots"
    )]
    BufferNotInEffect {
        /// Where.
        endpoint: String,
        /// Notifications pushed through it.
        probed: usize,
        /// The size that was asked for.
        wanted: usize,
    },
}

/// Why [`Fetcher::start`](crate::Fetcher::start) failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No source could be reached; the reason of the first one.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A thread or runtime could not be made.
    #[error("cannot start the `{thread}` thread: {source}")]
    Thread {
        /// Which one.
        thread: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// Why a connection that worked is gone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LossReason {
    /// The peer closed it.
    #[error("closed by the node")]
    Closed,
    /// An I/O error.
    #[error("I/O error: {0}")]
    Io(io::ErrorKind),
    /// Bytes that are no JSON-RPC.
    #[error("not JSON-RPC: {0:?}")]
    Garbage(String),
    /// One value beyond the limit.
    #[error("a value of more than {0} bytes")]
    Oversized(usize),
    /// No answer to a ping and no other byte.
    #[error("no sign of life for {0:?}")]
    Unresponsive(Duration),
    /// Announcements stopped while the chain went on.
    #[error("{0}")]
    Stale(crate::machine::StaleReason),
}

impl LossReason {
    /// The label of the reason in metrics: one of a closed set.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Io(_) => "io",
            Self::Garbage(_) => "garbage",
            Self::Oversized(_) => "oversized",
            Self::Unresponsive(_) => "unresponsive",
            Self::Stale(_) => "stale",
        }
    }
}

/// Why one call to the node brought no answer.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// No answer in time.
    #[error("no answer in {0:?}")]
    Timeout(Duration),
    /// The connection went away; the call is asked again on the next one.
    #[error("connection lost")]
    ConnectionLost,
    /// The node answered with an error.
    #[error("error {code}: {message}")]
    Rpc {
        /// The JSON-RPC code.
        code: i64,
        /// The node's words, at most 200 characters.
        message: String,
        /// When it wants to be asked again, if it says so (`data.retryAfterMs`).
        retry_after: Option<Duration>,
    },
}

impl CallError {
    /// Whether the same call may succeed when made again.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            // The answer may just be late.
            Self::Timeout(_) => true,
            // The next connection can answer.
            Self::ConnectionLost => true,
            Self::Rpc { code, .. } => match code {
                // The node cannot read what we wrote or does not know it: it never will.
                -32700 | -32600 | -32601 | -32602 => false,
                // -32005 limit exceeded, -32009 and -32603 busy or internal, -32000 geth's catch-all
                // (among it `transaction indexing is in progress`, which ends).
                _ => true,
            },
        }
    }

    /// Whether the node said, or showed by its silence, that it has too much to do.
    #[must_use]
    pub const fn is_overload(&self) -> bool {
        match self {
            Self::Timeout(_) => true,
            Self::ConnectionLost => false,
            Self::Rpc { code, .. } => matches!(code, -32005 | -32009),
        }
    }
}
