//! Sends, replaces and cancels a bundle as a searcher does: JSON-RPC, signed, with a replacement
//! key.
//!
//! `cargo run --release --example bundle` starts an RPC server over an empty pool.

mod report;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use alloy_primitives::{B256, Signature, eip191_hash_message, keccak256};
use mempool_ingest::load_control::{Gate, GateConfig};
use mempool_ingest::order_rpc::{Host, OrderRpc};
use mempool_ingest::{
    OrderPool, OrderRpcConfig, PoolConfig,
    order_pool::{Event, Order},
};
use mock_node::workload::{Workload, WorkloadConfig};
use secp256k1::{Message, SECP256K1, SecretKey};
use serde_json::{Value, json};

type Error = Box<dyn std::error::Error>;

/// Sends one request, signed by `signer` in the header that Flashbots defined, and prints the
/// response.
fn call(server: SocketAddr, signer: &SecretKey, method: &str, param: Value) -> Result<(), Error> {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": [param]});
    let body = body.to_string();
    let digest = eip191_hash_message(keccak256(&body).to_string());
    let signed = SECP256K1.sign_ecdsa_recoverable(&Message::from_digest(digest.0), signer);
    let (recovery_id, bytes) = signed.serialize_compact();
    let signature = Signature::from_bytes_and_parity(&bytes, i32::from(recovery_id) == 1);
    let address = signature.recover_address_from_prehash(&digest)?;
    let mut socket = TcpStream::connect(server)?;
    write!(
        socket,
        "POST / HTTP/1.1\r\nhost: {server}\r\nx-flashbots-signature: {address}:{signature}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len(),
    )?;
    let mut response = String::new();
    socket.read_to_string(&mut response)?;
    println!("{method}: {}", response.rsplit("\r\n").next().unwrap_or_default());
    Ok(())
}

/// Returns the hash that `eth_sendBundle` responds with.
fn bundle_hash(order: &Order) -> B256 {
    order.as_bundle().map_or(*order.id().hash(), |bundle| *bundle.hash())
}

fn main() -> report::Result {
    report::help(include_str!("bundle.rs"));
    let config = WorkloadConfig::new(7, 1337);
    let txs = Workload::new(config.clone()).prepare(2);
    let pool = OrderPool::new(PoolConfig::default())?;
    let host = Host::new(pool.clone(), Gate::new(GateConfig::default())?);
    let rpc = OrderRpc::start(OrderRpcConfig::new(config.chain_id), host)?;
    let mut events = pool.subscribe_all();

    let searcher = SecretKey::from_slice(&[7; 32])?;
    let uuid = "6f1d47d4-5d7b-4f6c-9f2f-1a5f3f0e7c11";
    // The second bundle replaces the first one.
    for tx in &txs {
        let bundle = json!({"txs": [tx.raw], "blockNumber": "0x1", "replacementUuid": uuid});
        call(rpc.local_addr(), &searcher, "eth_sendBundle", bundle)?;
    }
    // This cancels only bundles of this signer: the same uuid of another signer is another key.
    call(rpc.local_addr(), &searcher, "eth_cancelBundle", json!({"replacementUuid": uuid}))?;
    while let Some(event) = events.try_next() {
        match event? {
            Event::Added(order) => println!("+ {}", bundle_hash(&order)),
            Event::Removed { order, reason } => println!("- {} {reason:?}", bundle_hash(&order)),
            other => println!("{other:?}"),
        }
    }
    if pool.is_empty() { Ok(()) } else { Err("the bundle is still in the pool".into()) }
}
