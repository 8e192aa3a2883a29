//! A socket that fails when its client reads responses slowly while too many others do so too.
//!
//! Until the last byte of a response is written it is in memory, and a client that reads a few
//! bytes now and then reaches no timeout.
//!
//! # Locks
//! `Reader`: taken when a proxy's request names its caller, and when a response becomes slow, to
//! copy one pointer; never across an await or with another lock.

use std::{
    io, mem,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
    time::Instant,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

use crate::limits::{Caller, Limiter, Progress, SlowBodyPlace};

/// Who reads the responses of a connection: behind a proxy the caller of the last request.
#[derive(Clone, Debug)]
pub(super) struct Reader(Arc<Mutex<Arc<Caller>>>);

impl Reader {
    pub(super) fn new(caller: Arc<Caller>) -> Self {
        Self(Arc::new(Mutex::new(caller)))
    }

    pub(super) fn set(&self, caller: &Arc<Caller>) {
        let mut reader = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The caller before is dropped without the lock, because its drop takes the table's lock.
        let _before = mem::replace(&mut *reader, Arc::clone(caller));
        drop(reader);
    }

    fn get(&self) -> Arc<Caller> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A socket whose response takes a place among the [`Limiter::slow_responses`] when it is not
/// written within `slow_body_after`. Without a place the socket fails.
#[derive(Debug)]
pub(super) struct ResponseSocket<S> {
    socket: Pin<Box<S>>,
    reader: Reader,
    limiter: Arc<Limiter>,
    /// Since a write could not be done at once; `None` if all is written.
    waiting: Option<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    progress: Arc<Progress>,
    until_slow: Pin<Box<Sleep>>,
    place: Option<SlowBodyPlace>,
}

impl<S> ResponseSocket<S> {
    pub(super) fn new(socket: S, reader: Reader, limiter: Arc<Limiter>) -> Self {
        Self { socket: Box::pin(socket), reader, limiter, waiting: None }
    }

    /// Counts what was written, or wakes the task when the response becomes slow and when it loses
    /// its place.
    fn track(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match (&written, &self.waiting) {
            (Poll::Pending, _) => self.poll_place(context)?,
            (Poll::Ready(Ok(bytes)), Some(waiting)) => waiting.progress.add(*bytes),
            (Poll::Ready(_), _) => {}
        }
        written
    }

    /// # Errors
    /// The response is slow and has no place.
    fn poll_place(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let limiter = &self.limiter;
        let waiting = self.waiting.get_or_insert_with(|| Waiting {
            progress: Arc::new(Progress::new(Instant::now())),
            until_slow: Box::pin(sleep(limiter.limits.slow_body_after)),
            place: None,
        });
        let place = match &mut waiting.place {
            Some(place) => place,
            none => {
                if waiting.until_slow.as_mut().poll(context).is_pending() {
                    return Ok(());
                }
                let (caller, progress) = (self.reader.get(), &waiting.progress);
                let is_trusted = limiter.callers.is_trusted(&caller);
                let now = Instant::now();
                let entered = limiter.slow_responses.enter(caller.id, is_trusted, progress, now);
                none.insert(entered.map_err(|_| io::ErrorKind::TimedOut)?)
            }
        };
        match place.poll_evicted(context) {
            Poll::Ready(_) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl<S: AsyncRead> AsyncRead for ResponseSocket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.socket.as_mut().poll_read(context, buffer)
    }
}

impl<S: AsyncWrite> AsyncWrite for ResponseSocket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = self.socket.as_mut().poll_write(context, bytes);
        self.track(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = self.socket.as_mut().poll_write_vectored(context, slices);
        self.track(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.socket.as_mut().poll_flush(context))?;
        // hyper flushes the socket only when it has written all it has.
        self.waiting = None;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.as_mut().poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;
    use crate::{OrderRpcConfig, limits::Limits, tests::common::gate_config};

    /// Writes 100 bytes to a socket that takes one, and reads them.
    async fn exchange(socket: &mut ResponseSocket<DuplexStream>, client: &mut DuplexStream) {
        let write = async {
            socket.write_all(&[0; 100]).await.unwrap();
            socket.flush().await.unwrap();
        };
        let read = async {
            let mut read = [0; 100];
            tokio::time::sleep(Duration::from_millis(200)).await;
            client.read_exact(&mut read).await.unwrap();
        };
        tokio::join!(write, read);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_response_has_a_place_until_it_is_read_or_displaced() {
        let limits = Limits::new(OrderRpcConfig::new(1));
        let max = limits.max_slow_bodies_per_caller;
        let gate = load_control::Gate::new(gate_config(64)).unwrap();
        let limiter = Arc::new(Limiter::new(limits, gate));
        let connect = || {
            let caller = limiter.callers.with_address([10, 0, 0, 1].into());
            let (client, socket) = duplex(1);
            (client, ResponseSocket::new(socket, Reader::new(caller), Arc::clone(&limiter)))
        };
        let mut connections: Vec<_> = (0..max + 1).map(|_| connect()).collect();
        // One after the other none is slow beside another.
        for _ in 0..2 {
            for (client, socket) in &mut connections {
                exchange(socket, client).await;
            }
        }
        // Beyond its places the caller loses the slowest, of equal ones the newest.
        let mut clients = Vec::new();
        let mut writes = Vec::new();
        for (client, mut socket) in connections {
            clients.push(client);
            writes.push(tokio::spawn(async move { socket.write_all(&[0; 100]).await }));
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let ended: Vec<_> = writes.iter().map(|write| write.is_finished()).collect();
        assert_eq!(ended.iter().filter(|ended| **ended).count(), 1, "{ended:?}");
        for (client, write) in clients.iter_mut().zip(writes) {
            let mut read = Vec::new();
            if write.is_finished() {
                assert_eq!(write.await.unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
            } else {
                client.read_to_end(&mut read).await.unwrap();
                write.await.unwrap().unwrap();
                assert_eq!(read.len(), 100);
            }
        }
    }
}
