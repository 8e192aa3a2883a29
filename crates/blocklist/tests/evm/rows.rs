//! What is particular: creations, self-destruction, precompiles, delegations, access lists, blobs,
//! the coinbase, invalid transactions, and the reuse of one EVM over a block. On each fork that has
//! it.

use blocklist::{Blocked, ExecuteError, How};
use revm::{
    ExecuteEvm,
    bytecode::opcode,
    context::{
        TxEnv,
        transaction::{AccessList, AccessListItem},
    },
    context_interface::{
        either::Either,
        transaction::{Authorization, RecoveredAuthority, RecoveredAuthorization},
    },
    primitives::{Address, B256, Bytes, TxKind, U256, address, hardfork::SpecId, keccak256},
    state::EvmState,
};

use crate::support::{
    BASE_FEE, COINBASE, OTHER, Over, ROUTER, SENDER, VICTIM, World,
    asm::{self, Asm},
    evm, evm_with, forks, guard, guard_for, keys, one_line, reader, tx, with_router,
};

const AUTHORITY: Address = address!("0xaa00000000000000000000000000000000000003");

fn since(first: SpecId) -> impl Iterator<Item = SpecId> {
    forks().filter(move |spec| spec.is_enabled_in(first))
}

/// Executes and holds the keys against what was read.
fn state_of(name: &str, spec: SpecId, world: &World, tx: &TxEnv) -> EvmState {
    let mut evm = evm(world.clone(), spec);
    let state = evm.transact(tx.clone()).unwrap_or_else(|e| panic!("{spec} {name}: {e}")).state;
    assert_eq!(keys(&state), evm.world().accounts, "{spec} {name}");
    state
}

/// What the guard says of the transaction with one address listed; nothing is written if it blocks.
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
    assert_eq!(evm.world().commits, expected_commits, "{spec}");
    let mut other = self::evm(world.clone(), spec);
    let alike = one_line(&guard(&[listed]), &mut other, tx.clone());
    assert_eq!(alike, verdict.map_err(|how| Blocked { address: listed, how }), "{spec}");
    assert_eq!(other.world().commits, expected_commits, "{spec}");
    verdict
}

fn assert_touched(name: &str, spec: SpecId, world: &World, tx: &TxEnv, listed: Address) {
    assert!(state_of(name, spec, world, tx).contains_key(&listed), "{spec} {name}");
    assert_eq!(verdict(spec, world, tx, listed), Err(How::TouchedByExecution), "{spec} {name}");
}

fn assert_not_loaded(name: &str, spec: SpecId, world: &World, tx: &TxEnv, address: Address) {
    assert!(!state_of(name, spec, world, tx).contains_key(&address), "{spec} {name}");
    assert_eq!(verdict(spec, world, tx, address), Ok(()), "{spec} {name}");
}

fn creation(init: Asm) -> TxEnv {
    TxEnv { kind: TxKind::Create, data: init.bytes(), ..tx(ROUTER) }
}

#[test]
fn a_created_address_counts_whether_or_not_the_creation_succeeds() {
    let ends: [(&str, Asm); 3] = [
        ("deploys", Asm::new().push(0).push(0).op(opcode::RETURN)),
        ("reverts", Asm::new().revert()),
        ("halts", Asm::new().op(opcode::INVALID)),
    ];
    for spec in forks() {
        for (name, init) in &ends {
            let init_code = init.bytes();
            // The accounts' nonce is 1, the sender's 0.
            let created = ROUTER.create(1);
            let world = with_router(Asm::new().create(&init_code, 0));
            assert_touched(name, spec, &world, &tx(ROUTER), created);
            let created = ROUTER.create2(B256::ZERO, keccak256(&init_code));
            let world = with_router(Asm::new().create2(&init_code, 0));
            assert_touched(name, spec, &world, &tx(ROUTER), created);
            // The outer frame reverts as well.
            let world = with_router(Asm::new().create(&init_code, 0).revert());
            assert_touched(name, spec, &world, &tx(ROUTER), ROUTER.create(1));
            let created = SENDER.create(0);
            assert_touched(name, spec, &World::new(), &creation(init.clone()), created);
        }
    }
}

#[test]
fn an_address_at_which_a_creation_collides_counts() {
    for spec in forks() {
        let mut world = with_router(Asm::new().create(&[opcode::STOP], 0));
        world.contract(ROUTER.create(1), Bytes::from_static(&[opcode::STOP]));
        assert_touched("collision", spec, &world, &tx(ROUTER), ROUTER.create(1));
        let mut world = World::new();
        world.contract(SENDER.create(0), Bytes::from_static(&[opcode::STOP]));
        assert_touched("collision", spec, &world, &creation(Asm::new()), SENDER.create(0));
    }
}

#[test]
fn a_creation_that_fails_before_its_address_is_loaded_did_not_reach_it() {
    for spec in forks() {
        // A thousand wei is all it has.
        let world = with_router(Asm::new().create(&[opcode::STOP], 1001));
        assert_not_loaded("no funds", spec, &world, &tx(ROUTER), ROUTER.create(1));
    }
}

#[test]
fn what_a_contract_destroyed_in_its_own_transaction_pays_counts() {
    for spec in forks() {
        let init = Asm::new().address(VICTIM).op(opcode::SELFDESTRUCT).bytes();
        let world = with_router(Asm::new().create(&init, 3));
        assert_touched("heir", spec, &world, &tx(ROUTER), VICTIM);
        assert_touched("the destroyed", spec, &world, &tx(ROUTER), ROUTER.create(1));
        let world = with_router(Asm::new().ops(&[opcode::ADDRESS, opcode::SELFDESTRUCT]));
        // The heir is the contract itself, which the transaction names.
        assert_eq!(verdict(spec, &world, &tx(ROUTER), ROUTER), Err(How::Recipient));
    }
}

#[test]
fn a_precompile_counts_like_any_account() {
    for spec in forks() {
        let identity = Address::with_last_byte(4);
        for kind in asm::CALLS {
            let world = with_router(Asm::new().call(kind, identity, 0));
            assert_touched("identity", spec, &world, &tx(ROUTER), identity);
        }
        let world = with_router(Asm::new().address(identity).op(opcode::EXTCODEHASH));
        assert_touched("read", spec, &world, &tx(ROUTER), identity);
        // Warm without being used: in no transaction's state.
        let ecrecover = Address::with_last_byte(1);
        assert_not_loaded("unused", spec, &world, &tx(ROUTER), ecrecover);
    }
}

#[test]
fn an_address_in_the_access_list_is_blocked_whether_or_not_it_is_used() {
    let listed = |spec: SpecId, code: Asm| {
        let item = AccessListItem { address: VICTIM, storage_keys: vec![B256::ZERO] };
        let mut tx = tx(ROUTER);
        tx.access_list = AccessList(vec![item]);
        tx.tx_type = 1;
        let world = with_router(code);
        let state = state_of("access list", spec, &world, &tx);
        assert_eq!(verdict(spec, &world, &tx, VICTIM), Err(How::AccessList), "{spec}");
        state.contains_key(&VICTIM)
    };
    for spec in forks() {
        assert!(!listed(spec, Asm::new()), "{spec}: never used, so only the pre-check sees it");
        assert!(listed(spec, Asm::new().address(VICTIM).op(opcode::BALANCE)), "{spec}");
    }
}

#[test]
fn sender_and_recipient_are_blocked_before_anything_is_executed() {
    for spec in forks() {
        for (listed, how) in [(SENDER, How::Sender), (VICTIM, How::Recipient)] {
            let mut evm = evm(World::new(), spec);
            let refused = guard(&[listed]).execute(&mut evm, tx(VICTIM)).expect_err("blocked");
            assert_eq!(refused, Blocked { address: listed, how }.into());
            assert!(evm.world().accounts.is_empty(), "{spec}: not executed");
        }
    }
}

/// An authorization by [`AUTHORITY`], or by nobody if its signature is invalid.
fn authorization(authority: Option<Address>, target: Address, nonce: u64) -> TxEnv {
    authorization_on(1, authority, target, nonce)
}

fn authorization_on(chain: u64, authority: Option<Address>, target: Address, nonce: u64) -> TxEnv {
    let inner = Authorization { chain_id: U256::from(chain), address: target, nonce };
    let authority = authority.map_or(RecoveredAuthority::Invalid, RecoveredAuthority::Valid);
    let mut tx = tx(OTHER);
    tx.tx_type = 4;
    tx.gas_priority_fee = Some(1);
    tx.authorization_list =
        vec![Either::Right(RecoveredAuthorization::new_unchecked(inner, authority))];
    tx
}

#[test]
fn code_run_through_a_delegation_counts_wherever_the_call_comes_from() {
    for spec in since(SpecId::PRAGUE) {
        let mut world = World::new();
        world.delegated(AUTHORITY, VICTIM);
        world.contract(VICTIM, Bytes::from_static(&[opcode::STOP]));
        assert_touched("transaction to it", spec, &world, &tx(AUTHORITY), VICTIM);
        for kind in asm::CALLS {
            world.contract(ROUTER, Asm::new().call(kind, AUTHORITY, 0).bytes());
            assert_touched("call of it", spec, &world, &tx(ROUTER), VICTIM);
        }
        // Its code is only looked at: that is the delegation itself, the target is not loaded.
        world.contract(ROUTER, Asm::new().address(AUTHORITY).op(opcode::EXTCODESIZE).bytes());
        assert_not_loaded("size of it", spec, &world, &tx(ROUTER), VICTIM);
    }
}

#[test]
fn an_authority_and_a_target_are_blocked_whether_or_not_the_delegation_is_valid_or_run() {
    for spec in since(SpecId::PRAGUE) {
        let mut world = World::new();
        world.fund(AUTHORITY, U256::ONE);
        for (name, tx) in [
            ("valid, not run", authorization(Some(AUTHORITY), VICTIM, 0)),
            ("wrong nonce", authorization(Some(AUTHORITY), VICTIM, 7)),
            ("invalid signature", authorization(None, VICTIM, 0)),
        ] {
            let state = state_of(name, spec, &world, &tx);
            assert!(!state.contains_key(&VICTIM), "{spec} {name}: only the pre-check sees it");
            let verdict_on = |listed| verdict(spec, &world, &tx, listed);
            assert_eq!(verdict_on(VICTIM), Err(How::DelegationTarget), "{spec} {name}");
            if tx.authorization_list[0].as_ref().right().and_then(|a| a.authority()).is_some() {
                assert_eq!(verdict_on(AUTHORITY), Err(How::Authority), "{spec} {name}");
                assert!(state.contains_key(&AUTHORITY), "{spec} {name}");
            }
        }
        // Another chain's authorization is skipped by the EVM before it loads the authority.
        let tx = authorization_on(5, Some(AUTHORITY), VICTIM, 0);
        assert!(!state_of("another chain", spec, &world, &tx).contains_key(&AUTHORITY));
        assert_eq!(verdict(spec, &world, &tx, AUTHORITY), Err(How::Authority));
    }
}

#[test]
fn a_list_with_the_zero_address_blocks_whoever_removes_a_delegation() {
    for spec in since(SpecId::PRAGUE) {
        let mut world = World::new();
        world.delegated(AUTHORITY, OTHER);
        let removes = authorization(Some(AUTHORITY), Address::ZERO, 1);
        let state = state_of("removed", spec, &world, &removes);
        assert!(state[&AUTHORITY].info.is_empty_code_hash(), "{spec}: the delegation is gone");
        assert!(!state.contains_key(&Address::ZERO), "{spec}: nothing is loaded from there");
        assert_eq!(verdict(spec, &world, &removes, Address::ZERO), Err(How::DelegationTarget));
    }
}

#[test]
fn a_delegation_set_and_run_in_one_transaction_and_one_run_later_count() {
    for spec in since(SpecId::PRAGUE) {
        let mut world = World::new();
        world.fund(AUTHORITY, U256::ONE);
        world.contract(VICTIM, Bytes::from_static(&[opcode::STOP]));
        let mut both = authorization(Some(AUTHORITY), VICTIM, 0);
        both.kind = TxKind::Call(AUTHORITY);
        assert!(state_of("set and run", spec, &world, &both).contains_key(&VICTIM));

        // Set under a list that allowed it, run under one that does not.
        let mut evm = evm(world, spec);
        let set = authorization(Some(AUTHORITY), VICTIM, 0);
        guard(&[]).execute(&mut evm, set).expect("nothing is listed").commit();
        let run = TxEnv { nonce: 1, ..tx(AUTHORITY) };
        let refused = guard(&[VICTIM]).execute(&mut evm, run).expect_err("runs it");
        let expected = Blocked { address: VICTIM, how: How::TouchedByExecution };
        assert_eq!(refused.blocked(), Some(expected));
    }
}

#[test]
fn the_coinbase_is_in_every_state_and_is_judged_once_per_block() {
    for spec in forks() {
        for gas_price in [BASE_FEE.into(), 20] {
            // Also without a tip.
            let tx = TxEnv { gas_price, ..tx(OTHER) };
            assert!(state_of("coinbase", spec, &World::new(), &tx).contains_key(&COINBASE));
            assert_eq!(verdict(spec, &World::new(), &tx, OTHER), Err(How::Recipient));
        }
        // Also when the transaction fails.
        let world = with_router(Asm::new().op(opcode::INVALID));
        assert!(state_of("coinbase", spec, &world, &tx(ROUTER)).contains_key(&COINBASE));

        // The guard was made for another fee recipient than the block pays: it blocks everything.
        let mut evm = evm_with(World::new(), spec, VICTIM, ());
        let refused = guard(&[VICTIM]).execute(&mut evm, tx(OTHER)).expect_err("listed coinbase");
        let expected = Blocked { address: VICTIM, how: How::TouchedByExecution };
        assert_eq!(refused.blocked(), Some(expected));

        // The coinbase is also the sender, or the recipient: nothing is special about that.
        for coinbase in [SENDER, OTHER] {
            let mut evm = evm_with(World::new(), spec, coinbase, ());
            let guard = guard_for(&[VICTIM], coinbase);
            guard.execute(&mut evm, tx(OTHER)).expect("not listed").commit();
        }
    }
}

#[test]
fn one_evm_over_a_block_judges_each_transaction_by_its_own_accounts() {
    for spec in forks() {
        let mut evm = evm(reader(), spec);
        let open = guard(&[]);
        open.execute(&mut evm, tx(ROUTER)).expect("nothing is listed").commit();
        // The address is now in the database's cache, and no longer in the next state.
        assert!(evm.world().inner.cache.accounts.contains_key(&ROUTER));
        let next = TxEnv { nonce: 1, ..tx(OTHER) };
        let checked = guard(&[VICTIM, ROUTER]).execute(&mut evm, next).expect("reaches neither");
        assert_eq!(keys(checked.state()), [SENDER, OTHER, COINBASE].into(), "{spec}");
        // Dropped, not committed: the nonce is still 1.
        drop(checked);
        let next = TxEnv { nonce: 1, ..tx(ROUTER) };
        let refused = guard(&[VICTIM]).execute(&mut evm, next.clone()).expect_err("reads it");
        assert_eq!(refused.blocked().map(|blocked| blocked.address), Some(VICTIM));
        open.execute(&mut evm, next).expect("blocking left no trace").commit();
        assert_eq!(evm.world().commits, 2);
    }
}

#[test]
fn an_execution_left_in_the_journal_is_refused_and_cleared() {
    for spec in forks() {
        let mut evm = evm(reader(), spec);
        evm.transact_one(tx(ROUTER)).expect("valid");
        let next = || TxEnv { nonce: 1, ..tx(OTHER) };
        // What the guard spares its caller: the state of both transactions in one.
        let mixed = evm.transact(next()).expect("valid").state;
        assert!(mixed.contains_key(&VICTIM), "{spec}");

        evm.transact_one(tx(ROUTER)).expect("valid");
        let refused = guard(&[]).execute(&mut evm, next()).expect_err("leftover");
        assert_eq!(refused, ExecuteError::Leftover { accounts: 4 }, "{spec}");
        // Cleared: the leftover was never committed, so the sender's nonce is 0 again.
        guard(&[VICTIM]).execute(&mut evm, tx(OTHER)).expect("a clean EVM").commit();
        assert_eq!(evm.world().commits, 1);
    }
}
