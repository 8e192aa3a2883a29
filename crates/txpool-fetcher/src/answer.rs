//! The answer to one request over a socket of its own, read on a thread that may block.
//!
//! A pool's list and a full block have megabytes. On the connection for calls, pings and heads would wait behind them,
//! and their framing would take milliseconds of the thread that reads the sockets.

// Bytes from outside are read here: none of them may cause a panic.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::expect_used))]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice, clippy::unreachable))]

use std::{
    io::{self, BufReader, Read},
    sync::Arc,
    time::{Duration, Instant},
};

use memchr::memrchr;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{error::Category, value::RawValue};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::{
    config::Endpoint,
    connection::{BlockingSocket, open_socket, read_error},
    error::{LossReason, SnapshotError},
    tasks::Tasks,
};

/// Most bytes read with one call.
const CHUNK_BYTES: usize = 256 * 1024;

/// Longest text without a quotation mark, 4 MiB, where a blob has 256 KiB: a string may be held as a
/// whole.
const MAX_STRING_BYTES: usize = 4 << 20;

/// The answer, as it comes; over WebSocket when it is complete.
pub(crate) struct Answer {
    socket: BlockingSocket,
    limit: Duration,
    deadline: Instant,
    stop: CancellationToken,
    bytes: u64,
    since_quote: usize,
}

impl Answer {
    /// Sends a request, and calls `read` with the answer on a thread that may block. Over WebSocket the answer has at most
    /// `max_bytes`. Whoever stops waiting ends its reading.
    pub(crate) async fn read<T: Send + 'static>(
        (endpoint, request): (&Endpoint, &str),
        max_bytes: usize,
        limit: Duration,
        tasks: &Arc<Tasks>,
        read: impl FnOnce(Self) -> T + Send + 'static,
    ) -> Result<T, SnapshotError> {
        let stop = tasks.stop.child_token();
        let _ends = stop.clone().drop_guard();
        let now = Instant::now();
        let deadline = now.checked_add(limit).unwrap_or(now);
        let open = open_socket(endpoint, max_bytes, limit, Some(tasks));
        let socket = timeout(limit, open).await.map_err(|_| SnapshotError::Timeout(limit))??;
        // An empty socket has room for a request.
        socket.send(request.as_bytes())?;
        let answer = Self { socket, limit, deadline, stop, bytes: 0, since_quote: 0 };
        let read = tasks.spawn_blocking(move || read(answer)).await;
        read.map_err(|_| SnapshotError::ConnectionLost)
    }
}

/// The `result` of an answer; `None` for `null`. Blocks until it is complete.
pub(crate) fn result_of<T: DeserializeOwned>(
    answer: impl Read,
) -> Result<Option<T>, SnapshotError> {
    #[derive(Deserialize)]
    struct Response<T> {
        result: Option<T>,
        error: Option<Box<RawValue>>,
    }
    // It does not read on behind the answer, where the node sends nothing.
    let answer = BufReader::with_capacity(CHUNK_BYTES, answer);
    let response = Response::deserialize(&mut serde_json::Deserializer::from_reader(answer));
    let Response { result, error } = response.map_err(|error| match error.classify() {
        Category::Io => io::Error::from(error).downcast().unwrap_or_else(SnapshotError::Io),
        _ => SnapshotError::NotAPool,
    })?;
    let Some(error) = error else { return Ok(result) };
    let (code, message) = read_error(error.get());
    Err(SnapshotError::Refused { code, message })
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
        let mut count = 0;
        // Whether it is still wanted is looked at before each read, which waits for at most 100 ms.
        while count == 0 {
            if self.stop.is_cancelled() {
                return Err(io::Error::other(SnapshotError::ConnectionLost));
            }
            if Instant::now() >= self.deadline {
                return Err(io::Error::other(SnapshotError::Timeout(self.limit)));
            }
            count = self.socket.read(into).map_err(ended)?;
        }
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
