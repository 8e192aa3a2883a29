//! Requests written and signed before the clock starts.

use alloy_consensus::{SignableTransaction as _, TxEip1559, transaction::PooledTransaction};
use alloy_eips::eip2718::Encodable2718 as _;
use alloy_primitives::{Address, B256, TxKind, hex, keccak256};
use alloy_signer::SignerSync as _;
use alloy_signer_local::PrivateKeySigner;
use mock_node::DEV_CHAIN_ID;
use serde_json::{Value, json};
use testkit::http;

/// Keys from numbers, so that every run sends the same.
pub(crate) fn key(number: u64) -> PrivateKeySigner {
    PrivateKeySigner::from_bytes(&keccak256(number.to_be_bytes())).expect("a hash below the order")
}

/// A transfer.
pub(crate) fn transfer(nonce: u64) -> TxEip1559 {
    TxEip1559 {
        chain_id: DEV_CHAIN_ID,
        nonce,
        gas_limit: 21_000,
        max_fee_per_gas: 100_000_000_000,
        max_priority_fee_per_gas: 1_000_000_000,
        to: TxKind::Call(Address::repeat_byte(0xaa)),
        ..TxEip1559::default()
    }
}

/// Signed, in hex.
pub(crate) fn raw(tx: TxEip1559, key: &PrivateKeySigner) -> String {
    raw_and_hash(tx, key).0
}

/// Signed, in hex, and its hash.
pub(crate) fn raw_and_hash(tx: TxEip1559, key: &PrivateKeySigner) -> (String, B256) {
    let signature = key.sign_hash_sync(&tx.signature_hash()).expect("a key signs");
    let tx = PooledTransaction::from(tx.into_signed(signature));
    (hex::encode_prefixed(tx.encoded_2718()), *tx.tx_hash())
}

/// A call as it is sent; with a key, signed by it.
pub(crate) fn call(method: &str, params: &Value, key: Option<&PrivateKeySigner>) -> Vec<u8> {
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    post(&body.to_string(), key)
}

/// A body as it is sent; with a key, signed by it.
pub(crate) fn post(body: &str, key: Option<&PrivateKeySigner>) -> Vec<u8> {
    let header = key.map_or_else(String::new, |key| {
        let signature = key.sign_message_sync(keccak256(body).to_string().as_bytes());
        let signature = signature.expect("a key signs");
        format!("x-flashbots-signature: {}:{signature}\r\n", key.address())
    });
    http::request("/", &header, Some(body))
}
