//! A Unix socket that is read by a thread of its own.

use std::{
    io::{self, Read as _},
    net::Shutdown,
    os::unix::net::UnixStream,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    net::{RecvFlags, SendFlags},
};
use tokio::io::{Interest, unix::AsyncFd};

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

    /// Waits until one of these has something to read, and returns which have.
    ///
    /// On Linux a blocking `read` is woken twice for each request: a Unix socket also wakes its
    /// readers when the peer has read what was sent (`unix_write_space`), and only `poll`
    /// distinguishes the two.
    pub(crate) fn wait_readable<const N: usize>(sockets: [&Self; N]) -> io::Result<[bool; N]> {
        let mut polled = sockets.map(|socket| PollFd::new(&socket.0, PollFlags::IN));
        poll(&mut polled, None)?;
        Ok(polled.map(|socket| !socket.revents().is_empty()))
    }

    /// Waits for bytes.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        (&self.0).read(buffer)
    }

    /// Reads what has arrived.
    pub(crate) fn read_now(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::net::recv(&self.0, buffer, RecvFlags::DONTWAIT)?.0)
    }

    /// Writes as much as there is room for.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::retry_on_intr(|| rustix::net::send(&self.0, bytes, SEND_FLAGS))?)
    }

    /// How many bytes have arrived and are not read.
    pub(crate) fn unread(&self) -> Option<u64> {
        rustix::io::ioctl_fionread(&self.0).ok()
    }

    /// Calls `attempt` whenever the socket is ready, until it does not fail because it would have to wait.
    ///
    /// # Cancel safety
    /// Cancel safe, if `attempt` is.
    // The alternative to this deprecated form requires `unsafe` for the promise that the descriptor
    // stays open, which an owned `UnixStream` keeps; this workspace forbids `unsafe`.
    #[allow(deprecated)]
    pub(crate) async fn when_ready<T>(
        &self,
        interest: Interest,
        mut attempt: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        let socket = AsyncFd::with_interest(self.0.try_clone()?, interest)?;
        loop {
            let mut ready = socket.ready(interest).await?;
            match attempt() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                result => return result,
            }
        }
    }

    /// Ends the connection; its reader wakes up.
    pub(crate) fn end(&self) {
        // It fails when the peer has closed the connection already.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}
