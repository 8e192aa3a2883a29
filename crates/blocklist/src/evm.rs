use revm::{
    ExecuteCommitEvm, InspectEvm, context::result::ExecResultAndState,
    context_interface::Transaction, state::EvmState,
};

/// The interface through which [`BlockGuard`](crate::BlockGuard) drives an EVM: one transaction at
/// a time, its state separate from others', and the commit as a separate step.
///
/// Every revm EVM implements it through [`ExecuteCommitEvm`]; [`Inspected`] runs the same EVM with
/// its inspector. For an EVM behind another trait, such as alloy-evm's `Evm`, write a newtype: its
/// `transact_raw` is [`transact_alone`](Self::transact_alone), `db_mut().commit(state)` is
/// [`commit_state`](Self::commit_state), and since that trait cannot leave an execution in the
/// journal, [`discard_leftover`](Self::discard_leftover) is 0.
pub trait TransactionEvm {
    /// The transaction.
    type Tx: Transaction;
    /// The result of an execution beside the state.
    type Output;
    /// Why a transaction was not executed.
    type Error;

    /// Empties the journal and returns how many accounts it held. After `transact_one` without
    /// `finalize` it holds those of that transaction, which would be mixed with the next one's.
    fn discard_leftover(&mut self) -> usize;

    /// Executes the transaction and returns the state of this transaction alone: a key for every
    /// account it loaded and for no other. Writes nothing to the database, and leaves nothing in the
    /// journal, also on an error.
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
        self.0.inspect_tx(tx)
    }

    fn commit_state(&mut self, state: EvmState) {
        self.0.commit(state);
    }
}
