//! The bytes of requests in memory: of bodies, and then of responses until they are sent.

use load_control::Share;

use super::{Caller, CallerId, Limiter, budget::CallerShare, limiter::KNOWN_PART};
use crate::{
    config::body_work,
    reply::{ErrorResponse, Reason},
};

/// Bodies up to this size may use all of the buffered bytes. Longer ones leave a part of them free,
/// so that long bodies never keep out a cancellation or a bundle of plain transactions.
pub(crate) const SMALL_BODY_BYTES: usize = 64 * 1_024;
/// The reciprocal of that part.
const SMALL_BODY_PART: usize = 8;

/// The bytes of a request in memory: of its body, and then of its response until that is sent.
#[derive(Debug)]
pub(crate) struct HeldBytes {
    all: Share,
    own: CallerShare,
    caller: CallerId,
    is_stranger: bool,
}

impl HeldBytes {
    /// Replaces the share of the request's body, which is dropped, by that of its response.
    pub(crate) fn resize(&mut self, response_bytes: usize) {
        self.all.resize(response_bytes);
        self.own.resize(response_bytes);
    }
}

impl Limiter {
    /// Whether a body that is announced with this length can be paid for and held now. It spends and
    /// holds nothing, because none of the body has arrived.
    ///
    /// # Errors
    /// The quota, or a limit of bytes.
    pub(crate) fn check_body(&self, caller: &Caller, length: usize) -> Result<(), ErrorResponse> {
        self.charges.check_caller(caller.id, body_work(length) - body_work(0))?;
        if !caller.bytes.fits(length) {
            return Err(self.retry_later(Reason::CallerBufferedBytes));
        }
        let reserved = self.reserved_bytes(length, self.callers.is_stranger(caller));
        if !self.buffered.fits(length, reserved) {
            return Err(self.retry_later(Reason::BufferedBytes));
        }
        Ok(())
    }

    /// A share of no bytes for a request of this caller, to be added to.
    pub(crate) fn hold(&self, caller: &Caller) -> HeldBytes {
        HeldBytes {
            all: self.buffered.empty(),
            own: caller.bytes.empty(),
            caller: caller.id,
            is_stranger: self.callers.is_stranger(caller),
        }
    }

    /// Adds bytes of a body to a request's share, and spends their cost: a body whose end does not
    /// come is paid for too.
    ///
    /// # Errors
    /// A limit of bytes, or the quota, would be exceeded. The share must then be dropped.
    pub(crate) fn hold_more(
        &self,
        held: &mut HeldBytes,
        bytes: usize,
    ) -> Result<(), ErrorResponse> {
        let (before, length) = (held.all.count(), held.all.count().saturating_add(bytes));
        let work = body_work(length) - body_work(before);
        if work > 0 {
            self.charges.charge_caller(held.caller, work)?;
        }
        if !held.own.try_add(bytes) {
            return Err(self.retry_later(Reason::CallerBufferedBytes));
        }
        if !held.all.try_add(bytes, self.reserved_bytes(length, held.is_stranger)) {
            return Err(self.retry_later(Reason::BufferedBytes));
        }
        Ok(())
    }

    /// The bytes that a body of this length leaves to short ones, and a stranger's to others.
    fn reserved_bytes(&self, length: usize, is_stranger: bool) -> usize {
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
}
