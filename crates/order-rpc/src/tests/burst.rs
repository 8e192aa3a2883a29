//! A burst of honest searchers: none is refused.

use std::sync::Arc;

use alloy_signer_local::PrivateKeySigner;
use futures::future::join_all;
use load_control::GateConfig;
use serde_json::json;
use tokio::{io::AsyncWriteExt, sync::Barrier};

use super::{common::*, *};

const SEARCHERS: usize = 512;
/// As many searchers share one.
const ADDRESSES: usize = 64;

/// A signed request with a bundle of three transactions, as it is sent.
fn bundle() -> Vec<u8> {
    let txs = [raw(0), raw(1), raw(2)];
    let body = request("eth_sendBundle", json!([{ "txs": txs, "blockNumber": "0x5" }]));
    let header = signature(&PrivateKeySigner::random(), body.as_bytes());
    (head("POST", "/", body.len(), &[("X-Flashbots-Signature", &header)]) + &body).into_bytes()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_of_512_honest_bundles_is_served_and_none_is_refused() {
    // The default, but for the wait: how fast this machine is now is no part of the promise.
    let gate = GateConfig { permit_wait: PATIENCE, ..GateConfig::for_cores(2) };
    let server = start_limited(config(), gate, None, |_| {});
    let at_once = Arc::new(Barrier::new(SEARCHERS));
    let mut searchers = Vec::new();
    for number in 0..SEARCHERS {
        let address = [127, 0, 1, (number % ADDRESSES) as u8];
        let (mut socket, bytes) = (connect_from(address, server.addr).await, bundle());
        let at_once = Arc::clone(&at_once);
        searchers.push(tokio::spawn(async move {
            at_once.wait().await;
            socket.write_all(&bytes).await.unwrap();
            read_answer(&mut socket).await
        }));
    }
    for answer in join_all(searchers).await {
        let answer = answer.unwrap();
        assert!(answer.json()["result"]["bundleHash"].is_string(), "{answer:?}");
    }
    assert_eq!(server.pool.len(), SEARCHERS);
    let stats = server.gate.stats();
    assert_eq!((stats.requests_refused, stats.work_refused), (0, 0));
    assert!(stats.work_waited > 0, "it was a burst");
}
