//! A machine on which no further thread can be started.
#![cfg(target_os = "linux")]

#[path = "../src/tests/common.rs"]
mod common;

use std::time::Duration;

use common::*;
use testkit::threads::{NoThreads, run_in_own_process};

/// tokio starts a thread for blocking work when it needs one, and ends it after ten idle seconds.
/// No request may need a new one.
#[test]
fn requests_are_answered_while_no_thread_can_be_started() {
    run_in_own_process("without_threads");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the other test runs it, in a process of its own"]
async fn without_threads() {
    let server = start_server(config(), gate_config(64));
    server.send(transaction()).await.result();
    // Longer than idle threads live.
    tokio::time::sleep(Duration::from_secs(12)).await;
    let _no_threads = NoThreads::begin();
    let answer = tokio::time::timeout(Duration::from_secs(5), server.send(transaction())).await;
    answer.expect("an answer").result();
}
