//! A socket that fails when its client sends no request, or only the beginning of one, for too
//! long.
//!
//! hyper's own `header_read_timeout` counts from the end of the response before, so one value would
//! have to fit both an idle connection, which proxies keep for minutes, and a head that arrives
//! byte by byte, which must not take long.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};

/// How long a client may take between two requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadTimeouts {
    /// From the end of a response to the first byte of the next request.
    pub(super) idle: Duration,
    /// From the first byte of a request to the end of its head, and from the start of the
    /// connection to its first byte.
    pub(super) head: Duration,
}

/// Tells the socket of a connection whether a request is being served.
#[derive(Clone, Debug, Default)]
pub(super) struct ServedRequests {
    /// The number of starts and ends of requests, so that it is odd while one is served. Relaxed:
    /// both sides run in the task of the connection.
    changes: Arc<AtomicU64>,
}

impl ServedRequests {
    /// Marks a request as being served until the result is dropped.
    pub(super) fn start(&self) -> ServedRequest {
        self.changes.fetch_add(1, Relaxed);
        ServedRequest { changes: Arc::clone(&self.changes) }
    }
}

/// A request that is being served, until dropped.
#[derive(Debug)]
pub(super) struct ServedRequest {
    changes: Arc<AtomicU64>,
}

impl Drop for ServedRequest {
    fn drop(&mut self) {
        self.changes.fetch_add(1, Relaxed);
    }
}

/// A socket with [`HeadTimeouts`]. Reads of a body have timeouts elsewhere.
#[derive(Debug)]
pub(super) struct RequestSocket<S> {
    socket: Pin<Box<S>>,
    served: ServedRequests,
    timeouts: HeadTimeouts,
    deadline: Pin<Box<Sleep>>,
    /// The value of [`ServedRequests::changes`] for which the deadline was set. `None` after a
    /// write, so that the idle timeout begins with the last byte of a response.
    deadline_changes: Option<u64>,
    /// Whether a byte of the next request has arrived.
    has_begun: bool,
}

impl<S> RequestSocket<S> {
    pub(super) fn new(socket: S, served: ServedRequests, timeouts: HeadTimeouts) -> Self {
        Self {
            socket: Box::pin(socket),
            served,
            timeouts,
            deadline: Box::pin(sleep(timeouts.head)),
            deadline_changes: Some(0),
            has_begun: false,
        }
    }

    fn set_deadline(&mut self, timeout: Duration) {
        self.deadline.as_mut().reset(Instant::now() + timeout);
    }

    /// Starts the idle timeout if a request has ended since the last call. Returns whether a
    /// timeout runs: none does while a request is served.
    fn is_between_requests(&mut self) -> bool {
        let changes = self.served.changes.load(Relaxed);
        if !changes.is_multiple_of(2) {
            return false;
        }
        if self.deadline_changes != Some(changes) {
            self.deadline_changes = Some(changes);
            self.has_begun = false;
            let timeout = self.timeouts.idle;
            self.set_deadline(timeout);
        }
        true
    }

    /// Wakes the task at the deadline.
    ///
    /// # Errors
    /// The deadline has passed.
    fn poll_deadline(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.deadline.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl<S: AsyncRead> AsyncRead for RequestSocket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let is_between_requests = self.is_between_requests();
        let bytes_before = buffer.filled().len();
        let read = self.socket.as_mut().poll_read(context, buffer);
        if !is_between_requests {
            return read;
        }
        if read.is_pending() {
            self.poll_deadline(context)?;
        } else if !self.has_begun && buffer.filled().len() > bytes_before {
            self.has_begun = true;
            let timeout = self.timeouts.head;
            self.set_deadline(timeout);
        }
        read
    }
}

impl<S: AsyncWrite> AsyncWrite for RequestSocket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(self.socket.as_mut().poll_write(context, bytes));
        self.deadline_changes = None;
        Poll::Ready(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(self.socket.as_mut().poll_write_vectored(context, slices));
        self.deadline_changes = None;
        Poll::Ready(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.socket.as_mut().poll_flush(context))?;
        // After a response hyper reads again only when it is woken. Nothing else would wake it if
        // the client sends nothing.
        if self.is_between_requests() {
            self.poll_deadline(context)?;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.as_mut().poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    const TIMEOUTS: HeadTimeouts =
        HeadTimeouts { idle: Duration::from_secs(120), head: Duration::from_secs(30) };

    fn connect() -> (DuplexStream, ServedRequests, RequestSocket<DuplexStream>) {
        let (client, socket) = duplex(64);
        let served = ServedRequests::default();
        (client, served.clone(), RequestSocket::new(socket, served, TIMEOUTS))
    }

    /// Reads until the timeout, and returns the time that took.
    async fn time_to_timeout(socket: &mut RequestSocket<DuplexStream>) -> Duration {
        let started_at = Instant::now();
        let error = loop {
            match socket.read_u8().await {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        started_at.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_connection_without_a_request_has_the_head_timeout() {
        let (_client, _, mut socket) = connect();
        assert_eq!(time_to_timeout(&mut socket).await.as_secs(), TIMEOUTS.head.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_response_a_connection_has_the_idle_timeout() {
        let (mut client, served, mut socket) = connect();
        client.write_u8(1).await.unwrap();
        socket.read_u8().await.unwrap();
        drop(served.start());
        assert_eq!(time_to_timeout(&mut socket).await.as_secs(), TIMEOUTS.idle.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_arrives_byte_by_byte_has_the_head_timeout() {
        let (mut client, served, mut socket) = connect();
        drop(served.start());
        let trickle = async {
            loop {
                tokio::time::sleep(Duration::from_secs(9)).await;
                if client.write_u8(1).await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        let time = tokio::select! {
            time = time_to_timeout(&mut socket) => time,
            () = trickle => unreachable!("it never ends"),
        };
        assert_eq!(time.as_secs(), 9 + TIMEOUTS.head.as_secs());
    }

    /// A response that is read slowly is not cut off by the idle timeout.
    #[tokio::test(start_paused = true)]
    async fn the_idle_timeout_begins_with_the_last_byte_of_the_response() {
        let (_client, served, mut socket) = connect();
        drop(served.start());
        for _ in 0..3 {
            tokio::time::sleep(TIMEOUTS.idle * 2 / 3).await;
            socket.write_u8(1).await.unwrap();
        }
        socket.flush().await.unwrap();
        assert_eq!(time_to_timeout(&mut socket).await.as_secs(), TIMEOUTS.idle.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn while_a_request_is_served_there_is_no_timeout() {
        let (mut client, served, mut socket) = connect();
        let _request = served.start();
        let late = TIMEOUTS.idle * 2;
        let send_late = async {
            tokio::time::sleep(late).await;
            client.write_u8(7).await.unwrap();
        };
        assert_eq!(tokio::join!(send_late, socket.read_u8()).1.unwrap(), 7);
    }
}
