//! Tests of the framing of requests and of malformed requests.

use serde_json::{Value, json};

use crate::client::connected;

#[test]
fn requests_are_answered_however_writes_split_them() {
    let (_dir, _node, mut client) = connected(|config| config);
    let two =
        br#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId"}{"jsonrpc":"2.0","id":"two","method":"#;
    client
        .write(&[two, br#""eth_blockNumber","params":[]} {"jsonrpc":"2.0","#.as_slice()].concat());
    assert_eq!(client.line().unwrap(), "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"0x539\"}\n");
    assert_eq!(client.value(), json!({"jsonrpc": "2.0", "id": "two", "result": "0x0"}));
    client.write(br#""id":18446744073709551615,"method":"eth_syncing"}"#);
    assert_eq!(client.value(), json!({"jsonrpc": "2.0", "id": u64::MAX, "result": false}));
}

#[test]
fn malformed_requests_are_answered_with_the_error_codes_of_reth() {
    let (_dir, _node, mut client) = connected(|config| config);
    client.write(b"what is this\n{\"no\":\"request\"}{\"id\":1,}\n");
    for code in [-32700, -32600, -32700] {
        let answer = client.value();
        assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(code), &Value::Null));
    }
    assert_eq!(client.call("eth_nothing", json!([]))["error"]["code"], -32601);
    let bad_hash = client.call("eth_getRawTransactionByHash", json!(["0x12"]));
    assert_eq!(bad_hash["error"]["code"], -32602);
    assert!(bad_hash["error"]["data"].is_string());
    assert_eq!(client.call("eth_getRawTransactionByHash", json!([]))["error"]["code"], -32602);
}

#[test]
fn shutdown_closes_the_connections_and_removes_the_socket() {
    let (_dir, node, mut client) = connected(|config| mock_node::NodeConfig { tps: 100, ..config });
    client.result("eth_chainId", json!([]));
    node.shutdown();
    assert_eq!(client.line(), None);
    assert!(!node.ipc_path().exists());
}
