//! The state that all requests share: configuration, gate, quotas, deferral, counters.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use alloy_primitives::Address;
use load_control::{Gate, InFlightPermit, LoadMonitor, Priority};
use order_pool::OrderPool;
use tokio::sync::Semaphore;

use crate::{
    config::{ConfigError, OrderRpcConfig, SignatureMode},
    http::connection::MAX_LINGERING,
    limits::active::{ActiveRequest, ActiveRequests},
    limits::budget::{Budget, Share},
    limits::callers::{Peer, PeerId, Peers},
    limits::deferral::Deferral,
    limits::quota::Quotas,
    methods::admission::Admission,
    methods::proofs::Proofs,
    methods::signature::Claim,
    metrics::Metrics,
    reply::{ErrorResponse, Reason},
    standing::{SignerStanding, Standing, Strangers},
};

/// What the host provides to the RPC server.
#[derive(Clone)]
#[non_exhaustive]
pub struct Host {
    /// The pool for accepted orders.
    pub pool: OrderPool,
    /// The admission gate.
    pub gate: Gate,
    /// While it reports a high load, raw transactions are deferred. `None`: they never are.
    pub monitor: Option<LoadMonitor>,
    /// Whether every source is live. `/readyz` calls it on a thread of the RPC server, so it must
    /// not block.
    pub readiness: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Whether the pool of every source's node can be compared with ours. `/readyz` shows it, but
    /// its status does not depend on it. Must not block either.
    pub audited: Arc<dyn Fn() -> bool + Send + Sync>,
    /// The standing of signers, which decides whose requests get a work permit first. Default: all
    /// unknown.
    pub standing: Arc<dyn SignerStanding>,
    /// Decides on each order of an external caller before it is pooled. Default `None`: every order
    /// that passes the checks is inserted.
    pub admission: Option<Arc<dyn Admission>>,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("gate", &self.gate).finish_non_exhaustive()
    }
}

impl Host {
    /// Without a monitor, always ready and audited, and every signer unknown.
    pub fn new(pool: OrderPool, gate: Gate) -> Self {
        Self {
            pool,
            gate,
            monitor: None,
            readiness: Arc::new(|| true),
            audited: Arc::new(|| true),
            standing: Arc::new(Strangers),
            admission: None,
        }
    }

    /// Sets [`Self::admission`].
    #[must_use]
    pub fn with_admission(mut self, admission: impl Admission + 'static) -> Self {
        self.admission = Some(Arc::new(admission));
        self
    }

    /// Sets [`Self::standing`].
    #[must_use]
    pub fn with_standing(mut self, standing: impl SignerStanding + 'static) -> Self {
        self.standing = Arc::new(standing);
        self
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
    pub(crate) peers: Peers,
    pub(crate) connections: Arc<Budget>,
    /// Requests in flight that claim no signature; `None`: no limit.
    unsigned: Option<Arc<Budget>>,
    /// Bytes of bodies and of responses.
    pub(crate) buffered: Arc<Budget>,
    pub(crate) slow_bodies: Semaphore,
    pub(crate) lingering: Arc<Semaphore>,
    pub(crate) admissions: Semaphore,
    pub(crate) proofs: Proofs,
    pub(crate) metrics: Metrics,
    quotas: Option<Mutex<Quotas<Address>>>,
    peer_quotas: Option<Mutex<Quotas<PeerId>>>,
}

/// The reciprocal of the part of the requests in flight that is reserved for those that claim a
/// signature.
const SIGNED_REQUEST_PART: usize = 8;

/// A request that was admitted, until dropped.
#[derive(Debug)]
pub(crate) struct Entered {
    _active: ActiveRequest,
    permit: InFlightPermit,
    caller: PeerId,
    of_peer: Share,
    unsigned: Option<Share>,
}

impl Entered {
    pub(crate) const fn caller(&self) -> PeerId {
        self.caller
    }

    /// The number of requests that it counts as.
    pub(crate) const fn weight(&self) -> usize {
        self.permit.weight()
    }

    /// Makes it count as `to` requests: all or nothing.
    pub(crate) fn grow(&mut self, to: usize, context: &RpcContext) -> Result<(), ErrorResponse> {
        let more = to.saturating_sub(self.weight());
        if !self.of_peer.try_add(more, 0) {
            return Err(context.peer_requests());
        }
        if self.unsigned.as_mut().is_some_and(|unsigned| !unsigned.try_add(more, 0)) {
            return Err(context.unsigned_requests());
        }
        let grown = context.host.gate.enter_batch(&mut self.permit, to, Instant::now());
        grown.map_err(|refusal| ErrorResponse::refusal(&refusal))
    }
}

impl RpcContext {
    pub(crate) fn new(config: OrderRpcConfig, host: Host) -> Result<Self, ConfigError> {
        config.validate()?;
        let now = Instant::now();
        let quotas = config.quota.map(|quota| Quotas::new(quota, config.max_signers, now));
        let peer_quotas =
            config.peer_quota.map(|quota| Quotas::new(quota, config.max_signers, now));
        Ok(Self {
            deferral: Deferral::new(config.deferral, host.monitor.clone(), &host.gate)?,
            active: Arc::default(),
            peers: Peers::default(),
            connections: Budget::new(config.max_connections),
            // With a limit of a few requests none are reserved for signed ones, nor when signatures
            // are ignored.
            unsigned: host.gate.request_limit().and_then(|limit| {
                if config.signatures == SignatureMode::Off {
                    return None;
                }
                let kept = limit / SIGNED_REQUEST_PART;
                (kept > 0).then(|| Budget::new(limit - kept))
            }),
            buffered: Budget::new(config.max_buffered_bytes),
            slow_bodies: Semaphore::new(config.max_slow_bodies),
            admissions: Semaphore::new(config.max_admissions),
            proofs: Proofs::new(),
            lingering: Arc::new(Semaphore::new(MAX_LINGERING)),
            metrics: Metrics::new(),
            quotas: quotas.map(Mutex::new),
            peer_quotas: peer_quotas.map(Mutex::new),
            config,
            host,
        })
    }

    /// An error response with a retry-after time, for a reason that is not the gate's.
    pub(crate) fn retry_later(&self, reason: Reason, message: &str) -> ErrorResponse {
        ErrorResponse::retry_later(reason, self.host.gate.retry_after(), message.to_owned())
    }

    /// Admits a request, or refuses it.
    pub(crate) fn enter(&self, peer: &Peer, is_signed: bool) -> Result<Entered, ErrorResponse> {
        let (gate, now) = (&self.host.gate, Instant::now());
        let Some(active) = self.active.begin() else {
            return Err(ErrorResponse::refusal(&gate.refuse_closed(now)));
        };
        let of_peer = peer.requests.take(1).ok_or_else(|| self.peer_requests())?;
        let unsigned = match &self.unsigned {
            // Requests that a front forwards were signed.
            Some(unsigned) if !is_signed && !peer.id.is_front => {
                Some(unsigned.take(1).ok_or_else(|| self.unsigned_requests())?)
            }
            _ => None,
        };
        let permit = gate.enter(now).map_err(|refusal| ErrorResponse::refusal(&refusal))?;
        let caller = peer.id;
        Ok(Entered { _active: active, permit, caller, of_peer, unsigned })
    }

    fn peer_requests(&self) -> ErrorResponse {
        let message = "too many requests from this address are in flight";
        self.retry_later(Reason::PeerRequests, message)
    }

    fn unsigned_requests(&self) -> ErrorResponse {
        let message = "too many requests without a signature are in flight";
        self.retry_later(Reason::UnsignedRequests, message)
    }

    /// How soon a caller gets a work permit.
    pub(crate) fn priority(&self, claim: Option<&Claim>, caller: PeerId) -> Priority {
        match claim.map(|claim| self.host.standing.standing(claim.address)) {
            None if caller.is_front => Priority::Known,
            None => Priority::Unsigned,
            Some(Standing::Unknown) => Priority::Signed,
            Some(Standing::Proven | Standing::AllowListed) => Priority::Known,
        }
    }

    /// Checks a signer's quota without spending from it.
    pub(crate) fn check_quota(&self, claimed: Address, work: usize) -> Result<(), ErrorResponse> {
        self.of_signer(|quotas, now| quotas.check(claimed, work, now))
    }

    /// Spends from the quota of a signer whose signature was verified.
    pub(crate) fn take_quota(&self, signer: Address, work: usize) -> Result<(), ErrorResponse> {
        self.of_signer(|quotas, now| quotas.take(signer, work, now))
    }

    /// Spends from the quota of a peer; a front has none.
    pub(crate) fn take_peer_quota(&self, caller: PeerId, work: usize) -> Result<(), ErrorResponse> {
        if caller.is_front {
            return Ok(());
        }
        let spent = spend(&self.peer_quotas, |quotas, now| quotas.take(caller, work, now));
        let message = "the quota of this address is spent";
        spent
            .map_err(|wait| ErrorResponse::retry_later(Reason::PeerQuota, wait, message.to_owned()))
    }

    fn of_signer(
        &self,
        spending: impl FnOnce(&mut Quotas<Address>, Instant) -> Result<(), Duration>,
    ) -> Result<(), ErrorResponse> {
        let message = "the signer's quota is spent";
        spend(&self.quotas, spending)
            .map_err(|wait| ErrorResponse::retry_later(Reason::Quota, wait, message.to_owned()))
    }
}

fn spend<K>(
    quotas: &Option<Mutex<Quotas<K>>>,
    spending: impl FnOnce(&mut Quotas<K>, Instant) -> Result<(), Duration>,
) -> Result<(), Duration> {
    let Some(quotas) = quotas else { return Ok(()) };
    spending(&mut quotas.lock().unwrap_or_else(PoisonError::into_inner), Instant::now())
}
