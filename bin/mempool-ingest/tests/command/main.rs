//! Runs the command in a process of its own, on a mock node.

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

/// The fields of the summary that the final audit counts. They are `null` without an audit; once
/// they were -1 and 0.
const AUDITED: [&str; 3] = ["missing", "removed", "unlistable"];

/// Returns a command with these arguments that prints a status line each second.
fn command<'a>(args: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mempool-ingest"));
    command.args(["--plain", "--json", "--status-interval", "1s"]).args(args);
    command.env_remove("RUST_LOG");
    command
}

fn start<'a>(args: impl IntoIterator<Item = &'a str>) -> Running {
    Running::spawn(command(args)).expect("the binary runs")
}

/// Starts a node that mines nothing, with this number of prepared transactions to submit.
fn start_node(txs: usize) -> Node {
    Node::start(txs, |node| NodeConfig { block_time: Duration::ZERO, ..node })
}

/// Starts the command and waits until its source is live.
fn start_live(node: &Node) -> Running {
    let mut running = start(["--ipc", ipc(node)]);
    wait_for(&mut running, "live ", &[]);
    running
}

/// Asserts the exit code, and returns what the command wrote to stderr.
fn ended_with(code: i32, ended: &Ended) -> &str {
    assert_eq!(ended.status.code(), Some(code), "{ended:?}");
    &ended.stderr
}

fn ipc(node: &Node) -> &str {
    node.node.ipc_path().to_str().expect("text")
}

/// Waits for a line on stderr that begins with `prefix` and contains all texts.
fn wait_for(running: &mut Running, prefix: &str, texts: &[&str]) {
    let found = running.line(|line| {
        let matches = line.starts_with(prefix) && texts.iter().all(|text| line.contains(text));
        matches.then_some(())
    });
    found.unwrap_or_else(|error| panic!("{prefix} {texts:?} {error}"));
}

/// Calls `check` until it succeeds. Its error says what was found instead.
fn until<T>(mut check: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match check() {
            Ok(found) => return found,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Ends the command with a signal, asserts that the exit code is 0, and returns the summary.
fn finish(running: Running) -> (Ended, Value) {
    let ended = running.end(Some(Signal::SIGTERM)).expect("the command ends");
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    let summary = ended.json().expect("the summary");
    (ended, summary)
}

#[test]
fn a_failed_start_ends_with_code_2_and_one_sentence() {
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

/// The costs were once divided by one instead.
#[test]
fn a_run_without_transactions_has_no_costs_per_transaction() {
    let node = start_node(0);
    let running = start_live(&node);
    let (ended, summary) = finish(running);
    assert!(summary["latency_us"].is_null() && summary["cpu_us_per_tx"].is_null(), "{summary}");
    for count in AUDITED {
        assert_eq!(summary[count], 0, "{summary}");
    }
    let last = ended.stderr.lines().last().expect("a summary");
    assert!(last.contains("; 0 missing; ") && !last.contains(" us"), "{ended:?}");
}

#[test]
fn the_end_of_an_outage_is_logged_as_a_warning() {
    let node = start_node(0);
    let mut running = start_live(&node);
    node.node.inject(Fault::Close(Target::All));
    wait_for(&mut running, "", &[" WARN ", "connection lost"]);
    wait_for(&mut running, "", &[" WARN ", r#"to="live""#]);
    finish(running);
}

#[test]
fn with_json_logs_every_line_on_stderr_is_an_object() {
    let node = start_node(0);
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
    for target in ["txpool_fetcher::source", "mempool_ingest_cli"] {
        assert!(lines.iter().any(|line| line["target"] == target), "{target}: {lines:?}");
    }
    let status = lines.iter().rfind(|line| line["fields"]["sources"].is_array()).expect("a status");
    assert_eq!(status["fields"]["sources"][0]["chain_id"], mock_node::DEV_CHAIN_ID, "{status}");
}

/// A replay once reported that nothing was pooled, on chain 1.
#[test]
fn a_replay_reports_its_chain_and_the_result_of_its_rows() {
    let node = start_node(30);
    let folder = tempfile::tempdir().expect("a folder");
    let recording = folder.path().to_str().expect("text");
    let mut running = start(["--ipc", ipc(&node), "--record", recording]);
    node.submit_all();
    wait_for(&mut running, "live ", &[" pooled=30 "]);
    finish(running);
    // A replay ignores the `[[publish]]` of its file.
    let publishes = "[[publish]]\nserver.servers = ['nats://127.0.0.1:1']\nmachine = 'm'\n";
    let file = config::written(folder.path(), publishes);
    for (retention, pooled_now) in [("60s", 30), ("1ms", 0)] {
        let args = ["--config", &file, "--replay", recording, "--speed", "max"];
        let args = [&args[..], &["--tx-retention", retention]].concat();
        let ended = start(args).end(None).expect("the command ends");
        ended_with(0, &ended);
        let counts = format!(": {pooled_now} are pooled, {} removed since; ", 30 - pooled_now);
        let costs = " us of CPU per transaction";
        for part in ["chain 1337", "replayed 30 transactions in ", &counts, costs] {
            assert!(ended.stderr.contains(part), "{part} in {ended:?}");
        }
        let summary = ended.json().expect("the summary");
        assert_eq!(summary["replayed"]["pooled"], 30, "{summary}");
        assert!(!ended.stderr.contains("published "), "{ended:?}");
        assert!(summary["cpu_us_per_tx"].as_f64() > Some(0.0), "{summary}");
    }
}
