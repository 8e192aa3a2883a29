//! The answer to one request over a Unix socket of its own, read on a thread that may block.
//!
//! A pool's list and a full block have megabytes. On the connection for calls, pings and heads would wait behind them,
//! and their framing would take milliseconds of the thread that reads the sockets.

// Bytes from outside are read here: none of them may cause a panic.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::expect_used))]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice, clippy::unreachable))]

use std::{
    io::{self, Read},
    os::unix::net::UnixStream,
    path::Path,
    time::{Duration, Instant},
};

use memchr::memrchr;
use tokio::{io::AsyncWriteExt as _, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{connection::open_ipc, error::SnapshotError};

/// How long a read waits before it checks whether it is still wanted.
pub(crate) const GRAIN: Duration = Duration::from_millis(50);

/// Longest text without a quotation mark, 4 MiB, where a blob has 256 KiB: a string may be held as a
/// whole.
const MAX_STRING_BYTES: usize = 4 << 20;

/// How long an answer may take, and whether it is still wanted.
#[derive(Clone, Debug)]
pub(crate) struct Wait {
    limit: Duration,
    deadline: Instant,
    stop: CancellationToken,
}

impl Wait {
    pub(crate) fn new(limit: Duration, stop: CancellationToken) -> Self {
        let now = Instant::now();
        Self { limit, deadline: now.checked_add(limit).unwrap_or(now), stop }
    }

    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// Checked before each read: a read that has waited for [`GRAIN`] is repeated.
    pub(crate) fn check(&self) -> Result<(), SnapshotError> {
        match () {
            () if self.stop.is_cancelled() => Err(SnapshotError::ConnectionLost),
            () if Instant::now() >= self.deadline => Err(SnapshotError::Timeout(self.limit)),
            () => Ok(()),
        }
    }
}

/// Whether a read has only waited for [`GRAIN`].
pub(crate) fn has_waited(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}

/// The answer over IPC, as it comes.
#[derive(Debug)]
pub(crate) struct Answer {
    stream: UnixStream,
    wait: Wait,
    bytes: u64,
    since_quote: usize,
}

impl Answer {
    /// Sends a request. Not on the thread that reads: if the listen queue of the socket is full, a
    /// blocking connect lasts until the node accepts again.
    pub(crate) async fn request(
        path: &Path,
        request: &str,
        wait: Wait,
    ) -> Result<Self, SnapshotError> {
        let send = async {
            let mut stream = open_ipc(path).await?;
            stream.write_all(request.as_bytes()).await?;
            let stream = stream.into_std()?;
            stream.set_nonblocking(false)?;
            stream.set_read_timeout(Some(GRAIN))?;
            Ok::<_, SnapshotError>(stream)
        };
        let sent = timeout(wait.limit, send).await;
        let stream = sent.map_err(|_| SnapshotError::Timeout(wait.limit))??;
        Ok(Self { stream, wait, bytes: 0, since_quote: 0 })
    }
}

/// An error is one of the operating system, or holds a [`SnapshotError`].
impl Read for Answer {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = loop {
            self.wait.check().map_err(io::Error::other)?;
            match self.stream.read(into) {
                Ok(0) => return Err(io::Error::other(SnapshotError::Truncated(self.bytes))),
                Ok(count) => break count,
                Err(error) if has_waited(&error) => {}
                Err(error) => return Err(error),
            }
        };
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
