//! Valid orders get into the pool, by each method.

use std::{
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    time::SystemTime,
};

use order_pool::{DesiredState, Origin, RejectReason, StateTarget};

use super::{blobs::*, *};

#[tokio::test]
async fn a_raw_transaction_is_pooled_and_answered_with_its_hash() {
    let server = start(config());
    let tx = sign(plain(0), &PrivateKeySigner::random());
    // The second time it is in the pool already, so the call succeeds without a second order.
    for _ in 0..2 {
        let answer = server.call("eth_sendRawTransaction", json!([hex(&tx)])).await;
        assert_eq!((answer.status, answer.hash()), (200, *tx.tx_hash()));
        let order = server.pool.get(tx.tx_hash()).unwrap();
        assert_eq!(order.as_tx().unwrap().origin(), Origin::Rpc);
        assert_eq!(server.pool.len(), 1);
    }
    // The hash does not cover the sidecar. If the wrong proofs were verified the order would be
    // refused.
    let (right, wrong) = with_blobs(1);
    let sent = server.call("eth_sendRawTransaction", json!([right])).await.result();
    let again = server.call("eth_sendRawTransaction", json!([wrong])).await;
    assert_eq!((again.result(), server.pool.len()), (sent, 2));
}

/// A bundle of these transactions with [`UUID`].
fn keyed_bundle(txs: &[&String], nonce: Option<u64>) -> Value {
    json!([{ "txs": txs, "blockNumber": 5, "replacementUuid": UUID, "replacementNonce": nonce }])
}

#[tokio::test]
async fn a_bundle_is_replaced_and_cancelled_only_by_its_signer() {
    let server = start(config());
    let owner = PrivateKeySigner::random();
    let send = async |tx: &String, nonce| {
        server.signed(&owner).call("eth_sendBundle", keyed_bundle(&[tx], Some(nonce))).await
    };
    let (first, second) = (raw(0), raw(1));
    let sent = send(&first, 1).await.result();
    let order = bundles(server.pool.subscribe_all()).remove(0);
    assert_eq!(json!(order.hash()), sent["bundleHash"]);
    assert_eq!(order.key().unwrap().signer, owner.address());
    // The same uuid of another signer is another key, also for a cancellation.
    let other = PrivateKeySigner::random();
    server.signed(&other).send(cancellation()).await.result();
    assert!(server.pool.contains(order.id()), "cancelled by another");
    send(&second, 2).await.result();
    assert!(!server.pool.contains(order.id()));
    assert_eq!(send(&first, 1).await.error(), (200, -32000, "superseded"));
    let cancelled = server.signed(&owner).send(cancellation()).await;
    assert_eq!(cancelled.result(), Value::Null);
    assert!(server.pool.is_empty());
    assert_eq!(send(&raw(2), 9).await.error().1, -32000, "cancelled permanently");
}

/// Its nonce is the microsecond of its arrival. A message without effect is not answered with
/// success.
#[tokio::test]
async fn after_a_bundle_without_a_nonce_a_small_one_is_superseded() {
    let server = start(config());
    let owner = server.signed(&PrivateKeySigner::random());
    let send = async |method, params| owner.clone().call(method, params).await;
    send("eth_sendBundle", keyed_bundle(&[&raw(0)], None)).await.result();
    let nonce = bundles(server.pool.subscribe_all())[0].nonce().unwrap();
    assert!(nonce > 1_700_000_000_000_000, "microseconds: {nonce}");
    for (method, params) in [
        ("eth_sendBundle", keyed_bundle(&[&raw(1)], Some(5))),
        ("eth_sendBundle", keyed_bundle(&[], Some(5))),
        ("eth_cancelBundle", json!([{ "replacementUuid": UUID, "replacementNonce": 5 }])),
    ] {
        let answer = send(method, params).await;
        assert_eq!(answer.error(), (200, -32000, "superseded"));
        let expected = format!("replacementNonce is 5, must be above {nonce}");
        assert!(answer.text.contains(&expected), "{answer:?}");
        assert_eq!(server.pool.len(), 1);
    }
    let cancel = json!([{ "replacementUuid": UUID, "replacementNonce": nonce + 1 }]);
    assert_eq!(send("eth_cancelBundle", cancel).await.result(), Value::Null);
    assert!(server.pool.is_empty());
}

/// An order that had waited looked later than the cancellation that had overtaken it.
#[tokio::test]
async fn an_order_is_first_seen_when_its_request_arrives() {
    let server = start(config());
    let held = server.hold_permits();
    let bundle = |n| ("eth_sendBundle", json!({ "txs": [raw(n)], "blockNumber": 5 }));
    let sent = tokio::spawn(server.client(ONE).send(batch(&[bundle(0), bundle(1)])));
    wait_until("the request waits", || server.gate.stats().work_waited == 1).await;
    let waited = SystemTime::now();
    drop(held);
    assert_eq!(sent.await.unwrap().status, 200);
    let pooled = bundles(server.pool.subscribe_all());
    let [first, second] = &pooled[..] else { panic!("{pooled:?}") };
    assert!(first.first_seen() < second.first_seen(), "in their order");
    assert!(second.first_seen() < waited);
}

/// This is what the README states about replays.
#[tokio::test]
async fn only_a_copied_message_without_a_nonce_counts_as_later() {
    let owner = PrivateKeySigner::random();
    for (is_numbered, expected) in [
        (false, [Some(0), Some(1), Some(0), None, Some(1), Some(2), None]),
        (true, [Some(0), Some(1), Some(1), None, None, Some(2), Some(2)]),
    ] {
        let server = start(config());
        let message = |txs: &[&String], nonce: u64| {
            request("eth_sendBundle", keyed_bundle(txs, is_numbered.then_some(nonce)))
        };
        let (first, second) = (message(&[&raw(0)], 1), message(&[&raw(1)], 2));
        let (empty, third) = (message(&[], 3), message(&[&raw(2)], 4));
        let mut pooled = Vec::new();
        for body in [&first, &second, &first, &empty, &second, &third, &empty] {
            server.signed(&owner).send(body).await;
            let nonces = bundles(server.pool.subscribe_all());
            pooled.push(nonces.first().map(|bundle| bundle.txs()[0].nonce()));
        }
        assert_eq!(pooled, expected);
    }
}

/// Its transaction was mined so long ago that the pool only remembers that it had the bundle.
#[tokio::test]
async fn a_bundle_that_was_removed_is_answered_as_known() {
    let server = start(config());
    server.pool.on_head(block(10, &[]));
    let tx = sign(plain(0), &PrivateKeySigner::random());
    let bundle = request("eth_sendBundle", json!([{ "txs": [hex(&tx)], "blockNumber": "0xe" }]));
    // The second time it is in the pool already.
    for _ in 0..2 {
        server.send(&bundle).await.result();
    }
    server.pool.on_head(block(11, &[*tx.tx_hash()]));
    assert_eq!(server.send(&bundle).await.error(), (200, -32000, "mined"));
    // So many hashes that the pool forgets those of the block before.
    let many: Vec<B256> =
        (0..1_u64 << 20).map(|n| B256::left_padding_from(&n.to_be_bytes())).collect();
    server.pool.on_head(block(12, &many));
    assert_eq!(server.send(&bundle).await.error(), (200, -32000, "known"));
    assert!(server.pool.is_empty());
}

#[tokio::test]
async fn orders_that_the_pool_rejects_are_counted_by_reason() {
    let pool = configured(PoolConfig::default(), |config| config.max_bundles = 1);
    let (server, counted) = Counted::record(|| Setup { pool, ..Setup::default() }.limited(|_| {}));
    server.pool.on_head(block(10, &[]));
    let send = |n| server.call("eth_sendBundle", json!([{ "txs": [raw(n)] }]));
    send(0).await.result();
    for n in [1, 2] {
        send(n).await.error();
    }
    let rejected = |reason| counted.sum("order_pool_rejected_total", reason);
    assert_eq!((rejected("holder_full"), server.pool.stats().rejected), (2, 2));
    assert_eq!(RejectReason::ALL.map(rejected).iter().sum::<u64>(), 2);
    assert_eq!(rejected(""), 0, "every rejection has a reason");
}

/// An order that waited for its blob proofs was pooled after the elements behind it.
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

    // Each of the next orders has a blob that was not verified before.
    let blobs = with_blobs(2).0;
    send_batch(&[send_private(&blobs), cancel(&hash_of(&blobs))]).await;
    assert_eq!((server.pool.len(), server.pool.stats().cancelled), (1, 1));

    // The transaction is pooled before the batch, but the batch cancels it before it sends it
    // again.
    let pooled = hex(&sign(plain(1), &signer));
    send_batch(&[send_private(&pooled)]).await;
    let hash = hash_of(&pooled);
    send_batch(&[send_private(&with_blobs(3).0), cancel(&hash), send_private(&pooled)]).await;
    assert!(server.pool.contains(&hash), "success means that the order is in the pool");
}

#[tokio::test]
async fn readiness_follows_the_sources_publishing_and_the_load() {
    let pool = OrderPool::new(PoolConfig::default()).unwrap();
    let live = Arc::new(AtomicBool::new(false));
    let is_live = Arc::clone(&live);
    let published = Arc::new(AtomicBool::new(true));
    let is_published = Arc::clone(&published);
    let server = Server::start(pool, gate_config(1), None, |host| {
        let host = host.with_sources(move || is_live.load(SeqCst), || false);
        let host = host.with_publishing(move || is_published.load(SeqCst));
        OrderRpc::start(config(), host).unwrap()
    });
    let readiness = async |field: &str| {
        let answer = server.get("/readyz").await;
        (answer.status, answer.json()[field].as_bool())
    };
    assert_eq!(server.get("/healthz").await.status, 200);
    assert_eq!(readiness("sourcesLive").await, (503, Some(false)));
    live.store(true, SeqCst);
    // A source that cannot be audited is shown, and does not change the status.
    assert_eq!(readiness("sourcesAudited").await, (200, Some(false)));
    published.store(false, SeqCst);
    assert_eq!(readiness("published").await, (503, Some(false)));
    published.store(true, SeqCst);
    assert_eq!(readiness("published").await, (200, Some(true)));
    let now = Instant::now();
    let _held = server.gate.enter(now).unwrap();
    let refuse = |ms| assert!(server.gate.enter(now + Duration::from_millis(ms)).is_err());
    refuse(0);
    assert_eq!(readiness("shedding").await, (200, Some(false)), "one refusal is no overload");
    [900, 1_800, 2_000].into_iter().for_each(refuse);
    assert_eq!(readiness("shedding").await, (503, Some(true)));
}

/// A machine that was cut off from its servers answered 51 of 60 bundles with success, and none of
/// them reached a builder.
#[tokio::test]
async fn with_refuse_unpublished_an_unpublishable_order_is_refused() {
    for refuse_unpublished in [false, true] {
        let pool = OrderPool::new(PoolConfig::default()).unwrap();
        let server = Server::start(pool, gate_config(1), None, |host| {
            let config = OrderRpcConfig { refuse_unpublished, ..config() };
            OrderRpc::start(config, host.with_publishing(|| false)).unwrap()
        });
        let answer = server.client(ONE).call("eth_sendRawTransaction", json!([raw(0)])).await;
        if refuse_unpublished {
            assert_eq!(answer.error(), (503, -32005, "not_published"));
        } else {
            answer.result();
        }
        assert_eq!(server.pool.len(), usize::from(!refuse_unpublished));
        // A call that only reads has nothing to publish.
        server.pool.on_head(block(100, &[]));
        assert_eq!(server.call("eth_blockNumber", json!([])).await.result(), "0x64");
        assert_eq!(server.call("net_version", json!([])).await.result(), CHAIN.to_string());
    }
}

/// ethers calls `eth_blockNumber` with each broadcast, and threw an error for an order that was in
/// the pool.
#[tokio::test]
async fn clients_get_the_head_and_the_chain_id() {
    let server = start(config());
    let ask = async |method: &str| server.call(method, json!([])).await;
    assert_eq!(ask("eth_blockNumber").await.error(), refused(503, "head_unknown"));
    server.pool.on_head(block(100, &[]));
    assert_eq!(ask("eth_blockNumber").await.result(), "0x64");
    assert_eq!(ask("eth_chainId").await.result(), format!("{CHAIN:#x}"));
    assert_eq!(ask("net_version").await.result(), CHAIN.to_string());
    // viem sends no parameters.
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "eth_blockNumber" }).to_string();
    assert_eq!(server.send(body).await.result(), "0x64");
    assert_eq!(server.call("eth_chainId", json!([1])).await.field_error().0, "params");
    let batch = json!([
        { "jsonrpc": "2.0", "id": 1, "method": "eth_blockNumber", "params": [] },
        { "jsonrpc": "2.0", "id": 2, "method": "eth_sendRawTransaction", "params": [raw(0)] },
    ]);
    assert_eq!(server.send(batch.to_string()).await.reasons(), [None, None]);
    assert_eq!(server.pool.len(), 1);
}

/// BuilderNet's reference defines it so, and rbuilder parses it so.
#[tokio::test]
async fn a_block_number_without_digits_is_the_next_block() {
    let server = start_at_head();
    let bundle = json!([{ "txs": [raw(0)], "blockNumber": "0x" }]);
    server.call("eth_sendBundle", bundle).await.result();
    assert_eq!(bundles(server.pool.subscribe_all())[0].block(), Some(101));
}

#[tokio::test]
async fn documented_fields_of_other_builders_have_their_meaning() {
    let server = start_at_head();
    let client = server.signed(&PrivateKeySigner::random());
    let send = async |more: Value| {
        let first = sign(plain(0), &PrivateKeySigner::random());
        let txs = [hex(&first), raw(1)];
        let mut bundle = json!({ "txs": txs, "replacementUuid": UUID, "refundPercent": 50 });
        bundle.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        (*first.tx_hash(), client.clone().call("eth_sendBundle", json!([bundle])).await)
    };
    let (hash, sent) = send(json!({ "replacementSeqNumber": 7, "refundIndex": 0 })).await;
    sent.result();
    let pooled = bundles(server.pool.subscribe_all());
    let parts = pooled[0].parts();
    assert_eq!((parts.replacement_nonce, &parts.refund_tx_hashes), (Some(7), &vec![hash]));
    let (_, older) = send(json!({ "replacementSeqNumber": 6 })).await;
    assert_eq!(older.error().2, "superseded");
    for (more, field) in [
        (json!({ "replacementSeqNumber": 8, "replacementNonce": 9 }), "replacementSeqNumber"),
        (json!({ "refundIndex": 2 }), "refundIndex"),
        (json!({ "refundIndex": 0, "refundTxHashes": [B256::ZERO] }), "refundIndex"),
        (json!({ "version": "v1", "refundPercent": null, "refundIndex": 0 }), "refundIndex"),
        (json!({ "targetSlot": 1 }), "targetSlot"),
        (json!({ "desiredState": "TopOfBlock" }), "desiredState"),
        (json!({ "targetSlots": [["0x1"]] }), "targetSlots"),
        (json!({ "targetAddresses": ["0x1"] }), "targetAddresses"),
        (
            json!({ "version": "v1", "refundPercent": null, "targetAddresses": [Address::ZERO] }),
            "targetAddresses",
        ),
    ] {
        assert_eq!(send(more).await.1.field_error(), ("params", field.to_owned()));
    }
    let target = Address::repeat_byte(4);
    let placed = json!({ "version": "v2", "replacementSeqNumber": 8,
        "desiredState": "BottomOfBlock", "targetAddresses": [target], "targetSlots": [["0x5"]] });
    send(placed).await.1.result();
    let pooled = bundles(server.pool.subscribe_all());
    let placed = pooled.iter().find(|bundle| bundle.nonce() == Some(8)).unwrap().parts();
    assert_eq!(placed.desired_state, Some(DesiredState::BottomOfBlock));
    let slots = vec![B256::with_last_byte(5)];
    assert_eq!(placed.targets, [StateTarget { address: target, slots }]);
    send(json!({ "privacy": { "hints": ["hash"] } })).await.1.result();
    assert_eq!(server.counted.sum("order_rpc_ignored_fields_total", "privacy"), 1);
}
