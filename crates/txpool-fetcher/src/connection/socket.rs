//! A Unix socket that is read by a thread of its own.

use std::{io, net::Shutdown, os::unix::net::UnixStream, time::Duration};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::retry_on_intr,
    net::SendFlags,
};

/// A Unix socket in blocking mode, for the thread that reads it. Whoever writes does not wait.
///
/// A socket and its clones share one mode, so it gives out none of them.
#[derive(Debug)]
pub(crate) struct BlockingSocket(UnixStream);

/// A write must not wait, although the socket is in blocking mode.
#[cfg(not(target_vendor = "apple"))]
const SEND_FLAGS: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);
/// A write must not wait, although the socket is in blocking mode.
#[cfg(target_vendor = "apple")]
const SEND_FLAGS: SendFlags = SendFlags::DONTWAIT;

impl BlockingSocket {
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        Ok(Self(stream))
    }

    /// Waits until there is something to read; false if there is nothing within `limit`.
    ///
    /// On Linux a blocking `read` is woken twice for each request: a Unix socket also wakes its
    /// readers when the peer has read what was sent (`unix_write_space`), and only `poll`
    /// distinguishes the two.
    pub(crate) fn wait_readable(&self, limit: Duration) -> io::Result<bool> {
        let limit = Timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos().into() };
        let mut polled = [PollFd::new(&self.0, PollFlags::IN)];
        Ok(retry_on_intr(|| poll(&mut polled, Some(&limit)))? > 0)
    }

    /// Waits until one of these has something to read, and returns which have.
    pub(crate) fn wait_both(sockets: [&Self; 2]) -> io::Result<[bool; 2]> {
        let mut polled = sockets.map(|socket| PollFd::new(&socket.0, PollFlags::IN));
        retry_on_intr(|| poll(&mut polled, None))?;
        Ok(polled.map(|socket| !socket.revents().is_empty()))
    }

    /// Waits for bytes.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(retry_on_intr(|| rustix::io::read(&self.0, &mut *buffer))?)
    }

    /// Writes as much as there is room for.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(retry_on_intr(|| rustix::net::send(&self.0, bytes, SEND_FLAGS))?)
    }

    /// How many bytes have arrived and are not read.
    pub(crate) fn unread(&self) -> u64 {
        // Without an answer the next read counts as the last.
        rustix::io::ioctl_fionread(&self.0).unwrap_or(0)
    }

    /// Ends the connection; its reader wakes up.
    pub(crate) fn end(&self) {
        // It fails when the peer has closed the connection already.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}
