//! Bodies that come a byte at a time. Alone in its program, as it measures resident memory.
#![cfg(target_os = "linux")]

#[path = "../src/tests/common.rs"]
mod common;

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
};

use common::*;
use tokio::time::interval;

const ATTACKERS: usize = 300;
const ROUNDS: usize = 3;
/// What the rounds after the first may add to its peak: what the allocator keeps of what was freed.
/// Of 900 connections more, each of which has a read buffer of up to 32 kB.
const FLAT_BYTES: usize = 8 << 20;

/// Promises a megabyte and sends a byte every 20 ms, until it is told to stop. `None` if it was not
/// told: a byte that meets a closed socket resets the connection, and may take the answer with it.
async fn slow(client: Client, most: Arc<Most>) -> Option<Answer> {
    let (mut reader, mut writer) = client.begin(1 << 20, "{").await.into_split();
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
        read = tokio::time::timeout(PATIENCE, reader.read_to_end(&mut bytes)) => {
            // An error is the reset; what came before it counts.
            let _ = read.expect("an end in time");
        }
        () = dribble => unreachable!("an endless loop"),
    }
    (!bytes.is_empty()).then(|| parse(&bytes))
}

/// Someone else, for as long as the attack goes on. Refused, it comes back as it was told to, only
/// sooner; what counts is that it gets in. Returns how often it was refused.
async fn other_caller(client: Client, bodies: Vec<String>, over: Arc<AtomicBool>) -> u64 {
    let (mut refused, mut served) = (0, Instant::now());
    for body in bodies.iter().cycle() {
        let answer = client.clone().send(body).await;
        if answer.status == 200 {
            answer.result();
            served = Instant::now();
        } else {
            assert!(NO_PLACE.contains(&answer.error().2), "{answer:?}");
            assert!(served.elapsed() < PATIENCE, "kept out by slow bodies");
            refused += 1;
        }
        if over.load(SeqCst) {
            break;
        }
    }
    refused
}

/// Why a request finds no place, be it slow or not.
const NO_PLACE: [&str; 2] = ["unsigned_requests", "too_many_requests"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_bodies_round_after_round_take_no_more_memory_than_in_the_first() {
    // The other caller asks as fast as the machine can.
    let config = OrderRpcConfig { caller_quota: None, ..config() };
    let server = start_server(config, gate_config(64));
    let bodies: Vec<_> = (0..16).map(|_| transaction()).collect();
    let over = Arc::new(AtomicBool::new(false));
    let other = tokio::spawn(other_caller(server.from(ONE), bodies.clone(), Arc::clone(&over)));

    let most = Arc::new(Most::default());
    let mut told = BTreeMap::<_, u64>::new();
    let (mut warm, mut rounds) = (0, 0);
    // More of them if the other caller needs more time until all of its transactions are in.
    while rounds <= ROUNDS || server.pool.len() < bodies.len() && !other.is_finished() {
        let answers = (0..ATTACKERS).map(|number| {
            // From 64 addresses, so that no share of one is met.
            let client = server.from([127, 0, 1, (number % 64) as u8]);
            tokio::spawn(slow(client, Arc::clone(&most)))
        });
        for answer in join_all(answers).await {
            let Some(answer) = answer.unwrap() else { continue };
            let (status, _, reason) = answer.error();
            assert_eq!(status, if reason == "body_timeout" { 408 } else { 503 }, "{reason}");
            *told.entry(reason).or_default() += 1;
        }
        most.look();
        if rounds == 0 {
            warm = most.above(0);
        }
        rounds += 1;
    }
    let added = most.above(warm);
    over.store(true, SeqCst);
    let kept_out = other.await.unwrap();
    println!(
        "{} slow bodies, {told:?}; {} KiB more resident; another caller: {kept_out} refused",
        ATTACKERS * rounds,
        added >> 10
    );
    assert!(added <= FLAT_BYTES, "{added} bytes more");
    assert_eq!(server.pool.len(), bodies.len(), "the other caller's are in");
    server.until_nothing_is_held().await;
    let mut all = 0;
    for reason in ["body_timeout", "slow_bodies"].into_iter().chain(NO_PLACE) {
        let counted = server.counted.reason(reason);
        let told = told.remove(reason).unwrap_or_default();
        assert!(counted >= told, "{reason}: {counted} counted, {told} told");
        assert!(counted > 0 || reason == "too_many_requests", "no {reason}");
        all += counted;
    }
    assert!(told.is_empty(), "{told:?}");
    assert_eq!(all, (ATTACKERS * rounds) as u64 + kept_out, "each is counted once");
}
