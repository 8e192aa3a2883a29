//! The errors of the crate, each with the decision whether a repetition may help.
//!
//! An error whose text contains the text of its cause does not return that cause from
//! [`std::error::Error::source`]: a report of the whole chain then names each cause once, and a
//! log line that prints the error alone still names it.

use std::{io, os::unix::fs::FileTypeExt as _, path::Path, sync::Arc, time::Duration};

use crate::config::Endpoint;

/// A field of [`FetcherConfig`](crate::FetcherConfig) has an invalid value.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A number is outside of its bounds.
    #[error("`{field}` is {value}, it must be between {min} and {max}")]
    OutOfRange {
        /// The name of the field, with its unit if it is a time.
        field: &'static str,
        /// The configured value.
        value: usize,
        /// The smallest valid value.
        min: usize,
        /// The largest valid value.
        max: usize,
    },
    /// Two sources have the same endpoint.
    #[error("`sources` names {endpoint} twice")]
    DuplicateSource {
        /// The endpoint.
        endpoint: String,
    },
    /// An endpoint is empty.
    #[error("an endpoint is empty: give the path of an IPC socket, or a ws:// or wss:// URL")]
    EmptyEndpoint,
    /// An endpoint is a URL with another scheme than `ws` or `wss`.
    #[error(
        "endpoint scheme `{scheme}` is not supported: give the path of an IPC socket, or a ws:// or \
         wss:// URL"
    )]
    UnknownScheme {
        /// The part before `://`.
        scheme: String,
    },
    /// The monitor cannot watch all queues of the fetcher: one for each source, and the fetch
    /// slots.
    #[error("`monitor` cannot watch the queues of the fetcher")]
    Monitor(#[from] load_control::ConfigError),
}

/// Why a connection to a source could not be opened, or cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The socket cannot be opened, read or written.
    #[error("{endpoint}: {error}{hint}")]
    Io {
        /// The endpoint.
        endpoint: String,
        /// The error of the operating system.
        error: Arc<io::Error>,
        /// The likely cause, in brackets; empty if no cause is likely.
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
    /// The peer sent something that is not a response to a JSON-RPC request.
    #[error("{endpoint}: the peer does not answer as a node does, it sent: {received:?}")]
    NotUnderstood {
        /// The endpoint.
        endpoint: String,
        /// The start of what the peer sent, at most 120 characters.
        received: String,
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
        /// The time for which the response was awaited.
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
    /// The node lacks the method that returns the raw form of a pending transaction.
    #[error(
        "{endpoint}: the node has no {method}: {message} ({code}); use a node or a version that has \
         it, such as reth, geth, or Besu since August 2026"
    )]
    NoRawTransactions {
        /// The endpoint.
        endpoint: String,
        /// The method that was called.
        method: &'static str,
        /// The JSON-RPC code.
        code: i64,
        /// The node's message, at most 200 characters.
        message: String,
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
    pub(crate) fn io(endpoint: &Endpoint, error: io::Error) -> Self {
        let hint = match endpoint {
            Endpoint::Ipc(path) => ipc_hint(path, &error),
            Endpoint::Ws(_) | Endpoint::InProcess(_) => "",
        };
        Self::Io { endpoint: endpoint.to_string(), error: error.into(), hint }
    }

    pub(crate) fn no_answer(endpoint: &Endpoint, method: &'static str, timeout: Duration) -> Self {
        Self::NoAnswer { endpoint: endpoint.to_string(), method, timeout }
    }
}

/// Returns the likely cause of an error of an IPC socket.
fn ipc_hint(path: &Path, error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => " (is the node running, and is this its --ipcpath?)",
        io::ErrorKind::PermissionDenied => " (run as the node's user, or change the socket's mode)",
        // Linux reports "connection refused" for a stale socket and for a file that is not a
        // socket.
        _ if path.metadata().is_ok_and(|meta| !meta.file_type().is_socket()) => {
            " (there is a file or folder at this path, not a socket)"
        }
        io::ErrorKind::ConnectionRefused => " (the socket is left over from a node that is gone)",
        _ => "",
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
    #[error("cannot start the `{thread}` thread: {error}")]
    Thread {
        /// The name of the thread.
        thread: &'static str,
        /// The error of the operating system.
        error: io::Error,
    },
}

/// The latest failure of a source, see [`SourceStatus::last_error`](crate::SourceStatus).
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
    /// The node closed the connection, or alloy did because the node sent something that is not a
    /// JSON-RPC message, or a WebSocket message that is too long. The log of the targets
    /// `alloy_transport_ipc` and `alloy_transport_ws` says which.
    #[error(
        "closed by the node, or after a message that is not JSON-RPC (see the log of \
         alloy_transport_*)"
    )]
    Closed,
    /// Neither a response to a ping nor any other message came for this long.
    #[error("no response for {0:?}")]
    Unresponsive(Duration),
    /// Heads arrived without hashes for implausibly long, while the node listed new hashes.
    #[error("no hashes are announced, but the node listed {unannounced} new ones")]
    NoHashes {
        /// The number of new hashes that the node listed.
        unannounced: u64,
    },
    /// Heads arrived without hashes, and the node's pool cannot be listed to find out why.
    #[error("no hashes are announced, and the node does not list its pool")]
    NotListed,
    /// Heads arrived without hashes, while the backfill was still running.
    #[error("no hashes are announced, while the node's pool is still being fetched")]
    SilentWhileBackfilling,
    /// The node returned a newer block number on a request connection than it has announced.
    #[error("the node has newer blocks than it announced")]
    NoHeads,
    /// For ten seconds or more, every request for a transaction has failed, although the node
    /// answers other calls.
    #[error("none of {requests} requests for transactions had an answer: {latest}")]
    NoTransactions {
        /// How many requests have failed in a row.
        requests: u64,
        /// How the latest one failed.
        latest: CallError,
    },
    /// For ten seconds or more, the node has announced nothing and not returned its block number,
    /// although it answers: with errors, for one.
    #[error("nothing is announced, and the node does not return its block number")]
    NoBlockNumber,
    /// The node answered other requests, but not these, which alloy keeps as long as the connection
    /// lives.
    #[error("{requests} requests had no answer")]
    Unanswered {
        /// How many requests had no answer.
        requests: usize,
    },
    /// A stream of a pool in this process ended.
    #[error("the pool ended its stream of {0}")]
    StreamEnded(&'static str),
    /// A stream of a pool in this process panicked.
    #[error("the pool's stream of {0} panicked")]
    StreamPanicked(&'static str),
}

impl LossReason {
    /// Returns the value of the metric label `reason`, which is one of a closed set.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Unresponsive(_) => "unresponsive",
            Self::NoHashes { .. }
            | Self::NotListed
            | Self::SilentWhileBackfilling
            | Self::NoHeads
            | Self::NoBlockNumber => "stale",
            Self::NoTransactions { .. } => "no_transactions",
            Self::Unanswered { .. } => "unanswered",
            Self::StreamEnded(_) => "stream_ended",
            Self::StreamPanicked(_) => "stream_panicked",
        }
    }
}

/// Why the node's pool could not be listed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// No connection could be opened.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Reading from or writing to the connection failed.
    #[error("the list of the pool could not be read: {0}")]
    Io(io::Error),
    /// The connection ended before the response was complete.
    #[error("the node closed the connection after {0} bytes of the pool's content")]
    Truncated(u64),
    /// The node sent an error response.
    #[error("the node refused to list its pool: {message} ({code})")]
    Refused {
        /// The JSON-RPC error code; -32005 if the response has none.
        code: i64,
        /// The node's message, at most 200 characters.
        message: String,
    },
    /// The response is not the content of a pool.
    #[error("the response to txpool_content is not the content of a pool")]
    NotAPool,
    /// A comparison that another caller of `audit` requested is running, and no further request may
    /// wait.
    #[error("{waiting} requests for a comparison with this node's pool are already waiting")]
    Busy {
        /// The number of requests that wait.
        waiting: usize,
    },
    /// The response was not complete in time.
    #[error("the node did not list its pool in {0:?}")]
    Timeout(Duration),
    /// A comparison that a caller requested was not complete this long after the request, because
    /// the fetches of missing transactions wait for the node, for the sink, or for the load to
    /// fall.
    #[error("the comparison with the node's pool was not complete in {0:?}")]
    Unfinished(Duration),
    /// The pool holds more hashes than the fetcher keeps of one list.
    #[error("the node's pool holds more than 4,194,304 transactions")]
    TooMany,
    /// The connection for the request was lost, or the source has none: it has ended, or the
    /// fetcher stops.
    #[error("the connection was lost")]
    ConnectionLost,
    /// No source with this index is configured.
    #[error("there is no source {index}: {count} are configured, and the first one is source 0")]
    UnknownSource {
        /// The index that was given.
        index: usize,
        /// The number of configured sources.
        count: usize,
    },
}

impl From<io::Error> for SnapshotError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl SnapshotError {
    /// Returns whether another attempt to list the pool may succeed soon.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            // The node may be starting, busy, or at its limit of connections; other callers wait. A
            // pool in this process may have panicked because of a single bad transaction.
            Self::Connect(_)
            | Self::Busy { .. }
            | Self::Io(_)
            | Self::Truncated(_)
            | Self::NotAPool
            | Self::Timeout(_)
            | Self::Unfinished(_)
            | Self::ConnectionLost => true,
            // The method or its namespace does not exist: -32601, on anvil -32602, by EIP-1474 also
            // -32004. The response is too large for the node: -32008.
            Self::Refused { code, .. } => {
                !matches!(code, -32700 | -32600 | -32601 | -32602 | -32004 | -32008)
            }
            // The pool will not shrink soon, and the configuration does not change.
            Self::TooMany | Self::UnknownSource { .. } => false,
        }
    }
}

/// Why a call to a node has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// No response came within this time.
    #[error("no response in {0:?}")]
    Timeout(Duration),
    /// The connection ended before the response came.
    #[error("the connection was lost")]
    ConnectionLost,
    /// The result does not have the form that the method returns.
    #[error("the response does not have the form of the method: {response:?}")]
    Unreadable {
        /// The start of the result, at most 120 characters.
        response: String,
    },
    /// The node responded with an error.
    #[error("error {code}: {message}")]
    Rpc {
        /// The JSON-RPC error code.
        code: i64,
        /// The node's message, at most 200 characters.
        message: String,
    },
}

impl CallError {
    /// Returns whether the same call may succeed when it is repeated.
    pub(crate) const fn is_retryable(&self) -> bool {
        match self {
            // The response may only be late, and another connection may work.
            Self::Timeout(_) | Self::ConnectionLost => true,
            Self::Unreadable { .. } => false,
            // The node cannot parse the request or does not have the method, for which EIP-1474 has
            // -32004 too. All other codes may be temporary: -32005 limit exceeded, -32009 and
            // -32603 busy or internal, and -32000, which geth uses for everything, also for
            // `transaction indexing is in progress`.
            Self::Rpc { code, .. } => !matches!(code, -32700 | -32600 | -32601 | -32602 | -32004),
        }
    }

    /// Returns whether the error is a sign that the node is overloaded.
    pub(crate) const fn is_overload(&self) -> bool {
        match self {
            Self::Timeout(_) => true,
            Self::ConnectionLost | Self::Unreadable { .. } => false,
            Self::Rpc { code, .. } => matches!(code, -32005 | -32009),
        }
    }
}
