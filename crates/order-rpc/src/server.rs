//! Start and shutdown.

use std::{
    net::SocketAddr,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

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
    limits::{Limiter, Limits},
};

/// Time for the threads to end once they have no more work.
const THREADS_TIMEOUT: Duration = Duration::from_secs(1);

/// The running RPC server. If it is dropped without [`Self::shutdown`], it ends at once in the
/// background.
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
    stop: oneshot::Sender<Duration>,
    stopped: oneshot::Receiver<OrderRpcEnd>,
}

/// How an [`OrderRpc`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OrderRpcEnd {
    /// Whether every request got its response in time, and no thread of the server panicked.
    pub ended: bool,
    /// Requests that had no response at the deadline. Orders that the pool has accepted stay in it.
    pub unanswered: usize,
}

impl OrderRpc {
    /// Listens, and starts the threads that serve. Returns when callers can connect.
    ///
    /// The server has a runtime of its own, so a flood of requests occupies no other threads.
    ///
    /// # Errors
    /// See [`StartError`]. Nothing runs afterwards.
    pub fn start(config: OrderRpcConfig, host: Host) -> Result<Self, StartError> {
        config.validate()?;
        Self::start_limited(Limits::new(config), host)
    }

    pub(crate) fn start_limited(limits: Limits, host: Host) -> Result<Self, StartError> {
        let dispatcher = Arc::new(Dispatcher::new(limits, host));
        let server = HttpServer::new(Arc::clone(&dispatcher));
        let (started, starting) = mpsc::sync_channel(1);
        let (stop, stopping) = oneshot::channel();
        let (done, stopped) = oneshot::channel();
        // The runtime is made and dropped on this thread: another runtime's may not drop it.
        let main = move || {
            let (runtime, listener, local_addr) = match set_up(&server) {
                Ok(all) => all,
                // The caller waits for the result, here and below.
                Err(error) => {
                    let _ = started.send(Err(error));
                    return;
                }
            };
            let _ = started.send(Ok(local_addr));
            let end = runtime.block_on(run(&server, listener, stopping));
            // Drops the aborted tasks and waits for their threads, so that nothing of the server is
            // left; work whose caller has disconnected ends by itself within milliseconds.
            runtime.shutdown_timeout(THREADS_TIMEOUT);
            // The server may have been dropped.
            let _ = done.send(end);
        };
        let main = thread::Builder::new().name("order-rpc-main".to_owned()).spawn(main);
        main.map_err(StartError::Thread)?;
        let local_addr = starting.recv().expect("the thread sends one result before it ends")?;
        Ok(Self { local_addr, dispatcher, stop, stopped })
    }

    /// The address on which it listens.
    pub const fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// What became of raw transactions that came while the load was high.
    pub fn deferral_stats(&self) -> DeferralStats {
        self.dispatcher.deferral.stats()
    }

    /// Requests in progress.
    pub fn active_requests(&self) -> usize {
        self.dispatcher.limiter.active.len()
    }

    /// Bytes of request bodies, and of responses that are not sent yet.
    pub fn buffered_bytes(&self) -> usize {
        self.dispatcher.limiter.buffered.used()
    }

    /// Shuts down: new requests are refused, requests in flight get their responses, deferred
    /// requests are refused, and then all connections are closed. Returns after at most `deadline`
    /// plus a second for the threads to end; then no task of the server is left.
    ///
    /// # Cancel safety
    /// If the future is dropped, the shutdown continues in the background.
    pub async fn shutdown(self, deadline: Duration) -> OrderRpcEnd {
        // If it has ended already, `stopped` has the result.
        let _ = self.stop.send(deadline);
        // A panic was reported when it happened.
        let panicked =
            |_| OrderRpcEnd { ended: false, unanswered: self.dispatcher.limiter.active.len() };
        self.stopped.await.unwrap_or_else(panicked)
    }
}

fn set_up(server: &HttpServer) -> Result<(Runtime, TcpListener, SocketAddr), StartError> {
    let Limiter { gate, limits: Limits { config, .. }, .. } = &*server.dispatcher.limiter;
    let reserved = gate.request_limit().map_or(0, |_| gate.config().reserved_permits);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(config.threads)
        // One for each work permit of external callers: more never run at once.
        .max_blocking_threads(gate.config().work_permits - reserved)
        .thread_name("order-rpc")
        .enable_all()
        .build()
        .map_err(StartError::Thread)?;
    let address = config.listen;
    let failed = |source| StartError::Listen { address, source };
    let listener = runtime.block_on(async { listen(address) }).map_err(failed)?;
    let local_addr = listener.local_addr().map_err(failed)?;
    Ok((runtime, listener, local_addr))
}

async fn run(
    server: &Arc<HttpServer>,
    listener: TcpListener,
    mut stopping: oneshot::Receiver<Duration>,
) -> OrderRpcEnd {
    let dispatcher = &server.dispatcher;
    let limiter = &dispatcher.limiter;
    // A failure was logged, and the first blobs retry.
    let ahead = Arc::clone(dispatcher);
    tokio::spawn(async move { _ = ahead.methods.proofs.set_up().await });
    let deadline = tokio::select! {
        // Without a shutdown the server was dropped, so nothing waits for the requests.
        deadline = &mut stopping => deadline.unwrap_or(Duration::ZERO),
        () = server.accept(&listener) => Duration::ZERO,
    };
    let until = Instant::now() + deadline;
    limiter.active.close();
    dispatcher.deferral.close();
    // Connections are still accepted, so that their requests get a response.
    let ended = tokio::select! {
        biased;
        () = limiter.active.wait() => true,
        () = sleep_until(until) => false,
        () = server.accept(&listener) => false,
    };
    let unanswered = if ended { 0 } else { limiter.active.len() };
    drop(listener);
    server.end.cancel();
    server.tasks.close();
    // A short time even at the deadline: idle connections close at once.
    let grace = until.max(Instant::now() + REJECT_TIMEOUT);
    if timeout_at(grace, server.tasks.wait()).await.is_err() {
        // Not a failure: every request that is not in `unanswered` has its response; the remaining
        // clients do not read it. The end of the runtime closes their connections.
        let open = server.tasks.len();
        tracing::debug!(open, "closing connections whose clients did not read their last bytes");
    }
    OrderRpcEnd { ended, unanswered }
}
