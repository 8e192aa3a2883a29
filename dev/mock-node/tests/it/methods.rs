use alloy_consensus::{Transaction as _, TxEnvelope, transaction::SignerRecoverable};
use alloy_eips::{Decodable2718, eip4844::env_settings::EnvKzgSettings};
use alloy_primitives::{B256, Bytes, keccak256};
use alloy_rpc_types_eth::{Block, Header, Transaction};
use mock_node::{
    NodeConfig,
    workload::{Mix, Workload, WorkloadConfig},
};
use serde_json::{Value, json};

use crate::client::connected;

#[test]
fn raw_transactions_decode_and_recover_and_hash_to_what_was_asked() {
    let (_dir, node, mut client) =
        connected(|config| NodeConfig { preload: 500, blobs_per_mille: 20, ..config });
    let mut types = [0; 5];
    for hash in node.pending() {
        let raw: Bytes =
            serde_json::from_value(client.result("eth_getRawTransactionByHash", json!([hash])))
                .unwrap();
        let tx = TxEnvelope::decode_2718_exact(&raw).expect("it decodes");
        assert_eq!(*tx.tx_hash(), hash);
        types[tx.tx_type() as usize] += 1;
        let object = client.result("eth_getTransactionByHash", json!([hash]));
        let object: Transaction = serde_json::from_value(object).expect("reth's shape");
        assert_eq!(object.inner.signer(), tx.recover_signer().expect("a signature"));
        assert_eq!(object.block_hash, None);
        if let Some(blob) = tx.as_eip4844() {
            let with = blob.tx().as_with_sidecar().expect("pending ones have their sidecar");
            with.sidecar
                .validate(&with.tx.blob_versioned_hashes, EnvKzgSettings::Default.get())
                .expect("the proofs are valid");
        }
    }
    assert!(types.iter().all(|count| *count > 0), "each type is in the mix: {types:?}");
}

#[test]
fn blobs_leave_their_sidecar_behind_when_they_are_mined() {
    let (_dir, node, mut client) =
        connected(|config| NodeConfig { preload: 2, blobs_per_mille: 1000, ..config });
    let hash = node.pending()[0];
    let pending = node.raw(hash).unwrap();
    assert!(pending.len() > 131_072);
    let block = node.mine();
    let mined = client.result("eth_getRawTransactionByHash", json!([hash]));
    let mined: Bytes = serde_json::from_value(mined).unwrap();
    assert!(mined.len() < 1000 && keccak256(&mined) == hash);
    let object = client.result("eth_getTransactionByHash", json!([hash]));
    assert_eq!(object["blockHash"], json!(block.hash));
    assert_eq!(object["transactionIndex"], "0x0");
}

#[test]
fn what_a_client_sends_comes_back_byte_for_byte() {
    let (_dir, _node, mut client) = connected(|config| config);
    let mix = Mix { blobs_per_mille: 50, ..Mix::default() };
    let mut load =
        Workload::new(WorkloadConfig { accounts: 20, mix, ..WorkloadConfig::new(3, 1337) });
    for tx in load.prepare(60) {
        assert_eq!(client.result("eth_sendRawTransaction", json!([tx.raw])), json!(tx.hash));
        let raw = client.result("eth_getRawTransactionByHash", json!([tx.hash]));
        assert_eq!(raw, json!(tx.raw));
        let again = client.call("eth_sendRawTransaction", json!([tx.raw]));
        assert_eq!(again["error"], json!({"code": -32000, "message": "already known"}));
    }
}

#[test]
fn an_unknown_hash_is_null_or_like_geth_an_empty_string() {
    let hash = B256::with_last_byte(1);
    let (_dir, _node, mut client) = connected(|config| config);
    assert_eq!(client.result("eth_getRawTransactionByHash", json!([hash])), Value::Null);
    assert_eq!(client.result("eth_getTransactionByHash", json!([hash])), Value::Null);
    assert_eq!(client.result("eth_getBlockByHash", json!([hash])), Value::Null);
    let (_dir, _node, mut client) =
        connected(|config| NodeConfig { unknown_is_empty: true, ..config });
    assert_eq!(client.result("eth_getRawTransactionByHash", json!([hash])), "0x");
}

#[test]
fn subscriptions_tell_hashes_known_or_not_objects_and_heads_until_they_end() {
    let (_dir, node, mut client) = connected(|config| config);
    let hashes = client.subscribe(json!(["newPendingTransactions"]));
    let objects = client.subscribe(json!(["newPendingTransactions", true]));
    let heads = client.subscribe(json!(["newHeads"]));
    let hash = node.burst(1)[0];
    assert_eq!(client.notification(), (hashes.clone(), json!(hash)));
    let (id, object) = client.notification();
    assert_eq!((&id, &object["hash"]), (&objects, &json!(hash)));
    let pending = node.object(hash).expect("it is in the pool");
    assert_eq!(serde_json::from_str::<Value>(&pending).expect("JSON"), object);
    node.announce_again(hash).expect("it is in the pool");
    assert_eq!(client.notification(), (hashes.clone(), json!(hash)));
    assert_eq!(client.notification(), (objects.clone(), object));
    let unknown = B256::with_last_byte(3);
    assert!(node.announce_again(unknown).is_err());
    node.announce_unknown(unknown);
    assert_eq!(client.notification(), (hashes.clone(), json!(unknown)));
    node.announce_object(r#"{"hash":"0x00"}"#);
    assert_eq!(client.notification(), (objects.clone(), json!({"hash": "0x00"})));
    let block = node.mine();
    let (id, head) = client.notification();
    assert_eq!(id, heads);
    let head: Header = serde_json::from_value(head).expect("a header");
    assert_eq!((head.hash, head.inner.hash_slow()), (block.hash, block.hash));
    assert_eq!(client.result("eth_unsubscribe", json!([hashes])), true);
    assert_eq!(client.result("eth_unsubscribe", json!([hashes])), false);
    node.burst(1);
    assert_eq!(client.notification().0, objects);
    assert_eq!(client.call("eth_subscribe", json!(["nonsense"]))["error"]["code"], -32602);
}

#[test]
fn blocks_are_found_by_number_and_hash_with_hashes_or_objects() {
    let (_dir, node, mut client) = connected(|config| NodeConfig { preload: 30, ..config });
    let block = node.mine();
    assert_eq!(client.result("eth_blockNumber", json!([])), "0x1");
    for (method, key) in [
        ("eth_getBlockByHash", json!(block.hash)),
        ("eth_getBlockByNumber", json!("0x1")),
        ("eth_getBlockByNumber", json!("latest")),
    ] {
        let hashes: Block =
            serde_json::from_value(client.result(method, json!([key, false]))).expect("a block");
        assert_eq!(hashes.header.hash, block.hash);
        assert_eq!(hashes.transactions.hashes().collect::<Vec<_>>(), block.txs);
        let full: Block =
            serde_json::from_value(client.result(method, json!([key, true]))).expect("a block");
        let txs = full.transactions.as_transactions().expect("objects");
        assert_eq!(txs.len(), 30);
        assert!(txs.iter().all(|tx| tx.block_hash == Some(block.hash)));
        let gas: u64 = txs.iter().map(|tx| tx.gas_limit()).sum();
        assert_eq!(full.header.gas_used, gas);
    }
}

#[test]
fn the_pool_is_listed_by_sender_and_nonce() {
    let (_dir, node, mut client) = connected(|config| NodeConfig { preload: 60, ..config });
    let mut load = Workload::new(WorkloadConfig { accounts: 30, ..WorkloadConfig::new(9, 1337) });
    let txs = load.prepare(90);
    // Account 25 is not one of the node's 20; its nonce 1 waits for 0.
    let waiting = &txs[55];
    assert_eq!(waiting.nonce, 1);
    node.submit(waiting.raw.clone()).expect("it may wait");
    let status = client.result("txpool_status", json!([]));
    assert_eq!(status, json!({"pending": "0x3c", "queued": "0x1"}));
    let content = client.result("txpool_content", json!([]));
    let mut listed = Vec::new();
    for (sender, by_nonce) in content["pending"].as_object().unwrap() {
        for (nonce, tx) in by_nonce.as_object().unwrap() {
            let tx: Transaction = serde_json::from_value(tx.clone()).expect("reth's shape");
            assert_eq!(tx.inner.signer().to_checksum(None), *sender);
            assert_eq!(tx.nonce().to_string(), *nonce);
            listed.push(*tx.inner.tx_hash());
        }
    }
    listed.sort_unstable();
    let mut pending = node.pending();
    pending.sort_unstable();
    assert_eq!(listed, pending);
    let queued = &content["queued"][waiting.sender.to_checksum(None)]["1"];
    assert_eq!(queued["hash"], json!(waiting.hash));
}
