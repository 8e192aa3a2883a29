//! Invalid input gets the documented error, and nothing of it gets into the pool.

use alloy_consensus::{SignableTransaction, TxEip7702, TxLegacy};
use alloy_eips::eip4844::{Blob, BlobTransactionSidecar, Bytes48};
use alloy_primitives::{TxKind, U256};

use order_pool::{Block, Head};

use super::{blobs::*, *};

/// A transaction with this sidecar and the matching hashes.
fn blob_transaction(blobs: Vec<Blob>, commitments: Vec<Bytes48>, proofs: Vec<Bytes48>) -> String {
    let sidecar = BlobTransactionSidecar::new(blobs, commitments, proofs);
    let hashes = sidecar.versioned_hashes().collect();
    with_sidecar(hashes, sidecar, &PrivateKeySigner::random())
}

/// Asserts that nothing of what was sent is left, and that a valid order is still accepted.
async fn assert_unaffected(server: &Server) {
    assert!(server.pool.is_empty());
    server.wait_until_nothing_is_held().await;
    server.send(transaction()).await.result();
}

/// A transaction with an invalid signature gets another error if a cheaper check fails before.
#[tokio::test]
async fn each_invalid_transaction_is_refused_with_its_reason_and_field() {
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
    let no_chain = TxLegacy { gas_limit: 21_000, to: TxKind::Create, ..Default::default() };
    let gas = |gas_limit| TxEip1559 { gas_limit, ..plain(0) };
    let floor = TxEip1559 { input: vec![1; 100].into(), ..gas(21_000 + 16 * 100) };
    let tip = TxEip1559 { max_priority_fee_per_gas: plain(0).max_fee_per_gas + 1, ..plain(0) };
    let long = TxEip1559 { input: vec![0; 128 << 10].into(), ..gas(1 << 23) };
    let create =
        |length| TxEip1559 { to: TxKind::Create, input: vec![0; length].into(), ..gas(1 << 23) };
    let last_nonce = TxEip1559 { nonce: u64::MAX, ..plain(0) };
    let huge_value = TxEip1559 { value: U256::MAX - U256::from(u128::MAX), ..plain(0) };
    let max_value = TxEip1559 { value: U256::MAX, ..plain(0) };
    let no_authorization = TxEip7702 {
        chain_id: CHAIN,
        gas_limit: 21_000,
        max_fee_per_gas: 1,
        ..TxEip7702::default()
    };
    let mut cut = raw(1);
    cut.truncate(cut.len() - 2);
    // Nobody could propagate a block with a blob transaction whose blobs are missing.
    let with = with_blobs(1).0;
    let without = without_blobs(&with);
    let invalid_params = [json!([]), json!([1]), json!(["0xzz"]), json!({ "tx": "0x02" })];
    let invalid_params = invalid_params.map(|params| (params, "params"));
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
        (hex(&sign(no_authorization, &signer)), "no_authorization"),
        (unsigned(create(49_153)), "init_code_too_large"),
        (unsigned(last_nonce), "nonce_too_high"),
        (unsigned(max_value), "cost_too_high"),
        (unsigned(TxEip1559 { max_fee_per_gas: u128::MAX, ..huge_value }), "cost_too_high"),
        (with_blobs(7).1, "too_many_blobs"),
        (blob_transaction(vec![one], vec![infinity], vec![infinity]), "sidecar"),
        (blob_transaction(vec![zeros], vec![no_point], vec![infinity]), "sidecar"),
        (blob_transaction(vec![zeros], vec![infinity], vec![no_point]), "sidecar"),
        (blob_transaction(vec![zeros], vec![infinity; 2], vec![infinity]), "sidecar"),
        (blob_transaction(vec![], vec![], vec![]), "sidecar"),
        (other_hash, "sidecar"),
    ];
    let in_bundles = cases.iter().map(|(raw, reason)| (json!([{ "txs": [raw] }]), *reason));
    let in_bundles = in_bundles.map(|case| ("eth_sendBundle", "txs[0]", case));
    let alone = cases.iter().map(|(raw, reason)| (json!([raw]), *reason)).chain(invalid_params);
    let alone = alone.map(|case| ("eth_sendRawTransaction", "params[0]", case));
    for (method, field, (params, reason)) in alone.chain(in_bundles) {
        let answer = server.call(method, params.clone()).await;
        assert_eq!(answer.field_error(), (reason, field.to_owned()), "{params:.300}");
        assert_eq!(server.counted.take(reason), 1, "{reason}");
    }
    assert_unaffected(&server).await;
    server.call("eth_sendRawTransaction", json!([signed(create(49_152))])).await.result();
    let valid = json!([blob_transaction(vec![zeros], vec![infinity], vec![infinity])]);
    server.call("eth_sendRawTransaction", valid).await.result();
    server.call("eth_sendBundle", json!([{ "txs": [raw(0), with] }])).await.result();
}

#[tokio::test]
async fn each_invalid_bundle_is_refused_with_its_field() {
    let server = start(config());
    let signer = PrivateKeySigner::random();
    let tx = raw(0);
    let wrong_chain = hex(&sign(TxEip1559 { chain_id: 1, ..plain(0) }, &signer));
    for (bundle, reason, field) in [
        (json!({}), "params", "txs"),
        (json!({ "txs": [tx, "0x02"] }), "undecodable", "txs[1]"),
        (json!({ "txs": [tx, wrong_chain] }), "chain_id", "txs[1]"),
        (json!({ "txs": [tx], "minTimestamp": 2, "maxTimestamp": 1 }), "params", "minTimestamp"),
        (json!({ "txs": [tx], "refundPercent": "0x65" }), "params", "refundPercent"),
        (json!({ "txs": [tx], "replacementNonce": "0x1" }), "params", "replacementNonce"),
        (json!({ "txs": [tx], "replacementUuid": UUID }), "signature", "replacementUuid"),
    ] {
        let answer = server.call("eth_sendBundle", json!([bundle])).await;
        assert_eq!(answer.field_error(), (reason, field.to_owned()));
        assert_eq!(server.counted.take(reason), 1, "{reason}");
    }
    // Without a signature the cancellation has no signer.
    let cancel = server.send(cancellation()).await;
    assert_eq!(cancel.field_error(), ("signature", "replacementUuid".to_owned()));
    assert_unaffected(&server).await;
}

#[tokio::test]
async fn each_invalid_body_gets_an_error_of_the_same_shape() {
    let server = start(OrderRpcConfig { max_body_bytes: 100_000, ..config() });
    let call = transaction();
    let batch = |count: usize| format!("[{}]", vec![call.as_str(); count].join(","));
    let deep = call.replace("[\"", &("[".repeat(10_000) + "\""));
    let deep = deep.replace("\"]", &("\"".to_owned() + &"]".repeat(10_000)));
    let (too_many, no_method) = (batch(101), call.replace("eth_send", "eth_sent"));
    let no_json = ["", "1", "\"\"", "{", "[1", "{} {}", "[1,2,3,]", "nonsense"];
    let no_json = no_json.map(|body| (body.as_bytes(), (400, -32700, "not_json")));
    let cases: [(&[u8], _); 7] = [
        (b"\xff\xfe{}", (400, -32700, "not_json")),
        (b" {}", (400, -32600, "envelope")),
        (b"[]", (400, -32600, "batch_length")),
        (too_many.as_bytes(), (400, -32600, "batch_length")),
        (no_method.as_bytes(), (200, -32601, "method")),
        (deep.as_bytes(), (200, -32602, "params")),
        (&[b' '; 100_001], (413, -32600, "body_too_large")),
    ];
    for (body, expected) in no_json.into_iter().chain(cases) {
        let answer = server.send(body).await;
        let body = String::from_utf8_lossy(&body[..body.len().min(60)]);
        assert_eq!(answer.error(), expected, "{body}");
        assert_eq!(server.counted.take(expected.2), 1, "{body}");
    }
    assert_unaffected(&server).await;
}

/// A caller's own text is repeated truncated, so that unread responses stay short.
#[tokio::test]
async fn every_error_response_is_short_and_has_a_reason() {
    let server = start_at_head();
    let long = "x".repeat(4_700_000);
    let hex = format!("0x{}", "02".repeat(2_000_000));
    let check = async |body: String, code| {
        let answer = server.send(&body).await;
        assert_eq!(answer.error().1, code, "{body:.200}");
        assert!(answer.text.len() < 1_000, "{body:.200}: {} bytes", answer.text.len());
    };
    check(request(&long, json!([])), -32601).await;
    let id = format!("\"id\":\"{long}\"");
    check(transaction().replace("\"id\":1", &id), -32600).await;
    check(request("eth_sendBundle", json!([{ &long: 1 }])), -32602).await;
    check(request("eth_cancelBundle", json!([{ &long: 1 }])), -32602).await;
    check(request("eth_sendRawTransaction", json!([long])), -32602).await;
    for field in
        ["replacementUuid", "version", "uuid", "signingAddress", "refundIdentity", "bundleHash"]
    {
        check(request("eth_sendBundle", json!([{ "txs": [raw(0)], field: long }])), -32602).await;
    }
    let fields = ["tx", "maxBlockNumber", "preferences", "txHash", "version", "signingAddress"];
    for value in [json!(null), json!(1), json!([]), json!({}), json!(true), json!(long), json!(hex)]
    {
        let objects = fields.map(|field| json!([{ field: value }]));
        for params in [value.clone(), json!([value])].into_iter().chain(objects) {
            for method in
                ["sendPrivateTransaction", "sendPrivateRawTransaction", "cancelPrivateTransaction"]
            {
                check(request(&format!("eth_{method}"), params.clone()), -32602).await;
            }
        }
    }
    assert_unaffected(&server).await;
}

/// Megabytes of JSON take milliseconds, in which the thread that reads requests would serve nobody.
#[tokio::test]
async fn a_long_body_is_not_parsed_without_a_work_permit() {
    let gate = impatient_gate_config(Duration::from_millis(10));
    let server = Setup { gate, ..Setup::default() }.limited(|_| {});
    let value = json!("1".repeat(100));
    let fields: serde_json::Map<_, _> =
        (0..50_000).map(|number| (format!("f{number}"), value.clone())).collect();
    let body = request("eth_cancelBundle", json!([fields]));
    assert!((5_000_000..order_rpc::DEFAULT_MAX_BODY_BYTES).contains(&body.len()), "{}", body.len());
    // If this one were parsed, the error would be that its end is missing.
    let cut = &body[..body.len() - 1];
    let held = server.hold_permits();
    let read = server.send(transaction()).await;
    assert_eq!(read.error(), refused(503, "no_permit"));
    assert_eq!(read.json()["id"], 1, "a parsed request is answered with its id");
    for waits in [&body, cut] {
        assert_eq!(server.send(waits).await.error(), refused(503, "no_permit"));
    }
    assert_eq!(server.get("/healthz").await.status, 200);
    drop(held);
    assert_eq!(server.send(cut).await.error().2, "not_json");
    assert_eq!(server.send(body).await.field_error(), ("params", "f0".to_owned()));
}

#[tokio::test]
async fn a_wrong_method_host_or_content_type_gets_an_error_in_json() {
    let host_names = vec!["Builder.example".to_owned()];
    let server = start(OrderRpcConfig { host_names, ..config() });
    assert_eq!(server.get("/nothing").await.error(), (405, -32600, "http"));
    let client = server.client(ONE);
    let upgrade = client.clone().with("upgrade", "websocket").head("GET", "/", 0);
    let answer = client.write(upgrade.replace("close", "close, upgrade")).await;
    assert_eq!(answer.error(), (405, -32600, "http"));
    assert!(answer.text.contains("WebSockets are not served"), "{answer:?}");
    let text = String::from_utf8(client.post(transaction().as_bytes())).unwrap();
    let send_with =
        async |old: &str, new: &str| server.client(ONE).write(text.replace(old, new)).await;
    let refused = send_with("application/json", "text/plain").await;
    assert_eq!(refused.error(), (415, -32600, "http"));
    let host = "host: localhost\r\n";
    // A web page whose name resolves to this server could have its visitors' browsers send orders.
    for other in
        ["evil.example", "localhost.evil.example", "evil.example:80", "", "127.0.0.1.evil.example"]
    {
        let refused = send_with(host, &format!("host: {other}\r\n")).await;
        assert_eq!(refused.error(), (403, -32600, "http"), "{other:?}");
    }
    assert_eq!(send_with(host, &host.repeat(2)).await.status, 403);
    for ours in ["127.0.0.1:8645", "[::1]:8645", "192.0.2.1", "LOCALHOST:1", "builder.example:443"]
    {
        assert_eq!(send_with(host, &format!("host: {ours}\r\n")).await.status, 200, "{ours}");
    }
    assert_eq!(send_with(host, "").await.status, 200, "only browsers always send it");
}

#[tokio::test]
async fn signatures_are_required_optional_or_off() {
    let (signer, other) = (PrivateKeySigner::random(), PrivateKeySigner::random());
    let body = transaction();
    let valid = signature(&signer, body.as_bytes());
    let wrong_body = signature(&signer, b"another");
    let forged = forged(&signer, body.as_bytes(), &other);
    let bad = [wrong_body.as_str(), forged.as_str(), "nonsense", ":", "0x00:0x00"];
    let bad = bad.map(|header| vec![header]).into_iter();
    for signatures in [SignatureMode::Required, SignatureMode::Optional, SignatureMode::Off] {
        let server = start(OrderRpcConfig { signatures, ..config() });
        let is_off = signatures == SignatureMode::Off;
        let needs_none = signatures != SignatureMode::Required;
        let cases = bad.clone().chain([vec![&*valid; 2]]).map(|headers| (headers, is_off));
        for (headers, is_served) in cases.chain([(vec![&*valid], true), (vec![], needs_none)]) {
            let sign = |to: Client, header: &&str| to.with("X-Flashbots-Signature", header);
            let answer = headers.iter().fold(server.client(ONE), sign).send(&body).await;
            if is_served {
                answer.result();
                continue;
            }
            let refused = (401, -32600, "signature");
            assert_eq!(answer.error(), refused, "{signatures:?} {headers:?}");
            assert_eq!(server.counted.take("signature"), 1);
        }
    }
}

#[tokio::test]
async fn a_signature_may_have_either_header_and_a_body_no_encoding() {
    let server = start(config());
    let (one, other) = (PrivateKeySigner::random(), PrivateKeySigner::random());
    let body = cancellation();
    let header = |signer| signature(signer, body.as_bytes());
    let send = async |headers: &[(&str, String)]| {
        let client = server.client(ONE);
        let client = headers.iter().fold(client, |client, (name, value)| client.with(name, value));
        client.send(&body).await
    };
    send(&[("X-BuilderNet-Signature", header(&one))]).await.result();
    let [flashbots, buildernet] = ["X-Flashbots-Signature", "X-BuilderNet-Signature"];
    send(&[(flashbots, header(&one)), (buildernet, header(&one))]).await.result();
    let two = send(&[(flashbots, header(&one)), (buildernet, header(&other))]).await;
    assert_eq!(two.error(), (401, -32600, "signature"));
    let gzip = send(&[("Content-Encoding", "gzip".to_owned())]).await;
    assert_eq!(gzip.error(), (415, -32600, "http"));
    assert!(gzip.text.contains("Content-Encoding is gzip"), "{}", gzip.text);
}

/// The maximum and the intrinsic gas were constants of one fork.
#[tokio::test]
async fn transactions_follow_the_fork_of_the_next_block() {
    let config = OrderRpcConfig { osaka_time: 1_000, amsterdam_time: 2_000, ..config() };
    let server = start(config);
    let gas =
        |gas_limit| hex(&sign(TxEip1559 { gas_limit, ..plain(0) }, &PrivateKeySigner::random()));
    let send = async |gas_limit| {
        let answer = server.call("eth_sendRawTransaction", json!([gas(gas_limit)])).await;
        if answer.json().get("result").is_some() { "pooled" } else { answer.field_error().0 }
    };
    for (number, timestamp, expected) in [
        (1, 500, ["intrinsic_gas", "pooled"]),
        (2, 1_500, ["intrinsic_gas", "gas_limit"]),
        (3, 2_500, ["pooled", "pooled"]),
    ] {
        let hash = B256::with_last_byte(number);
        let parent = B256::with_last_byte(number - 1);
        let head = Head { timestamp, ..Head::new(number.into(), hash, parent) };
        server.pool.on_head(Block::new(head, vec![]));
        assert_eq!([send(20_999).await, send((1 << 24) + 1).await], expected, "{timestamp}");
    }
}
