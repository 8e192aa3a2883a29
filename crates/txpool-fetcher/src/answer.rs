//! Reads the response to one request over a separate socket, on a thread that may block.
//!
//! The list of a pool and a full block have megabytes. On a request connection, pings and heads
//! would wait behind them, and finding the end of their messages would take milliseconds on the
//! thread of the sockets. No part of a response is held without a bound.

// Input from outside is read here: no input may cause a panic.
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

/// How often a read checks whether the response is still needed.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The highest number of bytes that are read with one call.
const CHUNK_BYTES: usize = 256 * 1024;

/// The highest number of bytes from the start of one string to the start of the next: 4 MiB, while
/// a blob has 256 KiB of hex. It bounds strings and numbers, which are held as a whole.
const MAX_STRING_BYTES: usize = 4 << 20;

/// The highest number of bytes of a response outside of its result: 1 MiB. An error is held as a
/// whole, and has some hundred bytes.
const MAX_OTHER_BYTES: usize = 1 << 20;

/// How deep a response may be nested. `serde_json` has the same limit, but not for values that it
/// skips, of which it holds one byte for each level.
const MAX_DEPTH: usize = 128;

/// A call whose response is read while it arrives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LongCall<'a> {
    pub(crate) endpoint: &'a Endpoint,
    pub(crate) method: &'static str,
    /// The parameters, as a JSON array.
    pub(crate) params: &'a str,
    /// Longest response over WebSocket, where it is held as a whole.
    pub(crate) max_bytes: usize,
    /// Time-out of the whole call.
    pub(crate) time_limit: Duration,
}

/// The bytes of a response while they arrive; over WebSocket when the response is complete.
pub(crate) struct Answer {
    bytes: Box<dyn Read + Send>,
    requested_at: Instant,
    time_limit: Duration,
    stop: CancellationToken,
    /// The number of bytes read.
    count: u64,
}

impl LongCall<'_> {
    /// Sends the request, and calls `read` with the response on a thread that may block.
    ///
    /// # Cancel safety
    /// If the future is dropped, the next read of the response fails, which ends `read`.
    pub(crate) async fn read<T: Send + 'static>(
        self,
        tasks: &Arc<Tasks>,
        read: impl FnOnce(Answer) -> T + Send + 'static,
    ) -> Result<T, SnapshotError> {
        let stop = tasks.stop.child_token();
        let _stop_on_drop = stop.clone().drop_guard();
        let requested_at = Instant::now();
        let bytes: Box<dyn Read + Send> = match self.endpoint {
            Endpoint::Ipc(path) => Box::new(self.send_over_ipc(path).await?),
            _ => Box::new(self.call_over_websocket().await?),
        };
        let time_limit = self.time_limit;
        let answer = Answer { bytes, requested_at, time_limit, stop, count: 0 };
        let read = tasks.spawn_blocking(move || read(answer)).await;
        read.map_err(|_| SnapshotError::ConnectionLost)
    }

    /// Sends the request over a new socket. The connect fails at once if the node accepts no
    /// connections and its queue of them is full, where a blocking one would wait without a bound.
    /// The write does not block, because an empty socket has room for a request.
    async fn send_over_ipc(&self, path: &Path) -> Result<UnixStream, SnapshotError> {
        let connect_error = |error| ConnectError::io(self.endpoint, error);
        let socket = tokio::net::UnixStream::connect(path).await.map_err(connect_error)?;
        let mut socket = socket.into_std().map_err(connect_error)?;
        socket.set_nonblocking(false).map_err(connect_error)?;
        socket.set_read_timeout(Some(CHECK_INTERVAL)).map_err(connect_error)?;
        socket.set_write_timeout(Some(CHECK_INTERVAL)).map_err(connect_error)?;
        let Self { method, params, .. } = self;
        let request =
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
        socket.write_all(request.as_bytes())?;
        Ok(socket)
    }

    /// Makes the call over a new WebSocket connection.
    async fn call_over_websocket(&self) -> Result<impl Read + Send + use<>, SnapshotError> {
        let connection =
            Connection::open_with(self.endpoint, self.max_bytes, self.time_limit).await?;
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

/// Reads the `result` of a response; `None` for `null`. Blocks until the response is complete.
pub(crate) fn result_of<T: DeserializeOwned>(
    response: impl Read,
) -> Result<Option<T>, SnapshotError> {
    let bytes_left = Cell::new(MAX_OTHER_BYTES);
    let bounded = Bounded { response, bytes_left: &bytes_left, scan: Scan::default() };
    // The reader stops at the end of the response: behind it the node sends nothing, and a read
    // would wait.
    let reader = BufReader::with_capacity(CHUNK_BYTES, bounded);
    let visitor = ResponseVisitor { bytes_left: &bytes_left, result: PhantomData };
    let response = serde_json::Deserializer::from_reader(reader).deserialize_map(visitor);
    let (result, error) = response.map_err(|error| match error.classify() {
        Category::Io => io::Error::from(error).downcast().unwrap_or_else(SnapshotError::Io),
        _ => SnapshotError::NotAPool,
    })?;
    let Some(error) = error else { return Ok(result) };
    let (code, message) = read_error(error.get());
    Err(SnapshotError::Refused { code, message })
}

/// The error code of a node, or of a gateway in front of it, that is at its limit (EIP-1474).
const LIMIT_EXCEEDED: i64 = -32005;

#[derive(Deserialize)]
struct ErrorFields<'a> {
    code: i64,
    #[serde(borrow, default)]
    message: Cow<'a, str>,
}

/// Reads the field `error`. If it has a form that no node uses (only a text, or a code that is
/// missing or a text), it comes from a gateway in front of the node that is at its limit.
fn read_error(error: &str) -> (i64, String) {
    let is_object = error.starts_with('{');
    let fields = if is_object { serde_json::from_str(error).ok() } else { None };
    let (code, message) = match fields {
        Some(ErrorFields { code, message }) => (code, message),
        None => (LIMIT_EXCEEDED, Cow::Borrowed(error)),
    };
    (code, clip(&message, 200))
}

/// Reads the fields of a response. The result has no bound on its bytes, because its type holds
/// only a small part of it.
struct ResponseVisitor<'a, T> {
    bytes_left: &'a Cell<usize>,
    result: PhantomData<T>,
}

impl<'de, T: DeserializeOwned> Visitor<'de> for ResponseVisitor<'_, T> {
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
                    self.bytes_left.set(usize::MAX);
                    result = map.next_value()?;
                    self.bytes_left.set(MAX_OTHER_BYTES);
                }
                "error" => error = map.next_value()?,
                _ => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        Ok((result, error))
    }
}

/// Reads a response, and fails when it exceeds a bound: the bytes that are left, the depth of its
/// nesting, or the length of a string. The bounds are checked after each read of at most
/// [`CHUNK_BYTES`].
struct Bounded<'a, R> {
    response: R,
    bytes_left: &'a Cell<usize>,
    scan: Scan,
}

impl<R: Read> Read for Bounded<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.response.read(buffer)?;
        self.scan.advance(buffer.get(..count).unwrap_or_default());
        let is_exceeded = self.scan.depth > MAX_DEPTH || self.scan.since_quote > MAX_STRING_BYTES;
        match self.bytes_left.get().checked_sub(count) {
            Some(left) if !is_exceeded => {
                self.bytes_left.set(left);
                Ok(count)
            }
            _ => Err(io::Error::other(SnapshotError::NotAPool)),
        }
    }
}

/// An error is one of the operating system, or contains a [`SnapshotError`].
impl Read for Answer {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // Each read waits for at most `CHECK_INTERVAL`.
        loop {
            if self.stop.is_cancelled() {
                return Err(io::Error::other(SnapshotError::ConnectionLost));
            }
            if self.requested_at.elapsed() >= self.time_limit {
                return Err(io::Error::other(SnapshotError::Timeout(self.time_limit)));
            }
            match self.bytes.read(buffer) {
                Ok(0) if !buffer.is_empty() => {
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

/// The position of the next byte in a JSON value.
#[derive(Default)]
struct Scan {
    /// The number of open arrays and objects.
    depth: usize,
    in_string: bool,
    /// The previous byte was a backslash in a string.
    escaped: bool,
    /// The number of bytes scanned since the latest string began.
    since_quote: usize,
}

impl Scan {
    /// Scans the next bytes, up to the end of the value. Returns the number of bytes up to there,
    /// if the value ends in them.
    #[expect(clippy::arithmetic_side_effects, reason = "counts of bytes that were read")]
    fn advance(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut position = 0;
        while let Some(rest) = bytes.get(position..)
            && let Some(first) = rest.first()
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
                        // Saturating, because not every value begins with a bracket.
                        self.depth = self.depth.saturating_sub(1);
                        if self.depth == 0 {
                            return Some(position + 1);
                        }
                    }
                    _ => {}
                }
                1
            };
            position += count;
            self.since_quote += count;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::net::UnixListener, sync::mpsc, thread};

    use tokio::runtime::{Builder, Handle};

    use super::*;

    /// Before the fix the connect blocked the thread that reads all sockets, for ever.
    #[test]
    fn a_node_that_accepts_no_connections_does_not_block_the_thread() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node.ipc");
        let _listener = UnixListener::bind(&path).unwrap();
        let (ended, has_ended) = mpsc::channel();
        thread::spawn(move || {
            Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
                // A connection that nobody accepts keeps its place although its client has gone.
                while tokio::net::UnixStream::connect(&path).await.is_ok() {}
                let call = LongCall {
                    endpoint: &Endpoint::Ipc(path),
                    method: "txpool_content",
                    params: "[]",
                    max_bytes: 1 << 20,
                    time_limit: Duration::from_secs(1),
                };
                let tasks = Arc::new(Tasks::new(Handle::current(), CancellationToken::new()));
                ended.send(call.read(&tasks, |_| ()).await).unwrap();
            });
        });
        let result = has_ended.recv_timeout(Duration::from_secs(30)).expect("it does not block");
        assert!(matches!(result, Err(SnapshotError::Connect(_))), "{result:?}");
    }

    /// Before the fix an escaped quotation mark counted as the end of a string.
    #[test]
    fn a_string_without_an_end_is_not_read_beyond_its_bound() {
        for part in ["aa", r#"\""#] {
            let response = format!(r#"{{"result":{{"{}"#, part.repeat(MAX_STRING_BYTES));
            let mut unread = response.as_bytes();
            let result = result_of::<serde_json::Value>(&mut unread);
            assert!(matches!(result, Err(SnapshotError::NotAPool)), "{result:?}");
            assert!(unread.len() >= MAX_STRING_BYTES / 2, "{} bytes of {part}", unread.len());
        }
    }
}
