//! Accepts connections, and rejects those beyond the limits.

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use load_control::Backoff;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    time::{sleep, timeout},
};
use tokio_io_timeout::TimeoutStream;

use super::{
    HttpServer,
    connection::Connection,
    open_connections::ConnectionSlot,
    request_socket::{HeadTimeouts, RequestSocket, ServedRequests},
    response,
    response_socket::{Reader, ResponseSocket},
};
use crate::{metrics::GaugeGuard, reply::Reason};

/// Connections that the kernel queues until they are accepted; `net.core.somaxconn` may lower it
/// (4,096 on Linux since 5.4). std requests 128: with more callers at once the kernel drops
/// connections without counting them, and those clients return seconds later or not at all.
const BACKLOG: u32 = 4_096;
/// Size of the buffer for the head of a request, and of one read.
const READ_BUFFER_BYTES: usize = 32 * 1_024;
/// Time for the client to read a reject response.
pub(crate) const REJECT_TIMEOUT: Duration = Duration::from_millis(250);
/// The pause after a failed accept, most often because the process has no file descriptors left.
const ACCEPT_BACKOFF: Backoff =
    Backoff { base: Duration::from_millis(10), cap: Duration::from_secs(1) };

/// Listens on an address.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // As std does on Unix, so that a restart need not wait for connections of the old process.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

impl HttpServer {
    /// Accepts connections until the future is dropped.
    ///
    /// # Cancel safety
    /// No accepted connection is lost.
    pub(crate) async fn accept(self: &Arc<Self>, listener: &TcpListener) -> Infallible {
        let mut failures = 0_u32;
        loop {
            match listener.accept().await {
                Ok((socket, address)) => {
                    failures = 0;
                    if let Some(displaced) = self.connect(socket, address) {
                        // So that at most one connection is open beyond the limit.
                        displaced.closed.cancelled().await;
                    }
                }
                Err(error) => {
                    let pause = ACCEPT_BACKOFF.random_delay(failures);
                    tracing::warn!(%error, ?pause, "cannot accept a connection, trying again");
                    sleep(pause).await;
                    failures = failures.saturating_add(1);
                }
            }
        }
    }

    /// Starts the task of a connection, or rejects it. Returns the slot of the connection that it
    /// displaces, if the limit of connections is reached.
    fn connect(
        self: &Arc<Self>,
        socket: TcpStream,
        address: SocketAddr,
    ) -> Option<Arc<ConnectionSlot>> {
        let limiter = &self.dispatcher.limiter;
        let proxies = &limiter.limits.config.trusted_proxies;
        let is_proxy = proxies.contains(&address.ip().to_canonical());
        let caller = limiter.callers.connected_from(address.ip());
        // A proxy has no share of its own.
        let Some(caller_place) = caller.connections.take(usize::from(!is_proxy)) else {
            self.reject(socket, Reason::CallerConnections);
            return None;
        };
        let mut place = limiter.connections.empty();
        let mut displaced = None;
        if !place.try_add(1, 0) {
            displaced = self.open.displace(caller.id);
            if displaced.is_none() {
                self.reject(socket, Reason::Connections);
                return None;
            }
            self.dispatcher.metrics.count(Reason::Connections);
            place.resize(1);
        }
        let open_gauge = GaugeGuard::new(&self.dispatcher.metrics.connections);
        // So that small responses are sent at once. It fails only for a closed socket.
        let _ = socket.set_nodelay(true);
        let mut socket = TimeoutStream::new(socket);
        // A client that reads no responses must not keep its connection and their memory.
        socket.set_write_timeout(Some(limiter.limits.send_timeout));
        let reader = Reader::new(Arc::clone(&caller));
        let socket = ResponseSocket::new(socket, reader.clone(), Arc::clone(limiter));
        let served = ServedRequests::default();
        let timeouts =
            HeadTimeouts { idle: limiter.limits.idle_timeout, head: limiter.limits.header_timeout };
        let socket = RequestSocket::new(socket, served.clone(), timeouts);
        let slot = Arc::<ConnectionSlot>::default();
        // Only the connections of callers can be displaced.
        let is_caller = !is_proxy && !caller.id.is_front;
        let opened = is_caller.then(|| self.open.add(caller.id, Arc::clone(&slot)));
        let connection = Connection {
            server: Arc::clone(self),
            caller,
            is_proxy,
            reader,
            slot: Arc::clone(&slot),
            served,
        };
        let connection = http1::Builder::new().max_buf_size(READ_BUFFER_BYTES).serve_connection(
            TokioIo::new(socket),
            service_fn(move |request| connection.clone().respond(request)),
        );
        let end = self.end.clone();
        self.tasks.spawn(async move {
            let _closed = slot.closed.clone().drop_guard();
            let _held = (open_gauge, opened, caller_place, place);
            tokio::pin!(connection);
            // The order is irrelevant: each branch ends the connection, and a displaced one has no
            // request in progress.
            let ended = tokio::select! {
                ended = connection.as_mut() => ended,
                () = slot.close.cancelled() => return,
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
    fn reject(&self, mut socket: TcpStream, reason: Reason) {
        self.dispatcher.metrics.count(reason);
        let Ok(permit) = Arc::clone(&self.reject_responses).try_acquire_owned() else { return };
        let error = self.dispatcher.limiter.retry_later(reason);
        let response = response::raw_http(&error);
        self.tasks.spawn(async move {
            let send = async {
                socket.write_all(response.as_bytes()).await?;
                socket.shutdown().await?;
                // Lingering close: unread bytes would reset the connection and lose the response.
                let mut discarded = [0; 1_024];
                while socket.read(&mut discarded).await? > 0 {}
                io::Result::Ok(())
            };
            // After an error or the timeout the connection is closed all the same.
            let _ = timeout(REJECT_TIMEOUT, send).await;
            drop(permit);
        });
    }
}
