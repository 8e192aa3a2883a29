//! Thousands of connections that say nothing. Alone in its program: it measures resident memory.
#![cfg(target_os = "linux")]

#[path = "../src/tests/common.rs"]
mod common;

use common::{memory::*, *};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

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

/// Sends one request, so that the connection has its buffers, and keeps it; `None` if refused.
async fn hold(server: &Server) -> Option<TcpStream> {
    let mut socket = TcpStream::connect(server.addr).await.unwrap();
    let request = head("GET", "/healthz", 0, &[]).replace("connection: close\r\n", "");
    // A refused one may be closed before it has sent this.
    let _ = socket.write_all(request.as_bytes()).await;
    let mut read = vec![0; 4_096];
    let count = socket.read(&mut read).await.unwrap_or(0);
    (count > 0 && parse(&read[..count]).status == 200).then_some(socket)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_idle_connections_take_their_cap_and_no_more() {
    let server = start_server(config(), gate_config(64));
    let before = resident_bytes();
    let (mut held, most) = (Vec::new(), Most::default());
    for _ in 0..WARM_UP {
        held.extend(hold(&server).await);
    }
    assert_eq!(held.len(), HELD);
    let warm = most.above(before);
    println!("{} connections held: {} KiB more resident", held.len(), warm >> 10);
    assert!(warm <= held.len() * BYTES_PER_HELD, "{warm} bytes for {} connections", held.len());

    let (at_warm, most) = (resident_bytes(), Most::default());
    for number in WARM_UP..ATTEMPTS {
        assert!(hold(&server).await.is_none(), "more than its share");
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
    let other = connect_from([127, 0, 0, 2], server.addr).await;
    assert_eq!(
        send_on(other, transaction().as_bytes(), &[]).await.status,
        200,
        "others are served"
    );
    drop(held);
    until("all are gone", || server.counted.gauge("order_rpc_connections") == 0.0).await;
    assert!(hold(&server).await.is_some(), "there is room again");
}
