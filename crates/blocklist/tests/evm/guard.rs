//! The guard over EVMs that are not the plain one: under an inspector, over a failing database,
//! behind another trait.

use blocklist::{Blocked, ExecuteError, How, Inspected, TransactionEvm};
use revm::{
    ExecuteCommitEvm, ExecuteEvm,
    bytecode::opcode,
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

#[test]
fn an_inspected_evm_is_guarded_in_the_same_way() {
    for spec in forks() {
        let mut inspected = evm_with(reader(), spec, COINBASE, CountInspector::new());
        let refused =
            guard(&[VICTIM]).execute(&mut Inspected(&mut inspected), tx(ROUTER)).map(drop);
        let expected = Blocked { address: VICTIM, how: How::TouchedByExecution };
        assert_eq!(refused, Err(ExecuteError::Blocked(expected)));
        assert_eq!(world_of(&inspected).commits, 0);

        let mut plain = evm(reader(), spec);
        let expected =
            guard(&[OTHER]).execute(&mut plain, tx(ROUTER)).expect("not listed").commit();
        let mut adapter = Inspected(&mut inspected);
        let checked = guard(&[OTHER]).execute(&mut adapter, tx(ROUTER)).expect("not listed");
        assert_eq!(checked.output(), &expected);
        assert_eq!(checked.commit(), expected);
        assert_eq!(world_of(&inspected).commits, 1);
        assert!(inspected.inspector.get_count(opcode::BALANCE) > 0, "the inspector ran");

        inspected.transact_one(TxEnv { nonce: 1, ..tx(ROUTER) }).expect("valid");
        let refused = guard(&[]).execute(&mut Inspected(&mut inspected), tx(OTHER)).map(drop);
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

/// As alloy-evm wraps it: the EVM is out of reach but for two calls.
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
