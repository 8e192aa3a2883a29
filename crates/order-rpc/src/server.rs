//! Starts the RPC server and shuts it down.

use std::{
    net::SocketAddr,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use load_control::{build_runtime, within};
use tokio::{
    net::TcpListener,
    runtime::Runtime,
    sync::oneshot,
    time::{Instant, sleep_until, timeout_at},
};

use crate::{
    config::OrderRpcConfig,
    deferral::DeferralStats,
    error::StartError,
    host::Host,
    http::{HttpServer, REJECT_TIMEOUT, listen},
    jsonrpc::Dispatcher,
    limits::Limits,
};

/// A deadline that never comes, as far in the future as tokio's own.
const FOREVER: Duration = Duration::from_secs(86_400 * 365 * 30);

/// Time for the threads to end once they have no more work.
const THREAD_END_TIMEOUT: Duration = Duration::from_secs(1);

/// The running RPC server. If it is dropped without [`Self::shutdown`], the server ends at once, in
/// the background.
///
/// ```
/// use load_control::{Gate, GateConfig};
/// use order_pool::{OrderPool, PoolConfig};
/// use order_rpc::{Host, OrderRpc, OrderRpcConfig};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = OrderPool::new(PoolConfig::default())?;
/// let gate = Gate::new(GateConfig::default())?;
/// let rpc = OrderRpc::start(OrderRpcConfig::new(1), Host::new(pool, gate))?;
/// println!("listening on {}", rpc.local_addr());
/// let end = rpc.shutdown(Duration::from_secs(1)).await;
/// assert!(end.ended);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping it ends the RPC server"]
pub struct OrderRpc {
    local_addr: SocketAddr,
    dispatcher: Arc<Dispatcher>,
    /// Sends the deadline of the shutdown.
    stop: oneshot::Sender<Duration>,
    end: oneshot::Receiver<OrderRpcEnd>,
}

/// How an [`OrderRpc`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OrderRpcEnd {
    /// Whether every request got its response before the deadline, and no thread of the server
    /// panicked.
    pub ended: bool,
    /// Requests that had no response at the deadline. Orders that are already in the pool stay
    /// there.
    pub unanswered: usize,
}

impl OrderRpc {
    /// Listens, and starts the threads of the server. Returns when callers can connect.
    ///
    /// The server has a runtime of its own, so a flood of requests occupies no other threads.
    ///
    /// # Errors
    /// See [`StartError`]. Nothing is left running.
    pub fn start(config: OrderRpcConfig, host: Host) -> Result<Self, StartError> {
        config.validate()?;
        Self::start_limited(Limits::new(config), host)
    }

    pub(crate) fn start_limited(limits: Limits, host: Host) -> Result<Self, StartError> {
        let dispatcher = Arc::new(Dispatcher::new(limits, host));
        let server = HttpServer::new(Arc::clone(&dispatcher));
        let (send_started, started) = mpsc::sync_channel(1);
        let (stop, stop_requested) = oneshot::channel();
        let (send_end, end) = oneshot::channel();
        // The runtime is created and dropped on this thread, because a runtime must not be dropped
        // on a thread of another one.
        let main = move || {
            let listening = match listen_on_new_runtime(&server) {
                Ok(listening) => listening,
                Err(error) => {
                    // It cannot fail: `start` waits for the result, here and below.
                    let _ = send_started.send(Err(error));
                    return;
                }
            };
            let Listening { runtime, listener, local_addr } = listening;
            let _ = send_started.send(Ok(local_addr));
            let end = runtime.block_on(run(&server, listener, stop_requested));
            // Drops the aborted tasks and waits for their threads, so that nothing of the server is
            // left; work whose caller has disconnected ends by itself within milliseconds.
            runtime.shutdown_timeout(THREAD_END_TIMEOUT);
            // It fails if the server was dropped, and then nobody waits for the end.
            let _ = send_end.send(end);
        };
        let main = thread::Builder::new().name("order-rpc-main".to_owned()).spawn(main);
        main.map_err(StartError::Thread)?;
        let local_addr = started.recv().expect("the thread sends one result before it ends")?;
        Ok(Self { local_addr, dispatcher, stop, end })
    }

    /// Returns the address on which the server listens.
    pub const fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Returns what became of raw transactions that arrived while the load was high.
    pub fn deferral_stats(&self) -> DeferralStats {
        self.dispatcher.deferral.stats()
    }

    /// Returns the number of requests in progress.
    pub fn active_requests(&self) -> usize {
        self.dispatcher.limiter.active.len()
    }

    /// Returns the bytes of request bodies, and of responses that are not sent yet.
    pub fn buffered_bytes(&self) -> usize {
        self.dispatcher.limiter.buffered.used()
    }

    /// Shuts down: new requests are refused, requests in flight get their responses, deferred
    /// requests are refused, and then all connections are closed. Returns after at most `deadline`
    /// plus a second for the threads to end; then no task of the server is left. If the server's
    /// threads are gone, as after a fork of the process, it returns half a second later.
    ///
    /// # Cancel safety
    /// If the future is dropped, the shutdown continues in the background.
    pub async fn shutdown(self, deadline: Duration) -> OrderRpcEnd {
        // If the server has ended already, `end` has the result.
        let _ = self.stop.send(deadline);
        let limit = deadline.saturating_add(THREAD_END_TIMEOUT + 2 * REJECT_TIMEOUT);
        match within(limit, self.end).await {
            Some(Ok(end)) => end,
            // The thread is gone, or it has panicked, which was reported when it happened.
            _ => {
                let unanswered = self.dispatcher.limiter.active.len();
                OrderRpcEnd { ended: false, unanswered }
            }
        }
    }
}

/// The runtime of the server, and the socket on which it listens.
struct Listening {
    runtime: Runtime,
    listener: TcpListener,
    local_addr: SocketAddr,
}

fn listen_on_new_runtime(server: &HttpServer) -> Result<Listening, StartError> {
    let limiter = &server.dispatcher.limiter;
    let gate = limiter.gate.config();
    // Without a limit of requests in flight the gate reserves no permits either.
    let has_limit = limiter.gate.request_limit().is_some();
    let reserved = if has_limit { gate.reserved_permits } else { 0 };
    let config = &limiter.limits.config;
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(config.threads).thread_name("order-rpc").enable_all();
    // One for each work permit of external callers: more never run at once.
    let blocking_threads = gate.work_permits - reserved;
    let runtime = build_runtime(&mut builder, blocking_threads).map_err(StartError::Thread)?;
    let address = config.listen;
    let listen_error = |source| StartError::Listen { address, source };
    let listener = runtime.block_on(async { listen(address) }).map_err(listen_error)?;
    let local_addr = listener.local_addr().map_err(listen_error)?;
    Ok(Listening { runtime, listener, local_addr })
}

/// Accepts connections until the shutdown, and then waits for the requests in flight.
async fn run(
    server: &Arc<HttpServer>,
    listener: TcpListener,
    mut stop_requested: oneshot::Receiver<Duration>,
) -> OrderRpcEnd {
    let dispatcher = &server.dispatcher;
    let limiter = &dispatcher.limiter;
    // Loads the trusted setup ahead of the first blob. A failure was logged, and the first blob
    // tries again.
    let preloading = Arc::clone(dispatcher);
    tokio::spawn(async move { preloading.methods.prover.load_setup().await });
    let time_left = tokio::select! {
        // If the sender was dropped, the server was, and nothing waits for the requests.
        time_left = &mut stop_requested => time_left.unwrap_or(Duration::ZERO),
        never = server.accept(&listener) => match never {},
    };
    // The longest duration is valid too.
    let now = Instant::now();
    let deadline = now.checked_add(time_left).unwrap_or(now + FOREVER);
    limiter.active.close();
    dispatcher.deferral.close();
    // Connections are still accepted, so that their requests are refused with a response.
    let ended = tokio::select! {
        // The end of the last request counts even at the deadline.
        biased;
        () = limiter.active.wait() => true,
        () = sleep_until(deadline) => false,
        never = server.accept(&listener) => match never {},
    };
    let unanswered = if ended { 0 } else { limiter.active.len() };
    drop(listener);
    server.end.cancel();
    server.tasks.close();
    // At least a short time, even at the deadline: idle connections close at once.
    let close_deadline = deadline.max(Instant::now() + REJECT_TIMEOUT);
    if timeout_at(close_deadline, server.tasks.wait()).await.is_err() {
        // This is no failure: every request that is not in `unanswered` has its response, and the
        // clients that are left do not read it. The end of the runtime closes their connections.
        let open = server.tasks.len();
        tracing::debug!(open, "closing connections whose clients did not read their last bytes");
    }
    OrderRpcEnd { ended, unanswered }
}
