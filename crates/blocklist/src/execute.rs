//! The checks on revm's types, and the steps of one transaction in order.

use alloy_primitives::Address;
use revm::{
    context_interface::{
        Transaction,
        transaction::{AccessListItemTr, AuthorizationTr},
    },
    state::EvmState,
};

use crate::{BlockGuard, Blocked, Blocklist, ExecuteError, TransactionEvm};

impl Blocklist {
    /// Applies [`precheck_addresses`](Self::precheck_addresses) to the addresses that the
    /// transaction names.
    ///
    /// Each authorization that was not recovered before costs a signature recovery (some 35 us):
    /// pass `RecoveredAuthorization`s, which also saves the EVM that work.
    ///
    /// # Errors
    /// The first listed address.
    pub fn precheck(&self, tx: &impl Transaction) -> Result<(), Blocked> {
        self.precheck_addresses(
            tx.caller(),
            tx.kind().to().copied(),
            tx.access_list().into_iter().flatten().map(|item| *item.address()),
            tx.authorization_list().map(|signed| (signed.authority(), signed.address())),
        )
    }

    /// Applies [`check_addresses`](Self::check_addresses) to the keys of the state that `transact`
    /// or `inspect` returned for one transaction.
    ///
    /// # Errors
    /// The numerically lowest listed address among the keys.
    #[inline]
    pub fn check(&self, state: &EvmState, fee_recipient: Address) -> Result<(), Blocked> {
        self.check_addresses(state.keys(), fee_recipient)
    }
}

impl BlockGuard {
    /// [`Blocklist::precheck`], with metrics. Part of [`execute`](Self::execute); call it alone to
    /// drop orders before they are executed.
    ///
    /// # Errors
    /// The first listed address that the transaction names.
    pub fn precheck(&self, tx: &impl Transaction) -> Result<(), Blocked> {
        self.list().precheck(tx).map_err(|blocked| self.count(blocked))
    }

    /// Executes one transaction: pre-check, execution of it alone, check of every account it
    /// loaded. Nothing is written until [`Checked::commit`]; dropping the returned value undoes the
    /// execution.
    ///
    /// The EVM may be reused for every transaction of the block. If the beneficiary of its block is
    /// not the fee recipient of this guard, it is checked like any other account: if it is listed,
    /// it blocks every transaction.
    ///
    /// # Errors
    /// Nothing was written to the database, and the EVM is ready for the next transaction:
    /// [`ExecuteError::Blocked`], [`ExecuteError::Evm`], [`ExecuteError::Leftover`].
    #[inline]
    pub fn execute<'e, E: TransactionEvm>(
        &self,
        evm: &'e mut E,
        tx: E::Tx,
    ) -> Result<Checked<'e, E>, ExecuteError<E::Error>> {
        // First, so that a blocked transaction also leaves the EVM clean.
        let accounts = evm.discard_leftover();
        if accounts != 0 {
            self.count_leftover();
            return Err(ExecuteError::Leftover { accounts });
        }
        self.precheck(&tx)?;
        let executed = evm.transact_alone(tx).map_err(ExecuteError::Evm)?;
        self.check_addresses(executed.state.keys())?;
        Ok(Checked { evm, output: executed.result, state: executed.state })
    }
}

/// A transaction that was executed and reaches no listed address, not yet committed.
///
/// It borrows the EVM, so nothing can be executed between the check and the commit. Dropping it
/// discards the execution.
#[must_use = "an execution that is not committed is discarded"]
pub struct Checked<'e, E: TransactionEvm> {
    evm: &'e mut E,
    output: E::Output,
    state: EvmState,
}

impl<E: TransactionEvm> Checked<'_, E> {
    /// The result of the execution, to decide on the commit.
    pub const fn output(&self) -> &E::Output {
        &self.output
    }

    /// The EVM between the check and the commit, for instance to read its inspector.
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

    /// Discards the execution and writes nothing.
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
