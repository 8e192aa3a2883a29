//! Tests that the command stops in order and in time, whatever happens around it.

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

use crate::{AUDITED, ended_with, finish, ipc, start, start_live, start_node, wait_for};

/// A stop must take less.
const TOO_LONG: Duration = Duration::from_secs(10);

/// SIGTERM and SIGHUP once killed the command, with up to 30 s of a recording.
#[test]
fn each_of_three_signals_ends_the_command_with_its_summary() {
    let node = start_node(30);
    node.submit_all();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let recording = tempfile::tempdir().expect("a folder");
        let folder = recording.path().to_str().expect("text");
        let hashes = recording.path().join("hashes");
        let list = hashes.to_str().expect("text");
        let mut running = start(["--ipc", ipc(&node), "--record", folder, "--hashes", list]);
        wait_for(&mut running, "live chain=1337 head=", &[" pooled=30 "]);
        let ended = running.end(Some(signal)).expect("the command ends");
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

/// The signal once ended the process at once, and left the folder of the mock node behind.
#[test]
fn a_signal_while_the_node_starts_ends_the_command_in_order() {
    let node = start_node(0);
    let child = "stop::a_command_that_is_signalled_while_its_node_starts";
    let args = ["--plain", "--ipc", ipc(&node)].map(str::to_owned);
    let ended = Running::start(child, args).and_then(|running| running.end(None));
    ended_with(0, &ended.expect("the command ends"));
}

/// A node that cannot be audited when the command stops.
struct Case {
    name: &'static str,
    list_time: Duration,
    /// Injected before the signal.
    fault: Option<Fault>,
}

/// A stop once waited half a minute for a live source, and then as long as the node took for its
/// list.
#[test]
fn no_node_delays_a_stop_and_the_missing_count_is_unknown() {
    let down = Duration::from_secs(300);
    let gone = Fault::Restart { down, leaves_file: false };
    let cases = [
        Case { name: "lists nothing", list_time: Duration::from_secs(300), fault: None },
        Case {
            name: "is frozen",
            list_time: Duration::ZERO,
            fault: Some(Fault::GoDead(Target::All)),
        },
        Case { name: "is gone", list_time: Duration::ZERO, fault: Some(gone) },
    ];
    for Case { name, list_time, fault } in cases {
        let node =
            Node::start(5, |node| NodeConfig { block_time: Duration::ZERO, list_time, ..node });
        let recording = tempfile::tempdir().expect("a folder");
        let folder = recording.path().to_str().expect("text");
        let mut running = start(["--ipc", ipc(&node), "--record", folder]);
        wait_for(&mut running, "", &[" pooled=0 "]);
        node.submit_all();
        wait_for(&mut running, "", &[" pooled=5 "]);
        if let Some(fault) = fault {
            node.node.inject(fault);
        }
        let start = Instant::now();
        let (ended, summary) = finish(running);
        assert!(start.elapsed() < TOO_LONG, "{name}: {:?}", start.elapsed());
        for count in AUDITED {
            assert!(summary[count].is_null(), "{name}: {summary}");
        }
        assert_eq!(summary["recorded"]["rows"], 5, "{name}: {summary}");
        assert!(ended.stderr.contains("warning: no final audit: "), "{name}: {ended:?}");
        let rows = Recording::open(folder, RecordingConfig::default()).expect("a recording");
        assert_eq!(rows.filter_map(Result::ok).count(), 5, "{name}");
    }
}

#[test]
fn a_second_signal_ends_the_command_at_once() {
    let node = start_node(0);
    let mut running = start_live(&node);
    // The stop waits for this node for seconds.
    node.node.inject(Fault::GoDead(Target::All));
    let start = Instant::now();
    // Signals within half a second count as one, so send several.
    while !running.has_ended().expect("a status") {
        running.signal(Signal::SIGTERM).expect("the command runs");
        assert!(start.elapsed() < Duration::from_secs(3), "the command still runs");
        std::thread::sleep(Duration::from_millis(50));
    }
    ended_with(128 + Signal::SIGTERM as i32, &running.end(None).expect("it has ended"));
}

#[test]
fn two_signals_at_once_count_as_one() {
    let node = start_node(0);
    let running = start_live(&node);
    // When a terminal is closed, both the terminal and the shell send SIGHUP.
    running.signal(Signal::SIGHUP).expect("it runs");
    let (_, summary) = finish(running);
    assert_eq!(summary["end"], "Stopped", "{summary}");
}

/// Writing to a closed stderr was once a panic.
#[test]
fn a_command_whose_stderr_is_closed_ends_in_order() {
    let node = start_node(5);
    let recording = tempfile::tempdir().expect("a folder");
    let folder = recording.path().to_str().expect("text");
    let mut running = start(["--ipc", ipc(&node), "--record", folder]);
    node.submit_all();
    wait_for(&mut running, "live ", &[" pooled=5 "]);
    running.close_stderr();
    let ended = running.end(None).expect("the command ends");
    ended_with(0, &ended);
    assert_eq!(ended.json().expect("the summary")["recorded"]["rows"], 5, "{ended:?}");
}
