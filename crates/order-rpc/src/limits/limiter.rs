//! Admits requests: when their head was read, and again when their body is complete.

use std::{
    sync::Arc,
    time::{Instant, SystemTime},
};

use alloy_primitives::Address;
use load_control::{Budget, Gate, Share, WorkError};
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

use super::{Caller, CallerId, Callers, Charges, Limits, SlowBodies, budget::CallerShare};
use crate::{
    config::SignatureMode,
    reply::{ErrorResponse, Reason},
};

/// The reciprocal of the part of the requests in flight for those that claim a signature.
const SIGNED_REQUEST_PART: usize = 8;
/// The reciprocal of the part of the requests in flight, and of the buffered bytes, for callers
/// where a known signer has signed: any header claims a signature.
pub(super) const KNOWN_PART: usize = 16;

#[derive(Debug)]
pub(crate) struct Limiter {
    pub(crate) limits: Limits,
    pub(crate) gate: Gate,
    pub(crate) callers: Callers,
    pub(crate) charges: Charges,
    pub(crate) connections: Arc<Budget>,
    pub(crate) slow_bodies: SlowBodies,
    /// The requests in progress; closed at the shutdown.
    pub(crate) active: TaskTracker,
    /// Requests in flight that claim no signature; `None`: no limit.
    unsigned: Option<Arc<Budget>>,
    /// Requests in flight of [strangers](Callers::is_stranger); `None`: no limit.
    strangers: Option<Arc<Budget>>,
    /// Bytes of bodies, and of responses that are not sent yet.
    pub(crate) buffered: Arc<Budget>,
}

/// Who pays for a call, whose its order is, and when it came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requester {
    pub(crate) caller: CallerId,
    /// `None` without a signature, and before it is verified.
    pub(crate) signer: Option<Address>,
    /// When the head of the request was read: a message that waits for longer is not later.
    pub(crate) arrived: SystemTime,
}

/// A request whose head was read. It has no place among the requests in flight until its body is
/// complete, so a caller that sends slowly takes none from a request that can be served.
#[derive(Debug)]
pub(crate) struct Arrival {
    active: TaskTrackerToken,
    requester: Requester,
    is_signed: bool,
}

/// A request in flight, until dropped.
#[derive(Debug)]
pub(crate) struct Entered {
    _active: TaskTrackerToken,
    places: Places,
    pub(crate) requester: Requester,
    /// Whether a signer that the host knows has signed it.
    pub(crate) is_known: bool,
}

/// What a request takes of each limit of requests in flight.
#[derive(Debug)]
struct Places {
    request: Share,
    of_caller: CallerShare,
    /// Of limits that not each request has, each with the reason if there is no more.
    others: Vec<(Share, Reason)>,
}

impl Entered {
    /// The number of requests that it counts as.
    pub(crate) const fn weight(&self) -> usize {
        self.places.request.count()
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
            charges: Charges::new(&limits),
            connections: Budget::new(config.max_connections),
            slow_bodies: SlowBodies::new(&limits),
            unsigned: all_but(SIGNED_REQUEST_PART),
            strangers: all_but(KNOWN_PART),
            buffered: Budget::new(config.max_buffered_bytes),
            limits,
            gate,
        }
    }

    /// An error response with a retry-after time, for a reason that is not the gate's.
    pub(crate) fn retry_later(&self, reason: Reason) -> ErrorResponse {
        ErrorResponse::retry_later(reason, self.gate.retry_after(), reason.refusal())
    }

    /// Admits the head of a request, if a request could be served now.
    ///
    /// # Errors
    /// A limit of requests in flight, or the shutdown.
    pub(crate) fn arrive(
        &self,
        caller: &Caller,
        is_signed: bool,
    ) -> Result<Arrival, ErrorResponse> {
        // Counted before the look at the end, so that a shutdown waits for whatever comes before it.
        let active = self.active.token();
        if self.active.is_closed() {
            return Err(self.gate.refuse_closed(Instant::now()).into());
        }
        if !caller.requests.fits(1) {
            return Err(self.retry_later(Reason::CallerRequests));
        }
        for (limit, reason) in self.other_limits(caller, is_signed) {
            if !limit.fits(1, 0) {
                return Err(self.retry_later(reason));
            }
        }
        self.gate.check(Instant::now())?;
        let requester =
            Requester { caller: caller.id, signer: None, arrived: order_pool::arrival() };
        Ok(Arrival { active, requester, is_signed })
    }

    /// Admits a request whose body is complete. It is in flight until the result is dropped.
    ///
    /// # Errors
    /// A limit of requests in flight.
    pub(crate) fn enter(
        &self,
        caller: &Caller,
        arrival: Arrival,
    ) -> Result<Entered, ErrorResponse> {
        let Arrival { active, requester, is_signed } = arrival;
        let of_caller =
            caller.requests.take(1).ok_or_else(|| self.retry_later(Reason::CallerRequests))?;
        let mut others = Vec::new();
        for (limit, reason) in self.other_limits(caller, is_signed) {
            others.push((limit.take(1).ok_or_else(|| self.retry_later(reason))?, reason));
        }
        let request = self.gate.enter(Instant::now())?;
        let places = Places { request, of_caller, others };
        Ok(Entered { _active: active, places, requester, is_known: false })
    }

    /// The limits of requests in flight that not each request has, each with its reason.
    fn other_limits(
        &self,
        caller: &Caller,
        is_signed: bool,
    ) -> impl Iterator<Item = (&Arc<Budget>, Reason)> {
        // Requests that a front forwards were signed.
        let is_unsigned = !is_signed && !caller.id.is_front;
        let unsigned = self.unsigned.as_ref().filter(|_| is_unsigned);
        let strangers = self.strangers.as_ref().filter(|_| self.callers.is_stranger(caller));
        let unsigned = unsigned.map(|limit| (limit, Reason::UnsignedRequests));
        unsigned.into_iter().chain(strangers.map(|limit| (limit, Reason::TooManyRequests)))
    }

    /// Makes a request count as `to` requests: all or nothing.
    ///
    /// # Errors
    /// As for [`Self::enter`].
    pub(crate) fn grow(&self, entered: &mut Entered, to: usize) -> Result<(), ErrorResponse> {
        let more = to.saturating_sub(entered.weight());
        let Places { request, of_caller, others } = &mut entered.places;
        if !of_caller.try_add(more) {
            return Err(self.retry_later(Reason::CallerRequests));
        }
        for (share, reason) in others {
            if !share.try_add(more, 0) {
                return Err(self.retry_later(*reason));
            }
        }
        Ok(self.gate.enter_batch(request, to, Instant::now())?)
    }
}

/// Runs a function on a thread for CPU-heavy work.
pub(crate) async fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ErrorResponse> {
    tokio::task::spawn_blocking(work).await.map_err(|_| WorkError::Lost.into())
}
