//! The values at the newest executed block, and what each recent block replaced.

use std::{collections::VecDeque, convert::Infallible};

use alloy_primitives::{
    Address, B256, U256,
    map::{AddressHashMap, B256HashMap, HashMap},
};
use mock_node::HISTORY_BLOCKS;
use revm::{
    DatabaseRef,
    bytecode::Bytecode,
    database::{AccountState, Cache},
    state::AccountInfo,
};

pub(crate) type Slot = (Address, U256);

/// Accounts (without their code), storage and code at one block.
#[derive(Debug, Default)]
pub(crate) struct Values {
    pub(crate) accounts: AddressHashMap<AccountInfo>,
    pub(crate) storage: HashMap<Slot, U256>,
    pub(crate) codes: B256HashMap<Bytecode>,
}

/// What stood where a block wrote.
#[derive(Debug)]
struct Replaced {
    hash: B256,
    accounts: AddressHashMap<Option<AccountInfo>>,
    storage: HashMap<Slot, U256>,
}

/// The state at the newest block, and at those before it as far as they are kept.
#[derive(Debug)]
pub(crate) struct History {
    now: Values,
    /// The block below the oldest of `blocks`.
    base: B256,
    blocks: VecDeque<Replaced>,
}

impl History {
    pub(crate) fn new(genesis: B256, values: Values) -> Self {
        Self { now: values, base: genesis, blocks: VecDeque::new() }
    }

    pub(crate) fn top(&self) -> B256 {
        self.blocks.back().map_or(self.base, |block| block.hash)
    }

    /// How many blocks above `hash` the newest one is; `None` when its state is not kept.
    pub(crate) fn depth(&self, hash: &B256) -> Option<usize> {
        let above = self.blocks.iter().rev().position(|block| block.hash == *hash);
        above.or_else(|| (self.base == *hash).then_some(self.blocks.len()))
    }

    /// The oldest of the blocks above says what stood there before it.
    fn above(&self, depth: usize) -> impl Iterator<Item = &Replaced> {
        self.blocks.range(self.blocks.len() - depth..)
    }

    pub(crate) fn account(&self, depth: usize, address: &Address) -> Option<AccountInfo> {
        let replaced = self.above(depth).find_map(|block| block.accounts.get(address));
        replaced.cloned().unwrap_or_else(|| self.now.accounts.get(address).cloned())
    }

    pub(crate) fn slot(&self, depth: usize, slot: Slot) -> U256 {
        let replaced = self.above(depth).find_map(|block| block.storage.get(&slot));
        replaced.or_else(|| self.now.storage.get(&slot)).copied().unwrap_or_default()
    }

    pub(crate) fn code(&self, hash: &B256) -> Option<&Bytecode> {
        self.now.codes.get(hash)
    }

    /// Takes what a block on top of the newest one wrote.
    pub(crate) fn push(&mut self, hash: B256, written: Cache) {
        let mut replaced =
            Replaced { hash, accounts: AddressHashMap::default(), storage: HashMap::default() };
        for (address, account) in written.accounts {
            if account.account_state == AccountState::None {
                continue;
            }
            // No contract of this world destroys itself, and none is created where storage is.
            for (index, value) in account.storage {
                let old = self.now.storage.insert((address, index), value).unwrap_or_default();
                if old != value {
                    replaced.storage.insert((address, index), old);
                }
            }
            if account.account_state == AccountState::NotExisting {
                continue;
            }
            let old = self.now.accounts.insert(address, account.info.copy_without_code());
            replaced.accounts.insert(address, old);
        }
        for (hash, code) in written.contracts {
            self.now.codes.entry(hash).or_insert(code);
        }
        self.blocks.push_back(replaced);
        while self.blocks.len() > HISTORY_BLOCKS {
            self.base = self.blocks.pop_front().expect("it is longer than what is kept").hash;
        }
    }

    /// Undoes the newest block; false when none is left that can be.
    pub(crate) fn pop(&mut self) -> bool {
        let Some(block) = self.blocks.pop_back() else { return false };
        for (address, old) in block.accounts {
            match old {
                Some(info) => self.now.accounts.insert(address, info),
                None => self.now.accounts.remove(&address),
            };
        }
        self.now.storage.extend(block.storage);
        true
    }
}

/// The newest state.
impl DatabaseRef for History {
    type Error = Infallible;

    fn basic_ref(&self, address: Address) -> Result<Option<AccountInfo>, Infallible> {
        Ok(self.now.accounts.get(&address).cloned())
    }

    fn code_by_hash_ref(&self, hash: B256) -> Result<Bytecode, Infallible> {
        Ok(self.now.codes.get(&hash).cloned().unwrap_or_default())
    }

    fn storage_ref(&self, address: Address, index: U256) -> Result<U256, Infallible> {
        Ok(self.now.storage.get(&(address, index)).copied().unwrap_or_default())
    }

    fn block_hash_ref(&self, _: u64) -> Result<B256, Infallible> {
        // Nothing that the workload calls reads one.
        Ok(B256::ZERO)
    }
}
