//! Private transactions by JSON-RPC: sent, kept until a block, cancelled by their signer.

use crate::methods::MAX_PRIVATE_BLOCKS;
use alloy_primitives::B256;
use alloy_signer_local::PrivateKeySigner;
use order_pool::{OrderPool, Origin, PoolConfig};
use serde_json::{Value, json};

use super::{common::*, *};

const HEAD: u64 = 100;

/// The hash that was answered, as that of a pooled private transaction, and its last block.
fn sent(server: &Server, answer: &Answer) -> (B256, u64) {
    let hash = answer.json()["result"].as_str().unwrap_or_else(|| panic!("{answer:?}")).parse();
    let hash = hash.unwrap();
    let order = server.pool.get(&hash).expect("success means that it is pooled");
    let tx = order.as_tx().unwrap();
    assert_eq!((tx.origin(), tx.is_public()), (Origin::Private, false));
    (hash, tx.private_terms().unwrap().max_block)
}

#[tokio::test]
async fn the_last_block_of_a_private_transaction_is_at_most_25_above_the_head() {
    let server = start_at_head();
    let most = HEAD + MAX_PRIVATE_BLOCKS;
    assert_eq!(MAX_PRIVATE_BLOCKS, 25);
    let cases = [
        (json!(null), most),
        (json!(HEAD + 1), HEAD + 1),
        (json!(format!("{:#x}", HEAD + 3)), HEAD + 3),
        (json!(most), most),
        (json!(most + 1), most),
        (json!(u64::MAX), most),
        (json!("0x2540BE400"), most),
    ];
    for (wanted, expected) in cases {
        let params = json!([{ "tx": raw(0), "maxBlockNumber": wanted }]);
        let answer = call(server.addr, "eth_sendPrivateTransaction", params).await;
        assert_eq!(sent(&server, &answer).1, expected, "{wanted}");
    }
    let params = json!([{ "tx": raw(0) }]);
    let absent = call(server.addr, "eth_sendPrivateTransaction", params).await;
    assert_eq!(sent(&server, &absent).1, most);
    for passed in [json!(HEAD), json!("0x0")] {
        let params = json!([{ "tx": raw(0), "maxBlockNumber": passed }]);
        let answer = call(server.addr, "eth_sendPrivateTransaction", params).await;
        assert_eq!(answer.error(), (200, -32602, "params".to_owned()));
        assert_eq!(answer.field(), "maxBlockNumber");
    }
    server.pool.on_head(block(most, &[]));
    assert!(server.pool.is_empty());
}

#[tokio::test]
async fn preferences_are_accepted_and_other_fields_are_refused_by_name() {
    let server = start_at_head();
    let preferences = json!({ "fast": true, "privacy": { "hints": ["hash"], "builders": ["x"] } });
    for preferences in [json!(null), json!({}), preferences] {
        let params = json!([{ "tx": raw(0), "preferences": preferences }]);
        let answer = call(server.addr, "eth_sendPrivateTransaction", params).await;
        sent(&server, &answer);
        let params = json!([raw(0), preferences]);
        let answer = call(server.addr, "eth_sendPrivateRawTransaction", params).await;
        assert_eq!(sent(&server, &answer).1, HEAD + MAX_PRIVATE_BLOCKS);
    }
    let answer = call(server.addr, "eth_sendPrivateRawTransaction", json!([raw(0)])).await;
    sent(&server, &answer);
    let object = "eth_sendPrivateTransaction";
    let raw_one = "eth_sendPrivateRawTransaction";
    let cancel = "eth_cancelPrivateTransaction";
    let cases: [(&str, Value, &str); 8] = [
        (object, json!([{}]), "tx"),
        (object, json!([{ "tx": "0x02" }]), "tx"),
        (object, json!([{ "tx": raw(0), "maxBlock": 5 }]), "maxBlock"),
        (object, json!([]), "params[0]"),
        (raw_one, json!([]), "params[0]"),
        (raw_one, json!([raw(0), {}, 5]), "params[0]"),
        (raw_one, json!([5]), "params[0]"),
        (cancel, json!([{}]), "txHash"),
    ];
    for (method, params, field) in cases {
        let answer = call(server.addr, method, params.clone()).await;
        assert_eq!((answer.error().1, answer.field()), (-32602, field.to_owned()), "{params}");
    }
}

#[tokio::test]
async fn a_private_transaction_is_cancelled_by_its_signer_alone_and_never_once_it_is_public() {
    let server = start_at_head();
    let (owner, other) = (PrivateKeySigner::random(), PrivateKeySigner::random());
    let send = async |nonce| {
        let params = json!([{ "tx": raw(nonce) }]);
        let answer = signed_call(server.addr, &owner, "eth_sendPrivateTransaction", params).await;
        sent(&server, &answer).0
    };
    let cancel = async |signer: Option<&PrivateKeySigner>, hash: B256| {
        let params = json!([{ "txHash": hash }]);
        match signer {
            Some(signer) => {
                signed_call(server.addr, signer, "eth_cancelPrivateTransaction", params).await
            }
            None => call(server.addr, "eth_cancelPrivateTransaction", params).await,
        }
    };
    let hash = send(0).await;
    let unsigned = cancel(None, hash).await;
    assert_eq!(unsigned.error(), (200, -32602, "signature".to_owned()));
    assert_eq!(unsigned.field(), "txHash");
    let unknown = (200, -32000, "unknown_private".to_owned());
    assert_eq!(cancel(Some(&other), hash).await.error(), unknown);
    assert!(server.pool.contains(&hash));
    assert_eq!(cancel(Some(&owner), hash).await.json()["result"], true);
    assert!(!server.pool.contains(&hash));
    assert_eq!(cancel(Some(&owner), hash).await.error(), unknown);

    let hash = send(1).await;
    let order = server.pool.get(&hash).unwrap();
    let tx = order.as_tx().unwrap();
    let announced = order_pool::Transaction::new(
        tx.recovered().clone(),
        Origin::Mempool,
        std::time::SystemTime::now(),
    );
    server.pool.insert_transaction(announced);
    let public = (200, -32000, "became_public".to_owned());
    assert_eq!(cancel(Some(&owner), hash).await.error(), public);
    assert!(server.pool.contains(&hash));
}

#[tokio::test]
async fn before_the_first_head_a_private_transaction_is_refused_for_a_while() {
    let server = start(config());
    for (method, params) in [
        ("eth_sendPrivateTransaction", json!([{ "tx": raw(0), "maxBlockNumber": u64::MAX }])),
        ("eth_sendPrivateRawTransaction", json!([raw(0)])),
    ] {
        let answer = call(server.addr, method, params).await;
        assert_eq!(answer.error(), (503, -32005, "head_unknown".to_owned()));
    }
    assert!(server.pool.is_empty());
}

/// The second caller is answered with success without a look into the transaction.
#[tokio::test]
async fn one_that_is_sent_again_is_kept_for_each_of_its_senders_and_until_the_later_block() {
    // One caller may have one.
    let config_of_pool = PoolConfig { max_external_txs: 32, ..PoolConfig::default() };
    let server = start_on(OrderPool::new(config_of_pool).unwrap(), config());
    server.pool.on_head(block(HEAD, &[]));
    let send = async |from: [u8; 4], raw: &str, last: u64| {
        let params = json!([{ "tx": raw, "maxBlockNumber": last }]);
        let body = request("eth_sendPrivateTransaction", params);
        let answer = send_on(connect_from(from, server.addr).await, body.as_bytes(), &[]).await;
        let hash: B256 = answer.json()["result"].as_str().unwrap().parse().unwrap();
        hash
    };
    let (owner, stranger) = ([127, 0, 0, 1], [127, 0, 0, 2]);
    let theirs = raw(0);
    let hash = send(stranger, &theirs, HEAD + 1).await;
    assert_eq!(send(owner, &theirs, HEAD + 3).await, hash);
    let more = PrivateKeySigner::random();
    let paying = |mut tx: alloy_consensus::TxEip1559| {
        tx.max_priority_fee_per_gas = tx.max_fee_per_gas;
        hex(&sign(tx, &more))
    };
    let other = send(stranger, &paying(plain(0)), HEAD + 3).await;
    assert!(server.pool.contains(&other), "in place of its claim on the first");
    server.pool.on_head(block(HEAD + 1, &[]));
    assert!(server.pool.contains(&hash));
    server.pool.on_head(block(HEAD + 3, &[]));
    assert!(server.pool.is_empty());
}
