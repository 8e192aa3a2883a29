//! The command in a process of its own, on a mock node.

mod fleet;

use std::{
    collections::BTreeSet,
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Parser;
use mock_node::NodeConfig;
use testkit::{
    command::{Running, Signal, command_line, end_by_signal},
    ingest::Node,
};

#[derive(Debug, Parser)]
struct Command {
    #[command(flatten)]
    args: mempool_ingest_cli::Args,
}

#[test]
#[ignore = "run by the test below, in a process that a signal ends"]
fn a_command_that_does_not_end() {
    assert_eq!(
        mempool_ingest_cli::run(&Command::parse_from(command_line()).args),
        ExitCode::SUCCESS
    );
}

#[test]
fn without_a_node_the_command_ends_and_says_what_is_missing() {
    let running = Running::start("a_command_that_does_not_end", []);
    let ended = running.and_then(|running| running.end(None)).expect("this binary runs");
    assert_ne!(ended.status.code(), Some(0), "{ended:?}");
    assert!(ended.stderr.contains("error: no node is named: --ipc PATH or --ws URL"), "{ended:?}");
}

/// It ended at SIGINT only, and systemd's SIGTERM killed it with up to 30 s of a recording.
#[test]
fn sigterm_and_sigint_end_the_command_with_its_summary_and_exit_code_0() {
    let node = Node::start(30, |node| NodeConfig { block_time: Duration::ZERO, ..node });
    node.submit_all();
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let recording = tempfile::tempdir().expect("a folder");
        let (ipc, folder) = (node.node.ipc_path(), recording.path());
        let args = ["--ipc", ipc.to_str().expect("text"), "--plain", "--json"].map(Into::into);
        let record = ["--record".into(), folder.to_str().expect("text").to_owned()];
        let hashes = recording.path().join("hashes");
        let list = ["--hashes".into(), hashes.to_str().expect("text").to_owned()];
        let ended = end_by_signal(
            "a_command_that_does_not_end",
            args.into_iter().chain(record).chain(list),
            |line| line.starts_with("live ") && line.contains(" pooled=30 "),
            signal,
        )
        .expect("this binary runs");
        assert_eq!(ended.status.code(), Some(0), "{signal}: {ended:?}");
        let last = ended.stderr.lines().last().expect("a summary");
        assert!(last.contains("; 30 pooled; 0 missing; "), "{signal}: {ended:?}");
        let summary = ended.json().expect("the summary");
        assert_eq!(summary["end"], "Stopped", "{signal}");
        assert_eq!(summary["balance"], 0, "{signal}");
        assert_eq!(summary["recorded"]["rows"], 30, "{signal}: {summary}");
        let listed = std::fs::read_to_string(hashes).expect("the hashes");
        let listed: BTreeSet<_> = listed.lines().map(str::to_owned).collect();
        assert_eq!(listed, node.txs.iter().map(|tx| tx.hash.to_string()).collect(), "{signal}");
    }
}

/// It waited for half a minute for a live source, and then for the list for as long as the node took.
#[test]
fn a_node_that_does_not_list_its_pool_holds_up_no_stop_and_what_is_missing_is_unknown() {
    let node = Node::start(0, |node| NodeConfig { list_time: Duration::from_secs(300), ..node });
    let ipc = node.node.ipc_path().to_str().expect("text").to_owned();
    let args = ["--ipc".into(), ipc, "--plain".into(), "--json".into()];
    let mut running = Running::start("a_command_that_does_not_end", args).expect("it runs");
    running.line(|line| line.contains(" pooled=0 ").then_some(())).expect("it is up");
    let began = Instant::now();
    let ended = running.end(Some(Signal::SIGTERM)).expect("it ends");
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    assert!(ended.json().expect("the summary")["missing"].is_null(), "{ended:?}");
}
