//! What all requests share: configuration, gate, quotas, deferral, counters.

use std::{
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Instant,
};

use alloy_primitives::Address;
use load_control::{Gate, LoadMonitor, WorkPermit};
use order_pool::OrderPool;
use tokio::sync::Semaphore;

use crate::{
    active::ActiveRequests,
    admission::MAX_LINGERING,
    body::Buffered,
    config::{ConfigError, OrderRpcConfig},
    deferral::Deferral,
    metrics::Metrics,
    quota::Quotas,
    reply::{ErrorResponse, Reason},
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

/// Who sent a request, and the error response that sets its HTTP status. It travels through jsonrpsee
/// as an extension of the request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Caller {
    pub(crate) signer: Option<Address>,
    /// How many requests in flight the request counts as. Each element of a batch has the weight of
    /// the whole batch.
    pub(crate) weight: usize,
    pub(crate) error_response: Arc<OnceLock<ErrorResponse>>,
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

    /// Runs CPU-heavy work on a thread for such work, with the given work permit or one that it
    /// acquires.
    ///
    /// # Cancel safety
    /// Dropped, the work still runs to its end and holds its permit until then.
    pub(crate) async fn work<T: Send + 'static>(
        self: &Arc<Self>,
        permit: Option<WorkPermit>,
        work: impl FnOnce(&Self) -> Result<T, ErrorResponse> + Send + 'static,
    ) -> Result<T, ErrorResponse> {
        let permit = match permit {
            Some(permit) => permit,
            None => {
                let acquired = self.host.gate.acquire_external(Instant::now()).await;
                acquired.map_err(|refusal| ErrorResponse::refusal(&refusal))?
            }
        };
        let context = Arc::clone(self);
        let worked = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work(&context)
        });
        worked.await.unwrap_or_else(|error| {
            // The work panicked, or the runtime shuts down: an internal error for the caller.
            tracing::error!(%error, "work on a request did not finish");
            Err(ErrorResponse::internal())
        })
    }
}
