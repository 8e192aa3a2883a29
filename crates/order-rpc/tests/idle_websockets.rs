//! Ten thousand WebSockets that say nothing. Alone in its program: it measures resident memory.
#![cfg(target_os = "linux")]

mod common;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use common::{memory::*, *};
use futures::future::join_all;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use order_rpc::{
    DEFAULT_MAX_CONNECTIONS_PER_PEER, DEFAULT_MAX_WEBSOCKETS, DEFAULT_MAX_WEBSOCKETS_PER_PEER,
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const ATTEMPTS: usize = 10_000;
/// Everything that may be held is held after these.
const WARM_UP: usize = 2_000;
/// At once. Few enough that nobody beyond the cap is dropped without a word.
const ATTACKERS: usize = 16;
/// Both ends of a connection that is held, with its buffers: 20 kB are the server's, see
/// [`DEFAULT_MAX_CONNECTIONS`].
const BYTES_PER_HELD: usize = 32 << 10;
/// What refusing the other 8,000 may add: what the allocator keeps of what was freed.
const FLAT_BYTES: usize = 4 << 20;

/// What became of the attempts: how many of each status and reason.
type Outcomes = BTreeMap<(u16, String), usize>;

#[derive(Default)]
struct Attack {
    outcomes: Outcomes,
    held: Vec<TcpStream>,
    /// Attempts beyond these whose answer was lost.
    lost: usize,
}

/// Asks for a WebSocket and reads the answer, whole. One more connection than an address may have is
/// told so and closed a moment later: who is stalled in between may lose the answer, counts that in
/// `lost`, and asks again.
async fn handshake(from: [u8; 4], to: SocketAddr, lost: &AtomicUsize) -> (TcpStream, Answer) {
    loop {
        let asked = tokio::time::timeout(PATIENCE, ask(from, to)).await;
        if let Some(answered) = asked.expect("an answer in time, or an end") {
            return answered;
        }
        lost.fetch_add(1, SeqCst);
    }
}

async fn ask(from: [u8; 4], to: SocketAddr) -> Option<(TcpStream, Answer)> {
    let mut socket = connect_from(from, to).await;
    let request = "GET / HTTP/1.1\r\nhost: test\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    socket.write_all(request.as_bytes()).await.ok()?;
    let mut bytes = Vec::new();
    let answer = loop {
        if socket.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
        if bytes.windows(4).any(|four| four == b"\r\n\r\n") {
            let answer = parse(&bytes);
            let length =
                answer.headers.get("content-length").map_or(0, |length| length.parse().unwrap());
            if answer.text.len() >= length {
                break answer;
            }
        }
    };
    Some((socket, answer))
}

/// Many attempts. Whoever is let in stays and says nothing; whoever is refused stays too if the
/// server lets it and `hold` says so.
async fn attack(
    to: SocketAddr,
    attempts: usize,
    from: impl Fn(usize) -> [u8; 4] + Copy + Send + 'static,
    hold: bool,
    most: &Arc<Most>,
) -> Attack {
    let (next, lost) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let attackers = (0..ATTACKERS).map(|_| {
        let (next, lost, most) = (Arc::clone(&next), Arc::clone(&lost), Arc::clone(most));
        tokio::spawn(async move {
            let mut mine = Attack::default();
            loop {
                let number = next.fetch_add(1, SeqCst);
                if number >= attempts {
                    return mine;
                }
                let (socket, answer) = handshake(from(number), to, &lost).await;
                if number.is_multiple_of(100) {
                    most.look();
                }
                if answer.status == 101 {
                    *mine.outcomes.entry((101, String::new())).or_default() += 1;
                    mine.held.push(socket);
                    continue;
                }
                let (status, code, reason) = answer.error();
                assert_eq!(code, -32005, "{answer:?}");
                let closes = answer.headers.get("connection").is_some_and(|value| value == "close");
                *mine.outcomes.entry((status, reason)).or_default() += 1;
                if hold && !closes {
                    mine.held.push(socket);
                }
            }
        })
    });
    let mut all = Attack::default();
    for one in join_all(attackers).await {
        let one = one.unwrap();
        all.held.extend(one.held);
        for (outcome, count) in one.outcomes {
            *all.outcomes.entry(outcome).or_default() += count;
        }
    }
    all.lost = lost.load(SeqCst);
    all
}

/// Someone else, at another address, for as long as the attack goes on: every request is accepted.
async fn other_caller(to: SocketAddr, bodies: Vec<String>, over: Arc<AtomicBool>) -> usize {
    let mut served = 0;
    loop {
        for body in &bodies {
            let answer =
                send_on(connect_from([127, 0, 0, 2], to).await, body.as_bytes(), &[]).await;
            assert!(answer.json()["result"].is_string(), "{answer:?}");
            served += 1;
        }
        if over.load(SeqCst) {
            return served;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_idle_websockets_take_their_caps_and_no_more() {
    // It is loaded at the start of the first server, and is no caller's.
    order_pool::load_trusted_setup();
    // Two for each connection that is held, and the rest of the process.
    let held = DEFAULT_MAX_CONNECTIONS_PER_PEER + DEFAULT_MAX_WEBSOCKETS;
    let needed = 2 * held as u64 + 200;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    assert!(hard >= needed, "{needed} open files are needed and {hard} are allowed");
    setrlimit(Resource::RLIMIT_NOFILE, soft.max(needed), hard).unwrap();

    let mut config = config();
    // The default caps. Nobody who is held goes before the end, so that the counts are exact.
    config.header_timeout = Duration::from_secs(3_600);
    config.ping_interval = Duration::from_secs(3_600);
    let server = start(config);
    let bodies: Vec<_> =
        (0..16).map(|nonce| request("eth_sendRawTransaction", json!([raw(nonce)]))).collect();
    let over = Arc::new(AtomicBool::new(false));
    let other = tokio::spawn(other_caller(server.addr, bodies.clone(), Arc::clone(&over)));
    let most = Arc::new(Most::default());
    let before = resident_bytes();

    // From one address, keeping hold of everything.
    let warm = attack(server.addr, WARM_UP, |_| [127, 0, 0, 1], true, &most).await;
    let open = DEFAULT_MAX_WEBSOCKETS_PER_PEER;
    let held = DEFAULT_MAX_CONNECTIONS_PER_PEER;
    let expected = |beyond: usize| {
        Outcomes::from([
            ((101, String::new()), open),
            ((429, "peer_websockets".to_owned()), held - open),
            ((429, "peer_connections".to_owned()), beyond),
        ])
    };
    assert_eq!((warm.held.len(), warm.outcomes), (held, expected(WARM_UP - held)));
    let warm_bytes = most.above(before);
    println!("{held} connections held: {} KiB more resident", warm_bytes >> 10);
    assert!(warm_bytes <= held * BYTES_PER_HELD, "{warm_bytes} bytes for {held} connections");

    let at_warm = resident_bytes();
    let most = Arc::new(Most::default());
    let rest = attack(server.addr, ATTEMPTS - WARM_UP, |_| [127, 0, 0, 1], true, &most).await;
    let all_refused = [((429, "peer_connections".to_owned()), ATTEMPTS - WARM_UP)];
    assert_eq!((rest.held.len(), rest.outcomes), (0, Outcomes::from(all_refused)));
    // From many addresses, which get the WebSockets that are left.
    let from_many = |number: usize| [127, 0, 1, 1 + (number % 50) as u8];
    let many = attack(server.addr, 1_000, from_many, false, &most).await;
    let left = DEFAULT_MAX_WEBSOCKETS - open;
    let expected = [((101, String::new()), left), ((503, "websockets".to_owned()), 1_000 - left)];
    assert_eq!(many.outcomes, Outcomes::from(expected));
    let added = most.above(at_warm);
    println!("{} refused: {} KiB more resident", ATTEMPTS - WARM_UP + 1_000, added >> 10);
    assert!(added <= FLAT_BYTES + left * BYTES_PER_HELD, "{added} bytes more");

    over.store(true, SeqCst);
    let served = other.await.unwrap();
    println!("{served} requests of another caller served meanwhile");
    assert_eq!(server.pool.len(), bodies.len());
    let counted = &server.counted;
    let lost = warm.lost + rest.lost;
    assert_eq!(counted.reason("peer_connections"), (ATTEMPTS - held + lost) as u64);
    assert_eq!(many.lost, 0, "within what an address may have nobody is cut off");
    assert_eq!(counted.reason("websockets"), (1_000 - left) as u64);
    assert_eq!(counted.reason("peer_websockets"), (held - open) as u64);
    assert_eq!(counted.reason("connections"), 0);
    assert_eq!(server.gate.stats().requests_in_flight, 0, "an idle WebSocket is no request");
    let gauges = || (counted.gauge("order_rpc_connections"), counted.gauge("order_rpc_websockets"));
    until("the others are gone", || gauges().1 == DEFAULT_MAX_WEBSOCKETS as f64).await;
    drop((warm.held, many.held));
    until("all are gone", || gauges() == (0.0, 0.0)).await;
    let (socket, answer) = handshake([127, 0, 0, 1], server.addr, &AtomicUsize::new(0)).await;
    assert_eq!(answer.status, 101, "there is room again");
    drop(socket);
}
