//! A Unix socket that is read by a thread of its own.

use std::{
    io,
    net::Shutdown,
    os::unix::net::UnixStream,
    sync::{Arc, OnceLock},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, retry_on_intr},
    net::SendFlags,
};

use crate::error::LossReason;

/// A Unix socket in blocking mode, for the thread that reads it. Whoever writes does not wait.
///
/// A socket and its clones share one mode, so it gives out none of them.
pub(crate) struct BlockingSocket {
    stream: UnixStream,
    /// Of a WebSocket, set before its other end is closed.
    ended: Arc<OnceLock<LossReason>>,
}

/// A write must not wait, although the socket is in blocking mode.
#[cfg(not(target_vendor = "apple"))]
const SEND_FLAGS: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);
/// A write must not wait, although the socket is in blocking mode.
#[cfg(target_vendor = "apple")]
const SEND_FLAGS: SendFlags = SendFlags::DONTWAIT;

impl BlockingSocket {
    /// `ended` says why the socket is closed, where that is known.
    pub(crate) fn new(stream: UnixStream, ended: Arc<OnceLock<LossReason>>) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(Duration::from_millis(100)))?;
        Ok(Self { stream, ended })
    }

    /// Waits until one of these has something to read, at most `limit`, and returns which have.
    ///
    /// On Linux a blocking `read` is woken twice for each request: a Unix socket also wakes its
    /// readers when the peer has read what was sent (`unix_write_space`), and only `poll`
    /// distinguishes the two. Where little is sent, a read alone costs one system call less.
    pub(crate) fn wait<const N: usize>(sockets: [&Self; N], limit: Duration) -> [bool; N] {
        let limit = Timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos().into() };
        let mut polled = sockets.map(|socket| PollFd::new(&socket.stream, PollFlags::IN));
        match retry_on_intr(|| poll(&mut polled, Some(&limit))) {
            Ok(_) => polled.map(|socket| !socket.revents().is_empty()),
            // The error is one of a socket's, and its read says which.
            Err(_) => [true; N],
        }
    }

    /// Reads what there is. Waits for it for at most 100 ms: 0 if nothing comes.
    ///
    /// # Errors
    /// Why the connection has ended.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> Result<usize, LossReason> {
        match retry_on_intr(|| rustix::io::read(&self.stream, &mut *buffer)) {
            Ok(0) => Err(self.ended.get().cloned().unwrap_or(LossReason::Closed)),
            Ok(count) => Ok(count),
            Err(Errno::AGAIN) => Ok(0),
            Err(error) => Err(LossReason::from_io(&error.into())),
        }
    }

    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(retry_on_intr(|| rustix::net::send(&self.stream, bytes, SEND_FLAGS))?)
    }

    /// How many bytes have arrived and are not read.
    pub(crate) fn unread(&self) -> u64 {
        // Without an answer the next read counts as the last.
        rustix::io::ioctl_fionread(&self.stream).unwrap_or(0)
    }

    /// Ends the connection; its reader wakes up.
    pub(crate) fn end(&self) {
        // It fails when the peer has closed the connection already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}
