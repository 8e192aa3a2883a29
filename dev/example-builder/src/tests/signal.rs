//! The command in a process of its own, which a signal ends.

use std::{process::ExitCode, time::Duration};

use clap::Parser as _;
use testkit::{
    command::{Signal, command_line, end_by_signal},
    ingest::Node,
};

use crate::{args::Args, command::command};

#[test]
#[ignore = "run by the test below, in a process that a signal ends"]
fn a_command_that_does_not_end() {
    assert_eq!(command(&Args::parse_from(command_line())), ExitCode::SUCCESS);
}

#[test]
fn sigterm_and_sigint_end_the_command_with_its_summary_and_exit_code_0() {
    let node = Node::start(0, |node| mock_node::NodeConfig {
        state: true,
        preload: 20,
        block_time: Duration::from_millis(500),
        ..node
    });
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let ipc = node.node.ipc_path().to_str().expect("text");
        let args = ["--ipc", ipc, "--slot", "500ms", "--json"].map(Into::into);
        let is_block = |line: &str| line.starts_with("block ");
        let ended =
            end_by_signal("tests::signal::a_command_that_does_not_end", args, is_block, signal)
                .expect("this binary runs");
        assert_eq!(ended.status.code(), Some(0), "{signal}: {ended:?}");
        let last = ended.stderr.lines().last().expect("a summary");
        assert!(last.contains(" orders included of "), "{signal}: {ended:?}");
        let summary = ended.json().expect("the summary");
        assert!(summary["blocks"].as_u64() >= Some(1), "{signal}: {summary}");
    }
}
