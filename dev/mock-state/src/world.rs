//! What is in the state before the first block: funded senders, and the contracts that the workload calls.

use alloy_primitives::{Address, U256, keccak256};
use revm::{bytecode::Bytecode, state::AccountInfo};

use crate::{
    contracts::{looking_token, pool, router, slot_of, token},
    history::Values,
};
use mock_node::workload::{SWAP_AMOUNT_AT, SWAP_SELECTOR, routers, test_accounts, tokens};

/// What each account owns: a million ether, in wei, as anvil and geth are configured to give.
const BALANCE_ETHER: u64 = 1_000_000;

/// What each account and each pool owns of each token, in the token's smallest unit: 10^24. A swap takes at most
/// 2^64, so that the price of a pool moves by a millionth.
const DEPOSIT_POWER: u32 = 24;

/// Accounts beside the workload's that are funded too, for transactions of a test or demo that must not come into the
/// nonces of the workload.
pub(crate) const SPARE_ACCOUNTS: usize = 32;

/// The state of the genesis block.
pub(crate) fn genesis(accounts: usize) -> Values {
    let mut values = Values::default();
    let deposit = U256::from(10).pow(U256::from(DEPOSIT_POWER));
    let balance = U256::from(BALANCE_ETHER) * U256::from(10).pow(U256::from(18));
    let senders: Vec<Address> =
        test_accounts(accounts + SPARE_ACCOUNTS).iter().map(|account| account.address).collect();
    for sender in &senders {
        values.accounts.insert(*sender, AccountInfo::from_balance(balance));
        let slot = slot_of(*sender, U256::ZERO);
        for token in tokens() {
            values.storage.insert((*token, slot), deposit);
        }
        let allowances = slot_of(*sender, U256::ONE);
        for (router, pair) in routers().iter().zip(tokens().chunks(2)) {
            values.storage.insert((pair[0], slot_of(*router, allowances)), U256::MAX);
        }
    }
    let mut codes = Vec::new();
    let mut contract = |address: Address, code| codes.push((address, Bytecode::new_legacy(code)));
    let (last, others) = tokens().split_last().expect("there are eight");
    others.iter().for_each(|address| contract(*address, token()));
    contract(*last, looking_token());
    for (number, (address, pair)) in routers().iter().zip(tokens().chunks(2)).enumerate() {
        let between = Address::from_word(keccak256(format!("pool {number}")));
        contract(between, pool(pair[0], pair[1]));
        contract(*address, router(pair[0], between, SWAP_SELECTOR, SWAP_AMOUNT_AT));
        for (reserve, token) in pair.iter().enumerate() {
            values.storage.insert((*token, slot_of(between, U256::ZERO)), deposit);
            values.storage.insert((between, U256::from(reserve)), deposit);
        }
    }
    for (address, code) in codes {
        let info = AccountInfo::new(U256::ZERO, 1, code.hash_slow(), code.clone());
        values.codes.insert(info.code_hash, code);
        values.accounts.insert(address, info.copy_without_code());
    }
    values
}
