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
/// A stranger that holds more than `1 / LIGHT_PART` of the buffered bytes, by default more than a
/// transaction of six blobs takes, must leave `1 / LIGHT_CALLERS_PART` of them free. Without that,
/// the bodies of four addresses would leave no room for those of others.
const LIGHT_PART: usize = 32;
const LIGHT_CALLERS_PART: usize = 4;
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
        let by_caller = caller.bytes.used().saturating_add(length);
        if !self.budget.fits(length, self.reserved_bytes(length, is_stranger, by_caller)) {
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
        let by_caller = held.caller_share.used_by_caller();
        if !held.total.try_add(bytes, self.reserved_bytes(length, held.is_stranger, by_caller)) {
            return Err(Reason::BufferedBytes);
        }
        Ok(())
    }

    /// Returns the bytes that a body of this length must leave free: for short bodies, and if a
    /// stranger sends it, for trusted callers and for callers that hold little. `by_caller` are the
    /// bytes that its caller holds, this body included.
    fn reserved_bytes(&self, length: usize, is_stranger: bool, by_caller: usize) -> usize {
        let part_if = |leaves_part: bool, part| if leaves_part { self.max_bytes / part } else { 0 };
        let for_small = part_if(length > SMALL_BODY_BYTES, SMALL_BODY_PART);
        let for_trusted = part_if(is_stranger, TRUSTED_PART);
        let is_heavy = by_caller > self.max_bytes / LIGHT_PART;
        let for_light = part_if(is_stranger && is_heavy, LIGHT_CALLERS_PART);
        // A body of the maximum length always fits.
        let most = self.max_bytes.saturating_sub(self.max_body_bytes);
        most.min(for_small.saturating_add(for_trusted).saturating_add(for_light))
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

    /// Bodies of the maximum length from four addresses left no room for an upload of another one.
    #[test]
    fn callers_that_hold_much_leave_room_for_those_that_hold_little() {
        let limits = Limits::new(OrderRpcConfig::new(1));
        let (buffered, callers) = (BufferedBytes::new(&limits), Callers::new(limits.clone()));
        let callers: Vec<_> = (0..9).map(|n| callers.with_address([10, 0, 0, n].into())).collect();
        let mut held = Vec::new();
        for length in [8 << 20, 1 << 20, 100 << 10] {
            for caller in callers[..8].iter().flat_map(|caller| [caller; 64]) {
                let mut body = buffered.hold(caller, true);
                if buffered.hold_more(&mut body, length).is_ok() {
                    held.push(body);
                }
            }
        }
        for _ in 0..10 {
            assert_eq!(buffered.check(&callers[8], true, 100 << 10), Ok(()), "{}", buffered.used());
            let mut body = buffered.hold(&callers[8], true);
            assert_eq!(buffered.hold_more(&mut body, 100 << 10), Ok(()));
            held.push(body);
        }
    }
}
