//! The checks of one block: of its recipients, of each transaction, and of the finished block.
//!
//! Design decisions that the items below do not explain:
//!
//! - **All decisions are made on addresses.** The checks on revm's types (feature `revm`) only
//!   extract the addresses that a transaction names and the keys of its state, so a host that
//!   executes elsewhere gets the same decisions.
//! - **Only a block that passed the policy becomes a `Submittable`.** Whether a finished block must
//!   still be verified depends on the configuration, so `finish` returns an enum.
//! - **A leftover in the journal is an error.** Clearing it silently would hide that an execution
//!   was never checked.
//! - **`Strict` has its own small inspector.** The usual access-list inspector leaves out
//!   precompiles, the sender, the recipient, and the addresses of opcodes that halted before they
//!   loaded the account.
//! - **The crate does not depend on alloy-evm.** Its trait can be wrapped in a newtype in a few
//!   lines, and a builder on plain revm need not link it. `revm-inspectors` is only the baseline of
//!   the benchmark.

use std::sync::Arc;

use alloy_primitives::Address;

use crate::{Blocked, Blocklist, Error, How, Policy, metrics::Metrics};

/// The checks for one block: the list as of the beginning of the block, and the block's fee
/// recipient, which is not listed.
///
/// One guard per block: a list that changes meanwhile applies from the next block on. Cheap to make
/// and to clone; share it between the threads that build on the same parent.
///
/// With the feature `revm`, `execute` runs a transaction between its two checks. A host that
/// executes by other means calls [`precheck_addresses`](Self::precheck_addresses) before and
/// [`check_addresses`](Self::check_addresses) after, with the keys of the state.
///
/// It does not check a block's withdrawals and system calls, which the builder does not choose. The
/// payment to the proposer is checked like any other transaction.
///
/// ```
/// use std::sync::Arc;
///
/// use alloy_primitives::Address;
/// use blocklist::{BlockGuard, Blocked, Blocklist, BlocklistConfig, How};
///
/// let [alice, bob, listed, fee_recipient] = [0xa1, 0xb0, 0xbb, 0xfe].map(Address::with_last_byte);
/// let list = Blocklist::from_addresses([listed], &BlocklistConfig::default())?;
/// let guard = BlockGuard::new(Arc::new(list), fee_recipient)?;
///
/// // Before the execution: what the transaction names.
/// guard.precheck_addresses(alice, Some(bob), [], [])?;
/// // After it, and before the commit: the keys of its state. This call reached a listed contract.
/// let keys = [alice, bob, listed, fee_recipient];
/// let blocked = Blocked { address: listed, how: How::TouchedByExecution };
/// assert_eq!(guard.check_addresses(&keys), Err(blocked));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct BlockGuard {
    list: Arc<Blocklist>,
    fee_recipient: Address,
    policy: Policy,
    pub(crate) metrics: Arc<Metrics>,
}

impl BlockGuard {
    /// Makes a guard with a list that never changes and never becomes stale. For any other list use
    /// [`SharedBlocklist::begin_block`](crate::SharedBlocklist::begin_block).
    ///
    /// # Errors
    /// [`Error::FeeRecipientListed`].
    pub fn new(list: Arc<Blocklist>, fee_recipient: Address) -> Result<Self, Error> {
        Self::with_metrics(list, fee_recipient, Policy::default(), Arc::new(Metrics::new()))
    }

    pub(crate) fn with_metrics(
        list: Arc<Blocklist>,
        fee_recipient: Address,
        policy: Policy,
        metrics: Arc<Metrics>,
    ) -> Result<Self, Error> {
        if list.contains(&fee_recipient) {
            let error = Error::FeeRecipientListed { address: fee_recipient };
            metrics.refused(&error);
            return Err(error);
        }
        Ok(Self { list, fee_recipient, policy, metrics })
    }

    /// Checks a second address that the block must pay, which would otherwise be refused only at
    /// the end: the fee recipient that the proposer registered with the relay.
    ///
    /// # Errors
    /// [`Error::ProposerListed`]: do not build.
    pub fn for_proposer(self, fee_recipient: Address) -> Result<Self, Error> {
        if self.list.contains(&fee_recipient) {
            let error = Error::ProposerListed { address: fee_recipient };
            self.metrics.refused(&error);
            return Err(error);
        }
        Ok(self)
    }

    /// The list that applies to this block.
    pub fn list(&self) -> &Blocklist {
        &self.list
    }

    /// The fee recipient that was checked.
    pub const fn fee_recipient(&self) -> Address {
        self.fee_recipient
    }

    /// The checks for the finished block: see [`finish`](Self::finish).
    pub const fn policy(&self) -> Policy {
        self.policy
    }

    /// [`Blocklist::precheck_addresses`], with metrics.
    ///
    /// # Errors
    /// The first listed address that the transaction names.
    pub fn precheck_addresses(
        &self,
        sender: Address,
        recipient: Option<Address>,
        access_list: impl IntoIterator<Item = Address>,
        authorizations: impl IntoIterator<Item = (Option<Address>, Address)>,
    ) -> Result<(), Blocked> {
        self.list
            .precheck_addresses(sender, recipient, access_list, authorizations)
            .map_err(|blocked| self.count(blocked))
    }

    /// [`Blocklist::check_addresses`] for the block's fee recipient, with metrics. A host that
    /// executes by its own means calls it between the execution and the commit.
    ///
    /// # Errors
    /// The numerically lowest listed address among them.
    #[inline]
    pub fn check_addresses<'a>(
        &self,
        addresses: impl IntoIterator<Item = &'a Address>,
    ) -> Result<(), Blocked> {
        self.list
            .check_addresses(addresses, self.fee_recipient)
            .map_err(|blocked| self.count(blocked))
    }

    /// Ends a block whose transactions have all passed their checks. Under [`Policy::PostState`]
    /// nothing else is required; under [`Policy::Strict`] the block must be verified first.
    ///
    /// Let the function that submits blocks take a [`Submittable`], which only this and that
    /// verification return: then code that skips them does not compile.
    pub fn finish<B>(&self, block: B) -> Finished<B> {
        match self.policy() {
            Policy::PostState => Finished::Submittable(Submittable(block)),
            Policy::Strict => Finished::Unverified(Unverified { block, guard: self.clone() }),
        }
    }

    /// Counts a blocked transaction, and returns its reason.
    pub(crate) fn count(&self, blocked: Blocked) -> Blocked {
        self.metrics.blocked[blocked.how as usize].increment(1);
        blocked
    }
}

/// A finished block that passed the [`Policy`] of its guard, or must still be verified.
#[derive(Debug)]
#[must_use = "a block that is not submitted earns nothing"]
#[non_exhaustive]
pub enum Finished<B> {
    /// The block passed.
    Submittable(Submittable<B>),
    /// The policy is [`Policy::Strict`], and the finished block must be verified.
    Unverified(Unverified<B>),
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
