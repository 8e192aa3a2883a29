//! The answer to one request over a socket of its own, read on a thread that may block.
//!
//! A pool's list and a full block have megabytes. On the connection for calls, pings and heads would wait behind them,
//! and their framing would take milliseconds of the thread that reads the sockets.

// Bytes from outside are read here: none of them may cause a panic.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::expect_used))]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice, clippy::unreachable))]

use std::{
    cell::Cell,
    fmt,
    io::{self, BufReader, Read},
    marker::PhantomData,
    sync::Arc,
    time::{Duration, Instant},
};

use memchr::memrchr;
use serde::{
    Deserializer as _,
    de::{DeserializeOwned, Error as _, IgnoredAny, MapAccess, Visitor},
};
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

/// Most bytes of an answer beside its result, 1 MiB: an error is held as a whole, and has some hundred.
const MAX_OTHER_BYTES: usize = 1 << 20;

/// How deep an answer may be nested. It is the limit of `serde_json`, which has none for what it skips, and holds a byte of
/// that for each level.
const MAX_DEPTH: usize = 128;

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
    let left = Cell::new(MAX_OTHER_BYTES);
    let answer = Bounded { answer, left: &left, depth: 0, within: Within::Value };
    // It does not read on behind the answer, where the node sends nothing.
    let answer = BufReader::with_capacity(CHUNK_BYTES, answer);
    let response = Response { left: &left, result: PhantomData };
    let response = serde_json::Deserializer::from_reader(answer).deserialize_map(response);
    let (result, error) = response.map_err(|error| match error.classify() {
        Category::Io => io::Error::from(error).downcast().unwrap_or_else(SnapshotError::Io),
        _ => SnapshotError::NotAPool,
    })?;
    let Some(error) = error else { return Ok(result) };
    let (code, message) = read_error(error.get());
    Err(SnapshotError::Refused { code, message })
}

/// Reads the fields of a response: its result without a bound, because whoever reads that holds little of it.
struct Response<'a, T> {
    left: &'a Cell<usize>,
    result: PhantomData<T>,
}

impl<'de, T: DeserializeOwned> Visitor<'de> for Response<'_, T> {
    type Value = (Option<T>, Option<Box<RawValue>>);

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a response")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut result, mut error) = (None, None);
        while let Some(field) = map.next_key::<String>()? {
            match field.as_str() {
                "result" if result.is_some() => return Err(A::Error::duplicate_field("result")),
                "result" => {
                    self.left.set(usize::MAX);
                    result = map.next_value()?;
                    self.left.set(MAX_OTHER_BYTES);
                }
                "error" => error = map.next_value()?,
                _ => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        Ok((result, error))
    }
}

/// An answer of which a part has so many bytes at most, and that is not nested too deep.
struct Bounded<'a, R> {
    answer: R,
    left: &'a Cell<usize>,
    depth: usize,
    within: Within,
}

/// Where the next byte stands.
enum Within {
    Value,
    Text,
    /// In a text, after a backslash.
    Escape,
}

impl<R> Bounded<'_, R> {
    fn is_too_deep(&mut self, read: &[u8]) -> bool {
        read.iter().any(|byte| {
            match (&self.within, byte) {
                (Within::Value, b'[' | b'{') => self.depth = self.depth.saturating_add(1),
                (Within::Value, b']' | b'}') => self.depth = self.depth.saturating_sub(1),
                (Within::Value, b'"') | (Within::Escape, _) => self.within = Within::Text,
                (Within::Text, b'\\') => self.within = Within::Escape,
                (Within::Text, b'"') => self.within = Within::Value,
                _ => {}
            }
            self.depth > MAX_DEPTH
        })
    }
}

impl<R: Read> Read for Bounded<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.answer.read(into)?;
        match self.left.get().checked_sub(count) {
            Some(left) if !self.is_too_deep(into.get(..count).unwrap_or_default()) => {
                self.left.set(left);
                Ok(count)
            }
            _ => Err(io::Error::other(SnapshotError::NotAPool)),
        }
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
