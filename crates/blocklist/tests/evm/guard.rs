//! Tests of the guard on special EVMs: with an inspector, on a failing database, behind another
//! trait.

use blocklist::{ExecuteError, Inspected, TransactionEvm};
use revm::{
    ExecuteCommitEvm, ExecuteEvm,
    context::{
        TxEnv,
        result::{EVMError, ExecResultAndState, ExecutionResult, InvalidTransaction},
    },
    inspector::CountInspector,
    primitives::hardfork::SpecId,
    state::EvmState,
};

use crate::support::{
    COINBASE, Lost, OTHER, ROUTER, TestEvm, VICTIM, World, evm, evm_with, forks, guard, reader, tx,
    world_of,
};

/// The strict check runs on such an EVM, and its tests compare the results with the plain one.
#[test]
fn an_execution_left_in_an_inspected_evm_is_refused() {
    for spec in forks() {
        let mut inspected = evm_with(reader(), spec, COINBASE, CountInspector::new());
        inspected.transact_one(tx(ROUTER)).expect("valid");
        let next = TxEnv { nonce: 1, ..tx(OTHER) };
        let refused = guard(&[]).execute(&mut Inspected(&mut inspected), next).map(drop);
        assert_eq!(refused, Err(ExecuteError::Leftover { accounts: 4 }));
    }
}

#[test]
fn a_database_error_is_no_execution_and_leaves_nothing_behind() {
    let mut evm = evm(World { lost: Some(VICTIM), ..reader() }, SpecId::OSAKA);
    let guard = guard(&[]);
    let refused = guard.execute(&mut evm, tx(ROUTER)).map(drop);
    assert_eq!(refused, Err(ExecuteError::Evm(EVMError::Database(Lost(VICTIM)))));
    assert_eq!(world_of(&evm).commits, 0);
    guard.execute(&mut evm, tx(OTHER)).expect("the EVM is clean").commit();
    assert_eq!(world_of(&evm).commits, 1);
}

#[test]
fn a_database_error_leaves_nothing_in_an_inspected_evm() {
    let world = World { lost: Some(VICTIM), ..reader() };
    let mut inspected = evm_with(world, SpecId::OSAKA, COINBASE, CountInspector::new());
    let mut evm = Inspected(&mut inspected);
    let refused = guard(&[]).execute(&mut evm, tx(ROUTER)).map(drop);
    assert_eq!(refused, Err(ExecuteError::Evm(EVMError::Database(Lost(VICTIM)))));
    guard(&[]).execute(&mut evm, tx(OTHER)).expect("the EVM is clean").commit();
    assert_eq!(world_of(&inspected).commits, 1);
}

/// An EVM behind a trait such as that of alloy-evm, which offers only these two calls.
struct Wrapped(TestEvm);

impl TransactionEvm for Wrapped {
    type Tx = TxEnv;
    type Output = ExecutionResult;
    type Error = EVMError<Lost, InvalidTransaction>;

    fn discard_leftover(&mut self) -> usize {
        0
    }

    fn transact_alone(
        &mut self,
        tx: TxEnv,
    ) -> Result<ExecResultAndState<ExecutionResult, EvmState>, Self::Error> {
        self.0.transact(tx)
    }

    fn commit_state(&mut self, state: EvmState) {
        self.0.commit(state);
    }
}

#[test]
fn an_evm_behind_another_trait_is_guarded_through_a_newtype() {
    let mut wrapped = Wrapped(evm(reader(), SpecId::OSAKA));
    let refused = guard(&[VICTIM]).execute(&mut wrapped, tx(ROUTER)).map(drop);
    assert_eq!(refused.expect_err("listed").blocked().map(|b| b.address), Some(VICTIM));
    guard(&[OTHER]).execute(&mut wrapped, tx(ROUTER)).expect("not listed").discard();
    assert_eq!(world_of(&wrapped.0).commits, 0);
    let output = guard(&[OTHER]).execute(&mut wrapped, tx(ROUTER)).expect("not listed").commit();
    assert!(output.is_success());
    assert_eq!(world_of(&wrapped.0).commits, 1);
}
