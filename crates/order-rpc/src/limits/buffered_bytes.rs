//! Bounds the bytes of requests in memory: of bodies, and then of responses until they are sent.

use std::sync::Arc;

use load_control::{Budget, Share};

use super::{
    budget::CallerShare,
    callers::{Caller, CallerId},
    settings::Limits,
};
use crate::reply::Reason;

/// Bodies up to this size may use all of the buffered bytes. Longer ones leave a part free, so that
/// long bodies never keep out a cancellation or a bundle of plain transactions.
pub(crate) const SMALL_BODY_BYTES: usize = 64 * 1_024;
/// The part that longer bodies leave free is one divided by this.
const SMALL_BODY_PART: usize = 8;
/// The part of a limit that strangers leave free is one divided by this. A header can claim any
/// signature, so only callers where a known signer has signed count as trusted.
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

    /// Checks that a body of this length could be held now, without holding any of it.
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
        let part = if length > SMALL_BODY_BYTES {
            SMALL_BODY_PART
        } else if is_stranger {
            TRUSTED_PART
        } else {
            return 0;
        };
        // A body of the maximum length always fits.
        self.max_bytes.saturating_sub(self.max_body_bytes).min(self.max_bytes / part)
    }
}
