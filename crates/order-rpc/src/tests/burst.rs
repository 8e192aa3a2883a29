//! A burst of honest searchers: none is refused. Prints how long they waited, beside work that stands for
//! live announcements.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use alloy_consensus::transaction::SignerRecoverable;
use alloy_signer_local::PrivateKeySigner;
use futures::future::join_all;
use load_control::{Gate, GateConfig};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::Barrier,
};

use super::{common::*, *};

const SEARCHERS: usize = 512;
/// As many searchers share one.
const ADDRESSES: usize = 64;
const LIVE_PER_SECOND: u32 = 500;

/// A signed request with a bundle of three transactions, as it is sent.
fn bundle(number: usize) -> Vec<u8> {
    let txs = [raw(0), raw(1), raw(2)];
    let body = request("eth_sendBundle", json!([{ "txs": txs, "blockNumber": "0x5" }]));
    let header = signature(&PrivateKeySigner::random(), body.as_bytes());
    assert!(body.len() < 4_096, "bundle {number}");
    (head("POST", "/", body.len(), &[("X-Flashbots-Signature", &header)]) + &body).into_bytes()
}

/// The latency of internal work, from when it is due, at a steady rate until told to end.
fn live(gate: Gate, over: Arc<AtomicBool>) -> Vec<Duration> {
    let tx = sign(plain(0), &PrivateKeySigner::random());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (start, mut latencies) = (Instant::now(), Vec::new());
    while !over.load(SeqCst) {
        let due = start + Duration::from_secs(1) * latencies.len() as u32 / LIVE_PER_SECOND;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let permit = runtime.block_on(gate.acquire_internal());
        tx.recover_signer().unwrap();
        drop(permit);
        latencies.push(due.elapsed());
    }
    latencies
}

fn p99(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() * 99 / 100]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_of_512_honest_bundles_is_served_and_none_is_refused() {
    // The default, but for the wait: how fast this machine is now is no part of the promise.
    let gate = GateConfig { permit_wait: PATIENCE, ..GateConfig::for_cores(2) };
    let server = start_with(config(), gate, None);
    let bundles: Vec<_> = (0..SEARCHERS).map(bundle).collect();
    let run_live = || {
        let (gate, over) = (server.gate.clone(), Arc::new(AtomicBool::new(false)));
        let ended = Arc::clone(&over);
        (over, std::thread::spawn(move || live(gate, ended)))
    };
    let (over, calm) = run_live();
    tokio::time::sleep(Duration::from_secs(1)).await;
    over.store(true, SeqCst);
    let calm = p99(calm.join().unwrap());

    let at_once = Arc::new(Barrier::new(SEARCHERS));
    let mut searchers = Vec::new();
    for (number, bytes) in bundles.into_iter().enumerate() {
        let address = [127, 0, 1, (number % ADDRESSES) as u8];
        let mut socket = connect_from(address, server.addr).await;
        let at_once = Arc::clone(&at_once);
        searchers.push(tokio::spawn(async move {
            at_once.wait().await;
            let sent = Instant::now();
            socket.write_all(&bytes).await.unwrap();
            let mut answer = Vec::new();
            socket.read_to_end(&mut answer).await.unwrap();
            (parse(&answer), sent.elapsed())
        }));
    }
    let (over, live) = run_live();
    let answers: Vec<_> = join_all(searchers).await.into_iter().map(Result::unwrap).collect();
    over.store(true, SeqCst);
    let live = p99(live.join().unwrap());
    for (answer, _) in &answers {
        assert!(answer.json()["result"]["bundleHash"].is_string(), "{answer:?}");
    }
    assert_eq!(server.pool.len(), SEARCHERS);
    let stats = server.gate.stats();
    assert_eq!((stats.requests_refused, stats.work_refused), (0, 0));
    assert!(stats.work_waited > 0, "it was a burst");
    let answered = p99(answers.into_iter().map(|(_, took)| took).collect());
    println!(
        "{SEARCHERS} bundles at once: answered within {answered:?} at p99, {} of them waited for a work \
         permit; internal work at {LIVE_PER_SECOND}/s: p99 {live:?}, {calm:?} without the burst",
        stats.work_waited
    );
}
