use alloy_primitives::Address;

use crate::{BlockGuard, Blocked, How, Policy};

/// A block that passed the [`Policy`] of its guard, or must still pass a part of it.
#[derive(Debug)]
#[must_use = "a block that is not submitted earns nothing"]
#[non_exhaustive]
pub enum Finished<B> {
    /// It passed.
    Submittable(Submittable<B>),
    /// The policy is [`Policy::Strict`], and the finished block must be verified.
    Unverified(Unverified<B>),
}

impl<B> Finished<B> {
    pub(crate) fn new(block: B, guard: &BlockGuard) -> Self {
        match guard.policy() {
            Policy::PostState => Self::Submittable(Submittable(block)),
            Policy::Strict => Self::Unverified(Unverified { block, guard: guard.clone() }),
        }
    }
}

/// A block that passed the policy of its guard. It cannot be created in another way.
#[derive(Debug)]
pub struct Submittable<B>(B);

impl<B> Submittable<B> {
    /// The block.
    pub const fn block(&self) -> &B {
        &self.0
    }

    /// The block, to submit it.
    pub fn into_block(self) -> B {
        self.0
    }
}

/// A block under [`Policy::Strict`] that has not been verified. It can be read, to execute its
/// transactions, and is only returned by a verification that passes.
#[derive(Debug)]
#[must_use = "a block that is not verified cannot be submitted"]
pub struct Unverified<B> {
    block: B,
    guard: BlockGuard,
}

impl<B> Unverified<B> {
    /// The block.
    pub const fn block(&self) -> &B {
        &self.block
    }

    /// The guard of the block.
    pub const fn guard(&self) -> &BlockGuard {
        &self.guard
    }

    /// Verifies the block with addresses that a tracer of the host has collected: for every
    /// transaction, all addresses that its opcodes named, also if the opcode halted before it
    /// reached the account. With the feature `revm`, `verify` executes the block and collects them
    /// itself.
    ///
    /// # Errors
    /// The numerically lowest listed address; the block is dropped.
    pub fn verify_addresses<'a>(
        self,
        named: impl IntoIterator<Item = &'a Address>,
    ) -> Result<Submittable<B>, Blocked> {
        let checked = self.guard.list().check_addresses(named, self.guard.fee_recipient());
        checked.map_err(|blocked| {
            self.guard.count(Blocked { how: How::AttemptedByExecution, ..blocked })
        })?;
        Ok(self.passed())
    }

    pub(crate) fn passed(self) -> Submittable<B> {
        Submittable(self.block)
    }
}
