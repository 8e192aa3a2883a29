//! What callers may have at once, and how much work they may cause.
//!
//! The gate of `load-control` bounds what all callers have together: requests in flight, before
//! their bodies are read, and work permits.
//!
//! Each caller has a share of connections, requests in flight, buffered bytes and work. A signer has a
//! second quota at each, and the quota of the address still applies, so new keys gain nothing. A signature
//! that its claimed signer has not made costs its caller more than the work, because a known signer's requests are
//! served first.
//!
//! # Locks
//! Quotas: taken by each request, for its address and for its signer, for one look-up; never across
//! an await or with another lock.

mod callers;
mod quota;

use std::{
    hash::Hash,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use alloy_primitives::Address;
use load_control::{Budget, Gate, MIN_AUTO_REQUESTS, Share, WorkError};
use tokio::sync::Semaphore;
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

pub(crate) use self::callers::{Caller, CallerId, Callers, forwarded_for};
use self::quota::Quotas;
use crate::{
    config::{OrderRpcConfig, Quota, SignatureMode, WORK_OF_FORGERY, body_work},
    reply::{ErrorResponse, Reason},
};

/// Bodies up to this size may use all of the buffered bytes. Longer ones leave a part of them free,
/// so that long bodies never keep out a cancellation or a bundle of plain transactions.
pub(crate) const SMALL_BODY_BYTES: usize = 64 * 1_024;
/// The reciprocal of that part.
const SMALL_BODY_PART: usize = 8;
/// The reciprocal of the part of the requests in flight for those that claim a signature.
const SIGNED_REQUEST_PART: usize = 8;
/// The reciprocal of the part of the requests in flight, and of the buffered bytes, for callers
/// where a known signer has signed: any header claims a signature.
const KNOWN_PART: usize = 16;

/// The options, shares of them, and what nobody has a reason to turn. Tests of a limit lower it.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) config: OrderRpcConfig,
    /// A sixteenth, so that a few hosts cannot take all.
    pub(crate) max_connections_per_caller: usize,
    /// A quarter of what the gate lets in on a small machine. Each element of a batch counts.
    pub(crate) max_requests_per_caller: usize,
    /// A quarter, by default two requests of the maximum length; at least one.
    pub(crate) max_buffered_bytes_per_caller: usize,
    /// Time for the headers of a request, and the longest that an idle connection is kept.
    pub(crate) header_timeout: Duration,
    /// Time for the whole body of a request: 8 MB at 1.3 MB/s.
    pub(crate) body_timeout: Duration,
    /// A body that is not complete after this time counts as slow.
    pub(crate) slow_body_after: Duration,
    /// Half of the requests in flight that one core allows.
    pub(crate) max_slow_bodies: usize,
    /// A quarter, so that a few slow hosts do not keep out all slow ones.
    pub(crate) max_slow_bodies_per_caller: usize,
    /// Concurrent calls of [`Admission::admit`](crate::Admission::admit): as many as the requests that
    /// one caller may have in flight. Further ones wait.
    pub(crate) max_admissions: usize,
    /// Time in which a client must read some bytes of what is sent to it.
    pub(crate) send_timeout: Duration,
    /// Signers, and callers, whose quota is kept: 64 bytes each, 4 MB. Further ones share one.
    pub(crate) max_quotas: usize,
    /// Raw transactions that wait while the load is high, and at most half of the gate's requests in
    /// flight. 1,024 of the largest common size (128 kB) are 128 MiB, of the usual 200 bytes 200 kB.
    pub(crate) max_deferred: usize,
    /// For how long they wait: half of a slot, so that one of its start can enter its block.
    pub(crate) max_deferral: Duration,
}

impl Limits {
    pub(crate) fn of(mut config: OrderRpcConfig) -> Self {
        // An IPv4 address may be written as an IPv6 one, which no connection has.
        let trusted = config.trusted_proxies.iter_mut().chain(&mut config.trusted_fronts);
        trusted.for_each(|address| *address = address.to_canonical());
        let OrderRpcConfig { max_connections, max_body_bytes, max_buffered_bytes, .. } = config;
        Self {
            config,
            max_connections_per_caller: (max_connections / 16).max(1),
            max_requests_per_caller: MIN_AUTO_REQUESTS / 4,
            max_buffered_bytes_per_caller: (max_buffered_bytes / 4).max(max_body_bytes),
            header_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(6),
            slow_body_after: Duration::from_millis(100),
            max_slow_bodies: 32,
            max_slow_bodies_per_caller: 8,
            max_admissions: MIN_AUTO_REQUESTS / 4,
            send_timeout: Duration::from_secs(10),
            max_quotas: 65_536,
            max_deferred: 1_024,
            max_deferral: Duration::from_secs(6),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Limiter {
    pub(crate) limits: Limits,
    pub(crate) gate: Gate,
    pub(crate) callers: Callers,
    pub(crate) connections: Arc<Budget>,
    pub(crate) slow_bodies: Semaphore,
    /// The requests in progress; closed at the shutdown.
    pub(crate) active: TaskTracker,
    /// Requests in flight that claim no signature; `None`: no limit.
    unsigned: Option<Arc<Budget>>,
    /// Requests in flight of [strangers](Callers::is_stranger); `None`: no limit.
    strangers: Option<Arc<Budget>>,
    /// Bytes of bodies, and of responses that are not sent yet.
    pub(crate) buffered: Arc<Budget>,
    /// Of signers, at each caller: who sends a copy of a request spends nothing elsewhere.
    quotas: Option<Mutex<Quotas<(Address, CallerId)>>>,
    caller_quotas: Option<Mutex<Quotas<CallerId>>>,
}

/// Who pays for a call, whose its order is, and when it came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct By {
    pub(crate) caller: CallerId,
    /// `None` without a signature, and before it is verified.
    pub(crate) signer: Option<Address>,
    /// When the head of the request was read: of what a signer sends, what waits for longer is not later.
    pub(crate) arrived: SystemTime,
}

/// A request that was admitted, until dropped.
#[derive(Debug)]
pub(crate) struct Entered {
    _active: TaskTrackerToken,
    request: Share,
    pub(crate) by: By,
    /// Of the other limits, each with the reason if there is no more.
    shares: Vec<(Share, Reason)>,
    /// Whether a signer that the host knows has signed it.
    pub(crate) is_known: bool,
}

impl Entered {
    /// The number of requests that it counts as.
    pub(crate) const fn weight(&self) -> usize {
        self.request.count()
    }
}

impl Limiter {
    pub(crate) fn new(limits: Limits, gate: Gate) -> Self {
        let config = &limits.config;
        // None with a limit of a few requests, nor when signatures are ignored.
        let all_but = |part| {
            let limit = gate.request_limit()?;
            let is_kept = limit >= part && config.signatures != SignatureMode::Off;
            is_kept.then(|| Budget::new(limit - limit / part))
        };
        Self {
            active: TaskTracker::new(),
            callers: Callers::new(limits.clone()),
            connections: Budget::new(config.max_connections),
            slow_bodies: Semaphore::new(limits.max_slow_bodies),
            unsigned: all_but(SIGNED_REQUEST_PART),
            strangers: all_but(KNOWN_PART),
            buffered: Budget::new(config.max_buffered_bytes),
            quotas: quotas(config.quota, &limits),
            caller_quotas: quotas(config.caller_quota, &limits),
            limits,
            gate,
        }
    }

    /// An error response with a retry-after time, for a reason that is not the gate's.
    pub(crate) fn retry_later(&self, reason: Reason) -> ErrorResponse {
        ErrorResponse::retry_later(reason, self.gate.retry_after(), reason.refusal())
    }

    pub(crate) fn enter(&self, caller: &Caller, is_signed: bool) -> Result<Entered, ErrorResponse> {
        let now = Instant::now();
        // Counted before the look at the end, so that a shutdown waits for whatever comes before it.
        let active = self.active.token();
        if self.active.is_closed() {
            return Err(self.gate.refuse_closed(now).into());
        }
        // Requests that a front forwards were signed.
        let unsigned = self.unsigned.as_ref().filter(|_| !is_signed && !caller.id.is_front);
        let strangers = self.strangers.as_ref().filter(|_| self.callers.is_stranger(caller));
        let mut shares = Vec::new();
        for (limit, reason) in [
            (Some(&caller.requests), Reason::CallerRequests),
            (unsigned, Reason::UnsignedRequests),
            (strangers, Reason::TooManyRequests),
        ] {
            let Some(limit) = limit else { continue };
            shares.push((limit.take(1).ok_or_else(|| self.retry_later(reason))?, reason));
        }
        let request = self.gate.enter(now)?;
        let by = By { caller: caller.id, signer: None, arrived: SystemTime::now() };
        Ok(Entered { _active: active, request, by, shares, is_known: false })
    }

    /// Makes a request count as `to` requests: all or nothing.
    pub(crate) fn grow(&self, entered: &mut Entered, to: usize) -> Result<(), ErrorResponse> {
        let more = to.saturating_sub(entered.weight());
        for (share, reason) in &mut entered.shares {
            if !share.try_add(more, 0) {
                return Err(self.retry_later(*reason));
            }
        }
        Ok(self.gate.enter_batch(&mut entered.request, to, Instant::now())?)
    }

    /// Whether a body that is announced with this length can be paid for and held now. It spends
    /// what the head costs, and holds nothing, because none of the body has arrived.
    pub(crate) fn check_body(&self, caller: &Caller, length: usize) -> Result<(), ErrorResponse> {
        if !caller.id.is_front {
            let work = body_work(length);
            spend(&self.caller_quotas, Reason::CallerQuota, |quotas, now| {
                quotas.check(caller.id, work, now)?;
                quotas.take(caller.id, body_work(0), now)
            })?;
        }
        let (of_caller, of_all) = (&caller.bytes, &self.buffered);
        let keep_free = self.kept_from(length, self.callers.is_stranger(caller));
        self.held(of_caller.fits(length, 0), || of_all.fits(length, keep_free))
    }

    /// A share of no bytes for a request of this caller, to be added to.
    pub(crate) fn hold(&self, caller: &Caller) -> Held {
        let is_stranger = self.callers.is_stranger(caller);
        let (all, of_caller) = (self.buffered.empty(), caller.bytes.empty());
        Held { all, of_caller, caller: caller.id, is_stranger }
    }

    /// Adds bytes of a body to a request's share, and spends what they cost: a body whose end does
    /// not come is paid for too.
    ///
    /// # Errors
    /// A limit of bytes, or the quota, would be exceeded. The share must then be dropped.
    pub(crate) fn hold_more(&self, held: &mut Held, bytes: usize) -> Result<(), ErrorResponse> {
        let (before, length) = (held.all.count(), held.all.count().saturating_add(bytes));
        let work = body_work(length) - body_work(before);
        if work > 0 {
            self.charge_caller(held.caller, work)?;
        }
        let keep_free = self.kept_from(length, held.is_stranger);
        let of_caller = held.of_caller.try_add(bytes, 0);
        self.held(of_caller, || held.all.try_add(bytes, keep_free))
    }

    /// The bytes that a body of this length leaves to short ones, and a stranger's to others.
    fn kept_from(&self, length: usize, is_stranger: bool) -> usize {
        let part = match (length <= SMALL_BODY_BYTES, is_stranger) {
            (false, _) => SMALL_BODY_PART,
            (true, true) => KNOWN_PART,
            (true, false) => return 0,
        };
        // A body of the maximum length always fits.
        let config = &self.limits.config;
        let (most, longest) = (config.max_buffered_bytes, config.max_body_bytes);
        most.saturating_sub(longest).min(most / part)
    }

    fn held(&self, of_caller: bool, of_all: impl FnOnce() -> bool) -> Result<(), ErrorResponse> {
        match of_caller {
            false => Err(self.retry_later(Reason::CallerBufferedBytes)),
            true if of_all() => Ok(()),
            true => Err(self.retry_later(Reason::BufferedBytes)),
        }
    }

    /// Whether a signer has any quota left: it spends nothing, since the claim is not verified yet.
    pub(crate) fn check_quota(&self, claimed: Address, by: CallerId) -> Result<(), ErrorResponse> {
        spend(&self.quotas, Reason::Quota, |quotas, now| quotas.check((claimed, by), 1, now))
    }

    /// A caller has sent what its claimed signer did not sign, and has been served before others for it.
    pub(crate) fn charge_forgery(&self, by: CallerId) {
        if let (false, Some(quotas)) = (by.is_front, &self.caller_quotas) {
            let mut quotas = quotas.lock().unwrap_or_else(PoisonError::into_inner);
            quotas.owe(by, WORK_OF_FORGERY, Instant::now());
        }
    }

    /// Spends from the quota of a caller, unless it is a front.
    fn charge_caller(&self, caller: CallerId, work: usize) -> Result<(), ErrorResponse> {
        if caller.is_front {
            return Ok(());
        }
        spend(&self.caller_quotas, Reason::CallerQuota, |quotas, now| {
            quotas.take(caller, work, now)
        })
    }

    /// Spends from the quota of a caller, and of its signer, whose signature was verified.
    pub(crate) fn charge(&self, by: By, work: usize) -> Result<(), ErrorResponse> {
        self.charge_caller(by.caller, work)?;
        let Some(signer) = by.signer else { return Ok(()) };
        let signer = (signer, by.caller);
        spend(&self.quotas, Reason::Quota, |quotas, now| quotas.take(signer, work, now))
    }
}

fn quotas<K: Copy + Eq + Hash>(quota: Option<Quota>, limits: &Limits) -> Option<Mutex<Quotas<K>>> {
    quota.map(|quota| Mutex::new(Quotas::new(quota, limits.max_quotas, Instant::now())))
}

fn spend<K>(
    quotas: &Option<Mutex<Quotas<K>>>,
    reason: Reason,
    spending: impl FnOnce(&mut Quotas<K>, Instant) -> Result<(), Duration>,
) -> Result<(), ErrorResponse> {
    let Some(quotas) = quotas else { return Ok(()) };
    let mut quotas = quotas.lock().unwrap_or_else(PoisonError::into_inner);
    spending(&mut quotas, Instant::now())
        .map_err(|wait| ErrorResponse::retry_later(reason, wait, reason.refusal()))
}

/// The bytes of a request in memory: of its body, and then of its response until that is sent.
#[derive(Debug)]
pub(crate) struct Held {
    all: Share,
    of_caller: Share,
    caller: CallerId,
    is_stranger: bool,
}

impl Held {
    /// Replaces the share of the request's body, which is dropped, by that of its response.
    pub(crate) fn response(&mut self, bytes: usize) {
        self.all.resize(bytes);
        self.of_caller.resize(bytes);
    }
}

/// Runs a function on a thread for CPU-heavy work.
pub(crate) async fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ErrorResponse> {
    tokio::task::spawn_blocking(work).await.map_err(|_| WorkError::Lost.into())
}
