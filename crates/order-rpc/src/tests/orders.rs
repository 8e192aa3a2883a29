//! Orders that are good get into the pool, by each way in.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant, SystemTime},
};

use alloy_primitives::B256;
use alloy_signer_local::PrivateKeySigner;
use order_pool::{Event, OrderPool, PoolConfig};
use serde_json::{Value, json};

use super::{common::*, *};

#[tokio::test]
async fn a_raw_transaction_is_answered_with_its_hash_and_is_in_the_pool() {
    let server = start(config());
    let tx = sign(plain(0), &PrivateKeySigner::random());
    let answer = call(server.addr, "eth_sendRawTransaction", json!([hex(&tx)])).await;
    assert_eq!((answer.status, &answer.json()["result"]), (200, &json!(tx.tx_hash())));
    let order = server.pool.get(tx.tx_hash()).unwrap();
    assert_eq!(order.as_tx().unwrap().origin(), order_pool::Origin::Rpc);
    // Again: it is in the pool, so it is success again, and nobody is told twice.
    let again = call(server.addr, "eth_sendRawTransaction", json!([hex(&tx)])).await;
    assert_eq!(again.json()["result"], json!(tx.tx_hash()));
    assert_eq!(server.pool.len(), 1);
}

#[tokio::test]
async fn a_bundle_is_replaced_and_cancelled_by_its_signer_and_by_nobody_else() {
    let server = start(config());
    let (owner, other) = (PrivateKeySigner::random(), PrivateKeySigner::random());
    let mut events = server.pool.subscribe_all();
    let bundle = |tx: &str, nonce: u64| {
        json!([{ "txs": [tx], "blockNumber": "0x5", "replacementUuid": UUID,
            "replacementNonce": format!("{nonce:#x}") }])
    };
    let cancel = json!([{ "replacementUuid": UUID }]);
    let (first, second) = (raw(0), raw(1));
    let sent = signed_call(server.addr, &owner, "eth_sendBundle", bundle(&first, 1)).await;
    let hash: B256 = serde_json::from_value(sent.json()["result"]["bundleHash"].clone()).unwrap();
    let Some(Event::Added(order)) = events.try_next().unwrap().ok() else { panic!("not added") };
    assert_eq!(order.as_bundle().unwrap().hash(), &hash);
    assert_eq!(order.as_bundle().unwrap().key().unwrap().signer, owner.address());
    // Another's bundle of the same uuid is another bundle, and so is its cancellation.
    signed_call(server.addr, &other, "eth_cancelBundle", cancel.clone()).await.result();
    assert!(server.pool.contains(order.id().hash()), "cancelled by another");
    signed_call(server.addr, &owner, "eth_sendBundle", bundle(&second, 2)).await.result();
    assert!(!server.pool.contains(order.id().hash()));
    let late = signed_call(server.addr, &owner, "eth_sendBundle", bundle(&first, 1)).await;
    assert_eq!(late.error(), (200, -32000, "superseded".to_owned()));
    let cancelled = signed_call(server.addr, &owner, "eth_cancelBundle", cancel).await;
    assert_eq!(cancelled.result(), Value::Null);
    assert!(server.pool.is_empty());
    let after = signed_call(server.addr, &owner, "eth_sendBundle", bundle(&raw(2), 9)).await;
    assert_eq!(after.error().1, -32000, "cancelled permanently");
}

/// Its place is the microsecond of its arrival. No message without effect is answered with success.
#[tokio::test]
async fn after_a_bundle_without_a_nonce_a_small_one_is_refused_and_the_answer_says_above_which() {
    let server = start(config());
    let owner = PrivateKeySigner::random();
    let send = async |method, params| signed_call(server.addr, &owner, method, params).await;
    let bundle = json!([{ "txs": [raw(0)], "blockNumber": "0x5", "replacementUuid": UUID }]);
    send("eth_sendBundle", bundle).await.result();
    let place = {
        let order = server.pool.subscribe_all().try_next().unwrap().unwrap();
        let Event::Added(order) = order else { panic!("not added") };
        order.as_bundle().unwrap().nonce().unwrap()
    };
    assert!(place > 1_700_000_000_000_000, "microseconds: {place}");
    let keyed = |txs: &[String]| json!([{ "txs": txs, "blockNumber": "0x5", "replacementUuid": UUID, "replacementNonce": 5 }]);
    for (method, params) in [
        ("eth_sendBundle", keyed(&[raw(1)])),
        ("eth_sendBundle", keyed(&[])),
        ("eth_cancelBundle", json!([{ "replacementUuid": UUID, "replacementNonce": 5 }])),
    ] {
        let answer = send(method, params).await;
        assert_eq!(answer.error(), (200, -32000, "superseded".to_owned()));
        let message = answer.json()["error"]["message"].to_string();
        let expected = format!("replacementNonce is 5, must be above {place}");
        assert!(message.contains(&expected), "{message}");
        assert_eq!(server.pool.len(), 1);
    }
    let cancel = json!([{ "replacementUuid": UUID, "replacementNonce": place + 1 }]);
    assert_eq!(send("eth_cancelBundle", cancel).await.result(), Value::Null);
    assert!(server.pool.is_empty());
}

/// One that had waited looked later than the cancellation that had overtaken it.
#[tokio::test]
async fn an_order_is_first_seen_when_its_request_arrives_however_long_it_waits() {
    let server = start(config());
    let held = server.hold_permits();
    let bundle = |n| ("eth_sendBundle", json!({ "txs": [raw(n)], "blockNumber": 5 }));
    let (addr, body) = (server.addr, batch(&[bundle(0), bundle(1)]));
    let sent = tokio::spawn(async move { send(addr, body.as_bytes(), &[]).await });
    until("it waits", || server.gate.stats().work_waited == 1).await;
    let waited = SystemTime::now();
    drop(held);
    assert_eq!(sent.await.unwrap().status, 200);
    let pooled = bundles(server.pool.subscribe_all());
    let [first, second] = &pooled[..] else { panic!("{pooled:?}") };
    assert!(first.first_seen() < second.first_seen(), "in their order");
    assert!(second.first_seen() < waited);
}

/// As the README says of replays.
#[tokio::test]
async fn a_copy_of_a_message_without_a_nonce_is_a_later_one_and_with_a_nonce_it_is_not() {
    let owner = PrivateKeySigner::random();
    for is_numbered in [false, true] {
        let server = start(config());
        let message = |txs: &[String], nonce: u64| {
            let nonce = is_numbered.then_some(nonce);
            request(
                "eth_sendBundle",
                json!([{ "txs": txs, "blockNumber": 5, "uuid": UUID, "replacementNonce": nonce }]),
            )
        };
        let [first, second] = [raw(0), raw(1)];
        let (first, second) = (message(&[first], 1), message(&[second], 2));
        let (empty, third) = (message(&[], 3), message(&[raw(2)], 4));
        let mut pooled = Vec::new();
        for body in [&first, &second, &first, &empty, &second, &third, &empty] {
            send_signed(server.addr, &owner, body).await;
            let nonces = bundles(server.pool.subscribe_all());
            pooled.push(nonces.first().map(|bundle| bundle.txs()[0].nonce()));
        }
        let expected = match is_numbered {
            false => [Some(0), Some(1), Some(0), None, Some(1), Some(2), None],
            true => [Some(0), Some(1), Some(1), None, None, Some(2), Some(2)],
        };
        assert_eq!(pooled, expected);
    }
}

/// A block took its transaction so long ago that the pool remembers only that it was here.
#[tokio::test]
async fn a_bundle_that_has_left_is_answered_as_known_and_not_as_pooled() {
    let server = start_on(OrderPool::new(PoolConfig::default()).unwrap(), config());
    server.pool.on_head(block(10, &[]));
    let tx = sign(plain(0), &PrivateKeySigner::random());
    let bundle = json!([{ "txs": [hex(&tx)], "blockNumber": "0xe" }]);
    // Once more while it is pooled.
    for _ in 0..2 {
        call(server.addr, "eth_sendBundle", bundle.clone()).await.result();
    }
    server.pool.on_head(block(11, &[*tx.tx_hash()]));
    let mined = call(server.addr, "eth_sendBundle", bundle.clone()).await;
    assert_eq!(mined.error(), (200, -32000, "mined".to_owned()));
    // So many that the pool forgets the block before.
    let many: Vec<B256> =
        (0..1_u64 << 20).map(|n| B256::left_padding_from(&n.to_be_bytes())).collect();
    server.pool.on_head(block(12, &many));
    let known = call(server.addr, "eth_sendBundle", bundle).await;
    assert_eq!(known.error(), (200, -32000, "known".to_owned()));
    assert!(server.pool.is_empty());
}

#[tokio::test]
async fn what_the_pool_refuses_is_counted_by_its_reason() {
    let counted = Counted::default();
    let pool = metrics::with_local_recorder(&counted, || {
        OrderPool::new(PoolConfig { max_bundles: 1, ..PoolConfig::default() }).unwrap()
    });
    let server = start_on(pool, config());
    server.pool.on_head(block(10, &[]));
    let send = |n| call(server.addr, "eth_sendBundle", json!([{ "txs": [raw(n)] }]));
    send(0).await.result();
    for n in [1, 2] {
        let refused = send(n).await;
        assert!(refused.json()["error"].is_object(), "{refused:?}");
    }
    assert_eq!(counted.of("order_pool_rejected_total", "holder_full"), 2);
    assert_eq!(server.pool.stats().rejected, 2);
    let all = order_pool::RejectReason::ALL;
    let sum: u64 = all.iter().map(|reason| counted.of("order_pool_rejected_total", reason)).sum();
    assert_eq!(sum, 2);
    assert_eq!(counted.of("order_pool_rejected_total", ""), 0, "none without a reason");
}

#[tokio::test]
async fn a_batch_has_an_answer_for_each_element() {
    let server = start(config());
    let (good, bad) = (raw(0), "0x02");
    let batch = json!([
        { "jsonrpc": "2.0", "id": 7, "method": "eth_sendRawTransaction", "params": [good] },
        { "jsonrpc": "2.0", "id": 8, "method": "eth_sendRawTransaction", "params": [bad] },
        { "jsonrpc": "2.0", "id": 9, "method": "no_such", "params": [] },
    ]);
    let answer = send(server.addr, batch.to_string().as_bytes(), &[]).await;
    assert_eq!(answer.status, 200);
    let json = answer.json();
    let by_id = |id: u64| json.as_array().unwrap().iter().find(|one| one["id"] == id).unwrap();
    assert!(by_id(7)["result"].is_string());
    assert_eq!(by_id(8)["error"]["code"], -32602);
    assert_eq!(by_id(9)["error"]["code"], -32601);
    assert_eq!(server.gate.stats().requests_admitted, 3, "each element counts");
    assert_eq!(server.gate.stats().requests_in_flight, 0);
}

#[tokio::test]
async fn health_and_readiness_tell_the_truth() {
    let pool = OrderPool::new(PoolConfig::default()).unwrap();
    let live = Arc::new(AtomicBool::new(false));
    let is_live = Arc::clone(&live);
    let server = Server::start(pool, gate_config(1), None, |host| {
        let host = host.with_sources(move || is_live.load(SeqCst), || false);
        OrderRpc::start(config(), host).unwrap()
    });
    let (addr, gate) = (server.addr, &server.gate);
    assert_eq!(get(addr, "/healthz").await.status, 200);
    let answer = get(addr, "/readyz").await;
    assert_eq!((answer.status, &answer.json()["sourcesLive"]), (503, &json!(false)));
    live.store(true, SeqCst);
    let answer = get(addr, "/readyz").await;
    // A node that does not list its pool is shown, and takes orders all the same.
    assert_eq!((answer.status, &answer.json()["sourcesAudited"]), (200, &json!(false)));
    let now = Instant::now();
    let _held = gate.enter(now).unwrap();
    assert!(gate.enter(now).is_err());
    assert_eq!(get(addr, "/readyz").await.status, 200, "one refusal is no overload");
    for ms in [900, 1_800, 2_000] {
        assert!(gate.enter(now + Duration::from_millis(ms)).is_err());
    }
    let answer = get(addr, "/readyz").await;
    assert_eq!((answer.status, &answer.json()["shedding"]), (503, &json!(true)));
}
