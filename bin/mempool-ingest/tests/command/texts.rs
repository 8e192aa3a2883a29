//! Compares every help and error text of the command with the reviewed file `texts.txt`.
//!
//! `UPDATE_TEXTS=1 cargo test -p mempool-ingest-cli --test command texts` writes the file again.

use std::{
    fmt::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use testkit::command::Running;

use crate::{ipc, start_node};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/command/texts.txt");

/// Arguments, and the value of `RUST_LOG`.
type Case<'a> = (&'a [&'a str], &'a str);

const HELP: [Case; 3] =
    [(&["--help"], ""), (&["check", "--help"], ""), (&["config", "--help"], "")];

const MISTAKES: [Case; 23] = [
    (&[], ""),
    (&["--ws", "http://127.0.0.1:1"], ""),
    (&["--ipc", "NODE", "--chain-id", "1"], ""),
    (&["--ipc", "NODE", "--ipc", "NODE"], ""),
    (&["--ipc", "NODE", "--fetch-slots", "0"], ""),
    (&["--ipc", "NODE", "--request-connections", "17"], ""),
    (&["--ipc", "NODE", "--tx-retention", "soon"], ""),
    (&["--ipc", "NODE", "--audit-interval", "9000h"], ""),
    (&["--ipc", "NODE", "--announcements", "some"], ""),
    (&["--ipc", "NODE", "--backfill", "no"], ""),
    (&["--ipc", "NODE", "--tx-retentoin", "1s"], ""),
    (&["--ipc", "NODE", "--orders", "ndjson", "--json"], ""),
    (&["--ipc", "NODE", "--rpc-host", "name"], ""),
    (&["--ipc", "NODE", "--publish", "nats://127.0.0.1:1"], ""),
    (&["--ipc", "NODE", "--machine", "m", "--publish", "nats://user:secret@127.0.0.1:1"], ""),
    (&["--ipc", "NODE", "--hashes", "/nonexistent/hashes"], ""),
    (&["--ipc", "NODE", "--record", "/proc/recording"], ""),
    (&["--replay", "/nonexistent/recording"], ""),
    (&["--replay", "FOLDER"], ""),
    (&["--ipc", "NODE"], "fetcher=loud"),
    (&["--config", "/nonexistent/file.toml"], ""),
    (&["check", "--config", "names.toml"], ""),
    (&["check", "--config", "bounds.toml"], ""),
];

/// Unknown names, and values of the wrong type.
const NAMES: &str =
    "metrik = '127.0.0.1:1'\n[fetcher]\nslots = 5\nchain_id = 'one'\n[pool]\ntx_retention = 60\n";

/// Values out of bounds in every section.
const BOUNDS: &str = "[fetcher]\nsources = ['/a.ipc']\nfetch_slots = 0\n\
request_connections = 99\naudit_interval = '9000h'\n[pool]\nmax_txs = 0\nmax_tx_bytes = 5\n\
[gate]\nwork_permits = 1\n[monitor]\nelevated_percent = 95\n[rpc]\nmax_body_bytes = 5\n\
[recorder]\ngroup_age = '1ms'\nfolder = 'r'\n\
[[publish]]\nserver.servers = ['nats://n:1']\nmachine = '!'\n\
[[streams]]\nflow = 'private'\n";

/// Runs one case, and returns the command line, its output and its exit code.
fn transcript(folder: &Path, node: &str, (args, log): Case<'_>) -> String {
    let replace_placeholders = |arg: &&str| {
        let arg = arg.replace("NODE", node).replace("FOLDER", folder.to_str().expect("text"));
        if arg.ends_with(".toml") && !arg.starts_with('/') {
            return folder.join(arg).to_str().expect("text").to_owned();
        }
        arg
    };
    let mut command = Command::new(env!("CARGO_BIN_EXE_mempool-ingest"));
    command
        .args(args.iter().map(replace_placeholders))
        .env("COLUMNS", "80")
        .env("RUST_LOG", log)
        .stdin(Stdio::null());
    let ended = Running::spawn(command).and_then(|running| running.end(None)).expect("it runs");
    let code = ended.status.code().expect("it ends by itself");
    // Leave out lines of the log, which begin with the time.
    let lines = ended.stderr.lines();
    let lines: Vec<_> =
        lines.filter(|line| !(line.starts_with("20") && line.contains("Z "))).collect();
    let output = format!("{}{}", ended.stdout, lines.join("\n"));
    let output = output.replace(node, "NODE").replace(folder.to_str().expect("text"), "FOLDER");
    let log = if log.is_empty() { String::new() } else { format!("RUST_LOG={log} ") };
    format!(
        "$ {log}mempool-ingest {}\n{}\n[exit code {code}]\n\n",
        args.join(" "),
        output.trim_end()
    )
}

#[test]
fn help_and_error_texts_are_as_reviewed() {
    let node = start_node(0);
    let folder = tempfile::tempdir().expect("a folder");
    let files = [("names.toml", NAMES), ("bounds.toml", BOUNDS)];
    for (name, text) in files {
        let text = text.replace("NODE", ipc(&node));
        std::fs::write(folder.path().join(name), text).expect("a file");
    }
    let mut texts = String::from(
        "The help and the errors of mempool-ingest, at 80 columns. `config` prints \
         src/options.toml.\n\n",
    );
    for case in HELP.into_iter().chain(MISTAKES) {
        write!(texts, "{}", transcript(folder.path(), ipc(&node), case))
            .expect("writing to a string");
    }
    if std::env::var_os("UPDATE_TEXTS").is_some() {
        std::fs::write(FILE, &texts).expect("the file");
    }
    let reviewed = std::fs::read_to_string(FILE).unwrap_or_default();
    for (line, expected) in texts.lines().zip(reviewed.lines()) {
        assert_eq!(line, expected, "see the head of texts.rs");
    }
    assert_eq!(texts.lines().count(), reviewed.lines().count(), "see the head of texts.rs");
}
