//! The state of the genesis block: funded senders, and the contracts that the workload calls.

use alloy_primitives::{Address, U256, keccak256};
use revm::{
    bytecode::Bytecode,
    database::{CacheDB, EmptyDB},
    state::AccountInfo,
};

use super::contracts::{pool, router, slot_of, token};
use mock_node::workload::{SWAP_AMOUNT_OFFSET, SWAP_SELECTOR, routers, test_accounts, tokens};

pub type World = CacheDB<EmptyDB>;

/// The balance of each account in ether, as anvil and geth are configured.
const BALANCE_ETHER: u64 = 1_000_000;

/// The balance of each account and pool of each token is 10 to this power, in the smallest unit of
/// the token. A swap takes at most 2^64, so it moves the price of a pool by a millionth.
const DEPOSIT_POWER: u32 = 24;

/// How many accounts are funded in addition to those of the workload, for transactions of tests
/// that must not use nonces of the workload.
pub(crate) const SPARE_ACCOUNTS: usize = 32;

/// The pool of the router with this number. Its two tokens are those at twice that number.
pub fn pool_of(number: usize) -> Address {
    Address::from_word(keccak256(format!("pool {number}")))
}

/// Makes the state of the genesis block, for this many senders.
pub fn genesis(accounts: usize) -> World {
    let mut world = World::default();
    let deposit = U256::from(10).pow(U256::from(DEPOSIT_POWER));
    let balance = U256::from(BALANCE_ETHER) * U256::from(10).pow(U256::from(18));
    let mut contract = |address: Address, code| {
        let code = Bytecode::new_legacy(code);
        let info = AccountInfo::new(U256::ZERO, 1, code.hash_slow(), code);
        world.insert_account_info(address, info);
    };
    let last = tokens().len() - 1;
    for (index, address) in tokens().iter().enumerate() {
        contract(*address, token(index == last));
    }
    let pairs = || routers().iter().zip(tokens().chunks(2)).enumerate();
    for (number, (address, pair)) in pairs() {
        contract(pool_of(number), pool(pair[0], pair[1]));
        let router = router(pair[0], pool_of(number), SWAP_SELECTOR, SWAP_AMOUNT_OFFSET);
        contract(*address, router);
    }
    let mut store = |address, slot, value| {
        let Ok(()) = world.insert_account_storage(address, slot, value);
    };
    for (number, (_, pair)) in pairs() {
        for (reserve, token) in pair.iter().enumerate() {
            store(*token, slot_of(pool_of(number), U256::ZERO), deposit);
            store(pool_of(number), U256::from(reserve), deposit);
        }
    }
    let senders = test_accounts(accounts + SPARE_ACCOUNTS);
    for sender in &senders {
        let slot = slot_of(sender.address, U256::ZERO);
        tokens().iter().for_each(|token| store(*token, slot, deposit));
        let allowances = slot_of(sender.address, U256::ONE);
        for (_, (router, pair)) in pairs() {
            store(pair[0], slot_of(*router, allowances), U256::MAX);
        }
    }
    for sender in senders {
        world.insert_account_info(sender.address, AccountInfo::from_balance(balance));
    }
    world
}
