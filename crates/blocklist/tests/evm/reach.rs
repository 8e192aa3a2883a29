//! Every way in which code reaches an account, in every kind of frame, for every state of the
//! account, on every fork: the keys of the post-execution state are what was read, and the guard
//! blocks the transaction without writing.

use blocklist::{Blocked, ExecuteError, How};
use revm::{
    ExecuteEvm, InspectEvm,
    bytecode::opcode,
    context::TxEnv,
    inspector::CountInspector,
    primitives::{Address, Bytes, TxKind, U256, address, hardfork::SpecId},
};

use crate::support::{
    COINBASE, Over, ROUTER, VICTIM, World,
    asm::{Asm, CALLS},
    evm, evm_with, forks, guard, keys, one_line, tx, with_router,
};

const MIDDLE: Address = address!("0xc000000000000000000000000000000000000002");
const INNER: Address = address!("0xc000000000000000000000000000000000000003");
const UNRELATED: Address = address!("0xaa00000000000000000000000000000000000009");

/// Every opcode that reaches an account, and whether it writes: a static frame halts such before they load the account,
/// see `strict.rs`.
fn reaches() -> Vec<(String, bool, Asm)> {
    let named = || Asm::new().address(VICTIM);
    let copies = Asm::new().push(1).push(0).push(0).address(VICTIM).op(opcode::EXTCODECOPY);
    let mut all = vec![
        ("EXTCODECOPY".to_owned(), false, copies),
        ("CALL with value".to_owned(), true, Asm::new().call(opcode::CALL, VICTIM, 1)),
        ("SELFDESTRUCT".to_owned(), true, named().op(opcode::SELFDESTRUCT)),
    ];
    for read in [opcode::BALANCE, opcode::EXTCODESIZE, opcode::EXTCODEHASH] {
        all.push((format!("{read:#x}"), false, named().op(read).op(opcode::POP)));
    }
    all.extend(CALLS.map(|kind| (format!("{kind:#x}"), false, Asm::new().call(kind, VICTIM, 0))));
    all
}

/// Its name, the code of [`ROUTER`], and of [`MIDDLE`] if that is called.
type Frame = (&'static str, Asm, Option<Asm>);

const CREATION: &str = "a creating transaction";
const STATIC: &str = "a static frame";

/// The frames in which `code` or [`INNER`] with that code runs, and how they and those around them end.
fn frames(code: &Asm) -> [Frame; 11] {
    let call = |kind, to| Asm::new().call(kind, to, 0);
    let inner = || call(opcode::CALL, INNER);
    let middle = || call(opcode::CALL, MIDDLE);
    [
        ("the top frame", code.clone(), None),
        ("a frame of a reverted one", inner().revert(), None),
        ("a frame of a halted one", inner().op(opcode::INVALID), None),
        ("an inner frame, reverted", middle(), Some(inner().revert())),
        ("an inner frame, halted", middle(), Some(inner().op(opcode::INVALID))),
        ("an inner frame, out of gas", middle(), Some(inner().burn())),
        (STATIC, call(opcode::STATICCALL, INNER), None),
        ("a library", call(opcode::DELEGATECALL, INNER), None),
        ("init code", Asm::new().create(&code.bytes(), 5), None),
        ("init code of CREATE2", Asm::new().create2(&code.bytes(), 5), None),
        (CREATION, Asm::new(), None),
    ]
}

type Put = fn(&mut World);

/// What stands at the listed address.
const ACCOUNTS: [(&str, Put); 4] = [
    ("a funded account", |world| world.fund(VICTIM, U256::ONE)),
    ("a contract", |world| world.contract(VICTIM, Bytes::from_static(&[opcode::STOP]))),
    ("an empty account", |world| world.fund(VICTIM, U256::ZERO)),
    ("no account", |_| {}),
];

#[test]
fn the_keys_are_the_accounts_read_and_a_listed_one_is_blocked_and_nothing_is_written() {
    let mut cases = 0;
    for spec in forks() {
        for (reach, writes, code) in reaches() {
            for (frame, router, middle) in frames(&code) {
                if frame == STATIC && writes {
                    continue;
                }
                for (account, put) in ACCOUNTS {
                    let mut world = with_router(router.clone());
                    put(&mut world);
                    world.contract(INNER, code.bytes());
                    if let Some(middle) = &middle {
                        world.contract(MIDDLE, middle.bytes());
                    }
                    let mut tx = tx(ROUTER);
                    if frame == CREATION {
                        (tx.kind, tx.data, tx.value) =
                            (TxKind::Create, code.bytes(), U256::from(5));
                    }
                    judge(&format!("{spec} {reach} in {frame} of {account}"), spec, world, tx);
                    cases += 1;
                }
            }
        }
    }
    // Ten opcodes, eleven frames, but the two writing ones not in a static frame; four accounts.
    assert_eq!(cases, forks().count() * (10 * 11 - 2) * 4);
}

fn judge(name: &str, spec: SpecId, world: World, tx: TxEnv) {
    let mut plain = evm(world.clone(), spec);
    let bare = plain.transact(tx.clone()).expect("valid");
    let read = plain.world();
    assert_eq!(keys(&bare.state), read.accounts, "{name}");
    assert!(read.storage_owners.is_subset(&read.accounts), "{name}");
    assert!(bare.state.contains_key(&VICTIM), "{name}");
    assert!(bare.state.contains_key(&COINBASE), "{name}");

    let mut inspecting = evm_with(world.clone(), spec, COINBASE, CountInspector::new());
    assert_eq!(bare, inspecting.inspect_tx(tx.clone()).expect("valid"), "{name}");

    let mut evm = evm(world, spec);
    let refused = guard(&[VICTIM]).execute(&mut evm, tx.clone()).expect_err(name);
    let expected = Blocked { address: VICTIM, how: How::TouchedByExecution };
    assert_eq!(refused, ExecuteError::Blocked(expected), "{name}");
    assert_eq!(one_line(&guard(&[VICTIM]), &mut evm, tx.clone()), Err(expected), "{name}");
    assert_eq!(evm.world().commits, 0, "{name}");

    // The same EVM, with the same transaction, and a list that does not name the address.
    guard(&[UNRELATED]).execute(&mut evm, tx).expect(name).commit();
    assert_eq!(evm.world().commits, 1, "{name}");
}
