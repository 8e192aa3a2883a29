//! Private transactions are sent, kept until their last block, and cancelled by their signer.

use std::{slice, time::SystemTime};

use order_pool::{Origin, Transaction};

use super::{blobs::hash_of, *};
use crate::methods::MAX_PRIVATE_BLOCKS;

const HEAD: u64 = 100;
const SEND: &str = "eth_sendPrivateTransaction";
const SEND_RAW: &str = "eth_sendPrivateRawTransaction";
const CANCEL: &str = "eth_cancelPrivateTransaction";

/// Asserts that the answer is the hash of a pooled private transaction, and returns the hash and
/// its last block.
fn pooled_private(server: &Server, answer: &Answer) -> (B256, u64) {
    let order = server.pool.get(&answer.hash()).expect("success means that it is pooled");
    let tx = order.as_tx().unwrap();
    assert_eq!((tx.origin(), tx.is_public()), (Origin::Private, false));
    (answer.hash(), tx.private_terms().unwrap().max_block)
}

#[tokio::test]
async fn a_private_transaction_is_kept_for_at_most_25_blocks() {
    let server = start_at_head();
    let most = HEAD + MAX_PRIVATE_BLOCKS;
    assert_eq!(MAX_PRIVATE_BLOCKS, 25);
    let private_until = |block: Value| json!([{ "tx": raw(0), "maxBlockNumber": block }]);
    for (params, expected) in [
        (json!([{ "tx": raw(0) }]), most),
        (private_until(json!(null)), most),
        (private_until(json!(HEAD + 1)), HEAD + 1),
        (private_until(json!(format!("{:#x}", HEAD + 3))), HEAD + 3),
        (private_until(json!(most)), most),
        (private_until(json!(most + 1)), most),
        (private_until(json!(u64::MAX)), most),
        (private_until(json!("0x2540BE400")), most),
    ] {
        let answer = server.call(SEND, params.clone()).await;
        assert_eq!(pooled_private(&server, &answer).1, expected, "{params}");
    }
    for passed in [json!(HEAD), json!("0x0")] {
        let answer = server.call(SEND, private_until(passed)).await;
        assert_eq!(answer.field_error(), ("params", "maxBlockNumber".to_owned()));
    }
    server.pool.on_head(block(most, &[]));
    assert!(server.pool.is_empty());
}

#[tokio::test]
async fn preferences_are_accepted_and_other_fields_refused_by_name() {
    let server = start_at_head();
    let preferences = json!({ "fast": true, "privacy": { "hints": ["hash"], "builders": ["x"] } });
    for preferences in [json!(null), json!({}), preferences] {
        let params = json!([{ "tx": raw(0), "preferences": preferences }]);
        pooled_private(&server, &server.call(SEND, params).await);
        let answer = server.call(SEND_RAW, json!([raw(0), preferences])).await;
        assert_eq!(pooled_private(&server, &answer).1, HEAD + MAX_PRIVATE_BLOCKS);
    }
    pooled_private(&server, &server.call(SEND_RAW, json!([raw(0)])).await);
    for (method, params, field) in [
        (SEND, json!([{}]), "tx"),
        (SEND, json!([{ "tx": "0x02" }]), "tx"),
        (SEND, json!([{ "tx": raw(0), "maxBlock": 5 }]), "maxBlock"),
        (SEND, json!([]), "params[0]"),
        (SEND_RAW, json!([]), "params[0]"),
        (SEND_RAW, json!([raw(0), {}, 5]), "params[2]"),
        (SEND_RAW, json!([5]), "params[0]"),
        (CANCEL, json!([{}]), "txHash"),
    ] {
        let answer = server.call(method, params.clone()).await;
        assert_eq!(answer.field_error().1, field, "{params}");
    }
}

#[tokio::test]
async fn only_its_signer_cancels_a_transaction_while_it_is_private() {
    let server = start_at_head();
    let owner = PrivateKeySigner::random();
    let (owners, others) = (server.signed(&owner), server.signed(&PrivateKeySigner::random()));
    let send = async |nonce| {
        let answer = owners.clone().call(SEND, json!([{ "tx": raw(nonce) }])).await;
        pooled_private(&server, &answer).0
    };
    let cancel = async |client: &Client, hash| {
        client.clone().call(CANCEL, json!([{ "txHash": hash }])).await
    };
    let hash = send(0).await;
    let unsigned = cancel(&server.client(ONE), hash).await;
    assert_eq!(unsigned.field_error(), ("signature", "txHash".to_owned()));
    let unknown = (200, -32000, "unknown_private");
    assert_eq!(cancel(&others, hash).await.error(), unknown);
    assert!(server.pool.contains(&hash));
    assert_eq!(cancel(&owners, hash).await.result(), true);
    assert!(!server.pool.contains(&hash));
    assert_eq!(cancel(&owners, hash).await.error(), unknown);

    let hash = send(1).await;
    let order = server.pool.get(&hash).unwrap();
    let tx = order.as_tx().unwrap().recovered().clone();
    server.pool.insert_transaction(Transaction::new(tx, Origin::Mempool, SystemTime::now()));
    assert_eq!(cancel(&owners, hash).await.error(), (200, -32000, "became_public"));
    assert!(server.pool.contains(&hash));
}

#[tokio::test]
async fn before_the_first_head_private_transactions_are_refused_as_retryable() {
    let server = start(config());
    for (method, params) in
        [(SEND, json!([{ "tx": raw(0), "maxBlockNumber": u64::MAX }])), (SEND_RAW, json!([raw(0)]))]
    {
        assert_eq!(server.call(method, params).await.error(), refused(503, "head_unknown"));
    }
    assert!(server.pool.is_empty());
}

/// The second call succeeds without decoding the transaction again.
#[tokio::test]
async fn a_transaction_sent_twice_is_kept_until_the_later_block() {
    let server = start_at_head();
    let theirs = raw(0);
    for (address, last) in [(OTHER, HEAD + 1), (ONE, HEAD + 3)] {
        let params = json!([{ "tx": theirs, "maxBlockNumber": last }]);
        server.client(address).call(SEND, params).await.result();
    }
    for (number, is_left) in [(HEAD + 1, true), (HEAD + 3, false)] {
        server.pool.on_head(block(number, &[]));
        assert_eq!(server.pool.is_empty(), !is_left);
    }
}

/// Before the fix what was sent again counted as sent when it was inserted, after the cancellation
/// had arrived.
#[tokio::test]
async fn a_pooled_transaction_that_is_sent_again_and_then_cancelled_is_gone() {
    let server = start_at_head();
    let signer = PrivateKeySigner::random();
    let tx = hex(&sign(plain(1), &signer));
    let hash = hash_of(&tx);
    let (send, cancel) = ((SEND, json!({ "tx": tx })), (CANCEL, json!({ "txHash": hash })));
    let send_batch = async |calls: &[_]| {
        let answer = server.signed(&signer).send(batch(calls)).await;
        assert_eq!(answer.reasons(), vec![None; calls.len()]);
    };
    send_batch(slice::from_ref(&send)).await;
    assert!(server.pool.contains(&hash));
    send_batch(&[send, cancel]).await;
    assert!(!server.pool.contains(&hash));
}
