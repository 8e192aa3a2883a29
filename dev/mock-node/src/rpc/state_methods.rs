//! Requests for the state at a block.

use alloy_eips::BlockId;
use alloy_primitives::{Address, B256, U256};

use super::{Found, error::RpcError, methods::block_by_tag, params::Params};
use crate::{shared::Shared, state::StateRequest, tx::to_json};

pub(super) fn call(shared: &Shared, method: &str, params: &Params<'_>) -> Result<Found, RpcError> {
    let Some(executor) = &shared.executor else {
        return Err(RpcError::new(RpcError::SERVER, "the state is not kept"));
    };
    let address: Address = params.get(0)?;
    let (request, block) = match method {
        "eth_getBalance" => (StateRequest::Balance(address), 1),
        "eth_getCode" => (StateRequest::Code(address), 1),
        "eth_getTransactionCount" => (StateRequest::Nonce(address), 1),
        _ => (StateRequest::Slot(address, params.get::<U256>(1)?), 2),
    };
    let block = block_hash(shared, params, block)?;
    match executor.value(&block, request) {
        Some(value) => Ok(Found::Json(to_json(&value))),
        None => Err(RpcError::new(RpcError::SERVER, "state at this block is pruned")),
    }
}

/// Every block that this node knows is canonical.
fn block_hash(shared: &Shared, params: &Params<'_>, index: usize) -> Result<B256, RpcError> {
    match params.get_or(index, BlockId::latest())? {
        BlockId::Hash(hash) => Ok(hash.block_hash),
        BlockId::Number(number) => block_by_tag(shared, number)
            .map(|block| block.hash)
            .ok_or_else(|| RpcError::new(RpcError::SERVER, "header not found")),
    }
}
