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
    state::AccountInfo,
};

use crate::support::{
    COINBASE, ROUTER, VICTIM, World,
    asm::{Asm, CALLS},
    evm, evm_with, forks, guard, keys, one_line, tx,
};

const MIDDLE: Address = address!("0xc000000000000000000000000000000000000002");
const INNER: Address = address!("0xc000000000000000000000000000000000000003");
const UNRELATED: Address = address!("0xaa00000000000000000000000000000000000009");

/// An opcode that reaches an account.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Reach {
    Read(u8),
    Call(u8),
    CallWithValue,
    SelfDestruct,
}

impl Reach {
    fn all() -> Vec<Self> {
        let reads =
            [opcode::BALANCE, opcode::EXTCODESIZE, opcode::EXTCODECOPY, opcode::EXTCODEHASH];
        let mut all: Vec<Self> = reads.map(Self::Read).to_vec();
        all.extend(CALLS.map(Self::Call));
        all.extend([Self::CallWithValue, Self::SelfDestruct]);
        all
    }

    fn code(self, asm: Asm) -> Asm {
        match self {
            Self::Read(opcode::EXTCODECOPY) => {
                asm.push(1).push(0).push(0).address(VICTIM).op(opcode::EXTCODECOPY)
            }
            Self::Read(read) => asm.address(VICTIM).op(read).op(opcode::POP),
            Self::Call(kind) => asm.call(kind, VICTIM, 0),
            Self::CallWithValue => asm.call(opcode::CALL, VICTIM, 1),
            Self::SelfDestruct => asm.address(VICTIM).op(opcode::SELFDESTRUCT),
        }
    }

    /// A static frame halts these before they load the account: `tests/strict.rs`.
    fn writes(self) -> bool {
        matches!(self, Self::CallWithValue | Self::SelfDestruct)
    }
}

/// The frame in which the opcode runs, and how that frame and those around it end.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Frame {
    Top,
    TopReverted,
    TopHalted,
    InnerReverted,
    InnerHalted,
    InnerOutOfGas,
    Static,
    Library,
    InitCode,
    InitCode2,
    CreateTransaction,
}

impl Frame {
    const ALL: [Self; 11] = [
        Self::Top,
        Self::TopReverted,
        Self::TopHalted,
        Self::InnerReverted,
        Self::InnerHalted,
        Self::InnerOutOfGas,
        Self::Static,
        Self::Library,
        Self::InitCode,
        Self::InitCode2,
        Self::CreateTransaction,
    ];

    fn arrange(self, reach: Reach, world: &mut World) -> TxEnv {
        let code = reach.code(Asm::new());
        let call = |kind, to| Asm::new().call(kind, to, 0);
        world.contract(INNER, code.bytes());
        let middle = |end: fn(Asm) -> Asm| end(call(opcode::CALL, INNER)).bytes();
        let (middle, router) = match self {
            Self::Top => (None, code.clone()),
            Self::TopReverted => (None, call(opcode::CALL, INNER).revert()),
            Self::TopHalted => (None, call(opcode::CALL, INNER).op(opcode::INVALID)),
            Self::InnerReverted => (Some(middle(Asm::revert)), call(opcode::CALL, MIDDLE)),
            Self::InnerHalted => {
                (Some(middle(|asm| asm.op(opcode::INVALID))), call(opcode::CALL, MIDDLE))
            }
            Self::InnerOutOfGas => (Some(middle(Asm::burn)), call(opcode::CALL, MIDDLE)),
            Self::Static => (None, call(opcode::STATICCALL, INNER)),
            Self::Library => (None, call(opcode::DELEGATECALL, INNER)),
            Self::InitCode => (None, Asm::new().create(&code.bytes(), 5)),
            Self::InitCode2 => (None, Asm::new().create2(&code.bytes(), 5)),
            Self::CreateTransaction => (None, Asm::new()),
        };
        if let Some(middle) = middle {
            world.contract(MIDDLE, middle);
        }
        world.contract(ROUTER, router.bytes());
        let mut tx = tx(ROUTER);
        if self == Self::CreateTransaction {
            tx.kind = TxKind::Create;
            tx.data = code.bytes();
            tx.value = U256::from(5);
        }
        tx
    }
}

/// What stands at the listed address.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Account {
    Funded,
    Contract,
    Empty,
    Missing,
}

impl Account {
    const ALL: [Self; 4] = [Self::Funded, Self::Contract, Self::Empty, Self::Missing];

    fn put(self, world: &mut World) {
        match self {
            Self::Funded => world.fund(VICTIM, U256::ONE),
            Self::Contract => world.contract(VICTIM, Bytes::from_static(&[opcode::STOP])),
            Self::Empty => world.inner.insert_account_info(VICTIM, AccountInfo::default()),
            Self::Missing => {}
        }
    }
}

fn each_case(mut test: impl FnMut(&str, SpecId, World, TxEnv)) -> usize {
    let mut cases = 0;
    for spec in forks() {
        for reach in Reach::all() {
            for frame in Frame::ALL {
                if frame == Frame::Static && reach.writes() {
                    continue;
                }
                for account in Account::ALL {
                    let mut world = World::new();
                    account.put(&mut world);
                    let tx = frame.arrange(reach, &mut world);
                    let name = format!("{spec} {reach:?} in {frame:?} of {account:?}");
                    test(&name, spec, world, tx);
                    cases += 1;
                }
            }
        }
    }
    cases
}

#[test]
fn the_keys_are_the_accounts_read_and_the_same_under_an_inspector() {
    let cases = each_case(|name, spec, world, tx| {
        let mut plain = evm(world.clone(), spec);
        let bare = plain.transact(tx.clone()).expect("valid");
        let read = &plain.ctx.journaled_state.database;
        assert_eq!(keys(&bare.state), read.accounts, "{name}");
        assert!(read.storage_owners.is_subset(&read.accounts), "{name}");
        assert!(bare.state.contains_key(&VICTIM), "{name}");
        assert!(bare.state.contains_key(&COINBASE), "{name}");

        let mut inspecting = evm_with(world, spec, COINBASE, CountInspector::new());
        assert_eq!(bare, inspecting.inspect_tx(tx).expect("valid"), "{name}");
    });
    // Ten opcodes, eleven frames, but the two writing ones not in a static frame; four accounts.
    assert_eq!(cases, forks().count() * (10 * 11 - 2) * 4);
}

#[test]
fn a_listed_address_is_blocked_however_it_is_reached_and_nothing_is_written() {
    each_case(|name, spec, world, tx| {
        let mut evm = evm(world, spec);
        let refused = guard(&[VICTIM]).execute(&mut evm, tx.clone()).expect_err(name);
        let expected = Blocked { address: VICTIM, how: How::TouchedByExecution };
        assert_eq!(refused, ExecuteError::Blocked(expected), "{name}");
        assert_eq!(evm.ctx.journaled_state.database.commits, 0, "{name}");
        assert_eq!(one_line(&guard(&[VICTIM]), &mut evm, tx.clone()), Err(expected), "{name}");
        assert_eq!(evm.ctx.journaled_state.database.commits, 0, "{name}");

        // The same EVM, with the same transaction, and a list that does not name the address.
        let checked = guard(&[UNRELATED]).execute(&mut evm, tx).expect(name);
        checked.commit();
        assert_eq!(evm.ctx.journaled_state.database.commits, 1, "{name}");
    });
}
