//! A proxy in front of the builder names who signed a request.

use std::net::{IpAddr, Ipv4Addr};

use super::*;

/// As a configuration may write an IPv4 address, and a socket that serves both versions.
const LOCALHOST: IpAddr = IpAddr::V6(Ipv4Addr::LOCALHOST.to_ipv6_mapped());

fn front_config() -> OrderRpcConfig {
    OrderRpcConfig { trusted_fronts: vec![LOCALHOST], ..config() }
}

/// As BuilderNet's FlowProxy passes a searcher's bundle on to the builder on its host: without a signature,
/// with `signingAddress`, the uuid under both names, and a nonce of microseconds.
fn passed_on(signer: Address, txs: &[String], nonce: u64) -> String {
    let bundle = json!([{
        "version": "v2",
        "txs": txs,
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
    }]);
    request("eth_sendBundle", bundle)
}

/// How many bundles of a signer are pooled.
fn bundles_of(pool: &OrderPool, signer: Address) -> usize {
    let is_its = |bundle: &&Bundle| bundle.parts().signer == Some(signer);
    bundles(pool.subscribe_all()).iter().filter(is_its).count()
}

#[tokio::test]
async fn a_bundle_that_a_front_passes_on_is_of_the_signer_that_it_names() {
    for signatures in [SignatureMode::Optional, SignatureMode::Required, SignatureMode::Off] {
        let server = start(OrderRpcConfig { signatures, ..front_config() });
        let (one, other) = (Address::repeat_byte(1), Address::repeat_byte(2));
        let send = async |signer, txs: &[String], nonce: u64| {
            let nonce = 1_781_000_000_000_000 + nonce;
            server.send(passed_on(signer, txs, nonce)).await.result();
        };
        send(one, &[raw(1)], 1).await;
        send(other, &[raw(2)], 2).await;
        assert_eq!(server.pool.len(), 2, "another signer's is another bundle");
        send(one, &[raw(3)], 3).await;
        assert_eq!((server.pool.len(), server.pool.stats().replaced), (2, 1));
        assert_eq!(bundles_of(&server.pool, one), 1);
        let cancel = json!([{ "replacementUuid": UUID, "signingAddress": one }]);
        server.call("eth_cancelBundle", cancel).await.result();
        assert_eq!(bundles_of(&server.pool, other), 1);
        assert_eq!(server.pool.len(), 1);
        // As a cancellation comes from FlowProxy: a bundle without transactions.
        send(other, &[], 4).await;
        assert!(server.pool.is_empty());
    }
}

#[tokio::test]
async fn from_anybody_else_a_signing_address_names_nobody() {
    let victim = Address::repeat_byte(1);
    // Off by default, and not on for another address than the front's.
    for (config, from) in [(config(), ONE), (front_config(), OTHER)] {
        let server = start(config);
        let bundle = passed_on(victim, &[raw(0)], 1);
        let cancel = json!([{ "uuid": UUID, "signingAddress": victim }]);
        for body in [&bundle, &request("eth_cancelBundle", cancel)] {
            assert_eq!(server.from(from).send(body).await.of_field().0, "signature");
        }
        // Who signs is the signer, whatever the body says.
        let signer = PrivateKeySigner::random();
        server.from(from).signed(&signer).send(&bundle).await.result();
        let of = |signer| bundles_of(&server.pool, signer);
        assert_eq!((of(victim), of(signer.address())), (0, 1));
    }
}

#[tokio::test]
async fn a_front_carries_the_requests_of_all_and_has_no_share() {
    let server = Setup { config: front_config(), ..Setup::default() }.limited(|limits| {
        limits.config.caller_quota = Some(Quota { per_second: 1, burst: 1 });
        (limits.max_requests_per_caller, limits.max_connections_per_caller) = (1, 1);
    });
    let sends = (0..16_u8).map(|n| {
        let (signer, n) = (Address::with_last_byte(n), n.into());
        server.send(passed_on(signer, &[raw(n)], n))
    });
    for sent in join_all(sends).await {
        sent.result();
    }
    assert_eq!(server.pool.len(), 16);
}
