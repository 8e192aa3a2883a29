//! Requests for the state at a block.

use alloy_primitives::{Address, B256, U64, U256};
use serde::Deserialize;

use super::{Found, error::RpcError, methods::block_by_tag, params::Params};
use crate::{shared::Shared, state::StateRequest, tx::to_json};

/// The methods that may have to wait for the execution of a block.
pub(super) const METHODS: [&str; 4] =
    ["eth_getBalance", "eth_getCode", "eth_getStorageAt", "eth_getTransactionCount"];

/// A block by hash (EIP-1898) or number.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Named {
    block_hash: Option<B256>,
    block_number: Option<U64>,
    /// Every block that this node knows is canonical.
    #[serde(default, rename = "requireCanonical")]
    _require_canonical: bool,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum BlockId {
    Text(String),
    Named(Named),
}

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

fn block_hash(shared: &Shared, params: &Params<'_>, index: usize) -> Result<B256, RpcError> {
    let text = match params.get_or(index, BlockId::Text("latest".into()))? {
        BlockId::Named(Named { block_hash: Some(hash), block_number: None, .. }) => {
            return Ok(hash);
        }
        BlockId::Named(Named { block_hash: None, block_number: Some(number), .. }) => {
            format!("{number:#x}")
        }
        BlockId::Named(_) => {
            return Err(RpcError::invalid_params("one of blockHash and blockNumber is needed"));
        }
        BlockId::Text(text) if text.len() == 66 => {
            return text.parse().map_err(|_| RpcError::invalid_params("invalid block hash"));
        }
        BlockId::Text(text) => text,
    };
    block_by_tag(shared, &text)?
        .map(|block| block.hash)
        .ok_or_else(|| RpcError::new(RpcError::SERVER, "header not found"))
}
