//! A proxy in front of the builder names who signed a request.

use std::net::{IpAddr, Ipv4Addr};

use alloy_primitives::{Address, B256};
use alloy_signer_local::PrivateKeySigner;
use futures::future::join_all;
use order_rpc::{OrderRpcConfig, Quota, SignatureMode};
use serde_json::{Value, json};

use super::{common::*, *};

/// As a configuration may write an IPv4 address, and a socket that serves both versions.
const LOCALHOST: IpAddr = IpAddr::V6(Ipv4Addr::LOCALHOST.to_ipv6_mapped());

fn front_config() -> OrderRpcConfig {
    OrderRpcConfig { trusted_fronts: vec![LOCALHOST], ..config() }
}

/// As BuilderNet's FlowProxy passes a searcher's bundle on to the builder on its host: without a signature,
/// with `signingAddress`, the uuid under both names, and a nonce of microseconds.
fn passed_on(signer: Address, tx: &str, nonce: u64) -> Value {
    json!([{
        "version": "v2",
        "txs": [tx],
        "blockNumber": "0xf",
        "minTimestamp": 0,
        "maxTimestamp": 1_781_000_000,
        "revertingTxHashes": [],
        "droppingTxHashes": [],
        "replacementUuid": UUID,
        "uuid": UUID,
        "signingAddress": signer,
        "refundIdentity": signer,
        "replacementNonce": nonce,
        "refundPercent": 90,
        "refundRecipient": signer,
        "refundTxHashes": [],
        "delayedRefund": false,
        "bundleHash": B256::repeat_byte(7),
    }])
}

#[tokio::test]
async fn a_bundle_that_a_front_passes_on_is_of_the_signer_that_it_names() {
    for mode in [SignatureMode::Optional, SignatureMode::Required, SignatureMode::Off] {
        let server = start(OrderRpcConfig { signatures: mode, ..front_config() });
        let (one, other) = (Address::repeat_byte(1), Address::repeat_byte(2));
        let send = async |signer, nonce| {
            let params = passed_on(signer, &raw(nonce), nonce);
            call(server.addr, "eth_sendBundle", params).await
        };
        send(one, 1_781_000_000_000_001).await.result();
        send(other, 1_781_000_000_000_002).await.result();
        assert_eq!(server.pool.len(), 2, "another signer's is another bundle");
        send(one, 1_781_000_000_000_003).await.result();
        assert_eq!((server.pool.len(), server.pool.stats().replaced), (2, 1));
        assert_eq!(bundles_of(&server.pool, one), 1);
        let cancel = json!([{ "replacementUuid": UUID, "signingAddress": one }]);
        call(server.addr, "eth_cancelBundle", cancel).await.result();
        assert_eq!(bundles_of(&server.pool, other), 1);
        assert_eq!(server.pool.len(), 1);
        // As a cancellation comes from FlowProxy: a bundle without transactions.
        let mut empty = passed_on(other, "", 1_781_000_000_000_004);
        empty[0]["txs"] = json!([]);
        call(server.addr, "eth_sendBundle", empty).await.result();
        assert!(server.pool.is_empty());
    }
}

/// How many bundles of a signer are pooled.
fn bundles_of(pool: &OrderPool, signer: Address) -> usize {
    let is_its = |bundle: &&Bundle| bundle.parts().signer == Some(signer);
    bundles(pool.subscribe_all()).iter().filter(is_its).count()
}

#[tokio::test]
async fn from_anybody_else_a_signing_address_names_nobody() {
    let victim = Address::repeat_byte(1);
    let unsigned = (200, -32602, "signature".to_owned());
    // Off by default, and not on for another address than the front's.
    for (config, from) in [(config(), [127, 0, 0, 1]), (front_config(), [127, 0, 0, 2])] {
        let server = start(config);
        for body in [
            request("eth_sendBundle", passed_on(victim, &raw(0), 1)),
            request("eth_cancelBundle", json!([{ "uuid": UUID, "signingAddress": victim }])),
        ] {
            let socket = connect_from(from, server.addr).await;
            assert_eq!(send_on(socket, body.as_bytes(), &[]).await.error(), unsigned);
        }
        // Who signs is the signer, whatever the body says.
        let signer = PrivateKeySigner::random();
        let body = request("eth_sendBundle", passed_on(victim, &raw(0), 1));
        let socket = connect_from(from, server.addr).await;
        send_signed_on(socket, &signer, &body).await.result();
        let of = |signer| bundles_of(&server.pool, signer);
        assert_eq!((of(victim), of(signer.address())), (0, 1));
    }
}

#[tokio::test]
async fn a_front_carries_the_requests_of_all_and_has_no_share() {
    let server = start_limited(front_config(), gate_config(64), None, |limits| {
        limits.config.caller_quota = Some(Quota { per_second: 1, burst: 1 });
        (limits.max_requests_per_caller, limits.max_connections_per_caller) = (1, 1);
    });
    let sends = (0..16_u64).map(|n| {
        let signer = Address::with_last_byte(n as u8);
        call(server.addr, "eth_sendBundle", passed_on(signer, &raw(n), n))
    });
    for sent in join_all(sends).await {
        sent.result();
    }
    assert_eq!(server.pool.len(), 16);
}
