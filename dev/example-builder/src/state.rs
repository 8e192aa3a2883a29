//! The node's state at one block, read over IPC and cached.

use std::{
    cell::{Cell, RefCell},
    time::Duration,
};

use alloy_eips::BlockId;
use alloy_primitives::{
    Address, B256, U256,
    map::{AddressMap, HashMap},
};
use alloy_provider::{DynProvider, Provider as _, transport::TransportError};
use revm::{DatabaseRef, bytecode::Bytecode, state::AccountInfo};
use tokio::{runtime::Handle, time::timeout};

/// Longest wait for a response.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// Why the node's state could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("the node does not answer within {READ_TIMEOUT:?}")]
    Timeout,
    #[error("cannot read the state: {0}")]
    Transport(#[from] TransportError),
}

impl revm::database_interface::DBErrorMarker for ReadError {}

/// The state at one block. Every read names that block by its hash, so no item can be of another block.
#[derive(Debug)]
pub(crate) struct NodeState {
    node: DynProvider,
    runtime: Handle,
    block: BlockId,
    accounts: RefCell<AddressMap<Option<AccountInfo>>>,
    slots: RefCell<HashMap<(Address, U256), U256>>,
    /// Reads that were not cached.
    pub(crate) reads: Cell<u64>,
}

impl NodeState {
    pub(crate) fn new(node: DynProvider, runtime: Handle, block: B256) -> Self {
        Self {
            node,
            runtime,
            block: BlockId::hash(block),
            accounts: RefCell::default(),
            slots: RefCell::default(),
            reads: Cell::new(0),
        }
    }

    fn wait<T>(
        &self,
        response: impl Future<Output = Result<T, TransportError>>,
    ) -> Result<T, ReadError> {
        self.reads.set(self.reads.get() + 1);
        let response = self.runtime.block_on(async { timeout(READ_TIMEOUT, response).await });
        Ok(response.map_err(|_| ReadError::Timeout)??)
    }
}

impl DatabaseRef for NodeState {
    type Error = ReadError;

    fn basic_ref(&self, address: Address) -> Result<Option<AccountInfo>, ReadError> {
        if let Some(info) = self.accounts.borrow().get(&address) {
            return Ok(info.clone());
        }
        let (node, at) = (&self.node, self.block);
        let (balance, nonce, code) = self.wait(async {
            tokio::try_join!(
                node.get_balance(address).block_id(at).into_future(),
                node.get_transaction_count(address).block_id(at).into_future(),
                node.get_code_at(address).block_id(at).into_future(),
            )
        })?;
        // Code that begins like a delegation but is none is still code.
        let code =
            Bytecode::new_raw_checked(code.clone()).unwrap_or_else(|_| Bytecode::new_legacy(code));
        let info = AccountInfo::new(balance, nonce, code.hash_slow(), code);
        // Since EIP-161 an empty account does not exist.
        let info = (!info.is_empty()).then_some(info);
        self.accounts.borrow_mut().insert(address, info.clone());
        Ok(info)
    }

    fn code_by_hash_ref(&self, _: B256) -> Result<Bytecode, ReadError> {
        unreachable!("accounts come with their code")
    }

    fn storage_ref(&self, address: Address, index: U256) -> Result<U256, ReadError> {
        if let Some(value) = self.slots.borrow().get(&(address, index)) {
            return Ok(*value);
        }
        let read = self.node.get_storage_at(address, index).block_id(self.block).into_future();
        let value = self.wait(read)?;
        self.slots.borrow_mut().insert((address, index), value);
        Ok(value)
    }

    fn block_hash_ref(&self, number: u64) -> Result<B256, ReadError> {
        let block = self.wait(self.node.get_block_by_number(number.into()).into_future())?;
        Ok(block.map_or(B256::ZERO, |block| block.header.hash))
    }
}
