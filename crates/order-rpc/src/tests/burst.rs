//! A burst of honest searchers: none is refused.

use tokio::sync::Barrier;

use super::*;

const SEARCHERS: usize = 512;
/// As many searchers share one.
const ADDRESSES: usize = 64;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_of_512_honest_bundles_is_served_and_none_is_refused() {
    // The default, but for the wait: how fast this machine is now is no part of the promise.
    let gate = GateConfig { permit_wait: PATIENCE, ..GateConfig::for_cores(2) };
    let server = Setup { gate, ..Setup::default() }.limited(|_| {});
    let at_once = Arc::new(Barrier::new(SEARCHERS));
    let mut searchers = Vec::new();
    for number in 0..SEARCHERS {
        let client = server.from([127, 0, 1, (number % ADDRESSES) as u8]);
        let bundle = json!([{ "txs": [raw(0), raw(1), raw(2)], "blockNumber": "0x5" }]);
        let body = request("eth_sendBundle", bundle);
        let mut socket = client.connect().await;
        let bytes = client.signed(&PrivateKeySigner::random()).post(body.as_bytes());
        let at_once = Arc::clone(&at_once);
        searchers.push(tokio::spawn(async move {
            at_once.wait().await;
            socket.write_all(&bytes).await.unwrap();
            read_answer(&mut socket).await
        }));
    }
    for answer in join_all(searchers).await {
        assert!(answer.unwrap().result()["bundleHash"].is_string());
    }
    assert_eq!(server.pool.len(), SEARCHERS);
    let stats = server.gate.stats();
    assert_eq!((stats.requests_refused, stats.work_refused), (0, 0));
    assert!(stats.work_waited > 0, "it was a burst");
}
