//! Wires the parts: a node's transactions and searchers' orders into one order pool.

#[cfg(feature = "rpc")]
use std::sync::mpsc::RecvTimeoutError::Disconnected;
use std::time::{Duration, Instant};

use load_control::{Gate, GateConfig, LoadMonitor, MonitorConfig};
use order_pool::{OrderPool, PoolConfig, Upkeep, UpkeepConfig};
#[cfg(feature = "rpc")]
use order_rpc::{Host, OrderRpc, OrderRpcConfig, OrderRpcEnd};
#[cfg(feature = "rpc")]
use txpool_fetcher::Endpoint;
use txpool_fetcher::{Counts, EndReason, Fetcher, FetcherConfig, FetcherEnd};

#[cfg(feature = "rpc")]
use crate::node_admission::{Ended, NodeAdmission, NodeAdmissionConfig};

/// Why [`Ingest::start`] or `Ingest::start_rpc` failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IngestError {
    /// The pool's configuration is out of bounds.
    #[error("the configuration of the pool is out of bounds")]
    Pool(#[from] order_pool::ConfigError),
    /// The thresholds of the monitor or the limits of the gate are out of bounds.
    #[error("the configuration of the load control is out of bounds")]
    LoadControl(#[from] load_control::ConfigError),
    /// The fetcher could not start.
    #[error(transparent)]
    Fetcher(#[from] txpool_fetcher::StartError),
    /// The RPC server could not start.
    #[cfg(feature = "rpc")]
    #[error("the RPC server cannot start")]
    Rpc(#[from] order_rpc::StartError),
    /// An RPC server is running already.
    #[cfg(feature = "rpc")]
    #[error("an RPC server already listens on {address}")]
    SecondRpc {
        /// Its address.
        address: std::net::SocketAddr,
    },
    /// No source is a node that could be asked about senders: each is a pool in this process.
    #[cfg(feature = "rpc")]
    #[error("node_admission: no source is a node, and no endpoint is set")]
    NoNodeToAsk,
    /// The thread that asks the node about senders could not be started.
    #[cfg(feature = "rpc")]
    #[error("cannot start the thread that asks the node about senders")]
    NodeAdmission(#[source] std::io::Error),
    /// The pool's upkeep could not be started.
    #[error(transparent)]
    Upkeep(#[from] order_pool::StartError),
}

/// The configuration of an [`Ingest`].
///
/// Make one with [`Self::new`] and then set its fields: the struct gets more fields in
/// later versions.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct IngestConfig {
    /// The sources. Its `monitor` and its `gate`, if set, are used by all parts.
    pub fetcher: FetcherConfig,
    /// The pool.
    pub pool: PoolConfig,
    /// The pace of the pool's upkeep.
    pub upkeep: UpkeepConfig,
    /// When the load counts as high. Ignored if [`FetcherConfig::monitor`] is set.
    pub monitor: MonitorConfig,
    /// The limits for external callers and work permits. Ignored if [`FetcherConfig::gate`] is set.
    pub gate: GateConfig,
    /// The RPC server for searchers' orders. `None` (default): none, until [`Ingest::start_rpc`]
    /// starts one.
    #[cfg(feature = "rpc")]
    pub rpc: Option<OrderRpcConfig>,
    /// Whether the node is asked if the senders of the RPC server's orders can pay. `None`
    /// (default): it is not. Reasons against it: earlier transactions in the same block may fund a
    /// sender, on some chains another account may pay, and each order of a new sender waits for a
    /// call to the node. External callers have a separate share of the pool in any case.
    #[cfg(feature = "rpc")]
    pub node_admission: Option<NodeAdmissionConfig>,
}

impl IngestConfig {
    /// A configuration for these nodes and this pool, without an RPC server.
    #[must_use]
    pub fn new(fetcher: FetcherConfig, pool: PoolConfig) -> Self {
        Self {
            fetcher,
            pool,
            upkeep: UpkeepConfig::default(),
            monitor: MonitorConfig::default(),
            gate: GateConfig::default(),
            #[cfg(feature = "rpc")]
            rpc: None,
            #[cfg(feature = "rpc")]
            node_admission: None,
        }
    }
}

/// Feeds a node's mempool, and searchers' orders if the RPC server runs, into a pool.
///
/// All parts share one [`LoadMonitor`]: while the fetcher's announcements pile up, its backfill,
/// audits and retries, public raw transactions and the pool's upkeep are deferred.
///
/// Dropping it without [`Self::shutdown`] stops everything without waiting.
///
/// ```no_run
/// use futures::StreamExt;
/// use mempool_ingest::{FetcherConfig, Ingest, IngestConfig, OrderPool, PoolConfig, order_pool::Event};
/// use std::time::Duration;
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let fetcher = FetcherConfig::ipc("/data/geth.ipc");
/// let ingest = Ingest::start(IngestConfig::new(fetcher, PoolConfig::default())).await?;
/// let mut events = ingest.pool().subscribe_all();
/// while let Some(Ok(Event::Added(order))) = events.next().await {
///     println!("{:?}", order.id());
/// }
/// let end = ingest.shutdown(Duration::from_secs(5)).await;
/// assert!(end.ended);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Ingest {
    // In the order in which they stop when this is dropped.
    #[cfg(feature = "rpc")]
    rpc: Option<OrderRpc>,
    /// How to ask the node about senders, and its endpoint.
    #[cfg(feature = "rpc")]
    node_admission: Option<(NodeAdmissionConfig, Endpoint)>,
    #[cfg(feature = "rpc")]
    admission_ended: Option<Ended>,
    fetcher: Fetcher,
    upkeep: Upkeep,
    pool: OrderPool,
    monitor: LoadMonitor,
    gate: Gate,
}

/// How an [`Ingest`] ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct IngestEnd {
    /// Why the fetcher ended.
    pub reason: EndReason,
    /// The fetcher's final counts.
    pub counts: Counts,
    /// How the RPC server ended; `None` without one.
    #[cfg(feature = "rpc")]
    pub rpc: Option<OrderRpcEnd>,
    /// Whether every part ended in time: the RPC server, the fetcher, the pool's upkeep, and the
    /// thread that asks the node about senders.
    pub ended: bool,
}

impl Ingest {
    /// Makes the pool and starts its upkeep, the fetcher, and the RPC server if one is configured.
    ///
    /// The RPC server listens as soon as this returns; `/readyz` returns 503 until every node is
    /// live.
    ///
    /// # Errors
    /// See [`IngestError`]. Nothing runs afterwards.
    ///
    /// # Cancel safety
    /// If the future is dropped before it returns, everything that was started is stopped.
    pub async fn start(config: IngestConfig) -> Result<Self, IngestError> {
        let mut fetcher = config.fetcher;
        #[cfg(feature = "rpc")]
        let node_admission = match config.node_admission {
            Some(config) => {
                let is_node = |source: &&Endpoint| !matches!(source, Endpoint::InProcess(_));
                let first = || fetcher.sources.iter().find(is_node).cloned();
                let endpoint = config.endpoint.clone().or_else(first);
                Some((config, endpoint.ok_or(IngestError::NoNodeToAsk)?))
            }
            None => None,
        };
        let pool = OrderPool::new(config.pool)?;
        let gate = fetcher.gate.take().map_or_else(|| Gate::new(config.gate), Ok)?;
        let monitor = fetcher.monitor.take();
        let monitor = monitor.map_or_else(|| LoadMonitor::new(config.monitor), Ok)?;
        let pressed = {
            let monitor = monitor.clone();
            move || monitor.is_pressed()
        };
        let upkeep = Upkeep::start(&pool, config.upkeep, pressed)?;
        fetcher.monitor = Some(monitor.clone());
        fetcher.gate = Some(gate.clone());
        let fetcher = Fetcher::start(fetcher, pool.clone()).await?;
        #[cfg_attr(
            not(feature = "rpc"),
            expect(unused_mut, reason = "only the RPC server is added")
        )]
        let mut ingest = Self {
            #[cfg(feature = "rpc")]
            rpc: None,
            #[cfg(feature = "rpc")]
            node_admission,
            #[cfg(feature = "rpc")]
            admission_ended: None,
            fetcher,
            upkeep,
            pool,
            monitor,
            gate,
        };
        #[cfg(feature = "rpc")]
        if let Some(rpc) = config.rpc {
            ingest.start_rpc(rpc)?;
        }
        Ok(ingest)
    }

    /// Starts the RPC server after the other parts, for instance when the chain id comes from the
    /// node.
    ///
    /// # Errors
    /// [`IngestError::Rpc`], or [`IngestError::SecondRpc`]. The other parts keep running.
    #[cfg(feature = "rpc")]
    pub fn start_rpc(&mut self, config: OrderRpcConfig) -> Result<&OrderRpc, IngestError> {
        self.start_rpc_with(config, |host| host)
    }

    /// As [`Self::start_rpc`], with functions of the host: which signers it knows
    /// ([`Host::with_known_signers`]), or a decision on each order ([`Host::with_admission`], which
    /// replaces [`IngestConfig::node_admission`]).
    ///
    /// # Errors
    /// As [`Self::start_rpc`].
    #[cfg(feature = "rpc")]
    pub fn start_rpc_with(
        &mut self,
        config: OrderRpcConfig,
        more: impl FnOnce(Host) -> Host,
    ) -> Result<&OrderRpc, IngestError> {
        if let Some(rpc) = &self.rpc {
            return Err(IngestError::SecondRpc { address: rpc.local_addr() });
        }
        let (ready, audited) = (self.fetcher.handle().clone(), self.fetcher.handle().clone());
        let mut host = Host::new(self.pool.clone(), self.gate.clone())
            .with_sources(move || ready.is_ready(), move || audited.is_audited());
        host.monitor = Some(self.monitor.clone());
        if let Some((config, endpoint)) = &self.node_admission {
            let started = NodeAdmission::start(config, endpoint.clone(), self.pool.clone());
            let (admission, ended) = started.map_err(IngestError::NodeAdmission)?;
            self.admission_ended = Some(ended);
            host = host.with_admission(admission);
        }
        Ok(self.rpc.insert(OrderRpc::start(config, more(host))?))
    }

    /// The pool. Clones of it stay readable after the end.
    #[must_use]
    pub const fn pool(&self) -> &OrderPool {
        &self.pool
    }

    /// The latest head that the nodes have announced; once a node is connected, at least its head
    /// at that time. For the head in the order of the pool's events use
    /// [`order_pool::Event::Head`].
    #[must_use]
    pub fn head(&self) -> Option<order_pool::Head> {
        self.pool.head()
    }

    /// The fetcher, for its counts, its status and its audits.
    #[must_use]
    pub const fn fetcher(&self) -> &Fetcher {
        &self.fetcher
    }

    /// The RPC server, if it runs.
    #[cfg(feature = "rpc")]
    #[must_use]
    pub const fn rpc(&self) -> Option<&OrderRpc> {
        self.rpc.as_ref()
    }

    /// The load monitor of all parts, which can be switched off.
    #[must_use]
    pub const fn monitor(&self) -> &LoadMonitor {
        &self.monitor
    }

    /// The admission gate of the RPC server's callers.
    #[must_use]
    pub const fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Stops the RPC server, then the fetcher, then the upkeep, and waits for each: for at most
    /// `deadline` in all, and a second for the RPC server's threads. Accepted orders stay in the
    /// pool.
    ///
    /// # Cancel safety
    /// If the future is dropped, the stop continues; the parts then do not wait for each other.
    pub async fn shutdown(self, deadline: Duration) -> IngestEnd {
        let start = Instant::now();
        // The RPC server stops first, so that it accepts no order into a pool that no node feeds.
        #[cfg(feature = "rpc")]
        let rpc = match self.rpc {
            Some(rpc) => Some(rpc.shutdown(deadline).await),
            None => None,
        };
        let FetcherEnd { reason, counts, ended: fetcher_ended, .. } =
            self.fetcher.shutdown(deadline.saturating_sub(start.elapsed())).await;
        // A step takes less than a millisecond, and this blocks for no longer.
        let upkeep_end = self.upkeep.shutdown(deadline.saturating_sub(start.elapsed()));
        let ended = fetcher_ended && upkeep_end.ended;
        // So does this, unless a response of the node is outstanding, which times out after a
        // second.
        #[cfg(feature = "rpc")]
        let ended = {
            let left = deadline.saturating_sub(start.elapsed());
            // A panic of the thread was reported when it happened.
            let has_ended = |thread: Ended| thread.recv_timeout(left) == Err(Disconnected);
            let admission_ended = self.admission_ended.is_none_or(has_ended);
            ended && admission_ended && rpc.is_none_or(|rpc| rpc.ended)
        };
        IngestEnd {
            reason,
            counts,
            #[cfg(feature = "rpc")]
            rpc,
            ended,
        }
    }
}
