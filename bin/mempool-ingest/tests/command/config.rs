//! The file of `--config`, and the commands `config` and `check`.

use std::{path::Path, process::Command};

use mempool_ingest_cli::DEFAULT_CONFIG;
use mock_node::{DEV_CHAIN_ID, NodeConfig};
use testkit::{
    command::{Ended, Running, Signal},
    ingest::Node,
};

use crate::{command, ended_with, finish, ipc, node_of, start, wait_for};

pub(crate) fn run(args: &[&str]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mempool-ingest"));
    command.args(args).env_remove("RUST_LOG");
    Running::spawn(command).and_then(|running| running.end(None)).expect("the binary runs")
}

#[test]
fn the_default_file_is_what_the_documents_show_and_the_command_prints() {
    let documented = include_str!("../../../../docs/configuration.md");
    assert!(documented.contains(&format!("```toml\n{DEFAULT_CONFIG}```")), "docs/configuration.md");
    let printed = run(&["config"]);
    assert_eq!(printed.stdout, DEFAULT_CONFIG);
    // All that stands in it is commented out, so no node is named.
    let folder = tempfile::tempdir().expect("a folder");
    let file = written(folder.path(), DEFAULT_CONFIG);
    let ended = run(&["--config", &file]);
    assert!(ended_with(2, &ended).contains("no node is named"), "{ended:?}");
}

fn on_chain_5() -> Node {
    Node::start(0, |node| NodeConfig { chain_id: 5, ..node })
}

/// The path of a file with this text.
pub(crate) fn written(folder: &Path, text: &str) -> String {
    let path = folder.join("mempool-ingest.toml");
    std::fs::write(&path, text).expect("a file");
    path.to_str().expect("text").to_owned()
}

#[test]
fn a_file_sets_what_runs_and_flags_override_it() {
    let node = node_of(30);
    node.submit_all();
    let folder = tempfile::tempdir().expect("a folder");
    let recording = folder.path().join("recording");
    let text = format!(
        "metrics = '127.0.0.1:0'\nstatus_interval = '1h'\n[fetcher]\nsources = ['{}']\n[pool]\nmax_txs = 10\n\
         [rpc]\n[recorder]\nfolder = '{}'\n",
        ipc(&node),
        recording.display(),
    );
    let file = written(folder.path(), &text);
    let mut running = Running::spawn(command(["--config", &file])).expect("the binary runs");
    wait_for(&mut running, "metrics at http://127.0.0.1:", &[]);
    wait_for(&mut running, "orders by JSON-RPC at http://127.0.0.1:", &[]);
    // An interval of an hour would show only what was there at the start.
    wait_for(&mut running, "live ", &[" pool=10"]);
    let (_, summary) = finish(running);
    assert_eq!(summary["pool_txs"], 10, "{summary}");
    assert!(summary["recorded"]["rows"].as_u64() >= Some(10), "{summary}");
}

#[test]
fn a_check_says_what_each_source_is_and_fails_where_nothing_could_be_ingested() {
    let (node, other) = (node_of(3), on_chain_5());
    node.submit_all();
    let folder = tempfile::tempdir().expect("a folder");
    let sources = |nodes: &[&Node]| {
        let paths: Vec<_> = nodes.iter().map(|node| ipc(node)).collect();
        format!("[fetcher]\nsources = {paths:?}\n")
    };
    let chain = format!("chain {DEV_CHAIN_ID}");
    let good = vec!["reth/v2.5.1-mock", &chain, "head 0, ", "announces ", "its pool (3 pending)"];
    for (text, code, expected) in [
        (sources(&[&node]), 0, good),
        (sources(&[&node, &other]), 1, vec![&chain, "chain 5"]),
        (sources(&[&node]) + "chain_id = 1\n", 1, vec!["is on chain 1337, expected chain 1"]),
        ("[fetcher]\nsources = ['/none.ipc']".into(), 1, vec!["error: /none.ipc: "]),
        (sources(&[&node]) + "fetch_slots = 0\n", 1, vec!["`fetch_slots` is 0"]),
        (sources(&[&node]) + "[recorder]\n", 1, vec!["folder"]),
        (sources(&[&node]) + "[[publish]]\nserver.servers = ['nats://n:1']\n", 1, vec!["machine"]),
        (sources(&[&node]) + "[[streams]]\nflow = 'private'\n", 1, vec!["[[streams]]"]),
        ("[fetcher]\nslots = 1\n".into(), 1, vec!["line 2, column 1", "`fetch_slots`"]),
    ] {
        let ended = run(&["check", "--config", &written(folder.path(), &text)]);
        let stderr = ended_with(code, &ended);
        assert!(expected.iter().all(|part| stderr.contains(part)), "{text}: {stderr}");
    }
}

/// The flag was for the orders alone.
#[test]
fn a_chain_id_is_that_of_every_source() {
    let (node, other) = (node_of(0), on_chain_5());
    let ended = run(&["--ipc", ipc(&node), "--chain-id", "1"]);
    let expected = "is on chain 1337, expected chain 1";
    assert!(ended_with(2, &ended).contains(expected), "{ended:?}");
    // Also of the first, whose chain would be that of all others.
    let mut running = start(["--ipc", ipc(&other), "--ipc", ipc(&node), "--chain-id", "1337"]);
    wait_for(&mut running, "other_chain,live chain=5,1337 ", &[]);
    finish(running);
}

#[test]
fn a_password_comes_from_the_environment_or_a_file_and_from_no_command_line() {
    let node = node_of(0);
    let url = "nats://ingest:secret@127.0.0.1:1";
    let ended = run(&["--ipc", ipc(&node), "--machine", "a", "--publish", url]);
    assert!(ended_with(2, &ended).contains("MEMPOOL_INGEST_PUBLISH"), "{ended:?}");
    let mut command = command(["--ipc", ipc(&node), "--machine", "a"]);
    command.env("MEMPOOL_INGEST_PUBLISH", url);
    let mut running = Running::spawn(command).expect("the binary runs");
    wait_for(&mut running, "", &[" public=("]);
    let ended = running.end(Some(Signal::SIGTERM)).expect("it ends");
    assert!(!ended.stderr.contains("secret") && !ended.stdout.contains("secret"), "{ended:?}");
}

#[test]
fn the_help_has_groups_and_examples_and_the_version_is_that_of_the_workspace() {
    let help = run(&["--help"]).stdout;
    for part in ["Ingestion", "Output", "Searchers' orders", "Recordings", "Fleet", "Examples"] {
        assert!(help.contains(&format!("{part}:")), "{part} in {help}");
    }
    assert_eq!(help.matches("\n  mempool-ingest ").count(), 3, "{help}");
    let version = run(&["--version"]).stdout;
    assert_eq!(version.trim(), concat!("mempool-ingest ", env!("CARGO_PKG_VERSION")));
}

#[test]
fn the_sample_of_a_service_runs_the_command_with_a_file() {
    let unit = include_str!("../../../../etc/systemd/mempool-ingest.service");
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("a command");
    let args: Vec<_> = start.split(' ').skip(1).collect();
    let ["--config", path] = args.as_slice() else { panic!("{args:?}") };
    assert!(Path::new(path).is_absolute(), "{path}");
    assert!(unit.contains("Restart=always") && unit.contains("LimitNOFILE="), "{unit}");
}
