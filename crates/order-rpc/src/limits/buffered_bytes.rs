//! Bounds the bytes of requests in memory: of bodies, and then of responses until they are sent.

use std::sync::Arc;

use load_control::{Budget, Share};

use super::{
    budget::CallerShare,
    callers::{Caller, CallerId},
    settings::Limits,
};
use crate::reply::Reason;

/// Bodies up to this size may use all of the buffered bytes. Longer bodies must leave a part of
/// them free, so that they never leave a cancellation or a bundle of plain transactions without
/// room.
pub(crate) const SMALL_BODY_BYTES: usize = 64 * 1_024;
/// Longer bodies must leave `1 / SMALL_BODY_PART` of the buffered bytes free.
const SMALL_BODY_PART: usize = 8;
/// Strangers must leave `1 / TRUSTED_PART` of a limit free. A header can claim any signature, so a
/// caller is trusted only after a known signer has signed a request that came from it.
pub(super) const TRUSTED_PART: usize = 16;

/// The buffered bytes of all requests together.
#[derive(Debug)]
pub(crate) struct BufferedBytes {
    budget: Arc<Budget>,
    max_bytes: usize,
    max_body_bytes: usize,
}

/// The bytes of one request in memory: of its body, and then of its response until that is sent.
/// Dropping it releases them.
#[derive(Debug)]
pub(crate) struct HeldBytes {
    total: Share,
    caller_share: CallerShare,
    pub(super) caller: CallerId,
    is_stranger: bool,
}

impl HeldBytes {
    /// The number of bytes held now.
    pub(super) const fn count(&self) -> usize {
        self.total.count()
    }

    /// Replaces the bytes of the request's body, which is dropped, by those of its response.
    pub(crate) fn resize(&mut self, response_bytes: usize) {
        self.total.resize(response_bytes);
        self.caller_share.resize(response_bytes);
    }
}

impl BufferedBytes {
    pub(super) fn new(limits: &Limits) -> Self {
        let max_bytes = limits.config.max_buffered_bytes;
        let max_body_bytes = limits.config.max_body_bytes;
        Self { budget: Budget::new(max_bytes), max_bytes, max_body_bytes }
    }

    /// The bytes that all requests hold now.
    pub(crate) fn used(&self) -> usize {
        self.budget.used()
    }

    /// Checks that a body of this length has room now, and reserves nothing. `is_stranger`: see
    /// [`Callers::is_stranger`](super::callers::Callers::is_stranger).
    ///
    /// # Errors
    /// The limit that it would exceed.
    pub(super) fn check(
        &self,
        caller: &Caller,
        is_stranger: bool,
        length: usize,
    ) -> Result<(), Reason> {
        if !caller.bytes.fits(length) {
            return Err(Reason::CallerBufferedBytes);
        }
        if !self.budget.fits(length, self.reserved_bytes(length, is_stranger)) {
            return Err(Reason::BufferedBytes);
        }
        Ok(())
    }

    /// Returns a share of no bytes for a request of this caller, which can grow.
    pub(super) fn hold(&self, caller: &Caller, is_stranger: bool) -> HeldBytes {
        HeldBytes {
            total: self.budget.empty(),
            caller_share: caller.bytes.empty(),
            caller: caller.id,
            is_stranger,
        }
    }

    /// Adds bytes of a body to a request's share.
    ///
    /// # Errors
    /// The limit that it would exceed. The share must then be dropped.
    pub(super) fn hold_more(&self, held: &mut HeldBytes, bytes: usize) -> Result<(), Reason> {
        let length = held.count().saturating_add(bytes);
        if !held.caller_share.try_add(bytes) {
            return Err(Reason::CallerBufferedBytes);
        }
        if !held.total.try_add(bytes, self.reserved_bytes(length, held.is_stranger)) {
            return Err(Reason::BufferedBytes);
        }
        Ok(())
    }

    /// Returns the bytes that a body of this length must leave free: for short bodies, and for
    /// trusted callers if it is a stranger's.
    fn reserved_bytes(&self, length: usize, is_stranger: bool) -> usize {
        let part_if = |leaves_part: bool, part| if leaves_part { self.max_bytes / part } else { 0 };
        let for_small = part_if(length > SMALL_BODY_BYTES, SMALL_BODY_PART);
        let for_trusted = part_if(is_stranger, TRUSTED_PART);
        // A body of the maximum length always fits.
        let most = self.max_bytes.saturating_sub(self.max_body_bytes);
        most.min(for_small.saturating_add(for_trusted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::OrderRpcConfig, limits::callers::Callers};

    /// Long bodies of strangers left nothing for those of known signers.
    #[test]
    fn strangers_leave_room_for_long_bodies_of_trusted_callers() {
        const LONG: usize = 1 << 20;
        let limits = Limits::new(OrderRpcConfig::new(1));
        let (buffered, callers) = (BufferedBytes::new(&limits), Callers::new(limits.clone()));
        let callers: Vec<_> = (0..16).map(|n| callers.with_address([10, 0, 0, n].into())).collect();
        let mut held = Vec::new();
        for caller in callers.iter().cycle() {
            let mut body = buffered.hold(caller, true);
            if let Err(reason) = buffered.hold_more(&mut body, LONG) {
                assert_eq!(reason, Reason::BufferedBytes);
                break;
            }
            held.push(body);
        }
        assert_eq!(buffered.check(&callers[0], true, LONG), Err(Reason::BufferedBytes));
        assert_eq!(buffered.check(&callers[0], false, LONG), Ok(()));
    }
}
