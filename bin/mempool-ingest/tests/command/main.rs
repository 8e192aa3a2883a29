//! The command in a process of its own, on a mock node.

mod config;
mod fleet;
mod operations;
mod output;
mod stop;
mod terminal;
mod texts;

use std::{
    process::Command,
    time::{Duration, Instant},
};

use mock_node::{Fault, NodeConfig, Target};
use serde_json::Value;
use testkit::{
    command::{Ended, Running, Signal},
    ingest::{Node, PATIENCE},
};

/// What the final audit counts, and `null` without one: it was -1, and what the same comparison would have said of the rest 0.
const AUDITED: [&str; 3] = ["missing", "removed", "unlistable"];

/// The binary, with these arguments and a line each second.
fn command<'a>(args: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mempool-ingest"));
    command.args(["--plain", "--json", "--status-interval", "1s"]).args(args);
    command.env_remove("RUST_LOG");
    command
}

fn start<'a>(args: impl IntoIterator<Item = &'a str>) -> Running {
    Running::spawn(command(args)).expect("the binary runs")
}

/// A node with so many transactions that are still to be submitted, and that no block takes.
fn node_of(txs: usize) -> Node {
    Node::start(txs, |node| NodeConfig { block_time: Duration::ZERO, ..node })
}

/// A live one.
fn live(node: &Node) -> Running {
    let mut running = start(["--ipc", ipc(node)]);
    wait_for(&mut running, "live ", &[]);
    running
}

/// What it said on stderr, when it ended by itself with this exit code.
fn ended_with(code: i32, ended: &Ended) -> &str {
    assert_eq!(ended.status.code(), Some(code), "{ended:?}");
    &ended.stderr
}

fn ipc(node: &Node) -> &str {
    node.node.ipc_path().to_str().expect("text")
}

/// Waits for a line that begins and goes on so.
fn wait_for(running: &mut Running, begin: &str, texts: &[&str]) {
    let is_it =
        |line: &str| line.starts_with(begin) && texts.iter().all(|text| line.contains(text));
    let found = running.line(|line| is_it(line).then_some(()));
    found.unwrap_or_else(|error| panic!("{begin} {texts:?} {error}"));
}

/// Looks again and again until it is so; until then, what is there instead.
fn until<T>(mut look: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match look() {
            Ok(found) => return found,
            Err(instead) => assert!(Instant::now() < deadline, "{instead}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Ends it with a signal, and checks that the exit code is 0.
fn finish(running: Running) -> (Ended, Value) {
    let ended = running.end(Some(Signal::SIGTERM)).expect("it ends");
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    let summary = ended.json().expect("the summary");
    (ended, summary)
}

#[test]
fn what_keeps_the_command_from_running_is_exit_code_2_and_one_sentence() {
    let cases: [(&[&str], &str, &str); 3] = [
        (&[], "warn", "error: no node is named: give --ipc PATH or --ws URL"),
        (&["--ipc", "/none.ipc"], "", "error: /none.ipc: "),
        (&["--ipc", "/none.ipc"], "fetcher=loud", "error: RUST_LOG is `fetcher=loud`: "),
    ];
    for (args, log, expected) in cases {
        let mut command = command(args.iter().copied());
        command.env("RUST_LOG", log);
        let ended = Running::spawn(command).and_then(|running| running.end(None));
        let ended = ended.expect("the binary runs");
        let said = ended_with(2, &ended);
        assert!(said.starts_with(expected) && said.lines().count() == 1, "{ended:?}");
    }
}

/// A run without transactions divided by one.
#[test]
fn a_run_without_transactions_has_no_costs_per_transaction() {
    let node = node_of(0);
    let running = live(&node);
    let (ended, summary) = finish(running);
    assert!(summary["latency_us"].is_null() && summary["cpu_us_per_tx"].is_null(), "{summary}");
    for count in AUDITED {
        assert_eq!(summary[count], 0, "{summary}");
    }
    let last = ended.stderr.lines().last().expect("a summary");
    assert!(last.contains("; 0 missing; ") && !last.contains(" us"), "{ended:?}");
}

#[test]
fn the_end_of_an_outage_is_logged_at_the_level_of_its_begin() {
    let node = node_of(0);
    let mut running = live(&node);
    node.node.inject(Fault::Close(Target::All));
    wait_for(&mut running, "", &[" WARN ", "connection lost"]);
    wait_for(&mut running, "", &[" WARN ", r#"to="live""#]);
    finish(running);
}

#[test]
fn with_the_log_as_json_each_line_on_stderr_is_an_object() {
    let node = node_of(0);
    let mut command = command(["--ipc", ipc(&node), "--log-format", "json"]);
    command.env("RUST_LOG", "info");
    let mut running = Running::spawn(command).expect("the binary runs");
    running.line(|line| line.contains(r#""state":"live""#).then_some(())).expect("it is live");
    let (ended, _) = finish(running);
    let lines: Vec<Value> =
        ended.stderr.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    for line in &lines {
        assert!(line["timestamp"].is_string() && line["level"].is_string(), "{line}");
    }
    let is_of = |target: &str| lines.iter().any(|line| line["target"] == target);
    assert!(is_of("txpool_fetcher::source") && is_of("mempool_ingest_cli"), "{lines:?}");
    let status = lines.iter().rfind(|line| line["fields"]["sources"].is_array()).expect("a status");
    assert_eq!(status["fields"]["sources"][0]["chain_id"], mock_node::DEV_CHAIN_ID, "{status}");
}

/// It said that nothing was pooled, on chain 1.
#[test]
fn a_replay_says_its_chain_and_what_became_of_the_recording() {
    let node = node_of(30);
    let folder = tempfile::tempdir().expect("a folder");
    let recording = folder.path().to_str().expect("text");
    let mut running = start(["--ipc", ipc(&node), "--record", recording]);
    node.submit_all();
    wait_for(&mut running, "live ", &[" pooled=30 "]);
    finish(running);
    // A file that publishes is for the live flow.
    let publishes = "[[publish]]\nserver.servers = ['nats://127.0.0.1:1']\nmachine = 'm'\n";
    let file = config::written(folder.path(), publishes);
    for (retention, held) in [("60s", 30), ("1ms", 0)] {
        let args = ["--config", &file, "--replay", recording, "--speed", "max"];
        let args = [&args[..], &["--tx-retention", retention]].concat();
        let ended = start(args).end(None).expect("it ends");
        ended_with(0, &ended);
        let said = format!(": {held} are pooled, {} removed since; ", 30 - held);
        let costs = " us of CPU per transaction";
        for part in ["chain 1337", "replayed 30 transactions in ", &said, costs] {
            assert!(ended.stderr.contains(part), "{part} in {ended:?}");
        }
        let summary = ended.json().expect("the summary");
        assert_eq!(summary["replayed"]["pooled"], 30, "{summary}");
        assert!(!ended.stderr.contains("published "), "{ended:?}");
        assert!(summary["cpu_us_per_tx"].as_f64() > Some(0.0), "{summary}");
    }
}
