//! The answer to one request over a socket of its own, read on a thread that may block.
//!
//! A pool's list and a full block have megabytes. On the connection for calls, pings and heads would wait behind them,
//! and their framing would take milliseconds of the thread that reads the sockets.

// Bytes from outside are read here: none of them may cause a panic.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::expect_used))]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice, clippy::unreachable))]

use std::{
    io::{self, Read},
    sync::Arc,
    time::{Duration, Instant},
};

use memchr::memrchr;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::{
    config::Endpoint,
    connection::{BlockingSocket, open_socket},
    error::{LossReason, SnapshotError},
    tasks::Tasks,
};

/// How long a read waits before it checks whether it is still wanted.
const GRAIN: Duration = Duration::from_millis(50);

/// Longest text without a quotation mark, 4 MiB, where a blob has 256 KiB: a string may be held as a
/// whole.
const MAX_STRING_BYTES: usize = 4 << 20;

/// How long an answer may take, and whether it is still wanted.
#[derive(Clone)]
pub(crate) struct Wait {
    limit: Duration,
    deadline: Instant,
    stop: CancellationToken,
    tasks: Arc<Tasks>,
}

impl Wait {
    pub(crate) fn new(limit: Duration, stop: CancellationToken, tasks: &Arc<Tasks>) -> Self {
        let now = Instant::now();
        let deadline = now.checked_add(limit).unwrap_or(now);
        Self { limit, deadline, stop, tasks: Arc::clone(tasks) }
    }

    /// Checked before each wait for [`GRAIN`].
    fn check(&self) -> Result<(), SnapshotError> {
        match () {
            () if self.stop.is_cancelled() => Err(SnapshotError::ConnectionLost),
            () if Instant::now() >= self.deadline => Err(SnapshotError::Timeout(self.limit)),
            () => Ok(()),
        }
    }
}

/// The answer, as it comes; over WebSocket when it is complete.
pub(crate) struct Answer {
    socket: BlockingSocket,
    wait: Wait,
    bytes: u64,
    since_quote: usize,
}

impl Answer {
    /// Sends a request. Over WebSocket the answer has at most `max_bytes`.
    pub(crate) async fn request(
        endpoint: &Endpoint,
        request: &str,
        max_bytes: usize,
        wait: Wait,
    ) -> Result<Self, SnapshotError> {
        let open = open_socket(endpoint, max_bytes, wait.limit, Some(&wait.tasks));
        let socket =
            timeout(wait.limit, open).await.map_err(|_| SnapshotError::Timeout(wait.limit))??;
        // An empty socket has room for a request.
        socket.send(request.as_bytes())?;
        Ok(Self { socket, wait, bytes: 0, since_quote: 0 })
    }
}

/// An error is one of the operating system, or holds a [`SnapshotError`].
impl Read for Answer {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let ended = |reason| match reason {
            LossReason::Io(kind) => kind.into(),
            LossReason::Oversized(max_bytes) => {
                io::Error::other(SnapshotError::Oversized(max_bytes))
            }
            _ => io::Error::other(SnapshotError::Truncated(self.bytes)),
        };
        self.wait.check().map_err(io::Error::other)?;
        while !self.socket.wait_readable(GRAIN).map_err(ended)? {
            self.wait.check().map_err(io::Error::other)?;
        }
        let count = self.socket.read(into).map_err(ended)?;
        self.bytes = self.bytes.saturating_add(count as u64);
        let read = into.get(..count).unwrap_or_default();
        self.since_quote = match memrchr(b'"', read) {
            Some(at) => count.saturating_sub(at),
            None => self.since_quote.saturating_add(count),
        };
        if self.since_quote > MAX_STRING_BYTES {
            return Err(io::Error::other(SnapshotError::NotAPool));
        }
        Ok(count)
    }
}
