//! How the command stops.

use std::{
    collections::BTreeSet,
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Parser;
use mempool_recorder::{Recording, RecordingConfig};
use mock_node::{Fault, NodeConfig, Target};
use testkit::{
    command::{Running, Signal, command_line},
    ingest::Node,
};

use crate::{AUDITED, ended_with, finish, ipc, live, node_of, start, wait_for};

/// More than a stop may take.
const TOO_LONG: Duration = Duration::from_secs(10);

/// It ended at SIGINT only, and systemd's SIGTERM and a closed session's SIGHUP killed it with up to 30 s of a recording.
#[test]
fn each_of_three_signals_ends_the_command_with_its_summary_and_exit_code_0() {
    let node = node_of(30);
    node.submit_all();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let recording = tempfile::tempdir().expect("a folder");
        let folder = recording.path().to_str().expect("text");
        let hashes = recording.path().join("hashes");
        let list = hashes.to_str().expect("text");
        let mut running = start(["--ipc", ipc(&node), "--record", folder, "--hashes", list]);
        wait_for(&mut running, "live chain=1337 head=", &[" pooled=30 "]);
        let ended = running.end(Some(signal)).expect("it ends");
        ended_with(0, &ended);
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

#[derive(Debug, Parser)]
struct Command {
    #[command(flatten)]
    args: mempool_ingest_cli::Args,
}

#[test]
#[ignore = "run by the test below, in a process that sends itself a signal"]
fn a_command_that_is_signalled_while_its_node_starts() {
    let args = Command::parse_from(command_line()).args;
    let code = mempool_ingest_cli::run(&args, |_| {
        nix::sys::signal::raise(Signal::SIGINT)?;
        Ok(())
    });
    assert_eq!(code, ExitCode::SUCCESS);
}

/// The signal ended the process, and left the folder of the mock node behind.
#[test]
fn a_signal_that_comes_while_the_node_starts_ends_the_command_in_order() {
    let node = node_of(0);
    let child = "stop::a_command_that_is_signalled_while_its_node_starts";
    let args = ["--plain", "--ipc", ipc(&node)].map(str::to_owned);
    let ended = Running::start(child, args).and_then(|running| running.end(None));
    ended_with(0, &ended.expect("it ends"));
}

/// A node, and what happens to it before the signal.
type Case = (&'static str, fn(NodeConfig) -> NodeConfig, Option<Fault>);

/// It waited for half a minute for a live source, and then for the list for as long as the node took.
#[test]
fn no_node_holds_up_a_stop_and_what_is_missing_is_unknown() {
    let down = Duration::from_secs(300);
    let cases: [Case; 3] = [
        ("lists nothing", |node| NodeConfig { list_time: Duration::from_secs(300), ..node }, None),
        ("is frozen", |node| node, Some(Fault::GoDead(Target::All))),
        ("is gone", |node| node, Some(Fault::Restart { down, leaves_file: false })),
    ];
    for (what, config, fault) in cases {
        let node = Node::start(5, |node| NodeConfig { block_time: Duration::ZERO, ..config(node) });
        let recording = tempfile::tempdir().expect("a folder");
        let folder = recording.path().to_str().expect("text");
        let mut running = start(["--ipc", ipc(&node), "--record", folder]);
        wait_for(&mut running, "", &[" pooled=0 "]);
        node.submit_all();
        wait_for(&mut running, "", &[" pooled=5 "]);
        if let Some(fault) = fault {
            node.node.inject(fault);
        }
        let began = Instant::now();
        let (ended, summary) = finish(running);
        assert!(began.elapsed() < TOO_LONG, "{what}: {:?}", began.elapsed());
        for count in AUDITED {
            assert!(summary[count].is_null(), "{what}: {summary}");
        }
        assert_eq!(summary["recorded"]["rows"], 5, "{what}: {summary}");
        assert!(ended.stderr.contains("warning: no final audit: "), "{what}: {ended:?}");
        let rows = Recording::open(folder, RecordingConfig::default()).expect("it opens");
        assert_eq!(rows.filter_map(Result::ok).count(), 5, "{what}");
    }
}

#[test]
fn a_second_signal_ends_the_command_at_once() {
    let node = node_of(0);
    let mut running = live(&node);
    // Its stop waits for it for seconds.
    node.node.inject(Fault::GoDead(Target::All));
    let began = Instant::now();
    // The first ones may be one request that was sent twice.
    while !running.has_ended().expect("it can be asked") {
        running.signal(Signal::SIGTERM).expect("it runs");
        assert!(began.elapsed() < Duration::from_secs(3), "it runs on");
        std::thread::sleep(Duration::from_millis(50));
    }
    ended_with(128 + Signal::SIGTERM as i32, &running.end(None).expect("it has ended"));
}

#[test]
fn two_signals_at_once_are_one() {
    let node = node_of(0);
    let running = live(&node);
    // As a shell does when its terminal is closed, beside the terminal itself.
    running.signal(Signal::SIGHUP).expect("it runs");
    let (_, summary) = finish(running);
    assert_eq!(summary["end"], "Stopped", "{summary}");
}

/// A line that nobody could read was a panic.
#[test]
fn a_command_whose_lines_nobody_reads_any_more_ends_in_order() {
    let node = node_of(5);
    let recording = tempfile::tempdir().expect("a folder");
    let folder = recording.path().to_str().expect("text");
    let mut running = start(["--ipc", ipc(&node), "--record", folder]);
    node.submit_all();
    wait_for(&mut running, "live ", &[" pooled=5 "]);
    running.close_stderr();
    let ended = running.end(None).expect("it ends");
    ended_with(0, &ended);
    assert_eq!(ended.json().expect("the summary")["recorded"]["rows"], 5, "{ended:?}");
}
