//! Tests of opcodes that halt before they load the account that they name. The account was not
//! reached, so the transaction passes, and the strict check of the finished block refuses the
//! attempt.

use std::time::SystemTime;

use blocklist::{
    AttemptInspector, Blocked, BlocklistConfig, ExecuteError, Finished, How, Policy,
    SharedBlocklist, Unverified,
};
use revm::{
    ExecuteEvm,
    bytecode::opcode,
    context::{
        TxEnv,
        result::{EVMError, InvalidTransaction},
    },
    primitives::{Address, U256, address, hardfork::SpecId},
};
use testkit::configured;

use crate::support::{
    COINBASE, OTHER, ROUTER, SENDER, TestEvm, VICTIM, World,
    asm::{Asm, CALLS},
    evm, evm_with, forks, guard, keys, tx, world_of,
};

const INNER: Address = address!("0xc000000000000000000000000000000000000003");

/// How the frame with the attempt is called.
#[derive(Debug, Clone, Copy)]
enum Frame {
    Plain,
    Static,
    /// With 100 gas: after its pushes enough for a warm account and not for a cold one, which costs
    /// 2600 since Berlin.
    Poor,
}

fn strict_evm(world: World, spec: SpecId) -> TestEvm<AttemptInspector> {
    evm_with(world, spec, COINBASE, AttemptInspector::default())
}

/// Programs that name [`VICTIM`] and halt before they load it.
fn attempts() -> impl Iterator<Item = (Frame, Asm)> {
    let named = || Asm::new().address(VICTIM);
    let calls = CALLS.map(|kind| (Frame::Poor, Asm::new().call(kind, VICTIM, 0)));
    let others = [
        (Frame::Poor, named().op(opcode::BALANCE)),
        (Frame::Poor, named().op(opcode::EXTCODESIZE)),
        (Frame::Poor, named().op(opcode::EXTCODEHASH)),
        (Frame::Poor, Asm::new().push(0).push(0).push(0).address(VICTIM).op(opcode::EXTCODECOPY)),
        (Frame::Poor, named().op(opcode::SELFDESTRUCT)),
        (Frame::Static, named().op(opcode::SELFDESTRUCT)),
        (Frame::Static, Asm::new().call(opcode::CALL, VICTIM, 1)),
        (Frame::Plain, named().op(opcode::EXTCODECOPY)),
        (Frame::Plain, named().op(opcode::GAS).op(opcode::CALL)),
        (Frame::Plain, named().op(opcode::GAS).op(opcode::DELEGATECALL)),
    ];
    calls.into_iter().chain(others)
}

fn arrange(frame: Frame, inner: &Asm) -> World {
    let router = match frame {
        Frame::Plain => Asm::new().call(opcode::CALL, INNER, 0),
        Frame::Static => Asm::new().call(opcode::STATICCALL, INNER, 0),
        Frame::Poor => {
            let arguments = Asm::new().push(0).push(0).push(0).push(0).push(0);
            arguments.address(INNER).push(100).op(opcode::CALL)
        }
    };
    let mut world = World::new();
    world.contract(INNER, inner.bytes());
    world.contract(ROUTER, router.bytes());
    world.fund(VICTIM, U256::ONE);
    world
}

/// A contract that would destroy itself for [`VICTIM`], in a static frame.
fn attempting() -> World {
    arrange(Frame::Static, &Asm::new().address(VICTIM).op(opcode::SELFDESTRUCT))
}

/// A finished block under the strict policy, with one address listed.
fn unverified<B>(listed: Address, block: B) -> Unverified<B> {
    let now = SystemTime::UNIX_EPOCH;
    let config = configured(BlocklistConfig::default(), |config| config.policy = Policy::Strict);
    let list = SharedBlocklist::new(listed.to_string().as_bytes(), now, config, now);
    let guard = list.expect("a good list").begin_block(COINBASE, None, now).expect("not listed");
    match guard.finish(block) {
        Finished::Unverified(unverified) => unverified,
        _ => panic!("it was not verified"),
    }
}

#[test]
fn an_attempt_that_halts_passes_the_state_check_and_not_the_strict_one() {
    for spec in forks() {
        for (frame, inner) in attempts() {
            let name = format!("{spec} {frame:?} {inner:?}");
            let world = arrange(frame, &inner);
            let mut plain = evm(world.clone(), spec);
            let state = plain.transact(tx(ROUTER)).expect("valid").state;
            assert_eq!(keys(&state), world_of(&plain).accounts, "{name}");
            assert_eq!(keys(&state), [SENDER, COINBASE, ROUTER, INNER].into(), "{name}");

            guard(&[VICTIM]).execute(&mut plain, tx(ROUTER)).expect(&name).commit();
            let verified =
                unverified(VICTIM, ()).verify(&mut strict_evm(world, spec), [tx(ROUTER)]);
            let refused = verified.expect_err(&name);
            let expected = Blocked { address: VICTIM, how: How::AttemptedByExecution };
            assert_eq!((refused.index, refused.reason), (0, expected.into()), "{name}");
        }
    }
}

#[test]
fn the_strict_check_names_the_transaction_and_commits_those_before_it() {
    for spec in forks() {
        let world = attempting();
        let block =
            |last: TxEnv| [tx(OTHER), TxEnv { nonce: 1, ..tx(OTHER) }, TxEnv { nonce: 2, ..last }];
        let mut evm = strict_evm(world.clone(), spec);
        let refused = guard(&[VICTIM]).verify_block(&mut evm, block(tx(ROUTER)));
        assert_eq!(refused.expect_err("the last").index, 2);
        assert_eq!(world_of(&evm).commits, 2);

        // Addresses that are reached or named keep their own reason.
        let strict = |listed, last| {
            let refused =
                guard(&[listed]).verify_block(&mut strict_evm(world.clone(), spec), block(last));
            refused.expect_err("listed").reason.blocked().map(|blocked| blocked.how)
        };
        assert_eq!(strict(INNER, tx(ROUTER)), Some(How::TouchedByExecution));
        assert_eq!(strict(VICTIM, tx(VICTIM)), Some(How::Recipient));
    }
}

#[test]
fn the_strict_check_returns_the_results_of_a_plain_execution() {
    for spec in forks() {
        let world = arrange(Frame::Static, &Asm::new().address(VICTIM).op(opcode::BALANCE));
        let block =
            || (0..4).map(|nonce| TxEnv { nonce, ..tx([ROUTER, OTHER][nonce as usize % 2]) });
        let mut plain = evm(world.clone(), spec);
        let other = address!("0xaa00000000000000000000000000000000000009");
        let guard = guard(&[other]);
        let expected: Vec<_> =
            block().map(|tx| guard.execute(&mut plain, tx).expect("not listed").commit()).collect();
        let mut strict = strict_evm(world, spec);
        let unverified = unverified(other, "a block");
        let (submittable, outputs) = unverified.verify(&mut strict, block()).expect("clean");
        assert_eq!((submittable.into_block(), outputs), ("a block", expected));
        assert_eq!(world_of(&strict).commits, 4);
    }
}

#[test]
fn attempts_of_one_transaction_do_not_count_against_the_next() {
    // The first block names the address while nothing is listed; the inspector must forget it.
    let mut evm = strict_evm(attempting(), SpecId::OSAKA);
    guard(&[]).verify_block(&mut evm, [tx(ROUTER)]).expect("nothing is listed");
    assert!(evm.inspector.attempts().contains(&VICTIM));
    let next = TxEnv { nonce: 1, ..tx(OTHER) };
    guard(&[VICTIM]).verify_block(&mut evm, [next]).expect("does not name it");
}

#[test]
fn a_transaction_that_the_evm_refuses_makes_the_block_fail() {
    let mut evm = strict_evm(World::new(), SpecId::OSAKA);
    let refused = guard(&[]).verify_block(&mut evm, [tx(OTHER), tx(OTHER)]).expect_err("nonce");
    let reason = InvalidTransaction::NonceTooLow { tx: 0, state: 1 };
    assert_eq!(refused.index, 1);
    assert_eq!(refused.reason, ExecuteError::Evm(EVMError::Transaction(reason)));
}
