//! What is wrong is answered with the documented error, and nothing of it gets into the pool.

use alloy_consensus::{SignableTransaction, TxEip1559, TxLegacy};
use alloy_eips::eip4844::{Blob, BlobTransactionSidecar, Bytes48};
use alloy_primitives::{B256, TxKind, U256};
use alloy_signer_local::PrivateKeySigner;
use order_rpc::SignatureMode;
use serde_json::{Value, json};

use super::{blobs::*, common::*, *};

/// A transaction with this sidecar, whose hashes it has.
fn blobs(blobs: Vec<Blob>, commitments: Vec<Bytes48>, proofs: Vec<Bytes48>) -> String {
    let sidecar = BlobTransactionSidecar::new(blobs, commitments, proofs);
    let hashes = sidecar.versioned_hashes().collect();
    with_sidecar(hashes, sidecar, &PrivateKeySigner::random())
}

/// Whoever sends what is right is served all the same.
async fn serves_others(server: &Server) {
    call(server.addr, "eth_sendRawTransaction", json!([raw(0)])).await.result();
}

/// What nobody has signed is not refused for that: its signature was not looked at.
#[tokio::test]
async fn each_bad_transaction_is_refused_alone_and_in_a_bundle_with_its_reason_and_field() {
    let server = start(config());
    let signer = PrivateKeySigner::random();
    let signed = |tx: TxEip1559| hex(&sign(tx, &signer));
    let unsigned = |tx: TxEip1559| {
        let nobody = alloy_primitives::Signature::new(U256::ZERO, U256::ZERO, false);
        hex(&tx.into_signed(nobody).into())
    };
    let right = sidecar(1);
    let (zeros, infinity) = (right.blobs[0], right.proofs[0]);
    let mut one = Blob::ZERO;
    one[31] = 1;
    let mut no_point = infinity;
    no_point[47] = 1;
    let other_hash = with_sidecar(vec![B256::with_last_byte(1)], right, &signer);
    // It has no chain id.
    let no_chain = TxLegacy { gas_limit: 21_000, to: TxKind::Create, ..Default::default() };
    let gas = |gas_limit| TxEip1559 { gas_limit, ..plain(0) };
    let floor = TxEip1559 { input: vec![1; 100].into(), ..gas(21_000 + 16 * 100) };
    let tip = TxEip1559 { max_priority_fee_per_gas: plain(0).max_fee_per_gas + 1, ..plain(0) };
    let long = TxEip1559 { input: vec![0; 128 << 10].into(), ..gas(1 << 23) };
    let mut cut = raw(1);
    cut.truncate(cut.len() - 2);
    // No block with one without its blobs could be sent on: whoever gets the order from the pool gets them with it.
    let (without, with) = without_and_with_blobs();
    let of_alone =
        [json!([]), json!([1]), json!(["0xzz"]), json!(["0x02", "0x02"]), json!({ "tx": "0x02" })];
    let of_alone = of_alone.map(|params| (params, "params"));
    let cases = [
        ("0x".to_owned(), "undecodable"),
        (cut, "undecodable"),
        (raw(1) + "00", "undecodable"),
        (without, "undecodable"),
        (unsigned(plain(0)), "transaction_signature"),
        (unsigned(gas(1 << 24)), "transaction_signature"),
        (signed(TxEip1559 { chain_id: 1, ..plain(0) }), "chain_id"),
        (hex(&sign(no_chain, &signer)), "chain_id"),
        (signed(gas(20_999)), "intrinsic_gas"),
        (signed(floor), "intrinsic_gas"),
        (unsigned(gas((1 << 24) + 1)), "gas_limit"),
        (unsigned(gas(u64::MAX)), "gas_limit"),
        (unsigned(tip), "tip_above_fee"),
        (unsigned(long), "transaction_too_large"),
        (with_blobs(7).1, "too_many_blobs"),
        (blobs(vec![one], vec![infinity], vec![infinity]), "sidecar"),
        (blobs(vec![zeros], vec![no_point], vec![infinity]), "sidecar"),
        (blobs(vec![zeros], vec![infinity], vec![no_point]), "sidecar"),
        (blobs(vec![zeros], vec![infinity; 2], vec![infinity]), "sidecar"),
        (blobs(vec![], vec![], vec![]), "sidecar"),
        (other_hash, "sidecar"),
    ];
    let in_bundles = cases.iter().map(|(raw, reason)| (json!([{ "txs": [raw] }]), *reason));
    let in_bundles = in_bundles.map(|case| ("eth_sendBundle", "txs[0]", case));
    let alone = cases.iter().map(|(raw, reason)| (json!([raw]), *reason)).chain(of_alone);
    let alone = alone.map(|case| ("eth_sendRawTransaction", "params[0]", case));
    for (method, field, (params, reason)) in alone.chain(in_bundles) {
        let answer = call(server.addr, method, params.clone()).await;
        assert_eq!(answer.error(), (200, -32602, reason.to_owned()), "{params:.300}");
        assert_eq!(answer.field(), field, "{params:.300}");
        assert_eq!(server.counted.take(reason), 1, "{reason}");
    }
    assert!(server.pool.is_empty());
    let valid = json!([blobs(vec![zeros], vec![infinity], vec![infinity])]);
    call(server.addr, "eth_sendRawTransaction", valid).await.result();
    call(server.addr, "eth_sendBundle", json!([{ "txs": [raw(0), with] }])).await.result();
}

#[tokio::test]
async fn each_bad_bundle_is_refused_naming_the_field() {
    let server = start(config());
    let signer = PrivateKeySigner::random();
    let tx = raw(0);
    let wrong_chain = hex(&sign(TxEip1559 { chain_id: 1, ..plain(0) }, &signer));
    let cases: Vec<(Value, &str)> = vec![
        (json!({}), "txs"),
        (json!({ "txs": [tx, "0x02"] }), "txs[1]"),
        (json!({ "txs": [tx, wrong_chain] }), "txs[1]"),
        (json!({ "txs": [tx], "minTimestamp": "0x2", "maxTimestamp": "0x1" }), "minTimestamp"),
        (json!({ "txs": [tx], "refundPercent": "0x65" }), "refundPercent"),
        (json!({ "txs": [tx], "replacementNonce": "0x1" }), "replacementNonce"),
        (json!({ "txs": [tx], "replacementUuid": UUID }), "replacementUuid"),
    ];
    for (bundle, field) in cases {
        let answer = call(server.addr, "eth_sendBundle", json!([bundle])).await;
        let (status, code, reason) = answer.error();
        assert_eq!(server.counted.take(&reason), 1, "{reason}");
        assert_eq!((status, code, answer.field().as_str()), (200, -32602, field), "{answer:?}");
    }
    // Not signed, so nobody's.
    let cancel = call(server.addr, "eth_cancelBundle", json!([{ "uuid": UUID }])).await;
    assert_eq!(cancel.error(), (200, -32602, "signature".to_owned()));
    assert_eq!(cancel.field(), "replacementUuid");
    assert!(server.pool.is_empty());
    serves_others(&server).await;
}

#[tokio::test]
async fn each_bad_body_is_refused_in_the_one_shape() {
    let server = start(OrderRpcConfig { max_body_bytes: 100_000, ..config() });
    let call = transaction();
    let batch = |count: usize| format!("[{}]", vec![call.as_str(); count].join(","));
    let no_method = call.replace("eth_send", "eth_sent");
    let deep = call
        .replace("[\"", &("[".repeat(10_000) + "\""))
        .replace("\"]", &("\"".to_owned() + &"]".repeat(10_000)));
    type Expected = (u16, i64, &'static str);
    const NO_JSON: Expected = (400, -32700, "not_json");
    let no_json = ["", "1", "\"\"", "{", "[1", "{} {}", "[1,2,3,]", "nonsense"];
    let no_json = no_json.map(|body| (body.as_bytes(), NO_JSON));
    let cases: [(&[u8], Expected); 7] = [
        (b"\xff\xfe{}", NO_JSON),
        (b" {}", (400, -32600, "envelope")),
        (b"[]", (400, -32600, "batch_length")),
        (&batch(101).into_bytes()[..], (400, -32600, "batch_length")),
        (no_method.as_bytes(), (200, -32601, "method")),
        (deep.as_bytes(), (200, -32602, "params")),
        (&[b' '; 100_001], (413, -32600, "body_too_large")),
    ];
    for (body, (status, code, reason)) in no_json.into_iter().chain(cases) {
        let answer = send(server.addr, body, &[]).await;
        let body = String::from_utf8_lossy(&body[..body.len().min(60)]);
        assert_eq!(answer.error(), (status, code, reason.to_owned()), "{body}");
        assert_eq!(server.counted.take(reason), 1, "{reason}");
    }
    assert!(server.pool.is_empty());
    assert_eq!((server.rpc.buffered_bytes(), server.gate.stats().requests_in_flight), (0, 0));
    serves_others(&server).await;
}

/// What a caller chose is repeated to it cut, so that answers which nobody reads stay short.
#[tokio::test]
async fn an_error_response_is_short_and_has_a_reason_whatever_was_sent() {
    let server = start_at_head();
    let long = "x".repeat(4_700_000);
    let hex = format!("0x{}", "02".repeat(2_000_000));
    let of_bundle =
        ["replacementUuid", "version", "uuid", "signingAddress", "refundIdentity", "bundleHash"];
    let of_private = ["tx", "maxBlockNumber", "preferences", "txHash", "version", "signingAddress"];
    let check = async |body: String, code| {
        let answer = send(server.addr, body.as_bytes(), &[]).await;
        assert_eq!(answer.error().1, code, "{body:.200}");
        assert!(answer.text.len() < 1_000, "{body:.200}: {} bytes", answer.text.len());
    };
    check(request(&long, json!([])), -32601).await;
    let id = format!("\"id\":\"{long}\"");
    check(transaction().replace("\"id\":1", &id), -32600).await;
    for (method, params) in [
        ("eth_sendBundle", json!([{ &long: 1 }])),
        ("eth_cancelBundle", json!([{ &long: 1 }])),
        ("eth_sendRawTransaction", json!([long])),
    ] {
        check(request(method, params), -32602).await;
    }
    for field in of_bundle {
        let params = json!([{ "txs": [raw(0)], field: long }]);
        check(request("eth_sendBundle", params), -32602).await;
    }
    let types = [json!(null), json!(1), json!([]), json!({}), json!(true), json!(long), json!(hex)];
    let methods =
        ["sendPrivateTransaction", "sendPrivateRawTransaction", "cancelPrivateTransaction"];
    for (method, value) in methods.iter().flat_map(|method| types.iter().map(move |v| (method, v)))
    {
        let objects = of_private.map(|field| json!([{ field: value }]));
        for params in [value.clone(), json!([value])].into_iter().chain(objects) {
            check(request(&format!("eth_{method}"), params), -32602).await;
        }
    }
    assert!(server.pool.is_empty());
    server.until_nothing_is_held().await;
    serves_others(&server).await;
}

/// Megabytes of JSON take milliseconds, for which the thread that reads requests serves nobody.
#[tokio::test]
async fn a_long_body_is_not_parsed_without_a_work_permit() {
    let gate = impatient_gate_config(std::time::Duration::from_millis(10));
    let server = start_limited(config(), gate, None, |_| {});
    let value = json!("1".repeat(100));
    let fields: serde_json::Map<_, _> =
        (0..50_000).map(|number| (format!("f{number}"), value.clone())).collect();
    let body = request("eth_cancelBundle", json!([fields]));
    assert!((5_000_000..order_rpc::DEFAULT_MAX_BODY_BYTES).contains(&body.len()), "{}", body.len());
    let held = server.hold_permits();
    let read = send(server.addr, transaction().as_bytes(), &[]).await;
    assert_eq!(read.error(), refused(503, "no_permit"));
    assert_eq!(read.json()["id"], 1, "what was read is answered by its id");
    let waits = send(server.addr, body.as_bytes(), &[]).await;
    assert_eq!(waits.error(), refused(503, "no_permit"));
    // Whoever had parsed this one would know that its end is missing.
    let cut = &body.as_bytes()[..body.len() - 1];
    let waits = send(server.addr, cut, &[]).await;
    assert_eq!(waits.error(), refused(503, "no_permit"));
    assert_eq!(get(server.addr, "/healthz").await.status, 200);
    drop(held);
    assert_eq!(send(server.addr, cut, &[]).await.error().2, "not_json");
    let answer = send(server.addr, body.as_bytes(), &[]).await;
    assert_eq!((answer.error().2.as_str(), answer.field().as_str()), ("params", "f0"));
}

/// Lists and objects of millions of values held the work permit for 50 ms each.
#[tokio::test]
async fn a_body_with_more_values_than_any_request_has_is_not_parsed() {
    let server = start(config());
    for (values, open, close) in [("\"\",", '[', ']'), ("\"f\":1,", '{', '}')] {
        let values = values.repeat(65_537);
        let last = values.split(',').next().unwrap();
        let body = request("eth_sendBundle", json!(["VALUES"]))
            .replace("\"VALUES\"", &format!("{open}{values}{last}{close}"));
        // Without its end it would be no JSON.
        let answer = send(server.addr, &body.as_bytes()[..body.len() - 1], &[]).await;
        assert_eq!(answer.error(), (400, -32600, "envelope".to_owned()));
        assert!(answer.text.contains("commas, the most is 65536"), "{}", answer.text);
    }
}

#[tokio::test]
async fn a_wrong_method_host_or_content_type_is_answered_in_json_too() {
    let host_names = vec!["Builder.example".to_owned()];
    let server = start(OrderRpcConfig { host_names, ..config() });
    let answer = get(server.addr, "/nothing").await;
    assert_eq!(answer.error(), (405, -32600, "http".to_owned()));
    let upgrade =
        head("GET", "/", 0, &[("upgrade", "websocket")]).replace("close", "close, upgrade");
    let answer = send_text(server.addr, &upgrade).await;
    assert_eq!(answer.error(), (405, -32600, "http".to_owned()));
    assert!(answer.text.contains("WebSockets are not served"), "{answer:?}");
    let body = transaction();
    let sent = async |from: &str, to: &str| {
        let text = head("POST", "/", body.len(), &[]).replace(from, to) + &body;
        send_text(server.addr, &text).await
    };
    let refused = sent("application/json", "text/plain").await;
    assert_eq!(refused.error(), (415, -32600, "http".to_owned()));
    let host = "host: localhost\r\n";
    // A page of this name that has its name lead here could send orders by whoever looks at it.
    let twice = host.repeat(2);
    for other in
        ["evil.example", "localhost.evil.example", "evil.example:80", "", "127.0.0.1.evil.example"]
    {
        let refused = sent(host, &format!("host: {other}\r\n")).await;
        assert_eq!(refused.error(), (403, -32600, "http".to_owned()), "{other:?}");
    }
    assert_eq!(sent(host, &twice).await.status, 403);
    for ours in ["127.0.0.1:8645", "[::1]:8645", "192.0.2.1", "LOCALHOST:1", "builder.example:443"]
    {
        assert_eq!(sent(host, &format!("host: {ours}\r\n")).await.status, 200, "{ours}");
    }
    assert_eq!(sent(host, "").await.status, 200, "no browser");
}

#[tokio::test]
async fn signatures_are_required_optional_or_off() {
    let signer = PrivateKeySigner::random();
    let body = transaction();
    let valid = signature(&signer, body.as_bytes());
    let of_another_body = signature(&signer, b"another");
    let claimed = claimed_by(&valid, &PrivateKeySigner::random());
    let bad = [of_another_body.as_str(), claimed.as_str(), "nonsense", ":", "0x00:0x00"];
    for mode in [SignatureMode::Required, SignatureMode::Optional, SignatureMode::Off] {
        let server = start(OrderRpcConfig { signatures: mode, ..config() });
        for header in bad {
            let answer =
                send(server.addr, body.as_bytes(), &[("X-Flashbots-Signature", header)]).await;
            if mode == SignatureMode::Off {
                assert_eq!(answer.status, 200);
            } else {
                let expected = (401, -32600, "signature".to_owned());
                assert_eq!(answer.error(), expected, "{mode:?} {header}");
                assert_eq!(server.counted.take("signature"), 1);
            }
        }
        let twice = [("X-Flashbots-Signature", &*valid), ("X-Flashbots-Signature", &*valid)];
        let twice = send(server.addr, body.as_bytes(), &twice).await;
        assert_eq!(twice.status, if mode == SignatureMode::Off { 200 } else { 401 });
        let none = send(server.addr, body.as_bytes(), &[]).await;
        assert_eq!(none.status, if mode == SignatureMode::Required { 401 } else { 200 });
        let signed = send(server.addr, body.as_bytes(), &[("x-flashbots-signature", &valid)]).await;
        assert!(signed.json()["result"].is_string(), "{mode:?} {signed:?}");
    }
}
