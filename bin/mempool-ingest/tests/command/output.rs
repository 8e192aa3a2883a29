//! What the command writes when its reader is slow, or reads nothing.

use std::{
    io::{BufRead as _, BufReader, ErrorKind, PipeWriter, Read as _, Write as _},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use mock_node::{Fault, Target};
use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::signal::kill,
    unistd::Pid,
};
use serde_json::Value;
use testkit::command::Signal;

use crate::{ended_with, finish, ipc, node_of, start, until, wait_for};

/// More than a stop may take.
const TOO_LONG: Duration = Duration::from_secs(10);

/// Killed when dropped.
struct Process(Child);

impl Process {
    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id().try_into().expect("an id")), signal).expect("it runs");
    }

    /// Its exit code.
    fn end(&mut self) -> Option<i32> {
        until(|| self.0.try_wait().expect("it can be asked").ok_or("it runs on".to_owned())).code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ = (self.0.kill(), self.0.wait());
    }
}

/// Fills a pipe until it takes nothing more.
fn fill(mut pipe: &PipeWriter) {
    fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("it can be set");
    for piece in [4096, 1] {
        while pipe.write(&vec![b'.'; piece]).map_err(|error| error.kind())
            != Err(ErrorKind::WouldBlock)
        {}
    }
    fcntl(pipe, FcntlArg::F_SETFL(OFlag::empty())).expect("it can be set");
}

fn hashes(path: &std::path::Path) -> usize {
    std::fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

/// The next warning blocked the thread that reconnects, and the one that waits for signals: nothing came in any more, and two
/// SIGTERMs were ignored.
#[test]
fn a_log_that_nobody_reads_holds_up_neither_the_ingestion_nor_the_end() {
    let node = node_of(40);
    let folder = tempfile::tempdir().expect("a folder");
    let list = folder.path().join("hashes");
    let (_unread, log) = std::io::pipe().expect("a pipe");
    fill(&log);
    let mut process = Command::new(env!("CARGO_BIN_EXE_mempool-ingest"));
    process.args([
        "--json",
        "--plain",
        "--status-interval",
        "100ms",
        "--ipc",
        ipc(&node),
        "--hashes",
    ]);
    process.arg(&list).env("RUST_LOG", "debug").stderr(log).stdout(Stdio::piped());
    let mut process = Process(process.spawn().expect("the binary runs"));
    // Each loss of a connection is a warning, and lines of the status come all the time.
    for round in 1..=2 {
        for tx in &node.txs[(round - 1) * 20..round * 20] {
            node.node.submit(tx.raw.clone()).expect("the node takes it");
        }
        until(|| {
            let pooled = hashes(&list);
            if pooled < round * 20 { Err(format!("{pooled} of {}", round * 20)) } else { Ok(()) }
        });
        node.node.inject(Fault::Close(Target::All));
    }
    let began = Instant::now();
    process.signal(Signal::SIGTERM);
    assert_eq!(process.end(), Some(0));
    assert!(began.elapsed() < TOO_LONG, "{:?}", began.elapsed());
    let mut summary = String::new();
    let stdout = process.0.stdout.as_mut().expect("it is piped");
    stdout.read_to_string(&mut summary).expect("text");
    let summary: Value = serde_json::from_str(&summary).expect("a summary");
    assert_eq!((&summary["pooled"], &summary["balance"]), (&40.into(), &0.into()), "{summary}");
    assert_eq!(summary["end"], "Stopped", "{summary}");
}

/// Nobody reads stdout either: the summary cannot be written, and the process ends all the same.
#[test]
fn a_summary_that_nobody_reads_does_not_hold_up_the_end() {
    let node = node_of(0);
    let (_unread, out) = std::io::pipe().expect("a pipe");
    fill(&out);
    let mut process = Command::new(env!("CARGO_BIN_EXE_mempool-ingest"));
    process.args(["--json", "--plain", "--duration", "1s", "--ipc", ipc(&node)]);
    process.stderr(out.try_clone().expect("a descriptor")).stdout(out);
    let began = Instant::now();
    let mut process = Process(process.spawn().expect("the binary runs"));
    assert_eq!(process.end(), Some(1));
    assert!(began.elapsed() < TOO_LONG + Duration::from_secs(5), "{:?}", began.elapsed());
}

#[test]
fn orders_are_written_as_one_object_a_line_with_what_became_of_them() {
    let node = node_of(30);
    let mut process = Command::new(env!("CARGO_BIN_EXE_mempool-ingest"));
    process.args([
        "--orders",
        "ndjson",
        "--tx-retention",
        "2s",
        "--audit-interval",
        "0s",
        "--ipc",
        ipc(&node),
    ]);
    process.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = Process(process.spawn().expect("the binary runs"));
    node.submit_all();
    let out = BufReader::new(process.0.stdout.take().expect("it is piped"));
    let lines = out.lines().map(|line| serde_json::from_str::<Value>(&line.expect("text")));
    let lines: Vec<Value> = lines.map(|line| line.expect("an object")).take(30).collect();
    for tx in &node.txs {
        let hash = tx.hash.to_string();
        let added = lines.iter().find(|line| line["hash"] == hash.as_str()).expect("a line");
        assert_eq!((&added["event"], &added["kind"]), (&"added".into(), &"tx".into()), "{added}");
        assert_eq!(added["raw"], tx.raw.to_string(), "{added}");
        let sender = added["sender"].as_str().expect("text").parse();
        assert_eq!(sender, Ok(tx.sender), "{added}");
        assert_eq!(added["sources"], serde_json::json!([ipc(&node)]), "{added}");
        assert!(added["first_seen_ms"].as_u64() > Some(1_700_000_000_000), "{added}");
    }
    // Whoever reads them has gone: a pipeline ends with its last part.
    process.signal(Signal::SIGTERM);
    assert_eq!(process.end(), Some(0));
}

#[test]
fn an_order_that_leaves_is_written_with_its_reason_and_a_slow_reader_holds_up_nothing() {
    let node = node_of(3000);
    let folder = tempfile::tempdir().expect("a folder");
    let list = folder.path().join("hashes");
    // A log of 512 events, and a pipe of 64 KiB.
    let file = crate::config::written(folder.path(), "[pool]\nlog_events = 512\nmax_txs = 1000\n");
    let mut process = Command::new(env!("CARGO_BIN_EXE_mempool-ingest"));
    process.args(["--orders", "ndjson", "--config", &file, "--ipc", ipc(&node), "--hashes"]);
    process.arg(&list).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = Process(process.spawn().expect("the binary runs"));
    node.submit_all();
    until(|| {
        let pooled = hashes(&list);
        if pooled < 1000 { Err(format!("{pooled} of 1000")) } else { Ok(()) }
    });
    let mut out = BufReader::new(process.0.stdout.take().expect("it is piped"));
    let (mut removed, mut missed) = (0, 0);
    let mut line = String::new();
    while removed == 0 || missed == 0 {
        line.clear();
        assert!(out.read_line(&mut line).expect("text") > 0, "no more lines: {removed} {missed}");
        let event: Value = serde_json::from_str(&line).expect("an object");
        match event["event"].as_str().expect("text") {
            "removed" => {
                assert_eq!(event["reason"], "evicted", "{event}");
                removed += 1;
            }
            "missed" => missed += event["events"].as_u64().expect("a number"),
            _ => {}
        }
    }
    drop(out);
    // Nobody reads any more, which ends the command.
    assert_eq!(process.end(), Some(0));
}

/// It ended with 0.
#[test]
fn a_replay_of_which_nothing_arrives_ends_with_1_and_says_why() {
    let node = node_of(3);
    let folder = tempfile::tempdir().expect("a folder");
    let recording = folder.path().to_str().expect("text");
    let mut running = start(["--ipc", ipc(&node), "--record", recording]);
    node.submit_all();
    wait_for(&mut running, "live ", &[" pooled=3 "]);
    finish(running);
    // Nothing of what was recorded is of this chain.
    let args = ["--replay", recording, "--speed", "max", "--hashes", "/nonexistent/hashes"];
    let ended = start(args).end(None).expect("it ends");
    assert!(ended_with(2, &ended).contains("/nonexistent/hashes"), "{ended:?}");
    let segment = std::fs::read_dir(folder.path()).expect("a folder").next().expect("a segment");
    let path = segment.expect("an entry").path();
    let mut bytes = std::fs::read(&path).expect("a file");
    // The first column's pages begin behind the magic number; the rows cannot be read any more.
    bytes[4..64].fill(0xff);
    std::fs::write(&path, bytes).expect("a file");
    let ended = start(["--replay", recording, "--speed", "max"]).end(None).expect("it ends");
    let said = ended_with(1, &ended);
    assert!(said.contains("error: nothing of ") && said.contains("cannot be read"), "{said}");
    assert!(said.contains(path.to_str().expect("text")), "the file is named: {said}");
}
