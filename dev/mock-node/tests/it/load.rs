use std::{
    collections::HashSet,
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use mock_node::{LoadStart, NodeConfig};
use serde_json::json;

use crate::client::{Client, connected, start};

#[test]
fn the_paced_load_waits_for_its_listener_keeps_its_pace_and_stops_at_its_count() {
    let (_dir, node, mut client) = connected(|config| NodeConfig {
        tps: 1000,
        count: Some(500),
        load_start: LoadStart::FirstSubscription,
        ..config
    });
    assert_eq!(node.stats().announced, 0);
    let begin = Instant::now();
    client.subscribe(json!(["newPendingTransactions"]));
    let hashes: HashSet<_> = (0..500).map(|_| client.announced()).collect();
    let took = begin.elapsed();
    assert_eq!(hashes.len(), 500);
    // 499 steps of a millisecond: never faster, however late the machine is.
    assert!(took >= Duration::from_millis(498), "too fast: {took:?}");
    assert!(node.wait_load_finished(Duration::from_secs(10)));
    assert_eq!(node.stats().announced, 500);
    assert_eq!(hashes, node.pending().into_iter().collect());
}

/// Who waited for it looked whether there is one, and saw none.
#[test]
fn the_load_begins_though_the_subscription_that_it_waited_for_has_ended() {
    let (_dir, node, mut client) = connected(|config| NodeConfig {
        tps: 1000,
        count: Some(1),
        load_start: LoadStart::FirstSubscription,
        ..config
    });
    client.write(
        br#"{"jsonrpc":"2.0","id":1,"method":"eth_subscribe","params":["newPendingTransactions"]}"#,
    );
    drop(client);
    assert!(node.wait_load_finished(Duration::from_secs(20)));
}

/// One that was refused for want of room comes again before the next of its sender, which would be queued for ever.
#[test]
fn a_pool_that_was_full_leaves_no_gap_in_the_nonces_of_the_load() {
    let (_dir, node) = start(|config| NodeConfig {
        accounts: 2,
        tps: 500,
        count: Some(300),
        pool_limit: 5,
        ..config
    });
    let mut was_full = 0;
    while !node.wait_load_finished(Duration::from_millis(30)) {
        was_full += usize::from(node.pending().len() == 5);
        node.mine();
    }
    assert!(was_full > 0, "it was full, and refused some");
    assert!(node.queued().is_empty());
}

/// All were signed before the start once, blobs and their proofs too, which kept whoever started a node waiting.
#[test]
fn a_load_is_the_same_whether_it_was_signed_before_or_while_the_clock_runs() {
    let run = |signed_ahead| {
        let (_dir, node) = start(|config| NodeConfig {
            tps: 1000,
            count: Some(1500),
            preload: 20,
            blobs_per_mille: 10,
            signed_ahead,
            ..config
        });
        assert!(node.wait_load_finished(Duration::from_secs(60)));
        node.pending()
    };
    let ahead = run(1500);
    assert_eq!(ahead.len(), 1520);
    assert_eq!(run(1), ahead);
}

#[test]
fn held_answers_are_held_at_the_same_time() {
    let latency = Duration::from_millis(200);
    let (_dir, node, mut client) =
        connected(|config| NodeConfig { preload: 50, latency, ..config });
    let begin = Instant::now();
    for (id, hash) in node.pending().into_iter().enumerate() {
        client.request_raw(id, hash);
    }
    // Not held, and so ahead of all requested before it.
    client.write(br#"{"jsonrpc":"2.0","id":"first","method":"eth_chainId"}"#);
    assert_eq!(client.value()["id"], "first");
    let ids: HashSet<u64> = (0..50).map(|_| client.value()["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), 50);
    // One after the other they would take fifty times as long.
    let took = begin.elapsed();
    assert!(took >= latency && took < latency * 5, "{took:?}");
}

#[test]
fn the_binary_says_when_it_is_ready() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("node.ipc");
    let mut child = Command::new(env!("CARGO_BIN_EXE_mock-node"))
        .args(["--tps", "0", "--preload", "5", "--block-time", "0s", "--ipc"])
        .arg(&path)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut out = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(out.next().unwrap().unwrap(), format!("ready {}", path.display()));
    let mut client = Client::connect(&path);
    assert_eq!(client.result("txpool_status", json!([]))["pending"], "0x5");
    child.kill().unwrap();
    child.wait().unwrap();
}
