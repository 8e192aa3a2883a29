//! The checks on revm's types: the steps of one transaction, and the trait that an EVM implements
//! for them.

use alloy_primitives::Address;
use revm::{
    ExecuteCommitEvm, InspectEvm,
    context::result::ExecResultAndState,
    context_interface::{
        Transaction,
        transaction::{AccessListItemTr, AuthorizationTr},
    },
    state::EvmState,
};

use crate::{BlockGuard, Blocked, Blocklist, ExecuteError, metrics::LEFTOVER};

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

    /// Executes one transaction: applies the pre-check, executes the transaction by itself, and
    /// checks every account that it loaded. Nothing is written until [`Checked::commit`]; dropping
    /// the returned value discards the execution.
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
        // This comes first, so that a blocked transaction also leaves the EVM clean.
        let accounts = evm.discard_leftover();
        if accounts != 0 {
            self.metrics.refusals[LEFTOVER].increment(1);
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

/// The interface through which [`BlockGuard`] drives an EVM: one transaction at
/// a time, with a state of its own, and the commit as a separate step.
///
/// Every revm EVM implements it through [`ExecuteCommitEvm`]; [`Inspected`] runs the same EVM with
/// its inspector. For an EVM behind another trait, such as alloy-evm's `Evm`, write a newtype: its
/// `transact_raw` is [`transact_alone`](Self::transact_alone), `db_mut().commit(state)` is
/// [`commit_state`](Self::commit_state), and since that trait cannot leave an execution in the
/// journal, [`discard_leftover`](Self::discard_leftover) returns 0.
pub trait TransactionEvm {
    /// The transaction.
    type Tx: Transaction;
    /// The result of an execution, without the state.
    type Output;
    /// The reason why a transaction was not executed.
    type Error;

    /// Empties the journal and returns how many accounts it held. After `transact_one` without
    /// `finalize` it holds the accounts of that transaction, and they would be mixed with those of
    /// the next one.
    fn discard_leftover(&mut self) -> usize;

    /// Executes the transaction. Returns its result, and a state whose keys are exactly the
    /// accounts that this transaction loaded. Writes nothing to the database, and leaves nothing in
    /// the journal, even if the transaction is not executed because of an error.
    fn transact_alone(
        &mut self,
        tx: Self::Tx,
    ) -> Result<ExecResultAndState<Self::Output, EvmState>, Self::Error>;

    /// Writes a state that [`transact_alone`](Self::transact_alone) returned.
    fn commit_state(&mut self, state: EvmState);
}

impl<E: ExecuteCommitEvm<State = EvmState>> TransactionEvm for E {
    type Tx = E::Tx;
    type Output = E::ExecutionResult;
    type Error = E::Error;

    #[inline]
    fn discard_leftover(&mut self) -> usize {
        self.finalize().len()
    }

    #[inline]
    fn transact_alone(
        &mut self,
        tx: Self::Tx,
    ) -> Result<ExecResultAndState<Self::Output, EvmState>, Self::Error> {
        // `transact` empties the journal, also if the transaction is invalid.
        self.transact(tx)
    }

    #[inline]
    fn commit_state(&mut self, state: EvmState) {
        self.commit(state);
    }
}

/// A revm EVM that runs each transaction under the inspector it was built with.
///
/// For hosts that need an inspector for another purpose; the blocklist needs none.
#[derive(Debug)]
pub struct Inspected<'e, E>(pub &'e mut E);

impl<E: InspectEvm<State = EvmState> + ExecuteCommitEvm> TransactionEvm for Inspected<'_, E> {
    type Tx = E::Tx;
    type Output = E::ExecutionResult;
    type Error = E::Error;

    fn discard_leftover(&mut self) -> usize {
        self.0.finalize().len()
    }

    fn transact_alone(
        &mut self,
        tx: Self::Tx,
    ) -> Result<ExecResultAndState<Self::Output, EvmState>, Self::Error> {
        // Unlike `transact`, `inspect_tx` of older versions of revm (34, for one) does not empty
        // the journal if the transaction is invalid.
        self.0.inspect_tx(tx).inspect_err(|_| drop(self.0.finalize()))
    }

    fn commit_state(&mut self, state: EvmState) {
        self.0.commit(state);
    }
}
