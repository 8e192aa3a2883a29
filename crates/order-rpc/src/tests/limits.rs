//! What is cheap is checked before what is dear, and what was dear is paid for.

use std::time::Instant;

use alloy_primitives::B256;
use alloy_signer_local::PrivateKeySigner;
use order_pool::{Block, Head};
use order_rpc::Quota;
use serde_json::json;

use super::{blobs::*, common::*, *};

/// A searcher sends a bundle anew for each block, and a higher fee is another transaction with the same blobs.
#[tokio::test]
async fn a_blob_that_was_verified_costs_no_proof_in_another_order() {
    // For three blobs and what else there is; 200 for each time that one is sent would be more.
    let server = with_caller_quota(800);
    let (right, wrong) = with_blobs(2);
    let bundle = |tx: &str, block: &str| json!([{ "txs": [raw(0), tx], "blockNumber": block }]);
    let admitted = async |params| {
        let before = server.gate.stats().work_admitted;
        let answer = call(server.addr, "eth_sendBundle", params).await;
        (server.gate.stats().work_admitted - before, answer)
    };
    let (permits, sent) = admitted(bundle(&right, "0x5")).await;
    assert!(sent.json()["result"]["bundleHash"].is_string(), "{sent:?}");
    assert_eq!(permits, 1 + 2, "the senders, and each blob");
    let (permits, sent) = admitted(bundle(&right, "0x6")).await;
    assert!(sent.json()["result"]["bundleHash"].is_string(), "{sent:?}");
    assert_eq!(permits, 1);
    // Another signer's, and with proofs that were not verified.
    let (other, _) = with_blobs(2);
    assert_eq!(admitted(bundle(&other, "0x6")).await.0, 1);
    let (permits, refused) = admitted(bundle(&wrong, "0x7")).await;
    assert_eq!((permits, refused.error().2.as_str()), (1 + 1, "sidecar"));
    assert_eq!(server.pool.len(), 3);
}

/// Whoever waits for a permit gets it between two blobs, and not after the last. Of a transaction that is pooled the
/// proofs are not verified again.
#[tokio::test]
async fn each_blob_is_verified_once_under_a_permit_of_its_own() {
    let server = start(config());
    let (right, wrong) = with_blobs(4);
    let sent = call(server.addr, "eth_sendRawTransaction", json!([right])).await.result();
    // One to read it and to recover its sender.
    assert_eq!(server.gate.stats().work_admitted, 1 + 4);
    // The same hash, since the sidecar is no part of it: with its proofs verified it would be refused.
    let again = call(server.addr, "eth_sendRawTransaction", json!([wrong])).await;
    assert_eq!((again.result(), server.pool.len()), (sent, 1));
    // The first blob is wrong, and the others are not looked at.
    let server = start(config());
    let refused = call(server.addr, "eth_sendRawTransaction", json!([wrong])).await;
    assert_eq!((refused.error().2.as_str(), refused.field().as_str()), ("sidecar", "params[0]"));
    assert_eq!(server.gate.stats().work_admitted, 1 + 1);
    assert!(server.pool.is_empty());
    // In a bundle it is the bundle's.
    let bundle = json!([{ "txs": [raw(0), wrong], "blockNumber": "0x5" }]);
    let refused = call(server.addr, "eth_sendBundle", bundle).await;
    assert_eq!((refused.error().2.as_str(), refused.field().as_str()), ("sidecar", "txs[1]"));
}

#[tokio::test]
async fn a_bundle_for_no_block_to_come_is_refused_before_its_transactions_are_decoded() {
    let server = start(config());
    let head = Head { timestamp: 1_000, ..Head::new(100, B256::repeat_byte(1), B256::ZERO) };
    server.pool.on_head(Block::new(head, vec![]));
    for (field, value, expected) in [
        ("blockNumber", 100, "params"),
        ("blockNumber", 100 + 65, "params"),
        ("blockNumber", 100 + 64, "undecodable"),
        ("maxTimestamp", 1, "params"),
        ("maxTimestamp", 1_000, "params"),
        ("maxTimestamp", 1_001, "undecodable"),
        ("maxTimestamp", 0, "undecodable"),
    ] {
        let bundle = json!([{ "txs": ["0x02"], field: value }]);
        let answer = call(server.addr, "eth_sendBundle", bundle).await;
        let named = if expected == "params" { field } else { "txs[0]" };
        let said = (answer.error().2, answer.field());
        assert_eq!(said, (expected.to_owned(), named.to_owned()), "{value}");
    }
}

/// However many keys a caller makes up, its address pays.
#[tokio::test]
async fn fresh_keys_do_not_evade_the_quota_of_their_address() {
    let server = with_caller_quota(30);
    let send = async || {
        let bundle = json!([{ "txs": [raw(0), raw(1)] }]);
        signed_call(server.addr, &PrivateKeySigner::random(), "eth_sendBundle", bundle).await
    };
    // One for the element, one for the request's signature, two for its transactions.
    for _ in 0..7 {
        send().await.result();
    }
    // One request more for every four seconds that go by.
    let start = Instant::now();
    while send().await.status == 200 {
        assert!(start.elapsed() < PATIENCE, "no quota");
    }
    assert_eq!(server.counted.take("caller_quota"), 1);
    let other = connect_from([127, 0, 0, 2], server.addr).await;
    assert_eq!(send_on(other, transaction().as_bytes(), &[]).await.status, 200);
}

/// A broken body cost nothing, and whoever had no quota left had its bodies parsed all the same.
#[tokio::test]
async fn a_body_is_paid_for_before_it_is_parsed() {
    // For two of 65, one for the request and one for each 16 KiB.
    let server = with_caller_quota(130);
    let broken = vec![b' '; 1 << 20];
    for expected in
        [(400, -32700, "not_json"), (400, -32700, "not_json"), (429, -32005, "caller_quota")]
    {
        let (status, code, reason) = send(server.addr, &broken, &[]).await.error();
        assert_eq!((status, code, reason.as_str()), expected);
    }
    // Nor is anything parsed for a signer without quota.
    let server = with_quota(2);
    let cancel = request("eth_cancelBundle", json!([{ "uuid": UUID }]));
    let header = signature(&PrivateKeySigner::random(), cancel.as_bytes());
    let headers = [("x-flashbots-signature", &*header)];
    // Again if the machine is so slow that some of it has come back.
    for attempt in 0.. {
        send(server.addr, cancel.as_bytes(), &headers).await;
        let answer = send(server.addr, b"{", &headers).await.error();
        if answer == refused(429, "quota") {
            break;
        }
        assert!(attempt < 100 && answer.2 == "not_json", "{answer:?}");
    }
}

/// A body whose end never came cost nothing.
#[tokio::test]
async fn a_request_that_is_given_up_costs_its_head_and_what_has_come_of_its_body() {
    // The first is 64 of them, one for its head and one for each 16 KiB.
    let server = with_caller_quota(70);
    let (mut body, mut given_up) = ((1 << 20, " ".repeat((1 << 20) - 10)), 0);
    while server.counted.reason("caller_quota") == 0 {
        assert!(given_up < 20, "they cost nothing");
        let socket = begin([127, 0, 0, 1], server.addr, (body.0, &body.1), &[]).await;
        let is_read = || server.held()[3] == body.1.len();
        until("it is read", || is_read() || server.counted.reason("caller_quota") > 0).await;
        drop(socket);
        server.until_nothing_is_held().await;
        (body, given_up) = ((100, "{".to_owned()), given_up + 1);
    }
    assert!((5..10).contains(&given_up), "{given_up}");
}

/// A body that nobody could pay for, or that had no room, was read to its end before it was refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_cannot_be_paid_for_or_held_is_refused_before_it_is_sent() {
    let refusal = |server: &Server, length| {
        let addr = server.addr;
        async move { send_text(addr, &head("POST", "/", length, &[])).await.error() }
    };
    let server = start_server(config(), gate_config(64));
    assert_eq!(refusal(&server, (8 << 20) + 1).await, (413, -32600, "body_too_large".to_owned()));
    // For one of 65 units, one for the request and one for each 16 KiB, and 64 more.
    let server = with_caller_quota(129);
    assert_eq!(send(server.addr, &vec![b' '; 1 << 20], &[]).await.error().2, "not_json");
    assert_eq!(refusal(&server, 1 << 20).await, refused(429, "caller_quota"));
    let full = server.gate.request_limit().unwrap();
    let held: Vec<_> = (0..full).map(|_| server.gate.enter(Instant::now()).unwrap()).collect();
    assert_eq!(refusal(&server, 1_000).await, refused(503, "too_many_requests"));
    drop(held);
    // A quarter of the bytes is one caller's.
    let small = OrderRpcConfig { max_buffered_bytes: 4 << 20, max_body_bytes: 1 << 20, ..config() };
    let server = start_server(small, gate_config(64));
    let most = " ".repeat(1_000_000);
    let _held = begin([127, 0, 0, 1], server.addr, (1 << 20, &most), &[]).await;
    until("the body is held", || server.held()[3] >= 1_000_000).await;
    assert_eq!(refusal(&server, 1 << 20).await, refused(429, "caller_buffered_bytes"));
    assert_eq!(server.counted.reason("caller_buffered_bytes"), 1);
    let other = connect_from([127, 0, 0, 2], server.addr).await;
    assert_eq!(send_on(other, transaction().as_bytes(), &[]).await.status, 200);
}

/// A request that no quota could ever pay for was told to come back.
#[test]
fn limits_that_do_not_fit_each_other_are_refused_at_the_start() {
    let quota = |burst| Some(Quota { per_second: 1, burst });
    let needs = "while max_body_bytes is 8388608";
    let cases = [
        (
            OrderRpcConfig { max_buffered_bytes: 1 << 20, ..config() },
            format!("max_buffered_bytes is 1048576, must be at least 8388608 {needs}"),
        ),
        (
            OrderRpcConfig { caller_quota: quota(512), ..config() },
            format!("caller_quota.burst is 512, must be at least 513 {needs}"),
        ),
        (
            OrderRpcConfig { quota: quota(199), ..config() },
            "quota.burst is 199, must be between 200 and 4294967295".to_owned(),
        ),
        // What it did not name a caller for was its own, and so a front's.
        (
            OrderRpcConfig {
                trusted_proxies: vec!["::ffff:127.0.0.1".parse().unwrap()],
                trusted_fronts: vec![[127, 0, 0, 1].into()],
                ..config()
            },
            "::ffff:127.0.0.1 is in trusted_proxies and in trusted_fronts, must be in one"
                .to_owned(),
        ),
    ];
    for (config, expected) in cases {
        assert_eq!(config.validate().unwrap_err().to_string(), expected);
    }
}

/// A bundle costs what its transactions cost, and a refused request costs its signer nothing. Others have quotas of their
/// own.
#[tokio::test]
async fn a_quota_is_spent_by_work_and_not_by_requests() {
    let server = with_quota(1_000);
    let signer = PrivateKeySigner::random();
    let send = |count: u64| {
        let bundle = json!([{ "txs": (0..count).map(raw).collect::<Vec<_>>() }]);
        signed_call(server.addr, &signer, "eth_sendBundle", bundle)
    };
    for _ in 0..100 {
        let malformed = json!([{ "txs": ["0x02"] }]);
        let answer = signed_call(server.addr, &signer, "eth_sendBundle", malformed).await;
        assert_eq!(answer.error().2, "undecodable");
    }
    // 101 of 1,000 each.
    for _ in 0..9 {
        assert_eq!(send(100).await.status, 200);
    }
    let refusal = send(100).await;
    assert_eq!(refusal.error(), refused(429, "quota"));
    assert_eq!(server.counted.reason("quota"), 1);
    // Ten are missing, and one comes back each second.
    assert!(refusal.json()["error"]["data"]["retryAfterMs"].as_u64().unwrap() <= 10_000);
    assert_eq!(send(10).await.status, 200, "there is still some left");
    // A forged claim to be someone spends nothing of theirs.
    let modest = PrivateKeySigner::random();
    let body = request("eth_cancelBundle", json!([{ "uuid": UUID }]));
    let header = claimed_by(&signature(&signer, body.as_bytes()), &modest);
    let forged = [("x-flashbots-signature", &*header)];
    assert_eq!(common::send(server.addr, body.as_bytes(), &forged).await.status, 401);
    assert_eq!(send_signed(server.addr, &modest, &body).await.status, 200);
}

/// Whatever a batch holds, as much of it is done as the quota pays for. All of it together could never pass.
#[tokio::test]
async fn a_batch_that_is_more_than_a_burst_is_served_up_to_the_burst() {
    let server = with_quota(250);
    let bundle = || ("eth_sendBundle", json!({ "txs": (0..100).map(raw).collect::<Vec<_>>() }));
    let (body, signer) = (batch(&[bundle(), bundle(), bundle()]), PrivateKeySigner::random());
    let answers = send_signed(server.addr, &signer, &body).await.json();
    let reasons = [0, 1, 2].map(|n: usize| answers[n]["error"]["data"]["reason"].clone());
    assert_eq!(reasons, [json!(null), json!(null), json!("quota")]);
    assert_eq!(server.pool.len(), 2);
}
