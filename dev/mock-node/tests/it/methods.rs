use alloy_primitives::B256;
use alloy_rpc_types_eth::Header;
use mock_node::workload::{Mix, Workload, WorkloadConfig};
use serde_json::{Value, json};

use crate::client::connected;

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
fn subscriptions_tell_hashes_known_or_not_objects_and_heads() {
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
    assert_eq!(client.call("eth_subscribe", json!(["nonsense"]))["error"]["code"], -32602);
}
