//! What all requests share: configuration, gate, quotas, deferral, counters.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use alloy_primitives::Address;
use load_control::{Gate, InFlightPermit, LoadMonitor};
use order_pool::OrderPool;
use tokio::sync::Semaphore;

use crate::{
    active::{ActiveRequest, ActiveRequests},
    body::Buffered,
    config::{ConfigError, OrderRpcConfig},
    deferral::Deferral,
    metrics::Metrics,
    quota::Quotas,
    reply::{ErrorResponse, Reason},
    route::MAX_LINGERING,
};

/// What the host gives to the RPC server.
#[derive(Clone)]
#[non_exhaustive]
pub struct Host {
    /// Where accepted orders go.
    pub pool: OrderPool,
    /// The admission gate.
    pub gate: Gate,
    /// While it reports a high load, raw transactions are deferred. `None`: they never are.
    pub monitor: Option<LoadMonitor>,
    /// Whether every source is live: asked by `/readyz`, on a thread of the RPC server, so it must not
    /// block.
    pub readiness: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Whether the pool of every source's node can be compared with ours: shown by `/readyz`, which
    /// does not depend on it. It must not block either.
    pub audited: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("gate", &self.gate).finish_non_exhaustive()
    }
}

impl Host {
    /// Without a monitor, and always ready and audited.
    pub fn new(pool: OrderPool, gate: Gate) -> Self {
        Self { pool, gate, monitor: None, readiness: Arc::new(|| true), audited: Arc::new(|| true) }
    }

    /// Sets [`Self::monitor`].
    #[must_use]
    pub fn with_monitor(mut self, monitor: LoadMonitor) -> Self {
        self.monitor = Some(monitor);
        self
    }

    /// Sets [`Self::readiness`].
    #[must_use]
    pub fn with_readiness(mut self, ready: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.readiness = Arc::new(ready);
        self
    }

    /// Sets [`Self::audited`].
    #[must_use]
    pub fn with_audited(mut self, audited: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.audited = Arc::new(audited);
        self
    }
}

#[derive(Debug)]
pub(crate) struct RpcContext {
    pub(crate) config: OrderRpcConfig,
    pub(crate) host: Host,
    pub(crate) deferral: Deferral,
    pub(crate) active: Arc<ActiveRequests>,
    pub(crate) buffered: Arc<Buffered>,
    pub(crate) slow_bodies: Semaphore,
    pub(crate) websockets: Arc<Semaphore>,
    pub(crate) lingering: Arc<Semaphore>,
    pub(crate) metrics: Metrics,
    quotas: Option<Mutex<Quotas>>,
}

/// A request that was admitted, until dropped.
#[derive(Debug)]
pub(crate) struct Entered {
    _active: ActiveRequest,
    pub(crate) permit: InFlightPermit,
}

impl RpcContext {
    pub(crate) fn new(config: OrderRpcConfig, host: Host) -> Result<Self, ConfigError> {
        config.validate()?;
        let now = Instant::now();
        let quotas = config.quota.map(|quota| Quotas::new(quota, config.max_signers, now));
        Ok(Self {
            deferral: Deferral::new(config.deferral, host.monitor.clone(), &host.gate)?,
            active: Arc::default(),
            buffered: Arc::new(Buffered::new(config.max_buffered_bytes)),
            slow_bodies: Semaphore::new(config.max_slow_bodies),
            websockets: Arc::new(Semaphore::new(config.max_websockets)),
            lingering: Arc::new(Semaphore::new(MAX_LINGERING)),
            metrics: Metrics::new(),
            quotas: quotas.map(Mutex::new),
            config,
            host,
        })
    }

    /// An error response with a retry-after time, for a reason that is not the gate's.
    pub(crate) fn retry_later(&self, reason: Reason, message: &str) -> ErrorResponse {
        ErrorResponse::retry_later(reason, self.host.gate.retry_after(), message.to_owned())
    }

    /// Admits a request, or refuses it.
    pub(crate) fn enter(&self) -> Result<Entered, ErrorResponse> {
        let (gate, now) = (&self.host.gate, Instant::now());
        let Some(active) = self.active.begin() else {
            return Err(ErrorResponse::refusal(&gate.refuse_closed(now)));
        };
        let permit = gate.enter(now).map_err(|refusal| ErrorResponse::refusal(&refusal))?;
        Ok(Entered { _active: active, permit })
    }

    /// Checks a quota without spending from it.
    pub(crate) fn check_quota(&self, claimed: Address, count: usize) -> Result<(), ErrorResponse> {
        self.with_quotas(|quotas| quotas.check(claimed, count, Instant::now()))
    }

    /// Spends from the quota of a signer whose signature was verified.
    pub(crate) fn take_quota(&self, signer: Address, count: usize) -> Result<(), ErrorResponse> {
        self.with_quotas(|quotas| quotas.take(signer, count, Instant::now()))
    }

    fn with_quotas(
        &self,
        spend: impl FnOnce(&mut Quotas) -> Result<(), std::time::Duration>,
    ) -> Result<(), ErrorResponse> {
        let Some(quotas) = &self.quotas else { return Ok(()) };
        let spent = spend(&mut quotas.lock().unwrap_or_else(PoisonError::into_inner));
        spent.map_err(|wait| {
            ErrorResponse::retry_later(
                Reason::Quota,
                wait,
                "the signer's quota is spent".to_owned(),
            )
        })
    }
}
