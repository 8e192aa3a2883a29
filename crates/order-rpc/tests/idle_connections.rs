//! Thousands of connections that say nothing. Alone in its program: it measures resident memory.
#![cfg(target_os = "linux")]

#[path = "../src/tests/common.rs"]
mod common;

use common::*;

/// Of one caller: a sixteenth of all.
const HELD: usize = order_rpc::DEFAULT_MAX_CONNECTIONS / 16;
const ATTEMPTS: usize = 5_000;
/// Everything that may be held is held after these.
const WARM_UP: usize = 1_000;
/// Both ends of a connection that is held, with its buffers: 20 kB are the server's, see
/// [`order_rpc::DEFAULT_MAX_CONNECTIONS`].
const BYTES_PER_HELD: usize = 32 << 10;
/// What refusing the others may add: what the allocator keeps of what was freed.
const FLAT_BYTES: usize = 4 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_idle_connections_take_their_cap_and_no_more() {
    let server = start_server(config(), gate_config(64));
    let client = server.from(ONE);
    let before = resident_bytes();
    let (mut held, most) = (Vec::new(), Most::default());
    for _ in 0..WARM_UP {
        held.extend(client.keep().await);
    }
    assert_eq!(held.len(), HELD);
    let warm = most.above(before);
    println!("{} connections held: {} KiB more resident", held.len(), warm >> 10);
    assert!(warm <= held.len() * BYTES_PER_HELD, "{warm} bytes for {} connections", held.len());

    let (at_warm, most) = (resident_bytes(), Most::default());
    for number in WARM_UP..ATTEMPTS {
        assert!(client.keep().await.is_none(), "more than its share");
        if number.is_multiple_of(100) {
            most.look();
        }
    }
    let added = most.above(at_warm);
    println!("{} refused: {} KiB more resident", ATTEMPTS - WARM_UP, added >> 10);
    assert!(added <= FLAT_BYTES, "{added} bytes more");
    let refused = (ATTEMPTS - HELD) as u64;
    assert_eq!(server.counted.reason("caller_connections"), refused);
    assert_eq!(server.gate.stats().requests_in_flight, 0, "an idle connection is no request");
    server.from(OTHER).send(transaction()).await.result();
    drop(held);
    until("all are gone", || server.counted.of("order_rpc_connections", "") == 0).await;
    assert!(client.keep().await.is_some(), "there is room again");
}
