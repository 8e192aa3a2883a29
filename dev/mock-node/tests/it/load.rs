//! Tests of the node's own load.

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
fn the_paced_load_waits_for_a_subscription_and_keeps_its_pace() {
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
    // The 499 intervals of a millisecond can only be longer on a slow machine.
    assert!(took >= Duration::from_millis(498), "too fast: {took:?}");
    assert!(node.wait_load_finished(Duration::from_secs(10)));
    assert_eq!(node.stats().announced, 500);
    assert_eq!(hashes, node.pending().into_iter().collect());
}

/// The load used to check for an open subscription, and missed one that had already ended.
#[test]
fn the_load_begins_even_if_its_first_subscription_has_ended() {
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

/// A transaction that the full pool refused is sent again; without it, later ones of its sender
/// would stay queued.
#[test]
fn a_full_pool_leaves_no_nonce_gap_in_the_load() {
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
    assert!(was_full > 0, "the pool was full, and refused some");
    assert!(node.queued().is_empty());
}

/// All transactions used to be signed before the start, which made the start of a node slow.
#[test]
fn a_load_is_the_same_whenever_it_is_signed() {
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
fn answers_are_delayed_concurrently() {
    let latency = Duration::from_millis(200);
    let (_dir, node, mut client) =
        connected(|config| NodeConfig { preload: 50, latency, ..config });
    let begin = Instant::now();
    for (id, hash) in node.pending().into_iter().enumerate() {
        client.request_raw(id, hash);
    }
    // This answer has no delay, so it precedes those to earlier requests.
    client.write(br#"{"jsonrpc":"2.0","id":"first","method":"eth_chainId"}"#);
    assert_eq!(client.value()["id"], "first");
    let ids: HashSet<u64> = (0..50).map(|_| client.value()["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), 50);
    // Sequential delays would take fifty times as long.
    let took = begin.elapsed();
    assert!(took >= latency && took < latency * 5, "{took:?}");
}

#[test]
fn the_binary_prints_when_it_is_ready() {
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
