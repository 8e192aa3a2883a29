//! The answer to one request over a socket of its own, read on a thread that may block.
//!
//! A pool's list and a full block have megabytes. On the connection for calls, pings and heads would wait behind them,
//! and their framing would take milliseconds of the thread that reads the sockets.

// Bytes from outside are read here: none of them may cause a panic.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::expect_used))]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice, clippy::unreachable))]

use std::{
    borrow::Cow,
    cell::Cell,
    fmt,
    io::{self, BufReader, Cursor, ErrorKind, Read, Write as _},
    marker::PhantomData,
    os::unix::net::UnixStream,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use memchr::memchr2;
use serde::{
    Deserialize, Deserializer as _,
    de::{DeserializeOwned, Error as _, IgnoredAny, MapAccess, Visitor},
};
use serde_json::{error::Category, value::RawValue};
use tokio_util::sync::CancellationToken;

use crate::{
    config::Endpoint,
    error::{CallError, ConnectError, SnapshotError},
    node::{Connection, clip},
    tasks::Tasks,
};

/// How often a read looks whether the answer is still wanted.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

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

/// A call of which the answer is read as it comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LongCall<'a> {
    pub(crate) endpoint: &'a Endpoint,
    pub(crate) method: &'static str,
    /// A JSON array.
    pub(crate) params: &'a str,
    /// Longest answer over WebSocket, where it is held as a whole.
    pub(crate) max_bytes: usize,
    /// For the whole of it.
    pub(crate) time_limit: Duration,
}

/// The answer, as it comes; over WebSocket when it is complete.
pub(crate) struct Answer {
    bytes: Box<dyn Read + Send>,
    requested: Instant,
    time_limit: Duration,
    stop: CancellationToken,
    count: u64,
}

impl LongCall<'_> {
    /// Sends the request, and calls `read` with the answer on a thread that may block. Whoever stops
    /// waiting ends its reading.
    pub(crate) async fn read<T: Send + 'static>(
        self,
        tasks: &Arc<Tasks>,
        read: impl FnOnce(Answer) -> T + Send + 'static,
    ) -> Result<T, SnapshotError> {
        let stop = tasks.stop.child_token();
        let _ends = stop.clone().drop_guard();
        let requested = Instant::now();
        let bytes: Box<dyn Read + Send> = match self.endpoint {
            Endpoint::Ipc(path) => Box::new(self.send_to(path)?),
            _ => Box::new(self.call().await?),
        };
        let time_limit = self.time_limit;
        let answer = Answer { bytes, requested, time_limit, stop, count: 0 };
        let read = tasks.spawn_blocking(move || read(answer)).await;
        read.map_err(|_| SnapshotError::ConnectionLost)
    }

    /// Neither the connect nor the write waits: the node accepts a connection before it serves it, and an
    /// empty socket has room for a request.
    fn send_to(&self, path: &Path) -> Result<UnixStream, SnapshotError> {
        let connect_error = |error| ConnectError::io(self.endpoint, error);
        let mut socket = UnixStream::connect(path).map_err(connect_error)?;
        socket.set_read_timeout(Some(LOOK_AGAIN)).map_err(connect_error)?;
        socket.set_write_timeout(Some(LOOK_AGAIN)).map_err(connect_error)?;
        let Self { method, params, .. } = self;
        let request =
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
        socket.write_all(request.as_bytes())?;
        Ok(socket)
    }

    /// Over WebSocket, with a connection of its own: on the connection for calls, everything would wait
    /// behind it.
    async fn call(&self) -> Result<impl Read + Send + use<>, SnapshotError> {
        let connection =
            Connection::open_for(self.endpoint, self.max_bytes, self.time_limit).await?;
        let params = RawValue::from_string(self.params.to_owned());
        let params = params.map_err(|_| SnapshotError::NotAPool)?;
        let called = connection.call(self.method, params, self.time_limit).await;
        let result = called.map_err(|error| match error {
            CallError::Timeout(limit) => SnapshotError::Timeout(limit),
            CallError::Rpc { code, message } => SnapshotError::Refused { code, message },
            CallError::ConnectionLost => SnapshotError::ConnectionLost,
            CallError::Unreadable { .. } => SnapshotError::NotAPool,
        })?;
        let result = Cursor::new(Box::<str>::from(result).into_string());
        Ok(br#"{"result":"#.chain(result).chain(&b"}"[..]))
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

/// What a gateway before the node says that is at its limit.
const LIMIT_EXCEEDED: i64 = -32005;

#[derive(Deserialize)]
struct AnyError<'a> {
    code: i64,
    #[serde(borrow, default)]
    message: Cow<'a, str>,
}

/// Reads what stands in the field `error`. In a form that no node uses (a text alone, a code that is
/// missing or a text) it comes from a gateway before the node, which says that it is at its limit.
fn read_error(error: &str) -> (i64, String) {
    let read = || serde_json::from_str::<AnyError<'_>>(error).ok();
    let (code, message) = match error.starts_with('{').then(read).flatten() {
        Some(AnyError { code, message }) => (code, message),
        None => (LIMIT_EXCEEDED, Cow::Borrowed(error)),
    };
    (code, clip(&message, 200))
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
        // Whether it is still wanted is looked at before each read, which waits for at most 100 ms.
        loop {
            if self.stop.is_cancelled() {
                return Err(io::Error::other(SnapshotError::ConnectionLost));
            }
            if self.requested.elapsed() >= self.time_limit {
                return Err(io::Error::other(SnapshotError::Timeout(self.time_limit)));
            }
            match self.bytes.read(into) {
                Ok(0) if !into.is_empty() => {
                    return Err(io::Error::other(SnapshotError::Truncated(self.count)));
                }
                Ok(count) => {
                    self.count = self.count.saturating_add(count as u64);
                    return Ok(count);
                }
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                    ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
                        return Err(io::Error::other(SnapshotError::Truncated(self.count)));
                    }
                    _ => return Err(error),
                },
            }
        }
    }
}

/// Where in a JSON value the next byte stands.
#[derive(Default)]
struct Scan {
    /// How many arrays and objects are open.
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// How many bytes have been scanned since the latest string began.
    since_quote: usize,
}

impl Scan {
    /// Scans the next bytes, up to the end of the value. Returns how many those are if it ends in them.
    #[expect(clippy::arithmetic_side_effects, reason = "counts of bytes that were read")]
    fn advance(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while let Some((rest, first)) = bytes.get(at..).and_then(|rest| Some((rest, rest.first()?)))
        {
            let count = if self.escaped {
                self.escaped = false;
                1
            } else if self.in_string {
                let end = memchr2(b'"', b'\\', rest);
                self.escaped = end.is_some_and(|end| rest.get(end) == Some(&b'\\'));
                self.in_string = self.escaped || end.is_none();
                end.map_or(rest.len(), |end| end + 1)
            } else {
                match first {
                    b'"' => (self.in_string, self.since_quote) = (true, 0),
                    b'{' | b'[' => self.depth += 1,
                    b'}' | b']' => {
                        // Not every value begins with a bracket.
                        self.depth = self.depth.saturating_sub(1);
                        if self.depth == 0 {
                            return Some(at + 1);
                        }
                    }
                    _ => {}
                }
                1
            };
            at += count;
            self.since_quote += count;
        }
        None
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
