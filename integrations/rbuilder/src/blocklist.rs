//! The list behind rbuilder's trait, and the check where its `AccessListInspector` stands.

use std::{sync::Arc, time::SystemTime};

use alloy_primitives::Address;
use blocklist::{BlockGuard, SharedBlocklist};
use revm::{
    ExecuteEvm,
    context::result::{EVMError, ExecutionResult, InvalidTransaction, ResultAndState},
    context_interface::Transaction,
    state::EvmState,
};

use crate::rbuilder::{BlockList, BlockListProvider, Error, TransactionErr};

/// A list that is reloaded elsewhere, as rbuilder's components ask for it.
#[derive(Debug, Clone)]
pub struct IngestBlockList(pub Arc<SharedBlocklist>);

impl BlockListProvider for IngestBlockList {
    fn get_blocklist(&self) -> Result<BlockList, Error> {
        let list = self.0.current(SystemTime::now()).map_err(|_| Error::UnableToUpdateList)?;
        Ok(list.iter().copied().collect())
    }

    fn current_list_contains(&self, address: &Address) -> Result<bool, Error> {
        let list = self.0.current(SystemTime::now()).map_err(|_| Error::UnableToUpdateList)?;
        Ok(list.contains(address))
    }
}

/// `execute_evm` of rbuilder's `building/order_commit.rs`, with two lines of the guard in place of
/// `RBuilderEVMInspector::into_access_list`: so no inspector runs where nobody collects a trace.
///
/// As in rbuilder, `evm` is a new one for each transaction: after an invalid one, revm 34 keeps the accounts that it loaded,
/// and the next state would have them. `BlockGuard::execute`, which takes an EVM for a whole block, discards them.
///
/// # Errors
/// Outside, what stops building: an error of the database. Inside, why the transaction is not in the block.
pub fn execute_evm<E, DbError>(
    evm: &mut E,
    tx: E::Tx,
    guard: &BlockGuard,
) -> Result<Result<ResultAndState, TransactionErr>, EVMError<DbError>>
where
    E: ExecuteEvm<
            Tx: Transaction,
            ExecutionResult = ExecutionResult,
            State = EvmState,
            Error = EVMError<DbError, InvalidTransaction>,
        >,
{
    if guard.precheck(&tx).is_err() {
        return Ok(Err(TransactionErr::Blocklist));
    }
    let executed = match evm.transact(tx) {
        Ok(executed) => executed,
        Err(EVMError::Transaction(invalid)) => {
            return Ok(Err(TransactionErr::InvalidTransaction(invalid)));
        }
        Err(other) => return Err(other),
    };
    if guard.check_addresses(executed.state.keys()).is_err() {
        return Ok(Err(TransactionErr::Blocklist));
    }
    Ok(Ok(executed))
}
