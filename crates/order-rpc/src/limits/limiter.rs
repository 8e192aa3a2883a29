//! Admits requests: when their head has been read, and again when their body is complete.

use std::{
    sync::Arc,
    time::{Instant, SystemTime},
};

use alloy_primitives::Signature;
use load_control::{Budget, Gate, Share, WorkError};
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

use super::{
    budget::CallerShare,
    buffered_bytes::{BufferedBytes, HeldBytes, TRUSTED_PART},
    callers::{Caller, CallerId, Callers},
    first_senders::FirstSenders,
    quotas::{Quotas, Requester},
    settings::Limits,
    slow_bodies::SlowBodies,
};
use crate::{
    config::{SignatureMode, body_work},
    reply::{ErrorResponse, Reason},
};

/// The part of the requests in flight that is reserved for those with a signature header is one
/// divided by this.
const SIGNED_PART: usize = 8;

/// All limits of the server, by which it admits requests.
#[derive(Debug)]
pub(crate) struct Limiter {
    pub(crate) limits: Limits,
    pub(crate) gate: Gate,
    pub(crate) callers: Callers,
    pub(crate) first_senders: FirstSenders,
    pub(crate) quotas: Quotas,
    pub(crate) connections: Arc<Budget>,
    pub(crate) slow_bodies: SlowBodies,
    /// Responses that are read slowly, in as many places.
    pub(crate) slow_responses: SlowBodies,
    pub(crate) buffered: BufferedBytes,
    /// The requests in progress; closed at the shutdown.
    pub(crate) active: TaskTracker,
    /// Requests in flight without a signature header; `None`: no limit.
    unsigned: Option<Arc<Budget>>,
    /// Requests in flight of [strangers](Callers::is_stranger); `None`: no limit.
    strangers: Option<Arc<Budget>>,
}

/// A request whose head was admitted. It takes no place among the requests in flight until its body
/// is complete, so a caller that sends slowly takes none from a request that can be served.
#[derive(Debug)]
pub(crate) struct AdmittedHead {
    active: TaskTrackerToken,
    requester: Requester,
    is_signed: bool,
}

/// A request in flight, until dropped.
#[derive(Debug)]
pub(crate) struct RequestInFlight {
    _active: TaskTrackerToken,
    places: Places,
    pub(crate) requester: Requester,
    /// Whether a signer that the host knows has signed the request, and it is no copy.
    pub(crate) is_known: bool,
}

/// The places that a request takes in each limit of requests in flight.
#[derive(Debug)]
struct Places {
    gate: Share,
    caller: CallerShare,
    /// The limits that apply only to some requests, each with the reason if it is exceeded.
    conditional: Vec<(Share, Reason)>,
}

impl RequestInFlight {
    /// The number of requests that it counts as.
    pub(crate) const fn weight(&self) -> usize {
        self.places.gate.count()
    }
}

impl Limiter {
    pub(crate) fn new(limits: Limits, gate: Gate) -> Self {
        Self {
            active: TaskTracker::new(),
            callers: Callers::new(limits.clone()),
            first_senders: FirstSenders::default(),
            quotas: Quotas::new(&limits),
            connections: Budget::new(limits.config.max_connections),
            slow_bodies: SlowBodies::new(&limits),
            slow_responses: SlowBodies::new(&limits),
            buffered: BufferedBytes::new(&limits),
            unsigned: budget_without_part(&limits, &gate, SIGNED_PART),
            strangers: budget_without_part(&limits, &gate, TRUSTED_PART),
            limits,
            gate,
        }
    }

    /// Whether the request with this signature is a copy: another caller was the first to send it,
    /// and this one has sent no request that a known signer has signed and that is not a copy.
    pub(crate) fn is_copy(&self, signature: &Signature, caller: CallerId) -> bool {
        self.first_senders.is_another(signature, caller)
            && !self.callers.is_trusted(&self.callers.get(caller))
    }

    /// Creates an error response with a retry-after time, for a reason that is not the gate's.
    pub(crate) fn retry_later(&self, reason: Reason) -> ErrorResponse {
        ErrorResponse::retry_later(reason, self.gate.retry_after(), reason.refusal())
    }

    /// Admits the head of a request if a request could be served now.
    ///
    /// # Errors
    /// A limit of requests in flight is reached, or the server shuts down.
    pub(crate) fn admit_head(
        &self,
        caller: &Caller,
        is_signed: bool,
    ) -> Result<AdmittedHead, ErrorResponse> {
        // Counted before the check for the shutdown, so that a shutdown waits for every request
        // that passed the check.
        let active = self.active.token();
        if self.active.is_closed() {
            return Err(self.gate.refuse_closed(Instant::now()).into());
        }
        if !caller.requests.fits(1) {
            return Err(self.retry_later(Reason::CallerRequests));
        }
        for (limit, reason) in self.conditional_limits(caller, is_signed) {
            if !limit.fits(1, 0) {
                return Err(self.retry_later(reason));
            }
        }
        self.gate.check(Instant::now())?;
        let arrived_at: SystemTime = order_pool::arrival();
        let requester = Requester { caller: caller.id, signer: None, arrived_at };
        Ok(AdmittedHead { active, requester, is_signed })
    }

    /// Admits a request whose body is complete. It is in flight until the result is dropped.
    ///
    /// # Errors
    /// A limit of requests in flight is reached.
    pub(crate) fn admit_request(
        &self,
        caller: &Caller,
        head: AdmittedHead,
    ) -> Result<RequestInFlight, ErrorResponse> {
        let AdmittedHead { active, requester, is_signed } = head;
        let Some(caller_place) = caller.requests.take(1) else {
            return Err(self.retry_later(Reason::CallerRequests));
        };
        let mut conditional = Vec::new();
        for (limit, reason) in self.conditional_limits(caller, is_signed) {
            let place = limit.take(1).ok_or_else(|| self.retry_later(reason))?;
            conditional.push((place, reason));
        }
        let gate = self.gate.enter(Instant::now())?;
        let places = Places { gate, caller: caller_place, conditional };
        Ok(RequestInFlight { _active: active, places, requester, is_known: false })
    }

    /// Returns the limits that apply to this request besides those of the gate and of the caller,
    /// each with its reason.
    fn conditional_limits(
        &self,
        caller: &Caller,
        is_signed: bool,
    ) -> impl Iterator<Item = (&Arc<Budget>, Reason)> {
        // A front forwards only requests that were signed.
        let is_unsigned = !is_signed && !caller.id.is_front;
        let unsigned = self.unsigned.as_ref().filter(|_| is_unsigned);
        let strangers = self.strangers.as_ref().filter(|_| self.callers.is_stranger(caller));
        let unsigned = unsigned.map(|limit| (limit, Reason::UnsignedRequests));
        unsigned.into_iter().chain(strangers.map(|limit| (limit, Reason::TooManyRequests)))
    }

    /// Makes a request count as `count` requests, all or nothing, because it is a batch.
    ///
    /// # Errors
    /// As for [`Self::admit_request`].
    pub(crate) fn admit_batch(
        &self,
        request: &mut RequestInFlight,
        count: usize,
    ) -> Result<(), ErrorResponse> {
        let more = count.saturating_sub(request.weight());
        let Places { gate, caller, conditional } = &mut request.places;
        if !caller.try_add(more) {
            return Err(self.retry_later(Reason::CallerRequests));
        }
        for (place, reason) in conditional {
            if !place.try_add(more, 0) {
                return Err(self.retry_later(*reason));
            }
        }
        Ok(self.gate.enter_batch(gate, count, Instant::now())?)
    }

    /// Checks that a body of this announced length could be paid for and held now. It charges and
    /// holds nothing, because none of the body has arrived.
    ///
    /// # Errors
    /// The caller's quota, or a limit of buffered bytes.
    pub(crate) fn check_body(&self, caller: &Caller, length: usize) -> Result<(), ErrorResponse> {
        // The head was charged with the work of an empty body.
        self.quotas.check_caller(caller.id, body_work(length) - body_work(0))?;
        let is_stranger = self.callers.is_stranger(caller);
        let checked = self.buffered.check(caller, is_stranger, length);
        checked.map_err(|reason| self.retry_later(reason))
    }

    /// Returns a share of no bytes for the body of a request, which can grow.
    pub(crate) fn hold_body(&self, caller: &Caller) -> HeldBytes {
        self.buffered.hold(caller, self.callers.is_stranger(caller))
    }

    /// Adds bytes of a body to a request's share, and charges their cost as they arrive, so that a
    /// body that never ends is paid for too.
    ///
    /// # Errors
    /// The caller's quota, or a limit of buffered bytes. The share must then be dropped.
    pub(crate) fn hold_more(
        &self,
        held: &mut HeldBytes,
        bytes: usize,
    ) -> Result<(), ErrorResponse> {
        let before = held.count();
        let work = body_work(before.saturating_add(bytes)) - body_work(before);
        if work > 0 {
            self.quotas.charge_caller(held.caller, work)?;
        }
        self.buffered.hold_more(held, bytes).map_err(|reason| self.retry_later(reason))
    }
}

/// Returns a budget of all requests in flight except one `part`-th; `None` if the gate has no limit
/// or only a few requests, and if signatures are ignored, so that nobody could use the reserve.
fn budget_without_part(limits: &Limits, gate: &Gate, part: usize) -> Option<Arc<Budget>> {
    let limit = gate.request_limit()?;
    let is_reserved = limit >= part && limits.config.signatures != SignatureMode::Off;
    is_reserved.then(|| Budget::new(limit - limit / part))
}

/// Runs a function on a thread for CPU-heavy work.
///
/// # Errors
/// An internal error, if the function panics.
pub(crate) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ErrorResponse> {
    tokio::task::spawn_blocking(work).await.map_err(|_| WorkError::Lost.into())
}
