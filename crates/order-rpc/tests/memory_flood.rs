//! A flood of many clients. Alone in its program, as it measures memory.
#![cfg(target_os = "linux")]

#[path = "../src/tests/common.rs"]
mod common;

use std::collections::BTreeSet;

use common::*;

const CLIENTS: usize = 32;
/// Of as many signers, again and again: the pool's own bounds have tests of their own.
const TRANSACTIONS: usize = 256;
/// Of each client, before memory is compared.
const WARM_UP: usize = 48;
/// Of each client.
const FLOOD: usize = 240;
/// What the flood may add: what the allocator keeps of what was freed.
const FLAT_BYTES: usize = 4 << 20;

/// The hash that a client was told, or the reason why it was refused.
type Told = Result<B256, &'static str>;

async fn ask(client: &Client, body: &str) -> Told {
    let answer = client.clone().send(body).await;
    if answer.status == 200 {
        return Ok(answer.hash());
    }
    let (status, code, reason) = answer.error();
    assert_eq!((status, code), (503, -32005), "{answer:?}");
    Err(reason)
}

async fn flood(to: &Server, bodies: &Arc<[String]>, each: usize, most: &Arc<Most>) -> Vec<Told> {
    let clients = (0..CLIENTS).map(|place| {
        let (client, bodies, most) = (to.from(ONE), Arc::clone(bodies), Arc::clone(most));
        tokio::spawn(async move {
            let mut all = Vec::new();
            // A stride of its own for each, so that all transactions are sent by someone.
            for number in 0..each {
                all.push(ask(&client, &bodies[(place * each + number) % bodies.len()]).await);
                if number.is_multiple_of(16) {
                    most.look();
                }
            }
            all
        })
    });
    join_all(clients).await.into_iter().flat_map(|all| all.unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_leaves_memory_flat() {
    // All of the clients are at one address.
    let config = OrderRpcConfig { caller_quota: None, ..config() };
    let server = start_server(config, gate_config(7));
    let bodies: Arc<[_]> = (0..TRANSACTIONS).map(|_| transaction()).collect();
    let mut told = flood(&server, &bodies, WARM_UP, &Arc::default()).await;

    let warm = resident_bytes();
    let most = Arc::new(Most::default());
    told.extend(flood(&server, &bodies, FLOOD, &most).await);
    assert_eq!(told.len(), CLIENTS * (WARM_UP + FLOOD), "everyone heard");
    let added = most.above(warm);
    let pooled: BTreeSet<_> = told.iter().flatten().collect();
    let refused: Vec<_> = told.iter().filter_map(|told| told.err()).collect();
    println!("{} refused; {} KiB more resident", refused.len(), added >> 10);
    assert!(added <= FLAT_BYTES, "{added} bytes more");
    assert!(!refused.is_empty(), "it was a flood");
    assert_eq!(server.pool.len(), pooled.len(), "success means pooled, and nothing else does");
    for reason in ["too_many_requests", "no_permit"] {
        let told = refused.iter().filter(|told| **told == reason).count() as u64;
        assert_eq!(server.counted.reason(reason), told, "{reason}");
    }
    let stats = server.gate.stats();
    assert_eq!(stats.requests_refused + stats.work_refused, refused.len() as u64);
    server.until_nothing_is_held().await;
}
