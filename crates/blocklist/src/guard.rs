use std::sync::Arc;

use alloy_primitives::Address;
use revm::{context_interface::Transaction, state::EvmState};

use crate::{Blocked, Blocklist, Error, ExecuteError, Policy, TransactionEvm, metrics::Metrics};

/// The list as it stood when a block was begun, with that block's fee recipient, which is not on it.
///
/// One per block: a list that changes meanwhile applies from the next block on, so that a block is
/// judged by one list. Cheap to make and to clone; share it between the threads that build on the
/// same parent.
///
/// What it does not judge, because the builder does not choose it: withdrawals and the system calls
/// of a block. The payment to the proposer is a transaction like any other and goes through
/// [`execute`](Self::execute).
#[derive(Debug, Clone)]
pub struct BlockGuard {
    list: Arc<Blocklist>,
    fee_recipient: Address,
    policy: Policy,
    metrics: Metrics,
}

impl BlockGuard {
    /// A guard from a list that never changes and never ages. From one that does,
    /// [`SharedBlocklist::begin_block`](crate::SharedBlocklist::begin_block) makes it.
    ///
    /// # Errors
    /// [`Error::FeeRecipientListed`].
    pub fn new(list: Arc<Blocklist>, fee_recipient: Address) -> Result<Self, Error> {
        Self::with_metrics(list, fee_recipient, Policy::default(), Metrics::new())
    }

    pub(crate) fn with_metrics(
        list: Arc<Blocklist>,
        fee_recipient: Address,
        policy: Policy,
        metrics: Metrics,
    ) -> Result<Self, Error> {
        if list.contains(&fee_recipient) {
            let error = Error::FeeRecipientListed { address: fee_recipient };
            metrics.refused(&error);
            return Err(error);
        }
        Ok(Self { list, fee_recipient, policy, metrics })
    }

    /// The list that judges this block.
    pub fn list(&self) -> &Blocklist {
        &self.list
    }

    /// The fee recipient that was checked.
    pub const fn fee_recipient(&self) -> Address {
        self.fee_recipient
    }

    /// What the finished block must pass; under [`Policy::Strict`] also
    /// [`verify_block`](Self::verify_block).
    pub const fn policy(&self) -> Policy {
        self.policy
    }

    /// [`Blocklist::precheck`], counted. Part of [`execute`](Self::execute); by itself it sorts out
    /// orders before they are worth an execution.
    ///
    /// # Errors
    /// The first listed address that the transaction names.
    pub fn precheck(&self, tx: &impl Transaction) -> Result<(), Blocked> {
        self.list.precheck(tx).inspect_err(|blocked| self.metrics.blocked(*blocked))
    }

    /// Executes one transaction: pre-check, execution by itself, check of every account it loaded.
    /// Nothing is written until [`Checked::commit`], so dropping what is returned undoes it.
    ///
    /// The EVM may be reused for every transaction of the block. If its block's beneficiary is not
    /// the fee recipient of this guard, it is an account like any other: listed, it blocks every
    /// transaction.
    ///
    /// # Errors
    /// Nothing was written, and the EVM is ready for the next transaction:
    /// [`ExecuteError::Blocked`], [`ExecuteError::Evm`], [`ExecuteError::Leftover`].
    #[inline]
    pub fn execute<'e, E: TransactionEvm>(
        &self,
        evm: &'e mut E,
        tx: E::Tx,
    ) -> Result<Checked<'e, E>, ExecuteError<E::Error>> {
        // First, so that also a blocked transaction leaves the EVM clean.
        let accounts = evm.discard_leftover();
        if accounts != 0 {
            self.metrics.leftover();
            return Err(ExecuteError::Leftover { accounts });
        }
        self.precheck(&tx)?;
        let executed = evm.transact_alone(tx).map_err(ExecuteError::Evm)?;
        self.list
            .check(&executed.state, self.fee_recipient)
            .inspect_err(|blocked| self.metrics.blocked(*blocked))?;
        Ok(Checked { evm, output: executed.result, state: executed.state })
    }

    pub(crate) fn count(&self, blocked: Blocked) -> Blocked {
        self.metrics.blocked(blocked);
        blocked
    }
}

/// A transaction that was executed and reaches no listed address, not yet committed.
///
/// It borrows the EVM, so nothing can be executed between the check and the commit. Dropped, it is
/// discarded.
#[must_use = "an execution that is not committed is discarded"]
pub struct Checked<'e, E: TransactionEvm> {
    evm: &'e mut E,
    output: E::Output,
    state: EvmState,
}

impl<E: TransactionEvm> Checked<'_, E> {
    /// What the execution yielded: to decide by.
    pub const fn output(&self) -> &E::Output {
        &self.output
    }

    /// The EVM, to look at between the check and the commit: its inspector, say.
    pub(crate) const fn evm_mut(&mut self) -> &mut E {
        self.evm
    }

    /// The state that [`commit`](Self::commit) writes.
    pub const fn state(&self) -> &EvmState {
        &self.state
    }

    /// Writes the state to the EVM's database.
    pub fn commit(self) -> E::Output {
        self.evm.commit_state(self.state);
        self.output
    }

    /// Writes nothing.
    pub fn discard(self) -> E::Output {
        self.output
    }
}

impl<E: TransactionEvm<Output: std::fmt::Debug>> std::fmt::Debug for Checked<'_, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checked")
            .field("output", &self.output)
            .field("accounts", &self.state.len())
            .finish_non_exhaustive()
    }
}
