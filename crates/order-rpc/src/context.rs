//! What all requests share.

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
use alloy_primitives::Address;
use load_control::{Gate, LoadMonitor, WorkPermit};
use order_pool::OrderPool;
use std::{
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Instant,
};
use tokio::sync::Semaphore;

/// What the host gives an intake.
#[derive(Clone)]
#[non_exhaustive]
pub struct Host {
    /// Where accepted orders go.
    pub pool: OrderPool,
    /// Who may come in.
    pub gate: Gate,
    /// While it says that the load is not normal, raw transactions wait. `None`: they never do.
    pub monitor: Option<LoadMonitor>,
    /// Whether every source is live: asked by `/readyz`, on a thread of the RPC server, so it must not
    /// block.
    pub readiness: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("gate", &self.gate).finish_non_exhaustive()
    }
}

impl Host {
    /// Without a monitor, and always ready.
    pub fn new(pool: OrderPool, gate: Gate) -> Self {
        Self { pool, gate, monitor: None, readiness: Arc::new(|| true) }
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

/// Who sent a request, and where its answer leaves word of a refusal for the HTTP status. Travels
/// with the request through jsonrpsee.
#[derive(Clone, Debug, Default)]
pub(crate) struct Caller {
    pub(crate) signer: Option<Address>,
    /// As how many requests in flight the caller's counts: in a batch each element has that of all.
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

    /// Come back later, for a reason that is not the gate's.
    pub(crate) fn retry_later(&self, reason: Reason, message: &str) -> ErrorResponse {
        ErrorResponse::retry_later(reason, self.host.gate.retry_after(), message.to_owned())
    }

    /// Looks at a quota without spending.
    pub(crate) fn check_quota(&self, claimed: Address, count: usize) -> Result<(), ErrorResponse> {
        self.with_quotas(|quotas| quotas.check(claimed, count, Instant::now()))
    }

    /// Spends of the quota of a signer whose signature was verified.
    pub(crate) fn take_quota(&self, signer: Address, count: usize) -> Result<(), ErrorResponse> {
        self.with_quotas(|quotas| quotas.take(signer, count, Instant::now()))
    }

    fn with_quotas(
        &self,
        ask: impl FnOnce(&mut Quotas) -> Result<(), std::time::Duration>,
    ) -> Result<(), ErrorResponse> {
        let Some(quotas) = &self.quotas else { return Ok(()) };
        let asked = ask(&mut quotas.lock().unwrap_or_else(PoisonError::into_inner));
        asked.map_err(|wait| {
            ErrorResponse::retry_later(
                Reason::Quota,
                wait,
                "the signer's quota is spent".to_owned(),
            )
        })
    }

    /// Takes a slot, or is refused, and runs CPU-heavy work on a thread for it.
    ///
    /// # Cancel safety
    /// Dropped, the work still runs to its end and holds its slot until then.
    pub(crate) async fn work<T: Send + 'static>(
        self: &Arc<Self>,
        slot: Option<WorkPermit>,
        work: impl FnOnce(&Self) -> Result<T, ErrorResponse> + Send + 'static,
    ) -> Result<T, ErrorResponse> {
        let slot = match slot {
            Some(slot) => slot,
            None => {
                let asked = self.host.gate.acquire_external(Instant::now()).await;
                asked.map_err(|refusal| ErrorResponse::refusal(&refusal))?
            }
        };
        let context = Arc::clone(self);
        let worked = tokio::task::spawn_blocking(move || {
            let _slot = slot;
            work(&context)
        });
        worked.await.unwrap_or_else(|error| {
            // A panic of ours, or the runtime is going: the caller hears that it is not them.
            tracing::error!(%error, "work on a request did not end");
            Err(ErrorResponse::internal())
        })
    }
}
