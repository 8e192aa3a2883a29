//! What each method does.

use std::{
    collections::BTreeMap,
    io::Write as _,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use alloy_consensus::{Transaction as _, transaction::TransactionInfo};
use alloy_eips::{BlockId, BlockNumberOrTag};
use alloy_primitives::{Address, B256, Bytes, U64, keccak256};
use serde::Serialize;

use super::{Found, error::RpcError, params::Params, state_methods};
use crate::{
    chain::FullBlock,
    config::{CLIENT_VERSION, FullObjects},
    shared::{Shared, Topic},
    tx::{SignedTx, to_json},
};

fn json(value: &impl Serialize) -> Result<Found, RpcError> {
    Ok(Found::Json(to_json(value)))
}

pub(super) fn call(shared: &Shared, method: &str, params: &Params<'_>) -> Result<Found, RpcError> {
    match method {
        "eth_getRawTransactionByHash" => {
            let hash: B256 = params.get(0)?;
            match shared.raw(&hash) {
                Some(raw) => {
                    shared.counters.raw_found.fetch_add(1, Relaxed);
                    Ok(Found::Raw(raw, hash))
                }
                None if shared.config.unknown_is_empty => json(&"0x"),
                None => json(&()),
            }
        }
        "eth_subscribe" => subscribe(shared, params),
        "eth_sendRawTransaction" => {
            let raw: Bytes = params.get(0)?;
            json(&shared.submit_raw(&raw)?)
        }
        "eth_blockNumber" => json(&U64::from(shared.lock().core.chain.head().header.number)),
        "eth_getBlockByHash" => {
            let (hash, full): (B256, bool) = (params.get(0)?, params.get_or(1, false)?);
            let block = shared.lock().core.chain.by_hash(&hash).cloned();
            json(&block.map(|block| block.object(full)))
        }
        "eth_getBlockByNumber" => {
            let (tag, full): (BlockNumberOrTag, bool) = (params.get(0)?, params.get_or(1, false)?);
            let block = block_by_tag(shared, tag);
            json(&block.map(|block| block.object(full)))
        }
        "eth_getBalance" | "eth_getCode" | "eth_getStorageAt" => {
            state_methods::call(shared, method, params)
        }
        "eth_getTransactionCount" => {
            let tag = match params.get_or(1, BlockId::latest())? {
                BlockId::Hash(_) | BlockId::Number(BlockNumberOrTag::Number(_)) => {
                    return state_methods::call(shared, method, params);
                }
                BlockId::Number(tag) => tag,
            };
            let address: Address = params.get(0)?;
            let state = shared.lock();
            let mined = state.core.chain.nonce(&address);
            let pending = state.core.pool.next_nonce(&address).filter(|_| tag.is_pending());
            json(&U64::from(pending.unwrap_or(mined)))
        }
        "eth_chainId" => json(&U64::from(shared.config.chain_id)),
        "web3_clientVersion" => json(&CLIENT_VERSION),
        "eth_syncing" if shared.is_syncing.load(Relaxed) => {
            let current = U64::from(shared.lock().core.chain.head().header.number);
            json(&BTreeMap::from([("currentBlock", current)]))
        }
        "eth_syncing" => json(&false),
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
            Ok(Found::Json(content_json(pending, queued)))
        }
        _ => Err(RpcError::new(RpcError::METHOD_NOT_FOUND, "Method not found")),
    }
}

fn subscribe(shared: &Shared, params: &Params<'_>) -> Result<Found, RpcError> {
    let kind: String = params.get(0)?;
    let topic = match kind.as_str() {
        "newPendingTransactions" if params.get_or(1, false)? => match shared.config.full_objects {
            FullObjects::Announced | FullObjects::Dropped { .. } => Topic::Objects,
            FullObjects::Refused => {
                return Err(RpcError::invalid_params("hashes alone are announced".to_owned()));
            }
            FullObjects::Ignored => Topic::Hashes,
        },
        "newPendingTransactions" => Topic::Hashes,
        "newHeads" => Topic::Heads,
        other => return Err(RpcError::invalid_params(format!("unknown variant `{other}`"))),
    };
    let mut state = shared.lock();
    state.next_subscription += 1;
    // Opaque, as long as reth's.
    let digest =
        keccak256([shared.config.seed, state.next_subscription].map(u64::to_be_bytes).concat());
    Ok(Found::Subscribed(const_hex::encode_prefixed(&digest[..16]), topic))
}

pub(super) fn block_by_tag(shared: &Shared, tag: BlockNumberOrTag) -> Option<Arc<FullBlock>> {
    let chain = &shared.lock().core.chain;
    match tag {
        BlockNumberOrTag::Earliest => chain.by_number(0).cloned(),
        BlockNumberOrTag::Number(number) => chain.by_number(number).cloned(),
        _ => Some(chain.head().clone()),
    }
}

fn content_json(pending: Vec<Arc<SignedTx>>, queued: Vec<Arc<SignedTx>>) -> Vec<u8> {
    let mut out = Vec::with_capacity((pending.len() + queued.len()) * 700 + 32);
    for (name, mut txs) in [("{\"pending\":{", pending), ("},\"queued\":{", queued)] {
        out.extend_from_slice(name.as_bytes());
        txs.sort_unstable_by_key(|tx| (tx.signer(), tx.nonce()));
        for (number, of_sender) in
            txs.chunk_by(|one, next| one.signer() == next.signer()).enumerate()
        {
            let separator = if number == 0 { "" } else { "," };
            write!(out, "{separator}\"{}\":{{", of_sender[0].signer()).expect("memory takes all");
            for (number, tx) in of_sender.iter().enumerate() {
                let separator = if number == 0 { "" } else { "," };
                write!(out, "{separator}\"{}\":", tx.nonce()).expect("memory takes all");
                out.extend_from_slice(&to_json(&tx.to_object(TransactionInfo::default())));
            }
            out.push(b'}');
        }
    }
    out.extend_from_slice(b"}}");
    out
}
