//! Hostile requests: to the methods for private transactions, and in fields that are not read.

use super::{blobs::*, *};

/// Nothing of it is kept, so what is nested as deep as a body is long is neither a stack nor memory.
#[tokio::test]
async fn what_is_not_read_may_be_as_deep_as_a_body_and_have_as_many_values() {
    let server = start_at_head();
    let deep = "[".repeat(1_000_000) + &"]".repeat(1_000_000);
    let long = format!("[{}]", vec!["\"\""; 65_000].join(","));
    for ignored in [deep, long] {
        for (method, params) in [
            (
                "eth_sendPrivateTransaction",
                format!(r#"[{{"tx":"{}","preferences":{ignored}}}]"#, raw(0)),
            ),
            ("eth_sendPrivateRawTransaction", format!(r#"["{}",{ignored}]"#, raw(1))),
            ("eth_sendBundle", format!(r#"[{{"txs":["{}"],"builders":{ignored}}}]"#, raw(2))),
        ] {
            let answer = server.send(request(method, json!(null)).replace("null", &params)).await;
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
        ("eth_sendPrivateTransaction", json!({ "tx": hex(&tx) })),
        ("eth_cancelPrivateTransaction", json!({ "txHash": tx.tx_hash() })),
    ];
    let answer = server.signed(&signer).send(batch(&vec![pair; 25].concat())).await;
    assert_eq!(answer.reasons(), [None; 50]);
    assert!(server.pool.is_empty());
    assert_eq!((server.pool.stats().inserted, server.pool.stats().cancelled), (25, 25));
}

/// An order whose blobs were to be verified was pooled after what stood behind it.
#[tokio::test]
async fn no_element_of_a_batch_overtakes_an_order_with_blobs() {
    let server = start_at_head();
    let signer = PrivateKeySigner::random();
    let bundle = |tx: &str| {
        ("eth_sendBundle", json!({ "txs": [tx], "blockNumber": 105, "replacementUuid": UUID }))
    };
    let send_private = |tx: &str| ("eth_sendPrivateTransaction", json!({ "tx": tx }));
    let cancel = |hash: &B256| ("eth_cancelPrivateTransaction", json!({ "txHash": hash }));
    let send_batch = async |calls: &[_]| {
        let answer = server.signed(&signer).send(batch(calls)).await;
        assert_eq!(answer.reasons(), vec![None; calls.len()]);
        answer.json()
    };

    let answers = send_batch(&[bundle(&with_blobs(1).0), bundle(&raw(0))]).await;
    let hashes: Vec<_> = bundles(server.pool.subscribe_all()).iter().map(|b| *b.hash()).collect();
    assert_eq!(json!(hashes), json!([answers[1]["result"]["bundleHash"]]));

    // Each has a blob that was not verified before.
    let blobs = with_blobs(2).0;
    send_batch(&[send_private(&blobs), cancel(&hash_of(&blobs))]).await;
    assert_eq!((server.pool.len(), server.pool.stats().cancelled), (1, 1));

    // The first send is answered as pooled; the second must not be, since it is cancelled before.
    let pooled = hex(&sign(plain(1), &signer));
    send_batch(&[send_private(&pooled)]).await;
    let hash = hash_of(&pooled);
    send_batch(&[send_private(&with_blobs(3).0), cancel(&hash), send_private(&pooled)]).await;
    assert!(server.pool.contains(&hash), "success means that it is pooled");
}

/// Whoever closes its side while the server works is answered, or lets the work end: nothing stays held.
#[tokio::test]
async fn half_open_connections_leave_nothing_behind() {
    let server = start_at_head();
    for body in [
        request("eth_sendPrivateTransaction", json!([{ "tx": raw(0) }])),
        request("eth_sendPrivateRawTransaction", json!([raw(1)])),
        cancellation(),
    ] {
        let text = server.from(ONE).post(body.as_bytes());
        for cut in [text.len(), text.len() - 1, text.len() - body.len(), 10] {
            let mut socket = server.from(ONE).connect().await;
            socket.write_all(&text[..cut]).await.unwrap();
            socket.shutdown().await.unwrap();
        }
    }
    server.until_nothing_is_held().await;
    server.send(transaction()).await.result();
}
