//! A front, a proxy that has verified the signature, names the signer of a request.

use std::net::{IpAddr, Ipv4Addr};

use super::*;

/// An IPv4 address in its IPv6-mapped form, as a configuration or a dual-stack socket may have it.
const LOCALHOST: IpAddr = IpAddr::V6(Ipv4Addr::LOCALHOST.to_ipv6_mapped());

fn front_config() -> OrderRpcConfig {
    OrderRpcConfig { trusted_fronts: vec![LOCALHOST], ..config() }
}

/// A searcher's bundle as BuilderNet's FlowProxy forwards it to the builder on its host: without a
/// signature, with `signingAddress`, the uuid under both names, and a nonce of microseconds.
fn forwarded_bundle(signer: Address, txs: &[String], nonce: u64) -> String {
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

/// Returns the number of pooled bundles of a signer.
fn count_bundles(pool: &OrderPool, signer: Address) -> usize {
    let is_signers = |bundle: &&Bundle| bundle.parts().signer == Some(signer);
    bundles(pool.subscribe_all()).iter().filter(is_signers).count()
}

#[tokio::test]
async fn a_bundle_from_a_front_has_the_signer_that_the_front_names() {
    for signatures in [SignatureMode::Optional, SignatureMode::Required, SignatureMode::Off] {
        let server = start(OrderRpcConfig { signatures, ..front_config() });
        let (one, other) = (Address::repeat_byte(1), Address::repeat_byte(2));
        let send = async |signer, txs: &[String], nonce: u64| {
            let nonce = 1_781_000_000_000_000 + nonce;
            server.send(forwarded_bundle(signer, txs, nonce)).await.result();
        };
        send(one, &[raw(1)], 1).await;
        send(other, &[raw(2)], 2).await;
        assert_eq!(server.pool.len(), 2, "another signer's is another bundle");
        send(one, &[raw(3)], 3).await;
        assert_eq!((server.pool.len(), server.pool.stats().replaced), (2, 1));
        assert_eq!(count_bundles(&server.pool, one), 1);
        let cancel = json!([{ "replacementUuid": UUID, "signingAddress": one }]);
        server.call("eth_cancelBundle", cancel).await.result();
        assert_eq!(count_bundles(&server.pool, other), 1);
        assert_eq!(server.pool.len(), 1);
        // FlowProxy forwards a cancellation as a bundle without transactions.
        send(other, &[], 4).await;
        assert!(server.pool.is_empty());
    }
}

#[tokio::test]
async fn a_signing_address_from_anybody_else_is_not_trusted() {
    let victim = Address::repeat_byte(1);
    // By default there is no front, and with one no other address is trusted.
    for (config, address) in [(config(), ONE), (front_config(), OTHER)] {
        let server = start(config);
        let bundle = forwarded_bundle(victim, &[raw(0)], 1);
        let cancel = json!([{ "uuid": UUID, "signingAddress": victim }]);
        for body in [&bundle, &request("eth_cancelBundle", cancel)] {
            assert_eq!(server.client(address).send(body).await.field_error().0, "signature");
        }
        // The signer is who signed the request, whatever its body names.
        let signer = PrivateKeySigner::random();
        server.client(address).signed(&signer).send(&bundle).await.result();
        let counts = [victim, signer.address()].map(|signer| count_bundles(&server.pool, signer));
        assert_eq!(counts, [0, 1]);
    }
}

#[tokio::test]
async fn a_front_has_neither_shares_nor_a_quota() {
    let server = Setup { config: front_config(), ..Setup::default() }.limited(|limits| {
        limits.config.caller_quota = Some(Quota { per_second: 1, burst: 1 });
        (limits.max_requests_per_caller, limits.max_connections_per_caller) = (1, 1);
    });
    let sends = (0..16_u8).map(|n| {
        let (signer, n) = (Address::with_last_byte(n), n.into());
        server.send(forwarded_bundle(signer, &[raw(n)], n))
    });
    for sent in join_all(sends).await {
        sent.result();
    }
    assert_eq!(server.pool.len(), 16);
}
