//! The memory of thousands of idle connections. Alone in its program, because it measures resident
//! memory.
#![cfg(target_os = "linux")]

#[path = "../src/tests/common.rs"]
mod common;

use common::*;

/// The connections that one caller may hold: a sixteenth of all.
const HELD: usize = order_rpc::DEFAULT_MAX_CONNECTIONS / 16;
const ATTEMPTS: usize = 5_000;
/// After this many attempts the caller holds all that it may.
const WARM_UP: usize = 1_000;
/// Bytes of both ends of a held connection with its buffers: 20 kB are the server's, see
/// [`order_rpc::DEFAULT_MAX_CONNECTIONS`].
const BYTES_PER_HELD: usize = 32 << 10;
/// Bytes that refusing the others may add: freed memory that the allocator keeps.
const FLAT_BYTES: usize = 4 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_memory_of_idle_connections_is_bounded_by_their_cap() {
    let server = start_server(config(), gate_config(64));
    let client = server.client(ONE);
    let before = resident_bytes();
    let (mut held, peak) = (Vec::new(), PeakMemory::default());
    for _ in 0..WARM_UP {
        held.extend(client.connect_idle().await);
    }
    assert_eq!(held.len(), HELD);
    let warm = peak.above(before);
    println!("{} connections held: {} KiB more resident", held.len(), warm >> 10);
    assert!(warm <= held.len() * BYTES_PER_HELD, "{warm} bytes for {} connections", held.len());

    let (at_warm, peak) = (resident_bytes(), PeakMemory::default());
    for number in WARM_UP..ATTEMPTS {
        assert!(client.connect_idle().await.is_none(), "more than its share");
        if number.is_multiple_of(100) {
            peak.sample();
        }
    }
    let added = peak.above(at_warm);
    println!("{} refused: {} KiB more resident", ATTEMPTS - WARM_UP, added >> 10);
    assert!(added <= FLAT_BYTES, "{added} bytes more");
    let refused = (ATTEMPTS - HELD) as u64;
    assert_eq!(server.counted.reason("caller_connections"), refused);
    assert_eq!(server.gate.stats().requests_in_flight, 0, "an idle connection is no request");
    server.client(OTHER).send(transaction()).await.result();
    drop(held);
    wait_until("all connections are closed", || {
        server.counted.sum("order_rpc_connections", "") == 0
    })
    .await;
    assert!(client.connect_idle().await.is_some(), "there is room again");
}
