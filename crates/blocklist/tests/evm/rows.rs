//! Tests of special cases on each fork that has them: creations, self-destruction, precompiles,
//! delegations, access lists, and leftovers in the journal. The random blocks cover the coinbase,
//! invalid transactions and the reuse of one EVM.

use blocklist::{Blocked, ExecuteError, How};
use revm::{
    ExecuteEvm,
    bytecode::opcode,
    context::{
        TxEnv,
        transaction::{AccessList, AccessListItem},
    },
    primitives::{Address, B256, Bytes, TxKind, U256, address, hardfork::SpecId, keccak256},
    state::EvmState,
};

use crate::support::{
    self, OTHER, ROUTER, SENDER, VICTIM, World,
    asm::{self, Asm},
    evm, execute_as_host, forks, guard, keys, reader, tx, with_router, world_of,
};

const AUTHORITY: Address = address!("0xaa00000000000000000000000000000000000003");
const IDENTITY: Address = Address::with_last_byte(4);
const ECRECOVER: Address = Address::with_last_byte(1);

fn since(first: SpecId) -> impl Iterator<Item = SpecId> {
    forks().filter(move |spec| spec.is_enabled_in(first))
}

/// Executes a transaction, asserts that its keys are the accounts read, and returns its state.
fn state_of(name: &str, spec: SpecId, world: &World, tx: &TxEnv) -> EvmState {
    let mut evm = evm(world.clone(), spec);
    let state = evm.transact(tx.clone()).unwrap_or_else(|e| panic!("{spec} {name}: {e}")).state;
    assert_eq!(keys(&state), world_of(&evm).accounts, "{spec} {name}");
    state
}

/// Returns the verdict of the guard on a transaction if one address is listed. Asserts that nothing
/// is written if it blocks.
fn verdict(spec: SpecId, world: &World, tx: &TxEnv, listed: Address) -> Result<(), How> {
    let mut evm = evm(world.clone(), spec);
    let verdict = match guard(&[listed]).execute(&mut evm, tx.clone()) {
        Ok(checked) => {
            checked.commit();
            Ok(())
        }
        Err(ExecuteError::Blocked(Blocked { address, how })) => {
            assert_eq!(address, listed);
            Err(how)
        }
        Err(other) => panic!("{spec}: {other}"),
    };
    let expected_commits = usize::from(verdict.is_ok());
    assert_eq!(world_of(&evm).commits, expected_commits, "{spec}");
    let mut other = self::evm(world.clone(), spec);
    let alike = execute_as_host(&guard(&[listed]), &mut other, tx.clone());
    assert_eq!(alike, verdict.map_err(|how| Blocked { address: listed, how }), "{spec}");
    assert_eq!(world_of(&other).commits, expected_commits, "{spec}");
    verdict
}

fn creation(init: Asm) -> TxEnv {
    TxEnv { kind: TxKind::Create, data: init.bytes(), ..tx(ROUTER) }
}

/// A transaction with one authorization, whose signature is invalid without an `authority`.
fn authorization(chain: u64, authority: Option<Address>, target: Address, nonce: u64) -> TxEnv {
    let authorization_list = vec![support::authorization(chain, authority, target, nonce)];
    TxEnv { tx_type: 4, gas_priority_fee: Some(1), authorization_list, ..tx(OTHER) }
}

/// The first fork of the case, its name, the world, the transaction, and the address in question.
type Case = (SpecId, &'static str, World, TxEnv, Address);

fn routed(name: &'static str, code: Asm, address: Address) -> Case {
    (SpecId::BERLIN, name, with_router(code), tx(ROUTER), address)
}

/// Cases in which the address is loaded, and so counts.
fn reached() -> Vec<Case> {
    let stop = Bytes::from_static(&[opcode::STOP]);
    let created = ROUTER.create(1);
    let mut all = Vec::new();
    // The accounts' nonce is 1, the sender's 0.
    for (name, init) in [
        ("created and deployed", Asm::new().push(0).push(0).op(opcode::RETURN)),
        ("created and reverted", Asm::new().revert()),
        ("created and halted", Asm::new().op(opcode::INVALID)),
    ] {
        let code = init.bytes();
        let created_by_salt = ROUTER.create2(B256::ZERO, keccak256(&code));
        all.extend([
            routed(name, Asm::new().create(&code, 0), created),
            routed(name, Asm::new().create2(&code, 0), created_by_salt),
            // The outer frame reverts as well.
            routed(name, Asm::new().create(&code, 0).revert(), created),
            (SpecId::BERLIN, name, World::new(), creation(init), SENDER.create(0)),
        ]);
    }
    let collides = (SpecId::BERLIN, "", World::new(), creation(Asm::new()), SENDER.create(0));
    for (first, _, mut world, tx, address) in
        [collides, routed("", Asm::new().create(&stop, 0), created)]
    {
        world.contract(address, stop.clone());
        all.push((first, "a collision", world, tx, address));
    }
    let destroys = Asm::new().address(VICTIM).op(opcode::SELFDESTRUCT).bytes();
    all.push(routed("an heir", Asm::new().create(&destroys, 3), VICTIM));
    all.push(routed("the destroyed", Asm::new().create(&destroys, 3), created));
    let read = Asm::new().address(IDENTITY).op(opcode::EXTCODEHASH);
    all.push(routed("a precompile that is looked at", read, IDENTITY));
    let calls = |to| asm::CALLS.map(|kind| Asm::new().call(kind, to, 0));
    all.extend(calls(IDENTITY).map(|code| routed("a called precompile", code, IDENTITY)));
    let mut delegation = World::new();
    delegation.delegated(AUTHORITY, VICTIM);
    delegation.contract(VICTIM, stop);
    let delegated_call =
        |world: &World, to| (SpecId::PRAGUE, "run by delegation", world.clone(), tx(to), VICTIM);
    all.push(delegated_call(&delegation, AUTHORITY));
    for code in calls(AUTHORITY) {
        delegation.contract(ROUTER, code.bytes());
        all.push(delegated_call(&delegation, ROUTER));
    }
    all
}

/// Cases in which the address is named and not loaded.
fn not_reached() -> [Case; 3] {
    let mut delegation = with_router(Asm::new().address(AUTHORITY).op(opcode::EXTCODESIZE));
    delegation.delegated(AUTHORITY, VICTIM);
    [
        // The router owns a thousand wei.
        routed("without funds", Asm::new().create(&[opcode::STOP], 1001), ROUTER.create(1)),
        // A precompile is warm, and in the state only if it is used.
        routed("an unused precompile", Asm::new().call(opcode::CALL, IDENTITY, 0), ECRECOVER),
        // Reading the code size reads the delegation itself and does not load its target.
        (SpecId::PRAGUE, "the size of a delegation", delegation, tx(ROUTER), VICTIM),
    ]
}

#[test]
fn exactly_the_loaded_accounts_count() {
    for (first, name, world, tx, address) in reached() {
        for spec in since(first) {
            assert!(state_of(name, spec, &world, &tx).contains_key(&address), "{spec} {name}");
            let verdict = verdict(spec, &world, &tx, address);
            assert_eq!(verdict, Err(How::TouchedByExecution), "{spec} {name}");
        }
    }
    for (first, name, world, tx, address) in not_reached() {
        for spec in since(first) {
            assert!(!state_of(name, spec, &world, &tx).contains_key(&address), "{spec} {name}");
            assert_eq!(verdict(spec, &world, &tx, address), Ok(()), "{spec} {name}");
        }
    }
}

#[test]
fn named_addresses_are_blocked_whether_or_not_they_are_used() {
    let item = AccessListItem { address: VICTIM, storage_keys: vec![B256::ZERO] };
    let access_list = AccessList(vec![item]);
    let listing = TxEnv { access_list, tx_type: 1, ..tx(ROUTER) };
    let used = Asm::new().address(VICTIM).op(opcode::BALANCE);
    let mut funded = World::new();
    funded.fund(AUTHORITY, U256::ONE);
    let case =
        |name, tx: &TxEnv, address| (SpecId::PRAGUE, name, funded.clone(), tx.clone(), address);
    let [valid, other_nonce] = [0, 7].map(|nonce| authorization(1, Some(AUTHORITY), VICTIM, nonce));
    let invalid = authorization(1, None, VICTIM, 0);
    let other_chain = authorization(5, Some(AUTHORITY), VICTIM, 0);
    let runs_it = TxEnv { kind: TxKind::Call(AUTHORITY), ..valid.clone() };
    let unused = (SpecId::BERLIN, "unused", World::new(), listing, VICTIM);
    let cases = [
        // Only the pre-check sees an address that is not loaded.
        (unused.clone(), How::AccessList, false),
        ((SpecId::BERLIN, "used", with_router(used), unused.3, VICTIM), How::AccessList, true),
        (case("valid, not run", &valid, VICTIM), How::DelegationTarget, false),
        (case("valid, not run", &valid, AUTHORITY), How::Authority, true),
        (case("valid and run", &runs_it, VICTIM), How::DelegationTarget, true),
        (case("wrong nonce", &other_nonce, VICTIM), How::DelegationTarget, false),
        (case("wrong nonce", &other_nonce, AUTHORITY), How::Authority, true),
        (case("invalid signature", &invalid, VICTIM), How::DelegationTarget, false),
        // The EVM skips it before it loads the authority.
        (case("another chain", &other_chain, AUTHORITY), How::Authority, false),
    ];
    for ((first, name, world, tx, listed), how, is_loaded) in cases {
        for spec in since(first) {
            let state = state_of(name, spec, &world, &tx);
            assert_eq!(state.contains_key(&listed), is_loaded, "{spec} {name}");
            assert_eq!(verdict(spec, &world, &tx, listed), Err(how), "{spec} {name}");
        }
    }
}

#[test]
fn a_listed_zero_address_blocks_the_removal_of_a_delegation() {
    for spec in since(SpecId::PRAGUE) {
        let mut world = World::new();
        world.delegated(AUTHORITY, OTHER);
        let removes = authorization(1, Some(AUTHORITY), Address::ZERO, 1);
        let state = state_of("removed", spec, &world, &removes);
        assert!(state[&AUTHORITY].info.is_empty_code_hash(), "{spec}: the delegation is gone");
        assert!(!state.contains_key(&Address::ZERO), "{spec}: nothing is loaded from there");
        assert_eq!(verdict(spec, &world, &removes, Address::ZERO), Err(How::DelegationTarget));
    }
}

#[test]
fn an_execution_left_in_the_journal_is_refused_and_cleared() {
    for spec in forks() {
        let mut evm = evm(reader(), spec);
        evm.transact_one(tx(ROUTER)).expect("valid");
        let next = || TxEnv { nonce: 1, ..tx(OTHER) };
        // Without the guard, the state of the second transaction contains that of the first.
        let mixed = evm.transact(next()).expect("valid").state;
        assert!(mixed.contains_key(&VICTIM), "{spec}");

        evm.transact_one(tx(ROUTER)).expect("valid");
        let refused = guard(&[]).execute(&mut evm, next()).expect_err("leftover");
        assert_eq!(refused, ExecuteError::Leftover { accounts: 4 }, "{spec}");
        // The leftover was never committed, so the sender's nonce is 0 again.
        guard(&[VICTIM]).execute(&mut evm, tx(OTHER)).expect("a clean EVM").commit();
        assert_eq!(world_of(&evm).commits, 1);
    }
}
