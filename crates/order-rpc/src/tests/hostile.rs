//! Hostile requests of a few lines, against the methods for private transactions and the fields that are
//! accepted and not read.

use alloy_eips::eip2718::Decodable2718;
use alloy_primitives::hex;
use alloy_signer_local::PrivateKeySigner;
use order_pool::PooledTransaction;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use super::{blobs::*, common::*, *};

fn nested(depth: usize) -> String {
    "[".repeat(depth) + &"]".repeat(depth)
}

/// Nothing of it is kept, so what is nested as deep as a body is long is neither a stack nor memory.
#[tokio::test]
async fn what_is_not_read_may_be_as_deep_as_a_body_and_have_as_many_values() {
    let server = start_at_head();
    let deep = nested(1_000_000);
    let long = format!("[{}]", vec!["\"\""; 65_000].join(","));
    for ignored in [deep, long] {
        let raws = [raw(0), raw(1), raw(2)];
        let private = format!(r#"[{{"tx":"{}","preferences":{ignored}}}]"#, raws[0]);
        let private_raw = format!(r#"["{}",{ignored}]"#, raws[1]);
        let bundle = format!(r#"[{{"txs":["{}"],"builders":{ignored}}}]"#, raws[2]);
        for (method, params) in [
            ("eth_sendPrivateTransaction", private),
            ("eth_sendPrivateRawTransaction", private_raw),
            ("eth_sendBundle", bundle),
        ] {
            let body =
                format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
            let answer = send(server.addr, body.as_bytes(), &[]).await;
            assert!(answer.is_success(), "{method}: {:.300}", answer.text);
        }
    }
    assert_eq!(server.pool.len(), 6);
}

/// What one element of a batch sends another one cancels, in their order.
#[tokio::test]
async fn a_batch_may_send_and_cancel_the_same_private_transaction_again_and_again() {
    let server = start_at_head();
    let signer = PrivateKeySigner::random();
    let tx = sign(plain(0), &signer);
    let pair = [
        ("eth_sendPrivateTransaction", json!({ "tx": common::hex(&tx) })),
        ("eth_cancelPrivateTransaction", json!({ "txHash": tx.tx_hash() })),
    ];
    let answers = send_signed(server.addr, &signer, &batch(&vec![pair; 25].concat())).await.json();
    assert!((0..50).all(|n| answers[n].get("result").is_some()), "{answers}");
    assert!(server.pool.is_empty());
    assert_eq!((server.pool.stats().inserted, server.pool.stats().cancelled), (25, 25));
}

/// An order whose blobs were to be verified was pooled after what stood behind it.
#[tokio::test]
async fn no_element_of_a_batch_overtakes_an_order_with_blobs() {
    let server = start_at_head();
    let signer = PrivateKeySigner::random();
    let (blobs, later, pooled) = (with_blobs(1).0, raw(0), sign(plain(1), &signer));
    let bundle = |tx: &str| {
        ("eth_sendBundle", json!({ "txs": [tx], "blockNumber": 105, "replacementUuid": UUID }))
    };
    let send_private = |tx: &str| ("eth_sendPrivateTransaction", json!({ "tx": tx }));
    let cancel = |hash: &Value| ("eth_cancelPrivateTransaction", json!({ "txHash": hash }));
    let all_done = |answers: &Value| {
        answers.as_array().unwrap().iter().all(|answer| answer.get("result").is_some())
    };

    let send_batch =
        async |calls: &[_]| send_signed(server.addr, &signer, &batch(calls)).await.json();
    let answers = send_batch(&[bundle(&blobs), bundle(&later)]).await;
    assert!(all_done(&answers), "{answers}");
    let hashes: Vec<_> = bundles(server.pool.subscribe_all()).iter().map(|b| *b.hash()).collect();
    assert_eq!(json!(hashes), json!([answers[1]["result"]["bundleHash"]]));

    // Each has a blob that was not verified before.
    let blobs = with_blobs(2).0;
    let decoded = PooledTransaction::decode_2718_exact(&hex::decode(&blobs).unwrap()).unwrap();
    let calls = [send_private(&blobs), cancel(&json!(decoded.tx_hash()))];
    let answers = send_batch(&calls).await;
    assert!(all_done(&answers), "{answers}");
    assert_eq!((server.pool.len(), server.pool.stats().cancelled), (1, 1));

    // The first send is answered as pooled; the second must not be, since it is cancelled before.
    let (raw, hash) = (common::hex(&pooled), json!(pooled.tx_hash()));
    let sent = send_batch(&[send_private(&raw)]).await;
    assert!(all_done(&sent), "{sent}");
    let calls = [send_private(&with_blobs(3).0), cancel(&hash), send_private(&raw)];
    let answers = send_batch(&calls).await;
    assert!(all_done(&answers), "{answers}");
    assert!(server.pool.contains(pooled.tx_hash()), "success means that it is pooled");
}

/// Whoever closes its side while the server works is answered, or lets the work end: nothing stays held.
#[tokio::test]
async fn half_open_connections_leave_nothing_behind() {
    let server = start_at_head();
    let cancel = json!([{ "replacementUuid": UUID }]);
    for (method, params) in [
        ("eth_sendPrivateTransaction", json!([{ "tx": raw(0) }])),
        ("eth_sendPrivateRawTransaction", json!([raw(1)])),
        ("eth_cancelBundle", cancel),
    ] {
        let body = request(method, params);
        let text = head("POST", "/", body.len(), &[]) + &body;
        for cut in [text.len(), text.len() - 1, text.len() - body.len(), 10] {
            let mut socket = tokio::net::TcpStream::connect(server.addr).await.unwrap();
            socket.write_all(&text.as_bytes()[..cut]).await.unwrap();
            socket.shutdown().await.unwrap();
            drop(socket);
        }
    }
    server.until_nothing_is_held().await;
    assert!(call(server.addr, "eth_sendRawTransaction", json!([raw(2)])).await.is_success());
}
