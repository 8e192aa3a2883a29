//! The memory of a flood of many clients. Alone in its program, because it measures resident
//! memory.
#![cfg(target_os = "linux")]

#[path = "../src/tests/common.rs"]
mod common;

use std::collections::BTreeSet;

use common::*;

const CLIENTS: usize = 32;
/// Transactions that are sent repeatedly: the pool's own bounds have tests of their own.
const TRANSACTIONS: usize = 256;
/// Requests of each client before memory is compared.
const WARM_UP: usize = 48;
/// Requests of each client in the flood.
const FLOOD: usize = 240;
/// Bytes that the flood may add: freed memory that the allocator keeps.
const FLAT_BYTES: usize = 4 << 20;

/// The hash that was answered, or the reason of the refusal.
type Outcome = Result<B256, &'static str>;

async fn send(client: &Client, body: &str) -> Outcome {
    let answer = client.clone().send(body).await;
    if answer.status == 200 {
        return Ok(answer.hash());
    }
    let (status, code, reason) = answer.error();
    assert_eq!((status, code), (503, -32005), "{answer:?}");
    Err(reason)
}

async fn flood(
    server: &Server,
    bodies: &Arc<[String]>,
    each: usize,
    peak: &Arc<PeakMemory>,
) -> Vec<Outcome> {
    let clients = (0..CLIENTS).map(|place| {
        let (client, bodies, peak) = (server.client(ONE), Arc::clone(bodies), Arc::clone(peak));
        tokio::spawn(async move {
            let mut all = Vec::new();
            // Each client has a stride of its own, so that every transaction is sent by some
            // client.
            for number in 0..each {
                all.push(send(&client, &bodies[(place * each + number) % bodies.len()]).await);
                if number.is_multiple_of(16) {
                    peak.sample();
                }
            }
            all
        })
    });
    join_all(clients).await.into_iter().flat_map(|all| all.unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_leaves_memory_flat() {
    // All clients have the same address.
    let config = configured(config(), |config| config.caller_quota = None);
    let server = start_server(config, gate_config(7));
    let bodies: Arc<[_]> = (0..TRANSACTIONS).map(|_| transaction()).collect();
    let mut outcomes = flood(&server, &bodies, WARM_UP, &Arc::default()).await;

    let warm = resident_bytes();
    let peak = Arc::new(PeakMemory::default());
    outcomes.extend(flood(&server, &bodies, FLOOD, &peak).await);
    assert_eq!(outcomes.len(), CLIENTS * (WARM_UP + FLOOD), "every request was answered");
    let added = peak.above(warm);
    let pooled: BTreeSet<_> = outcomes.iter().flatten().collect();
    let refused: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.err()).collect();
    println!("{} refused; {} KiB more resident", refused.len(), added >> 10);
    assert!(added <= FLAT_BYTES, "{added} bytes more");
    assert!(!refused.is_empty(), "it was a flood");
    assert_eq!(server.pool.len(), pooled.len(), "success means pooled, and nothing else does");
    for reason in ["too_many_requests", "no_permit"] {
        let count = refused.iter().filter(|refusal| **refusal == reason).count() as u64;
        assert_eq!(server.counted.reason(reason), count, "{reason}");
    }
    let stats = server.gate.stats();
    assert_eq!(stats.requests_refused + stats.work_refused, refused.len() as u64);
    server.wait_until_nothing_is_held().await;
}
