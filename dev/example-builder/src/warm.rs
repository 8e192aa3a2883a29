//! Prefetches the state that the next block's candidates will read, before the block is due.

use alloy_primitives::TxKind;
use revm::{
    ExecuteEvm, MainBuilder,
    context::{
        TxEnv,
        either::Either,
        result::{EVMError, ExecutionResult},
    },
    database::CacheDB,
    database_interface::WrapDatabaseRef,
};

use crate::{
    env::NextBlock,
    machine::{begin, context},
    rpc::ReadError,
    state::{Key, NodeState, View},
};

/// Executions of one transaction, each of which stops at the first unknown item. A swap needs four;
/// further items are read when it is executed in the block.
const ROUNDS: usize = 8;

/// The result of a prefetch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Warmed {
    pub(crate) rounds: usize,
    pub(crate) calls: usize,
}

/// Fetches the state that these transactions name, then the state that they read when executed on
/// the parent's state: each round executes with every unknown item as an error, and requests all of
/// them at once.
///
/// # Errors
/// There was no response. Items that were read before stay.
pub(crate) fn warm(
    state: &NodeState,
    block: &NextBlock,
    mut txs: Vec<TxEnv>,
) -> Result<Warmed, ReadError> {
    let mut warmed = Warmed::default();
    if txs.is_empty() {
        return Ok(warmed);
    }
    let named = txs.iter().flat_map(named).chain([Key::Account(block.env.beneficiary)]);
    warmed.calls += state.fetch(named)?;
    let mut begun = false;
    while (!txs.is_empty() || !begun) && warmed.rounds < ROUNDS {
        warmed.rounds += 1;
        let missed = state.noting(|| {
            begun = begins(state, block);
            txs = unknown(state, block, std::mem::take(&mut txs));
        });
        warmed.calls += state.fetch(missed)?;
    }
    Ok(warmed)
}

/// Whether everything is known that a block reads before its first transaction.
fn begins(state: &NodeState, block: &NextBlock) -> bool {
    let store = CacheDB::new(View { state, cached: true });
    begin(&mut context(store, block).build_mainnet(), block).is_ok()
}

/// Those whose execution stopped at an unknown item.
fn unknown(state: &NodeState, block: &NextBlock, txs: Vec<TxEnv>) -> Vec<TxEnv> {
    let mut context = context(WrapDatabaseRef(View { state, cached: true }), block);
    // Each is executed alone, so earlier nonces of its sender are missing.
    context.cfg.disable_nonce_check = true;
    let mut evm = context.build_mainnet();
    let is_unknown = |result: Result<ExecutionResult, EVMError<ReadError>>| {
        matches!(result, Err(EVMError::Database(ReadError::NotReadYet)))
    };
    txs.into_iter()
        .filter(|tx| is_unknown(evm.transact(tx.clone()).map(|executed| executed.result)))
        .collect()
}

/// The state that a transaction names before it is executed.
fn named(tx: &TxEnv) -> Vec<Key> {
    let mut keys = vec![Key::Account(tx.caller)];
    if let TxKind::Call(to) = tx.kind {
        keys.push(Key::Account(to));
    }
    for item in tx.access_list.iter() {
        keys.push(Key::Account(item.address));
        keys.extend(item.storage_keys.iter().map(|key| Key::Slot(item.address, (*key).into())));
    }
    for authorization in &tx.authorization_list {
        if let Either::Right(authorization) = authorization {
            keys.extend(authorization.authority().map(Key::Account));
            keys.push(Key::Account(authorization.address));
        }
    }
    keys
}
