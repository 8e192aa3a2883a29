//! Tests the output of the command when its reader is slow or reads nothing.

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

use crate::{ended_with, finish, ipc, start, start_node, until, wait_for};

/// A stop must take less.
const TOO_LONG: Duration = Duration::from_secs(10);

/// A process that is killed when this is dropped.
struct Process(Child);

impl Process {
    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id().try_into().expect("an id")), signal).expect("it runs");
    }

    /// Waits for the end of the process, and returns its exit code.
    fn exit_code(&mut self) -> Option<i32> {
        until(|| self.0.try_wait().expect("a status").ok_or("the process still runs".to_owned()))
            .code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // These fail only if the process has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Fills a pipe until it takes no further byte.
fn fill(mut pipe: &PipeWriter) {
    fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("it can be set");
    for piece in [4096, 1] {
        while pipe.write(&vec![b'.'; piece]).map_err(|error| error.kind())
            != Err(ErrorKind::WouldBlock)
        {}
    }
    fcntl(pipe, FcntlArg::F_SETFL(OFlag::empty())).expect("it can be set");
}

/// Returns the number of hashes in the file of `--hashes`.
fn count_hashes(path: &std::path::Path) -> usize {
    std::fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

/// A warning once blocked the thread that reconnects and the one that waits for signals: nothing
/// was ingested any more, and two SIGTERMs were ignored.
#[test]
fn an_unread_log_delays_neither_the_ingestion_nor_the_stop() {
    let node = start_node(40);
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
    // Each lost connection logs a warning, and a status line is printed every 100 ms.
    for round in 1..=2 {
        for tx in &node.txs[(round - 1) * 20..round * 20] {
            node.node.submit(tx.raw.clone()).expect("the node takes it");
        }
        until(|| {
            let pooled = count_hashes(&list);
            if pooled < round * 20 { Err(format!("{pooled} of {}", round * 20)) } else { Ok(()) }
        });
        node.node.inject(Fault::Close(Target::All));
    }
    let start = Instant::now();
    process.signal(Signal::SIGTERM);
    assert_eq!(process.exit_code(), Some(0));
    assert!(start.elapsed() < TOO_LONG, "{:?}", start.elapsed());
    let mut summary = String::new();
    let stdout = process.0.stdout.as_mut().expect("it is piped");
    stdout.read_to_string(&mut summary).expect("text");
    let summary: Value = serde_json::from_str(&summary).expect("a summary");
    assert_eq!((&summary["pooled"], &summary["balance"]), (&40.into(), &0.into()), "{summary}");
    assert_eq!(summary["end"], "Stopped", "{summary}");
}

/// Nobody reads stdout either, so the summary cannot be written.
#[test]
fn an_unread_summary_does_not_delay_the_end() {
    let node = start_node(0);
    let (_unread, out) = std::io::pipe().expect("a pipe");
    fill(&out);
    let mut process = Command::new(env!("CARGO_BIN_EXE_mempool-ingest"));
    process.args(["--json", "--plain", "--duration", "1s", "--ipc", ipc(&node)]);
    process.stderr(out.try_clone().expect("a descriptor")).stdout(out);
    let start = Instant::now();
    let mut process = Process(process.spawn().expect("the binary runs"));
    assert_eq!(process.exit_code(), Some(1));
    assert!(start.elapsed() < TOO_LONG + Duration::from_secs(5), "{:?}", start.elapsed());
}

#[test]
fn each_added_order_is_one_json_object() {
    let node = start_node(30);
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
    // The reader of the orders is gone, which is no failure.
    process.signal(Signal::SIGTERM);
    assert_eq!(process.exit_code(), Some(0));
}

#[test]
fn removals_have_reasons_and_a_slow_reader_learns_what_it_missed() {
    let node = start_node(3000);
    let folder = tempfile::tempdir().expect("a folder");
    let list = folder.path().join("hashes");
    // The log has 512 events and the pipe 64 KiB, so the reader misses events.
    let file = crate::config::written(folder.path(), "[pool]\nlog_events = 512\nmax_txs = 1000\n");
    let mut process = Command::new(env!("CARGO_BIN_EXE_mempool-ingest"));
    process.args(["--orders", "ndjson", "--config", &file, "--ipc", ipc(&node), "--hashes"]);
    process.arg(&list).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = Process(process.spawn().expect("the binary runs"));
    node.submit_all();
    until(|| {
        let pooled = count_hashes(&list);
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
    // The command ends when the reader of the orders is gone.
    assert_eq!(process.exit_code(), Some(0));
}

/// Such a replay once ended with exit code 0.
#[test]
fn a_replay_that_delivers_nothing_ends_with_code_1() {
    let node = start_node(3);
    let folder = tempfile::tempdir().expect("a folder");
    let recording = folder.path().to_str().expect("text");
    let mut running = start(["--ipc", ipc(&node), "--record", recording]);
    node.submit_all();
    wait_for(&mut running, "live ", &[" pooled=3 "]);
    finish(running);
    // A file that cannot be created is an error at the start.
    let args = ["--replay", recording, "--speed", "max", "--hashes", "/nonexistent/hashes"];
    let ended = start(args).end(None).expect("the command ends");
    assert!(ended_with(2, &ended).contains("/nonexistent/hashes"), "{ended:?}");
    let segment = std::fs::read_dir(folder.path()).expect("a folder").next().expect("a segment");
    let path = segment.expect("an entry").path();
    let mut bytes = std::fs::read(&path).expect("a file");
    // The pages of the first column begin behind the magic number. Destroy them.
    bytes[4..64].fill(0xff);
    std::fs::write(&path, bytes).expect("a file");
    let ended =
        start(["--replay", recording, "--speed", "max"]).end(None).expect("the command ends");
    let said = ended_with(1, &ended);
    assert!(said.contains("error: nothing of ") && said.contains("cannot be read"), "{said}");
    assert!(said.contains(path.to_str().expect("text")), "the file is named: {said}");
}

/// The recorder cannot write once its folder is gone, as on a full disk.
#[test]
fn lost_rows_of_a_recording_end_the_command_with_code_1() {
    let node = start_node(5);
    let folder = tempfile::tempdir().expect("a folder");
    let recording = folder.path().join("recording");
    let path = recording.to_str().expect("text");
    let mut running = start(["--ipc", ipc(&node), "--record", path]);
    wait_for(&mut running, "live ", &[]);
    std::fs::remove_dir_all(&recording).expect("the folder");
    node.submit_all();
    wait_for(&mut running, "live ", &[" pooled=5 "]);
    let ended = running.end(Some(Signal::SIGTERM)).expect("the command ends");
    let stderr = ended_with(1, &ended);
    let expected = format!(
        "error: the recording in {path} has a hole: 5 rows could not be written: make room on the disk"
    );
    assert!(stderr.contains(&expected), "{stderr}");
    let summary = ended.json().expect("the summary");
    assert_eq!(summary["recorded"]["lost_rows"], 5, "{summary}");
}
