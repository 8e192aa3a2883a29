//! The state at recent blocks: that at the oldest, and what each block above it wrote.

use std::{collections::VecDeque, convert::Infallible};

use alloy_primitives::{Address, B256, U256};
use mock_node::HISTORY_BLOCKS;
use revm::{DatabaseRef, bytecode::Bytecode, database::Cache, state::AccountInfo};

/// The state at the newest block, and at those before it as far as they are kept.
#[derive(Debug)]
pub(crate) struct History {
    /// Never empty. The oldest holds all that was written up to it.
    layers: VecDeque<(B256, Cache)>,
}

impl History {
    pub(crate) fn new(genesis: B256, values: Cache) -> Self {
        Self { layers: [(genesis, values)].into() }
    }

    pub(crate) fn top(&self) -> B256 {
        self.layers.back().expect("the oldest stays").0
    }

    /// The state at a block; `None` when it is not kept.
    pub(crate) fn at(&self, block: &B256) -> Option<At<'_>> {
        let newest = self.layers.iter().rposition(|(hash, _)| hash == block)?;
        Some(At { history: self, newest })
    }

    /// The newest state.
    pub(crate) fn now(&self) -> At<'_> {
        At { history: self, newest: self.layers.len() - 1 }
    }

    /// Takes what a block on top of the newest one wrote.
    pub(crate) fn push(&mut self, hash: B256, written: Cache) {
        self.layers.push_back((hash, written));
        if self.layers.len() > HISTORY_BLOCKS + 1 {
            let (_, mut all) = self.layers.pop_front().expect("it is longer than what is kept");
            let (_, above) = self.layers.front_mut().expect("it is longer than what is kept");
            // No contract of this world destroys itself, and none is created where storage is.
            for (address, account) in above.accounts.drain() {
                let old = all.accounts.entry(address).or_default();
                (old.info, old.account_state) = (account.info, account.account_state);
                old.storage.extend(account.storage);
            }
            all.contracts.extend(above.contracts.drain());
            *above = all;
        }
    }

    /// Undoes the newest block; false when none is left that can be.
    pub(crate) fn pop(&mut self) -> bool {
        self.layers.len() > 1 && self.layers.pop_back().is_some()
    }
}

/// The state at one block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At<'h> {
    history: &'h History,
    newest: usize,
}

impl<'h> At<'h> {
    /// Of the block itself, then of those below it.
    fn layers(self) -> impl Iterator<Item = &'h Cache> {
        self.history.layers.range(..=self.newest).rev().map(|(_, written)| written)
    }
}

impl DatabaseRef for At<'_> {
    type Error = Infallible;

    fn basic_ref(&self, address: Address) -> Result<Option<AccountInfo>, Infallible> {
        Ok(self.layers().find_map(|layer| layer.accounts.get(&address)).and_then(|it| it.info()))
    }

    fn code_by_hash_ref(&self, hash: B256) -> Result<Bytecode, Infallible> {
        let code = self.layers().find_map(|layer| layer.contracts.get(&hash));
        Ok(code.cloned().unwrap_or_default())
    }

    fn storage_ref(&self, address: Address, index: U256) -> Result<U256, Infallible> {
        let value =
            self.layers().find_map(|layer| layer.accounts.get(&address)?.storage.get(&index));
        Ok(value.copied().unwrap_or_default())
    }

    fn block_hash_ref(&self, _: u64) -> Result<B256, Infallible> {
        // Nothing that the workload calls reads one.
        Ok(B256::ZERO)
    }
}
