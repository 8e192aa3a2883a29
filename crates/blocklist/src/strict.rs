//! The strict check of a finished block, which also counts attempts that halted before they loaded
//! an account.

use alloy_primitives::{Address, map::AddressSet};
use revm::{
    ExecuteCommitEvm, InspectEvm, Inspector,
    bytecode::opcode,
    inspector::InspectorEvmTr,
    interpreter::{
        Interpreter,
        interpreter::EthInterpreter,
        interpreter_types::{InputsTr, Jumps},
    },
    state::EvmState,
};

use crate::{BlockGuard, Blocked, How, Inspected, Submittable, Unverified, VerifyError};

/// Collects every address that an opcode names, also if the opcode then halts before it loads the
/// account: out of gas, a write in a static frame, a stack too short for its other arguments.
///
/// It watches the same opcodes as geth's access-list tracer
/// (`eth/tracers/logger/access_list_tracer.go`, geth 1.16), without its exclusions. Geth looks at a
/// call only if five values are on the stack; this inspector looks as soon as the address is there,
/// which can only block more.
#[derive(Debug, Clone, Default)]
pub struct AttemptInspector {
    attempts: AddressSet,
}

impl AttemptInspector {
    /// The addresses that opcodes have named since the last [`clear`](Self::clear).
    pub const fn attempts(&self) -> &AddressSet {
        &self.attempts
    }

    /// Clears the addresses and keeps their memory.
    pub fn clear(&mut self) {
        self.attempts.clear();
    }
}

impl<CTX> Inspector<CTX, EthInterpreter> for AttemptInspector {
    fn step(&mut self, interp: &mut Interpreter, _context: &mut CTX) {
        let depth = match interp.bytecode.opcode() {
            opcode::BALANCE
            | opcode::EXTCODESIZE
            | opcode::EXTCODECOPY
            | opcode::EXTCODEHASH
            | opcode::SELFDESTRUCT => 0,
            opcode::CALL | opcode::CALLCODE | opcode::DELEGATECALL | opcode::STATICCALL => 1,
            opcode::SLOAD | opcode::SSTORE => {
                self.attempts.insert(interp.input.target_address());
                return;
            }
            _ => return,
        };
        if let Ok(word) = interp.stack.peek(depth) {
            self.attempts.insert(Address::from_word(word.into()));
        }
    }
}

impl BlockGuard {
    /// Executes a finished block once more under the [`AttemptInspector`] and applies all checks:
    /// the pre-check, the check of each transaction's state, and the check of every address that an
    /// opcode only attempted to reach. Transactions are committed one after another to the EVM's
    /// database, which must have the state of the block's parent.
    ///
    /// [`Unverified::verify`] calls it under [`Policy::Strict`](crate::Policy::Strict). Run it once
    /// per block that is to be submitted, not in the search loop: the inspector adds about a third
    /// to the cost of the execution.
    ///
    /// # Errors
    /// The first transaction that may not be in the block, or that the EVM did not execute. The
    /// database then holds the transactions before it, so discard it together with the block.
    pub fn verify_block<E>(
        &self,
        evm: &mut E,
        txs: impl IntoIterator<Item = <E as revm::ExecuteEvm>::Tx>,
    ) -> Result<
        Vec<<E as revm::ExecuteEvm>::ExecutionResult>,
        VerifyError<<E as revm::ExecuteEvm>::Error>,
    >
    where
        E: InspectEvm<State = EvmState>
            + ExecuteCommitEvm
            + InspectorEvmTr<Inspector = AttemptInspector>,
    {
        let mut verify = |tx| {
            evm.inspector().clear();
            let mut inspected = Inspected(&mut *evm);
            let mut checked = self.execute(&mut inspected, tx)?;
            // The guard has checked that the fee recipient is not listed, so it needs no exception.
            let attempted = checked.evm_mut().0.inspector().attempts();
            let listed = attempted.iter().filter(|address| self.list().contains(address)).min();
            if let Some(address) = listed.copied() {
                let how = How::AttemptedByExecution;
                return Err(self.count(Blocked { address, how }).into());
            }
            Ok(checked.commit())
        };
        let txs = txs.into_iter().enumerate();
        txs.map(|(index, tx)| verify(tx).map_err(|reason| VerifyError { index, reason })).collect()
    }
}

impl<B> Unverified<B> {
    /// Runs [`BlockGuard::verify_block`] over the block's transactions, in their order. Returns
    /// their results, to be compared with those of the first execution.
    ///
    /// # Errors
    /// As [`BlockGuard::verify_block`]; the block is dropped.
    #[expect(clippy::type_complexity, reason = "two associated types of the EVM")]
    pub fn verify<E>(
        self,
        evm: &mut E,
        txs: impl IntoIterator<Item = <E as revm::ExecuteEvm>::Tx>,
    ) -> Result<
        (Submittable<B>, Vec<<E as revm::ExecuteEvm>::ExecutionResult>),
        VerifyError<<E as revm::ExecuteEvm>::Error>,
    >
    where
        E: InspectEvm<State = EvmState>
            + ExecuteCommitEvm
            + InspectorEvmTr<Inspector = AttemptInspector>,
    {
        let results = self.guard().verify_block(evm, txs)?;
        Ok((self.passed(), results))
    }
}
