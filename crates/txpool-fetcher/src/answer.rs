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

use serde::{
    Deserializer as _,
    de::{DeserializeOwned, Error as _, IgnoredAny, MapAccess, Visitor},
};
use serde_json::{error::Category, value::RawValue};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::{
    config::Endpoint,
    connection::{BlockingSocket, Scan, open_socket, read_error},
    error::{LossReason, SnapshotError},
    tasks::Tasks,
};

/// Most bytes read with one call.
const CHUNK_BYTES: usize = 256 * 1024;

/// Most bytes from the start of one string to the start of the next, 4 MiB, where a blob has 256 KiB: a string may be held
/// as a whole, and so may a number.
const MAX_STRING_BYTES: usize = 4 << 20;

/// Most bytes of an answer beside its result, 1 MiB: an error is held as a whole, and has some hundred.
const MAX_OTHER_BYTES: usize = 1 << 20;

/// How deep an answer may be nested. It is the limit of `serde_json`, which has none for what it
/// skips, and holds a byte of that for each level.
const MAX_DEPTH: usize = 128;

/// The answer, as it comes; over WebSocket when it is complete.
pub(crate) struct Answer {
    socket: BlockingSocket,
    requested: Instant,
    limit: Duration,
    stop: CancellationToken,
    bytes: u64,
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
        let requested = Instant::now();
        let open = open_socket(endpoint, max_bytes, limit, Some(tasks));
        let socket = timeout(limit, open).await.map_err(|_| SnapshotError::Timeout(limit))??;
        // An empty socket has room for a request.
        socket.send(request.as_bytes())?;
        let answer = Self { socket, requested, limit, stop, bytes: 0 };
        let read = tasks.spawn_blocking(move || read(answer)).await;
        read.map_err(|_| SnapshotError::ConnectionLost)
    }
}

/// The `result` of an answer; `None` for `null`. Blocks until it is complete.
pub(crate) fn result_of<T: DeserializeOwned>(from: impl Read) -> Result<Option<T>, SnapshotError> {
    let left = Cell::new(MAX_OTHER_BYTES);
    let answer = Bounded { answer: from, left: &left, scan: Scan::default() };
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

/// An answer of which a part has so many bytes at most, and that is not nested too deep and has no string that is too long.
/// Depth and length are looked at after each read, of [`CHUNK_BYTES`] at most.
struct Bounded<'a, R> {
    answer: R,
    left: &'a Cell<usize>,
    scan: Scan,
}

impl<R: Read> Read for Bounded<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.answer.read(into)?;
        self.scan.advance(into.get(..count).unwrap_or_default());
        let is_too_much = self.scan.depth > MAX_DEPTH || self.scan.since_quote > MAX_STRING_BYTES;
        match self.left.get().checked_sub(count) {
            Some(left) if !is_too_much => {
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
            if self.requested.elapsed() >= self.limit {
                return Err(io::Error::other(SnapshotError::Timeout(self.limit)));
            }
            count = self.socket.read(into).map_err(ended)?;
        }
        self.bytes = self.bytes.saturating_add(count as u64);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An escaped quotation mark counted as the end of a string.
    #[test]
    fn of_a_string_without_an_end_little_is_read_whatever_it_consists_of() {
        for part in ["aa", r#"\""#] {
            let answer = format!(r#"{{"result":{{"{}"#, part.repeat(MAX_STRING_BYTES));
            let mut unread = answer.as_bytes();
            let result = result_of::<serde_json::Value>(&mut unread);
            assert!(matches!(result, Err(SnapshotError::NotAPool)), "{result:?}");
            assert!(unread.len() >= MAX_STRING_BYTES / 2, "{} bytes of {part}", unread.len());
        }
    }
}
