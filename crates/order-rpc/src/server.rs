//! Listening, accepting connections, and shutdown.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    runtime::Runtime,
    sync::{Semaphore, oneshot},
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    config::{ConfigError, OrderRpcConfig},
    context::{Host, RpcContext},
    error::{ShutdownError, StartError},
    http::connection::Connection,
    http::timed::TimedWrites,
    metrics::{OpenConnection, OpenCount},
    reply::{ErrorResponse, Reason},
};

/// Connections that the kernel queues until they are accepted; `net.core.somaxconn` may lower it
/// (4096 on Linux since 5.4). std requests 128: with more callers at once the kernel drops
/// connections uncounted, and those clients return seconds later or not at all.
const BACKLOG: u32 = 4_096;
/// Size of the buffer for the head of a request, and of one read.
const READ_BUFFER_BYTES: usize = 32 * 1_024;
/// Connections beyond the limit that are sent a reject response at the same time; more are closed
/// without a response.
const MAX_REJECT_RESPONSES: usize = 64;
/// Time for the client to read a reject response.
const REJECT_TIMEOUT: Duration = Duration::from_millis(250);
/// Time for the threads to end once they have no more work.
const THREADS_TIMEOUT: Duration = Duration::from_secs(1);
/// After an error, accepting waits this long, doubled each time up to [`MAX_ACCEPT_PAUSE`]: most
/// often the process has no file descriptors left.
const MIN_ACCEPT_PAUSE: Duration = Duration::from_millis(10);
const MAX_ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// The RPC server.
#[derive(Debug)]
#[non_exhaustive]
pub struct OrderRpc;

/// A running RPC server. If it is dropped without [`Self::shutdown`], it ends at once in the
/// background.
#[derive(Debug)]
#[must_use = "dropping it ends the RPC server"]
pub struct OrderRpcHandle {
    local_addr: SocketAddr,
    context: Arc<RpcContext>,
    stop: Option<oneshot::Sender<Duration>>,
    stopped: oneshot::Receiver<Result<(), ShutdownError>>,
}

impl OrderRpc {
    /// Listens, and starts the threads that serve. Returns when callers can connect.
    ///
    /// The server has a runtime of its own, so a flood of requests occupies no other threads.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(config: OrderRpcConfig, host: Host) -> Result<OrderRpcHandle, StartError> {
        let address = config.listen;
        let gate = host.gate.config();
        let external_permits = match host.gate.request_limit() {
            Some(_) => gate.work_permits - gate.reserved_permits,
            None => gate.work_permits,
        };
        let threads = config.threads;
        let context = Arc::new(RpcContext::new(config, host)?);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            // One for each work permit of external callers: more never run at once.
            .max_blocking_threads(external_permits)
            .thread_name("order-rpc")
            .enable_all()
            .build()
            .map_err(StartError::Thread)?;
        let (listener, local_addr) = match listen(&runtime, address) {
            Ok(listening) => listening,
            Err(source) => {
                // Not dropped: the caller's thread may belong to another runtime, where waiting for
                // this one would panic.
                runtime.shutdown_background();
                return Err(StartError::Listen { address, source });
            }
        };
        let (stop, stopping) = oneshot::channel();
        let (done, stopped) = oneshot::channel();
        let serving = Arc::clone(&context);
        if context.config.max_blobs_per_tx > 0 {
            // A failure was logged, and the first blobs retry.
            let ahead = Arc::clone(&context);
            runtime.spawn(async move { _ = ahead.proofs.set_up().await });
        }
        let run = move |runtime: Runtime| {
            let ended = runtime.block_on(run(serving, listener, stopping));
            // Drops the aborted tasks and waits for their threads, so that nothing of the server is
            // left; work whose caller has disconnected ends by itself within milliseconds.
            runtime.shutdown_timeout(THREADS_TIMEOUT);
            // The handle may have been dropped.
            let _ = done.send(ended);
        };
        let main = thread::Builder::new().name("order-rpc-main".to_owned());
        hand_over(main, runtime, run).map_err(StartError::Thread)?;
        Ok(OrderRpcHandle { local_addr, context, stop: Some(stop), stopped })
    }
}

/// Runs `body` with the runtime on a new thread. If the thread cannot be started, the runtime ends
/// in the background: it must not be dropped on the caller's thread, which would panic if that
/// belongs to another runtime.
fn hand_over(
    builder: thread::Builder,
    runtime: Runtime,
    run: impl FnOnce(Runtime) + Send + 'static,
) -> io::Result<()> {
    let (give, take) = mpsc::sync_channel(1);
    let spawned = builder.spawn(move || {
        // Without a runtime, `hand_over` did not complete.
        if let Ok(runtime) = take.recv() {
            run(runtime);
        }
    });
    match spawned {
        Ok(_) => {
            // The thread waits for the runtime, and nothing before that can end it.
            if let Err(mpsc::SendError(runtime)) = give.send(runtime) {
                runtime.shutdown_background();
            }
            Ok(())
        }
        Err(error) => {
            runtime.shutdown_background();
            Err(error)
        }
    }
}

fn listen(runtime: &Runtime, address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let _in_runtime = runtime.enter();
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // As std does on Unix: a restart need not wait for the connections of the previous process.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    let listener = socket.listen(BACKLOG)?;
    let local_addr = listener.local_addr()?;
    Ok((listener, local_addr))
}

impl OrderRpcHandle {
    /// The address on which it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// The state of the deferral queue; `None` once the server shuts down.
    pub fn deferral_stats(&self) -> Option<load_control::DeferralStats> {
        self.context.deferral.stats()
    }

    /// Requests in progress.
    pub fn active_requests(&self) -> usize {
        self.context.active.count()
    }

    /// Bytes of request bodies, and of responses that are not sent yet.
    pub fn buffered_bytes(&self) -> usize {
        self.context.buffered.used()
    }

    /// Shuts down: new requests are refused, requests in flight are answered, deferred requests are
    /// refused, and then all connections are closed. Returns after at most `deadline` plus a second
    /// for the threads to end; then no task of the server is left.
    ///
    /// # Errors
    /// [`ShutdownError::Deadline`] if requests were not answered.
    ///
    /// # Cancel safety
    /// If the future is dropped, the shutdown continues in the background.
    pub async fn shutdown(mut self, deadline: Duration) -> Result<(), ShutdownError> {
        if let Some(stop) = self.stop.take() {
            // If it has ended already, `stopped` has the result.
            let _ = stop.send(deadline);
        }
        (&mut self.stopped).await.unwrap_or(Err(ShutdownError::Panicked))
    }
}

async fn run(
    context: Arc<RpcContext>,
    listener: TcpListener,
    stopping: oneshot::Receiver<Duration>,
) -> Result<(), ShutdownError> {
    let connections = Connections::default();
    let pump = connections.tasks.spawn({
        let context = Arc::clone(&context);
        async move { context.deferral.run(&context.host.gate).await }
    });
    let acceptor = Acceptor::new(&context, connections.clone());
    tokio::pin!(stopping);
    let deadline = {
        let accepting = acceptor.accept(&listener);
        tokio::select! {
            // The handle was dropped without a shutdown, so nothing waits for the requests.
            deadline = &mut stopping => deadline.unwrap_or(Duration::ZERO),
            () = accepting => Duration::ZERO,
        }
    };
    let until = Instant::now() + deadline;
    context.active.close();
    context.deferral.close();
    // Connections are still accepted, so that their requests get a response.
    let drained = tokio::select! {
        biased;
        () = context.active.drained() => true,
        () = sleep_until(until) => false,
        () = acceptor.accept(&listener) => false,
    };
    let requests = context.active.count();
    drop(listener);
    connections.end.cancel();
    connections.tasks.close();
    // A short time even at the deadline: idle connections close at once.
    let grace = until.max(Instant::now() + REJECT_TIMEOUT);
    if timeout_at(grace, connections.tasks.wait()).await.is_err() {
        // Not an error: every request that is not in `requests` has its response; the remaining
        // clients do not read it. The end of the runtime closes their connections.
        let open = connections.tasks.len();
        tracing::debug!(open, "closing connections whose clients did not read their last bytes");
    }
    pump.abort();
    if drained { Ok(()) } else { Err(ShutdownError::Deadline { requests, deadline }) }
}

/// The tasks of all connections, and the token that ends them.
#[derive(Clone, Debug, Default)]
struct Connections {
    tasks: TaskTracker,
    end: CancellationToken,
}

/// Accepts connections, and rejects those beyond the limits.
struct Acceptor {
    context: Arc<RpcContext>,
    connections: Connections,
    reject_responses: Arc<Semaphore>,
    http: http1::Builder,
}

impl Acceptor {
    fn new(context: &Arc<RpcContext>, connections: Connections) -> Self {
        let config = &context.config;
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(config.header_timeout)
            .max_buf_size(READ_BUFFER_BYTES);
        Self {
            reject_responses: Arc::new(Semaphore::new(MAX_REJECT_RESPONSES)),
            context: Arc::clone(context),
            connections,
            http,
        }
    }

    /// Accepts connections for ever.
    ///
    /// # Cancel safety
    /// No accepted connection is lost.
    async fn accept(&self, listener: &TcpListener) {
        let mut pause = MIN_ACCEPT_PAUSE;
        loop {
            match listener.accept().await {
                Ok((socket, peer)) => {
                    pause = MIN_ACCEPT_PAUSE;
                    self.connect(socket, peer);
                }
                Err(error) => {
                    tracing::warn!(%error, ?pause, "cannot accept a connection");
                    sleep(pause).await;
                    pause = (pause * 2).min(MAX_ACCEPT_PAUSE);
                }
            }
        }
    }

    fn connect(&self, socket: TcpStream, peer: SocketAddr) {
        let context = &self.context;
        let is_proxy = context.config.trusted_proxies.contains(&peer.ip().to_canonical());
        let peer = context.peers.of_connection(peer.ip(), &context.config);
        let of_peer = if is_proxy { None } else { Some(peer.connections.take(1)) };
        let (of_peer, of_all) = match (of_peer, context.connections.take(1)) {
            (Some(None), _) => return self.refuse(socket, Reason::PeerConnections),
            (_, None) => return self.refuse(socket, Reason::Connections),
            (of_peer, Some(of_all)) => (of_peer.flatten(), of_all),
        };
        let count = OpenCount::new(&context.metrics.connections);
        let open = OpenConnection { _count: count, _of_all: of_all, _of_peer: of_peer };
        let connection = Connection {
            context: Arc::clone(context),
            tasks: self.connections.tasks.clone(),
            peer,
            is_proxy,
        };
        self.serve(socket, connection, open);
    }

    fn serve(&self, socket: TcpStream, connection: Connection, open: OpenConnection) {
        // Disables Nagle's algorithm, so that small responses are sent at once. This fails only for
        // a closed socket, which the next read reports.
        let _ = socket.set_nodelay(true);
        let socket = TimedWrites::new(socket, self.context.config.send_timeout);
        let service = service_fn(move |request| connection.clone().respond(request));
        let connection = self.http.serve_connection(TokioIo::new(socket), service);
        let end = self.connections.end.clone();
        self.connections.tasks.spawn(async move {
            let _open = open;
            tokio::pin!(connection);
            let ended = tokio::select! {
                ended = connection.as_mut() => ended,
                () = end.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = ended {
                tracing::trace!(%error, "a connection failed");
            }
        });
    }

    /// Sends a reject response to a connection beyond the limits, without reading its request.
    fn refuse(&self, mut socket: TcpStream, reason: Reason) {
        let message = match reason {
            Reason::PeerConnections => "too many connections from this address are open",
            _ => "too many connections are open",
        };
        self.context.metrics.count(reason);
        let Ok(place) = Arc::clone(&self.reject_responses).try_acquire_owned() else { return };
        let answer = raw_http(&self.context.retry_later(reason, message));
        self.connections.tasks.spawn(async move {
            let reject = async {
                socket.write_all(&answer).await?;
                socket.shutdown().await?;
                // Lingering close: unread bytes would reset the connection and lose the response.
                let mut read = [0; 1_024];
                while socket.read(&mut read).await? > 0 {}
                io::Result::Ok(())
            };
            // After the timeout the connection is closed anyway.
            let _ = timeout(REJECT_TIMEOUT, reject).await;
            drop(place);
        });
    }
}

fn raw_http(error: &ErrorResponse) -> Vec<u8> {
    let (body, head) = (error.json(), error.clone().response());
    let mut text = format!(
        "HTTP/1.1 {}\r\nconnection: close\r\ncontent-length: {}\r\n",
        head.status(),
        body.len()
    )
    .into_bytes();
    for (name, value) in head.headers() {
        text.extend_from_slice(name.as_str().as_bytes());
        text.extend_from_slice(b": ");
        text.extend_from_slice(value.as_bytes());
        text.extend_from_slice(b"\r\n");
    }
    text.extend_from_slice(b"\r\n");
    text.extend_from_slice(body.as_bytes());
    text
}

impl From<load_control::ConfigError> for StartError {
    fn from(error: load_control::ConfigError) -> Self {
        ConfigError::from(error).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn without_a_thread_it_is_an_error_and_no_panic_of_the_callers_runtime() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build();
        // No machine has an address space for such a stack.
        let builder = thread::Builder::new().stack_size(1 << 60);
        assert!(hand_over(builder, runtime.unwrap(), |_| unreachable!("no thread")).is_err());
    }

    #[tokio::test]
    async fn a_thread_gets_the_runtime() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build();
        let (done, ran) = oneshot::channel();
        hand_over(thread::Builder::new(), runtime.unwrap(), |runtime| {
            done.send(runtime.block_on(async { 7 })).unwrap();
        })
        .unwrap();
        assert_eq!(ran.await, Ok(7));
    }
}
