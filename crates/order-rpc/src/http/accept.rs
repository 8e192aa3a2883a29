//! Accepts connections, and rejects those beyond the limits.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use load_control::Backoff;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    time::{sleep, timeout},
};
use tokio_io_timeout::TimeoutStream;

use super::{HttpServer, connection::Connection, open::Place, response};
use crate::{metrics::Present, reply::Reason};

/// Connections that the kernel queues until they are accepted; `net.core.somaxconn` may lower it
/// (4096 on Linux since 5.4). std requests 128: with more callers at once the kernel drops
/// connections uncounted, and those clients return seconds later or not at all.
const BACKLOG: u32 = 4_096;
/// Size of the buffer for the head of a request, and of one read.
const READ_BUFFER_BYTES: usize = 32 * 1_024;
/// Time for the client to read a reject response.
pub(crate) const REJECT_TIMEOUT: Duration = Duration::from_millis(250);
/// After an error: most often the process has no file descriptors left.
const ACCEPT_BACKOFF: Backoff =
    Backoff { base: Duration::from_millis(10), cap: Duration::from_secs(1) };

pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // As std does on Unix: a restart need not wait for the connections of the previous process.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

impl HttpServer {
    /// Accepts connections for ever.
    ///
    /// # Cancel safety
    /// No accepted connection is lost.
    pub(crate) async fn accept(self: &Arc<Self>, listener: &TcpListener) {
        let mut failed = 0_u32;
        loop {
            match listener.accept().await {
                Ok((socket, address)) => {
                    failed = 0;
                    if let Some(displaced) = self.connect(socket, address) {
                        // So that no more than one is open beyond the limit.
                        displaced.closed.cancelled().await;
                    }
                }
                Err(error) => {
                    let pause = ACCEPT_BACKOFF.random_delay(failed);
                    tracing::warn!(%error, ?pause, "cannot accept a connection");
                    sleep(pause).await;
                    failed = failed.saturating_add(1);
                }
            }
        }
    }

    /// Returns the connection whose place it takes, if it takes one.
    fn connect(self: &Arc<Self>, socket: TcpStream, address: SocketAddr) -> Option<Arc<Place>> {
        let limiter = &self.dispatcher.limiter;
        let proxies = &limiter.limits.config.trusted_proxies;
        let is_proxy = proxies.contains(&address.ip().to_canonical());
        let caller = limiter.callers.of_connection(address.ip());
        // A proxy has no share.
        let Some(of_caller) = caller.connections.take(usize::from(!is_proxy)) else {
            self.refuse(socket, Reason::CallerConnections);
            return None;
        };
        let (mut of_all, mut displaced) = (limiter.connections.empty(), None);
        if !of_all.try_add(1, 0) {
            displaced = self.open.displace(caller.id);
            if displaced.is_none() {
                self.refuse(socket, Reason::Connections);
                return None;
            }
            self.dispatcher.metrics.count(Reason::Connections);
            of_all.resize(1);
        }
        let open = Present::new(&self.dispatcher.metrics.connections);
        // So that small responses are sent at once. It fails only for a closed socket.
        let _ = socket.set_nodelay(true);
        let mut socket = TimeoutStream::new(socket);
        // A client that reads no responses keeps neither its connection nor their memory.
        socket.set_write_timeout(Some(limiter.limits.send_timeout));
        let place = Arc::<Place>::default();
        let is_caller = !is_proxy && !caller.id.is_front;
        let opened = is_caller.then(|| self.open.add(caller.id, Arc::clone(&place)));
        let connection =
            Connection { server: Arc::clone(self), caller, is_proxy, place: Arc::clone(&place) };
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limiter.limits.header_timeout)
            .max_buf_size(READ_BUFFER_BYTES)
            .serve_connection(
                TokioIo::new(Box::pin(socket)),
                service_fn(move |request| connection.clone().respond(request)),
            );
        let end = self.end.clone();
        self.tasks.spawn(async move {
            let _closed = place.closed.clone().drop_guard();
            let _held = (open, opened, of_caller, of_all);
            tokio::pin!(connection);
            // The order is irrelevant: what ends the connection ends it in each, and one whose place is taken has
            // no request in work.
            let ended = tokio::select! {
                ended = connection.as_mut() => ended,
                () = place.close.cancelled() => return,
                () = end.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = ended {
                tracing::trace!(%error, "a connection failed");
            }
        });
        displaced
    }

    /// Sends a reject response to a connection beyond the limits, without reading its request.
    fn refuse(&self, mut socket: TcpStream, reason: Reason) {
        self.dispatcher.metrics.count(reason);
        let Ok(permit) = Arc::clone(&self.reject_responses).try_acquire_owned() else { return };
        let error = self.dispatcher.limiter.retry_later(reason);
        let response = response::raw_http(&error);
        self.tasks.spawn(async move {
            let reject = async {
                socket.write_all(response.as_bytes()).await?;
                socket.shutdown().await?;
                // Lingering close: unread bytes would reset the connection and lose the response.
                let mut read = [0; 1_024];
                while socket.read(&mut read).await? > 0 {}
                io::Result::Ok(())
            };
            // After the timeout the connection is closed anyway.
            let _ = timeout(REJECT_TIMEOUT, reject).await;
            drop(permit);
        });
    }
}
