//! The errors of the crate.

use std::{io, sync::Arc, time::Duration};

/// A field of [`FetcherConfig`](crate::FetcherConfig) that is not valid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A number is out of its bounds.
    #[error("`{field}` is {value}, it must be between {min} and {max}")]
    OutOfRange {
        /// The field, with its unit if it is a time.
        field: &'static str,
        /// Its value.
        value: usize,
        /// The least it may be.
        min: usize,
        /// The most it may be.
        max: usize,
    },
    /// Two sources have the same endpoint.
    #[error("`sources` names {endpoint} twice")]
    DuplicateSource {
        /// The endpoint.
        endpoint: String,
    },
    /// An endpoint is empty.
    #[error("an endpoint is empty: give the path of an IPC socket or a ws:// URL")]
    EmptyEndpoint,
    /// An endpoint is a URL with another scheme than `ws`.
    #[error(
        "endpoint scheme `{scheme}` is not supported: give the path of an IPC socket or a ws:// URL"
    )]
    UnknownScheme {
        /// The part before `://`.
        scheme: String,
    },
    /// The monitor cannot watch the fetcher's queues: one for each source and one more.
    #[error("`monitor`: {0}")]
    Monitor(#[from] load_control::ConfigError),
}

/// Why a connection to a node could not be made, or cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The socket cannot be opened, read or written.
    #[error("{endpoint}: {source}{hint}")]
    Io {
        /// The endpoint.
        endpoint: String,
        /// The error of the operating system.
        source: Arc<io::Error>,
        /// The likely cause, in brackets; empty if there is none that is likely.
        hint: &'static str,
    },
    /// The peer closed the connection before it answered.
    #[error(
        "{endpoint}: the peer closed the connection before it answered (is it at its connection limit?)"
    )]
    ClosedAtOnce {
        /// The endpoint.
        endpoint: String,
    },
    /// The peer does not speak JSON-RPC.
    #[error("{endpoint}: the peer does not speak JSON-RPC, it sent: {said:?}")]
    NotJsonRpc {
        /// The endpoint.
        endpoint: String,
        /// The start of what it sent, at most 120 characters.
        said: String,
    },
    /// The peer accepted the connection and did not answer in time.
    #[error(
        "{endpoint}: no answer to {method} in {timeout:?} (is the node stopped or overloaded?)"
    )]
    NoAnswer {
        /// The endpoint.
        endpoint: String,
        /// The method that was called.
        method: &'static str,
        /// How long we waited.
        timeout: Duration,
    },
    /// The peer speaks JSON-RPC, but is not an execution node.
    #[error("{endpoint}: not an Ethereum execution node: {method} answered {answer:?}")]
    NotEthereum {
        /// The endpoint.
        endpoint: String,
        /// The method that was called.
        method: &'static str,
        /// The answer, at most 120 characters.
        answer: String,
    },
    /// The source is on another chain than [`FetcherConfig::chain_id`], or than the other sources.
    ///
    /// [`FetcherConfig::chain_id`]: crate::FetcherConfig::chain_id
    #[error("{endpoint}: is on chain {found}, expected chain {expected}")]
    OtherChain {
        /// The endpoint.
        endpoint: String,
        /// The chain id of this source.
        found: u64,
        /// The chain id that was configured, or that of the other sources.
        expected: u64,
    },
    /// A function of a pool in this process panicked.
    #[error("{endpoint}: `{function}` of the pool panicked")]
    PoolPanicked {
        /// The endpoint.
        endpoint: String,
        /// The function of [`InProcessPool`](crate::InProcessPool).
        function: &'static str,
    },
}

impl ConnectError {
    pub(crate) fn io(endpoint: &impl ToString, source: io::Error) -> Self {
        Self::Io { endpoint: endpoint.to_string(), source: source.into(), hint: "" }
    }
}

/// Why [`Fetcher::start`](crate::Fetcher::start) failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration is not valid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No source could be reached. This is the error of the first one in the configuration.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A thread or a runtime could not be started.
    #[error("cannot start the `{thread}` thread: {source}")]
    Thread {
        /// The name of the thread.
        thread: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// What went wrong last with a source, see [`SourceStatus::last_error`](crate::SourceStatus).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// An attempt to connect failed.
    #[error(transparent)]
    Connect(ConnectError),
    /// A connection that had worked was lost.
    #[error(transparent)]
    Lost(LossReason),
    /// The node's pool could not be compared with ours.
    #[error(transparent)]
    Compare(SnapshotError),
}

/// Why a connection that had worked was lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LossReason {
    /// The node closed it.
    #[error("closed by the node")]
    Closed,
    /// An I/O error.
    #[error("I/O error: {0}")]
    Io(io::ErrorKind),
    /// The node sent bytes that are not JSON-RPC; the start of them.
    #[error("not JSON-RPC: {0:?}")]
    Garbage(String),
    /// A JSON value is longer than the limit, in bytes.
    #[error("a value of more than {0} bytes")]
    Oversized(usize),
    /// Neither a response to a ping nor another message came for this long.
    #[error("no response for {0:?}")]
    Unresponsive(Duration),
    /// Heads come and no hashes, for implausibly long, and meanwhile the node listed new ones.
    #[error("no hashes are announced, but the node listed {unannounced} new ones")]
    NoHashes {
        /// How many new hashes it listed.
        unannounced: u64,
    },
    /// Heads come and no hashes, and the node's pool cannot be listed to find out why.
    #[error("no hashes are announced, and the node does not list its pool")]
    NotListed,
    /// The node returns a newer block number on the request connection than it has announced.
    #[error("the node has newer blocks than it announced")]
    NoHeads,
    /// A stream of a pool in this process ended.
    #[error("the pool ended its stream of {0}")]
    StreamEnded(&'static str),
    /// A stream of a pool in this process panicked.
    #[error("the pool's stream of {0} panicked")]
    StreamPanicked(&'static str),
}

impl LossReason {
    /// The peer has sent these bytes, of which the start is kept.
    pub(crate) fn garbage(bytes: &[u8]) -> Self {
        const SHOWN_BYTES: usize = 120;
        let shown = bytes.get(..SHOWN_BYTES).unwrap_or(bytes);
        Self::Garbage(String::from_utf8_lossy(shown).into_owned())
    }

    /// The reason behind an error of a socket.
    pub(crate) fn from_io(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Self::Closed,
            kind => Self::Io(kind),
        }
    }

    /// Whether what the node sent, or that it closed the connection, was the end of it.
    pub(crate) const fn is_by_peer(&self) -> bool {
        matches!(self, Self::Closed | Self::Io(_) | Self::Garbage(_) | Self::Oversized(_))
    }

    /// The value of the label in metrics: one of a closed set.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Io(_) => "io",
            Self::Garbage(_) => "garbage",
            Self::Oversized(_) => "oversized",
            Self::Unresponsive(_) => "unresponsive",
            Self::NoHashes { .. } | Self::NotListed | Self::NoHeads => "stale",
            Self::StreamEnded(_) => "stream_ended",
            Self::StreamPanicked(_) => "stream_panicked",
        }
    }
}

/// Why the node's pool could not be listed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// No connection could be made.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Reading from or writing to the connection failed.
    #[error("reading the pool's content: {0}")]
    Io(#[from] io::Error),
    /// The connection ended before the answer did.
    #[error("the node closed the connection after {0} bytes of the pool's content")]
    Truncated(u64),
    /// The node sent an error response.
    #[error("the node refused to list its pool: {message} ({code})")]
    Refused {
        /// The JSON-RPC code; -32005 if there is none.
        code: i64,
        /// The node's message, at most 200 characters.
        message: String,
    },
    /// The answer is not the content of a pool.
    #[error("the answer to txpool_content is not the content of a pool")]
    NotAPool,
    /// A comparison that a caller of [`Fetcher::audit`](crate::Fetcher::audit) requested is
    /// running, and the most that may wait are waiting.
    #[error("{waiting} requests for a comparison with this node's pool are already waiting")]
    Busy {
        /// How many wait.
        waiting: usize,
    },
    /// The answer was not complete in time.
    #[error("the node did not list its pool in {0:?}")]
    Timeout(Duration),
    /// A comparison that a caller requested was not complete so long after the request: what it has
    /// found missing waits for the node, for the sink or for the load to fall.
    #[error("the comparison with the node's pool was not complete in {0:?}")]
    Unfinished(Duration),
    /// The pool holds more hashes than are kept.
    #[error("the node's pool holds more than 4,194,304 transactions")]
    TooMany,
    /// Over WebSocket, the answer is longer than this, in bytes.
    #[error(
        "the list of the node's pool is longer than {0} bytes, which is the limit over WebSocket"
    )]
    Oversized(usize),
    /// The connection for the request was lost, or there is none.
    #[error("the connection was lost")]
    ConnectionLost,
}

impl SnapshotError {
    /// Whether the pool may be listed if it is tried again soon.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            // The node may be starting, busy, or at its limit of connections; other callers wait. A pool in
            // this process may have panicked because of a single bad transaction.
            Self::Connect(_)
            | Self::Busy { .. }
            | Self::Io(_)
            | Self::Truncated(_)
            | Self::NotAPool
            | Self::Timeout(_)
            | Self::Unfinished(_)
            | Self::ConnectionLost => true,
            // No such method or namespace: -32601, on anvil -32602, by EIP-1474 also -32004.
            Self::Refused { code, .. } => {
                !matches!(code, -32700 | -32600 | -32601 | -32602 | -32004)
            }
            // The pool will not shrink soon.
            Self::TooMany | Self::Oversized(_) => false,
        }
    }
}

/// Why a call to the node has no result.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum CallError {
    #[error("no response in {0:?}")]
    Timeout(Duration),
    #[error("connection lost")]
    ConnectionLost,
    /// The node ended the connection, and the response to this request may be why.
    #[error("connection lost, perhaps by the response")]
    Suspect,
    /// An error response; of its message at most 200 characters.
    #[error("error {code}: {message}")]
    Rpc { code: i64, message: String },
}

impl CallError {
    /// Whether the same call may succeed when made again.
    pub(crate) const fn is_retryable(&self) -> bool {
        match self {
            // The response may only be late; a request on another connection may succeed.
            Self::Timeout(_) | Self::ConnectionLost | Self::Suspect => true,
            // The node cannot parse the request or does not know the method. Other codes may pass: -32005 limit
            // exceeded, -32009 and -32603 busy or internal, -32000 geth's catch-all, which includes the temporary
            // `transaction indexing is in progress`.
            Self::Rpc { code, .. } => !matches!(code, -32700 | -32600 | -32601 | -32602),
        }
    }

    /// Whether the error is a sign that the node is overloaded.
    pub(crate) const fn is_overload(&self) -> bool {
        match self {
            Self::Timeout(_) => true,
            Self::ConnectionLost | Self::Suspect => false,
            Self::Rpc { code, .. } => matches!(code, -32005 | -32009),
        }
    }
}
