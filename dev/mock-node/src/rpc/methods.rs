//! The methods, and the JSON of their results.

use std::{collections::BTreeMap, sync::Arc};

use alloy_consensus::{Transaction as _, transaction::TransactionInfo};
use alloy_eips::{BlockId, BlockNumberOrTag};
use alloy_primitives::{Address, B256, Bytes, U64, U256, keccak256};
use alloy_rpc_types_eth::Transaction;
use serde::Serialize;

use super::request::{Params, RpcError};
use crate::{
    chain::FullBlock,
    config::{CLIENT_VERSION, FullObjects},
    quirks::Topic,
    shared::Shared,
    state::StateRequest,
    tx::{SignedTx, to_json},
};

/// The balance of every account of a node that keeps no state and answers balances.
const MILLION_ETHER_WEI: u128 = 1_000_000 * 10_u128.pow(18);

/// The result of a method.
pub(super) enum Found {
    Json(Vec<u8>),
    Subscribed(String, Topic),
}

fn json(value: &impl Serialize) -> Result<Found, RpcError> {
    Ok(Found::Json(to_json(value)))
}

/// Encodes a raw transaction as JSON. Each digit is written once, because six blobs are 1.6 MB of
/// digits.
pub(super) fn raw_json(raw: &[u8]) -> Vec<u8> {
    let mut quoted = vec![b'"'; 2 * raw.len() + 4];
    quoted[1..3].copy_from_slice(b"0x");
    let end = quoted.len() - 1;
    const_hex::encode_to_slice(raw, &mut quoted[3..end]).expect("two digits for each byte");
    quoted
}

pub(super) fn call(shared: &Shared, method: &str, params: &Params<'_>) -> Result<Found, RpcError> {
    match method {
        "eth_getRawTransactionByHash" => match shared.requested_raw(&params.get(0)?) {
            Some(raw) => Ok(Found::Json(raw_json(&raw))),
            None if let Some(code) = shared.lock().quirks.unknown_error => {
                Err(RpcError::new(code, "resource not found"))
            }
            None if shared.config.unknown_is_empty => json(&"0x"),
            None => json(&()),
        },
        "eth_subscribe" => subscribe(shared, params),
        "eth_sendRawTransaction" => {
            let raw: Bytes = params.get(0)?;
            json(&shared.submit_raw(&raw)?)
        }
        "eth_blockNumber" => json(&U64::from(shared.lock().core.chain.head().header.number)),
        "eth_getBlockByHash" | "eth_getBlockByNumber" => {
            let id = match method {
                "eth_getBlockByHash" => BlockId::from(params.get::<B256>(0)?),
                _ => params.get::<BlockNumberOrTag>(0)?.into(),
            };
            let full = params.optional(1)?.unwrap_or(false);
            json(&block(shared, id).map(|block| block.object(full)))
        }
        "eth_getBalance" if shared.config.answers_balances && shared.executor.is_none() => {
            json(&U256::from(MILLION_ETHER_WEI))
        }
        "eth_getBalance" => state(shared, params, 1, StateRequest::Balance(params.get(0)?)),
        "eth_getCode" => state(shared, params, 1, StateRequest::Code(params.get(0)?)),
        "eth_getStorageAt" => {
            let slot = StateRequest::Slot(params.get(0)?, params.get(1)?);
            state(shared, params, 2, slot)
        }
        "eth_getTransactionCount" => {
            let address: Address = params.get(0)?;
            let tag = match params.optional(1)?.unwrap_or_else(BlockId::latest) {
                BlockId::Hash(_) | BlockId::Number(BlockNumberOrTag::Number(_)) => {
                    return state(shared, params, 1, StateRequest::Nonce(address));
                }
                BlockId::Number(tag) => tag,
            };
            let state = shared.lock();
            let mined = state.core.chain.nonce(&address);
            let pending = state.core.pool.next_nonce(&address).filter(|_| tag.is_pending());
            json(&U64::from(pending.unwrap_or(mined)))
        }
        "eth_chainId" => json(&U64::from(shared.config.chain_id)),
        "web3_clientVersion" => json(&CLIENT_VERSION),
        "eth_syncing" => {
            let state = shared.lock();
            let current = U64::from(state.core.chain.head().header.number);
            if state.quirks.is_syncing {
                json(&BTreeMap::from([("currentBlock", current)]))
            } else {
                json(&false)
            }
        }
        "txpool_status" => {
            let state = shared.lock();
            let pending = state.core.pool.pending_count();
            let queued = state.core.pool.len() - pending;
            json(&BTreeMap::from([("pending", U64::from(pending)), ("queued", U64::from(queued))]))
        }
        "txpool_content" => {
            shared.list();
            let (pending, queued) = {
                let pool = &shared.lock().core.pool;
                (pool.pending().cloned().collect(), pool.queued().cloned().collect())
            };
            json(&BTreeMap::from([("pending", content(pending)), ("queued", content(queued))]))
        }
        _ => Err(RpcError::METHOD_NOT_FOUND),
    }
}

fn subscribe(shared: &Shared, params: &Params<'_>) -> Result<Found, RpcError> {
    let kind: String = params.get(0)?;
    let topic = match (kind.as_str(), &shared.config.full_objects) {
        ("newHeads", _) => Topic::Heads,
        ("newPendingTransactions", _) if params.optional(1)? != Some(true) => Topic::Hashes,
        ("newPendingTransactions", FullObjects::Ignored) => Topic::Hashes,
        ("newPendingTransactions", FullObjects::Refused) => {
            return Err(RpcError::invalid_params("only hashes are announced"));
        }
        ("newPendingTransactions", _) => Topic::Objects,
        (other, _) => return Err(RpcError::invalid_params(format!("unknown variant `{other}`"))),
    };
    let mut state = shared.lock();
    state.next_subscription += 1;
    // An opaque id, as long as those of reth.
    let digest =
        keccak256([shared.config.seed, state.next_subscription].map(u64::to_be_bytes).concat());
    Ok(Found::Subscribed(const_hex::encode_prefixed(&digest[..16]), topic))
}

/// Finds a block. Every block that this node knows is canonical.
fn block(shared: &Shared, id: BlockId) -> Option<Arc<FullBlock>> {
    let chain = &shared.lock().core.chain;
    let found = match id {
        BlockId::Hash(hash) => chain.by_hash(&hash.block_hash),
        BlockId::Number(BlockNumberOrTag::Earliest) => chain.by_number(0),
        BlockId::Number(BlockNumberOrTag::Number(number)) => chain.by_number(number),
        BlockId::Number(_) => Some(chain.head()),
    };
    found.cloned()
}

/// Looks up state at the block that the parameter with index `block_index` names.
fn state(
    shared: &Shared,
    params: &Params<'_>,
    block_index: usize,
    request: StateRequest,
) -> Result<Found, RpcError> {
    let executor = shared.executor.as_ref().ok_or(RpcError::server("the state is not kept"))?;
    let hash = match params.optional(block_index)?.unwrap_or_else(BlockId::latest) {
        BlockId::Hash(hash) => hash.block_hash,
        id => block(shared, id).ok_or(RpcError::server("header not found"))?.header.hash,
    };
    let value = executor.value(&hash, request);
    json(&value.ok_or(RpcError::server("state at this block is pruned"))?)
}

/// Groups transactions by sender and nonce, as `txpool_content` lists them.
fn content(txs: Vec<Arc<SignedTx>>) -> BTreeMap<String, BTreeMap<u64, Transaction>> {
    let mut content = BTreeMap::<_, BTreeMap<_, _>>::new();
    for tx in txs {
        let object = tx.to_object(TransactionInfo::default());
        content.entry(tx.signer().to_string()).or_default().insert(tx.nonce(), object);
    }
    content
}
