//! Bodies that come a byte at a time, round after round. Alone in its program: it measures resident
//! memory.
#![cfg(target_os = "linux")]

mod common;

use common::{memory::*, *};
use futures::future::join_all;
use serde_json::json;
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::interval,
};

const ATTACKERS: usize = 300;
const ROUNDS: usize = 6;
/// What the rounds after the first may add to its peak: what the allocator keeps of what was freed.
/// Of 1,800 connections more, each of which has a read buffer of up to 32 kB.
const FLAT_BYTES: usize = 8 << 20;

/// Promises a megabyte and sends a byte every 20 ms, until it is told to stop. `None` if it was not
/// told: a byte that meets a closed socket resets the connection, and may take the answer with it.
async fn slow(to: SocketAddr, most: Arc<Most>) -> Option<Answer> {
    let socket = TcpStream::connect(to).await.unwrap();
    let (mut reader, mut writer) = socket.into_split();
    let start = head("POST", "/", 1 << 20, &[]) + "{";
    writer.write_all(start.as_bytes()).await.unwrap();
    most.look();
    let mut bytes = Vec::new();
    let dribble = async {
        let mut ticks = interval(Duration::from_millis(20));
        loop {
            ticks.tick().await;
            if writer.write_all(b" ").await.is_err() {
                // Closed: the answer is on its way.
                return std::future::pending::<()>().await;
            }
        }
    };
    // The answer ends the attack; sending has no end of its own.
    tokio::select! {
        read = tokio::time::timeout(Duration::from_secs(20), reader.read_to_end(&mut bytes)) => {
            // An error is the reset; what came before it counts.
            let _ = read.expect("an end within 20 s");
        }
        () = dribble => unreachable!("an endless loop"),
    }
    (!bytes.is_empty()).then(|| parse(&bytes))
}

/// Someone else, for as long as the attack goes on. Refused, it comes back as it was told to, only
/// sooner; what counts is that it gets in.
async fn other_caller(to: SocketAddr, bodies: Vec<String>, over: Arc<AtomicBool>) -> (u64, u64) {
    let (mut served, mut refused) = (0, 0);
    let mut last_served = Instant::now();
    while !over.load(SeqCst) {
        for body in &bodies {
            let answer = send(to, body.as_bytes(), &[]).await;
            if answer.status == 200 {
                assert!(answer.json()["result"].is_string(), "{answer:?}");
                (served, last_served) = (served + 1, Instant::now());
            } else {
                assert_eq!(answer.error(), (503, -32005, "too_many_requests".to_owned()));
                refused += 1;
                assert!(last_served.elapsed() < Duration::from_secs(5), "kept out by slow bodies");
            }
        }
    }
    (served, refused)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_bodies_round_after_round_take_no_more_memory_than_in_the_first() {
    let mut config = config();
    config.body_timeout = Duration::from_millis(600);
    let server = start(config);
    let bodies: Vec<_> =
        (0..16).map(|nonce| request("eth_sendRawTransaction", json!([raw(nonce)]))).collect();
    let over = Arc::new(AtomicBool::new(false));
    let other = tokio::spawn(other_caller(server.addr, bodies.clone(), Arc::clone(&over)));

    let most = Arc::new(Most::default());
    let mut told: BTreeMap<String, u64> = BTreeMap::new();
    let mut warm = 0;
    for round in 0..=ROUNDS {
        let answers = (0..ATTACKERS).map(|_| tokio::spawn(slow(server.addr, Arc::clone(&most))));
        for answer in join_all(answers).await {
            let Some(answer) = answer.unwrap() else { continue };
            let (status, code, reason) = answer.error();
            let expected = match reason.as_str() {
                "body_timeout" => (408, -32600),
                // No place for a slow one, or for one more of any kind.
                "slow_bodies" | "too_many_requests" => (503, -32005),
                _ => panic!("{status} {code} {reason}"),
            };
            assert_eq!((status, code), expected, "{reason}");
            *told.entry(reason).or_default() += 1;
        }
        most.look();
        if round == 0 {
            warm = most.above(0);
        }
    }
    let added = most.above(warm);
    over.store(true, SeqCst);
    let (served, kept_out) = other.await.unwrap();
    println!(
        "{} slow bodies, {told:?}; {} KiB more resident; another caller: {served} served, \
         {kept_out} refused",
        ATTACKERS * (ROUNDS + 1),
        added >> 10
    );
    assert!(added <= FLAT_BYTES, "{added} bytes more");
    assert_eq!(server.pool.len(), bodies.len(), "the other caller's are in");
    *told.entry("too_many_requests".to_owned()).or_default() += kept_out;
    let mut all = 0;
    for reason in ["body_timeout", "slow_bodies", "too_many_requests"] {
        let counted = server.counted.reason(reason);
        let told = told.remove(reason).unwrap_or_default();
        assert!(counted > 0 && counted >= told, "{reason}: {counted} counted, {told} told");
        all += counted;
    }
    assert_eq!(all, (ATTACKERS * (ROUNDS + 1)) as u64 + kept_out, "each is counted once");
    until("everything is given back", || {
        (server.rpc.buffered_bytes(), server.gate.stats().requests_in_flight) == (0, 0)
    })
    .await;
}
