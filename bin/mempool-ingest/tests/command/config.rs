//! Tests the file of `--config`, and the commands `config` and `check`.

use std::{
    fs::Permissions,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
    process::Command,
};

use mempool_ingest_cli::DEFAULT_CONFIG;
use mock_node::{DEV_CHAIN_ID, NodeConfig};
use testkit::{
    command::{Ended, Running, Signal},
    ingest::Node,
};

use crate::{command, ended_with, finish, ipc, start, start_node, wait_for};

pub(crate) fn run(args: &[&str]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mempool-ingest"));
    command.args(args).env_remove("RUST_LOG");
    Running::spawn(command).and_then(|running| running.end(None)).expect("the binary runs")
}

#[test]
fn the_printed_default_file_passes_its_check() {
    let printed = run(&["config"]);
    assert_eq!(printed.stdout, DEFAULT_CONFIG);
    // Every option in the file is commented out, so no node is named.
    let folder = tempfile::tempdir().expect("a folder");
    let file = written(folder.path(), DEFAULT_CONFIG);
    let ended = run(&["--config", &file]);
    assert!(ended_with(2, &ended).contains("no node is named"), "{ended:?}");
    let checked = run(&["check", "--config", &file]);
    assert!(ended_with(0, &checked).starts_with("not checked: no node is named"), "{checked:?}");
}

fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

fn output_at_width(args: &[&str], columns: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mempool-ingest"));
    command.args(args).env("COLUMNS", columns).stdin(std::process::Stdio::null());
    let ended = Running::spawn(command).and_then(|running| running.end(None));
    ended.expect("the binary runs").stdout
}

#[test]
fn the_help_breaks_no_word_at_80_columns() {
    for args in [&["--help"][..], &["-h"], &["check", "--help"], &["config", "--help"]] {
        let narrow = output_at_width(args, "80");
        let wide = output_at_width(args, "1000");
        assert_eq!(words(&narrow), words(&wide), "{args:?}");
        for line in narrow.lines() {
            assert!(line.chars().count() <= 80, "{args:?}: {line}");
        }
    }
    let help = run(&["--help"]).stdout;
    assert!(help.starts_with("Ingests the mempool of Ethereum nodes"), "{help}");
}

#[test]
fn an_error_names_the_flag_that_was_typed() {
    let node = start_node(0);
    for (args, expected) in [
        (&["--fetch-slots", "0"][..], "'--fetch-slots <N>'"),
        (&["--audit-interval", "9000h"], "--audit-interval"),
        (&["--tx-retentoin", "1s"], "'--tx-retention'"),
    ] {
        let ended = run(&[&["--ipc", ipc(&node)], args].concat());
        assert!(ended_with(2, &ended).contains(expected), "{expected} in {ended:?}");
    }
}

#[test]
fn a_chain_id_that_differs_from_the_nodes_is_refused() {
    let node = start_node(0);
    let folder = tempfile::tempdir().expect("a folder");
    let publish = "[[publish]]\nserver.servers = ['nats://127.0.0.1:1']\nmachine = 'm'\n";
    for section in ["[rpc]\n", publish] {
        let text = format!("[fetcher]\nsources = ['{}']\n{section}chain_id = 1\n", ipc(&node));
        let file = written(folder.path(), &text);
        for (command, code) in [(&["--config", &*file][..], 2), (&["check", "--config", &file], 1)]
        {
            let ended = run(command);
            let expected = "chain_id is 1, and the node is on chain 1337";
            assert!(ended_with(code, &ended).contains(expected), "{command:?}: {ended:?}");
        }
    }
}

#[test]
fn a_check_tries_listeners_folders_and_servers() {
    let node = start_node(0);
    let folder = tempfile::tempdir().expect("a folder");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    let recording = folder.path().join("recording");
    let text = |listen: &str, folder: &Path, server: &str| {
        format!(
            "metrics = '{listen}'\n[fetcher]\nsources = ['{}']\n[rpc]\nlisten = '{listen}'\n\
             [recorder]\nfolder = '{}'\n[[publish]]\nserver.servers = ['nats://{server}']\nmachine = 'm'\n",
            ipc(&node),
            folder.display(),
        )
    };
    let good = written(folder.path(), &text("127.0.0.1:0", &recording, &address.to_string()));
    let ended = run(&["check", "--config", &good]);
    let said = ended_with(0, &ended);
    for part in ["metrics 127.0.0.1:0: can", "[rpc] listen 127.0.0.1:0: can", "can be written"] {
        assert!(said.contains(part), "{part} in {said}");
    }
    assert!(said.contains("a server accepts connections; not checked: credentials"), "{said}");
    let bad = text(&address.to_string(), Path::new("/proc/recording"), "127.0.0.1:1");
    let ended = run(&["check", "--config", &written(folder.path(), &bad)]);
    let said = ended_with(1, &ended);
    let metrics = format!("error: metrics {address}: ");
    let rpc = format!("error: [rpc] listen {address}: ");
    let folder = "error: [recorder] folder /proc/recording: ";
    for part in [&*metrics, &rpc, folder, "error: [[publish]] 127.0.0.1:1: ", "4 of these"] {
        assert!(said.contains(part), "{part} in {said}");
    }
}

fn start_node_on_chain_5() -> Node {
    Node::start(0, |node| NodeConfig { chain_id: 5, ..node })
}

/// Writes a configuration file, and returns its path.
pub(crate) fn written(folder: &Path, text: &str) -> String {
    let path = folder.join("mempool-ingest.toml");
    std::fs::write(&path, text).expect("a file");
    path.to_str().expect("text").to_owned()
}

#[test]
fn a_file_configures_every_part() {
    let node = start_node(30);
    node.submit_all();
    let folder = tempfile::tempdir().expect("a folder");
    let recording = folder.path().join("recording");
    let text = format!(
        "metrics = '127.0.0.1:0'\nstatus_interval = '1h'\n[fetcher]\nsources = ['{}']\n\
         [pool]\nmax_txs = 10\n[rpc]\n[recorder]\nfolder = '{}'\n",
        ipc(&node),
        recording.display(),
    );
    let file = written(folder.path(), &text);
    let mut running = Running::spawn(command(["--config", &file])).expect("the binary runs");
    wait_for(&mut running, "metrics at http://127.0.0.1:", &[]);
    wait_for(&mut running, "orders by JSON-RPC at http://127.0.0.1:", &[]);
    // With the interval of the file, an hour, no line would have this.
    wait_for(&mut running, "live ", &[" pool=10"]);
    let (_, summary) = finish(running);
    assert_eq!(summary["pool_txs"], 10, "{summary}");
    assert!(summary["recorded"]["rows"].as_u64() >= Some(10), "{summary}");
}

#[test]
fn a_check_describes_each_source_and_fails_for_unusable_ones() {
    let (node, other) = (start_node(3), start_node_on_chain_5());
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

/// The flag once applied to orders only.
#[test]
fn a_chain_id_applies_to_every_source() {
    let (node, other) = (start_node(0), start_node_on_chain_5());
    let ended = run(&["--ipc", ipc(&node), "--chain-id", "1"]);
    let expected = "is on chain 1337, expected chain 1";
    assert!(ended_with(2, &ended).contains(expected), "{ended:?}");
    // It also applies to the first source, whose chain the others would otherwise have to match.
    let mut running = start(["--ipc", ipc(&other), "--ipc", ipc(&node), "--chain-id", "1337"]);
    wait_for(&mut running, "other_chain,live chain=5,1337 ", &[]);
    finish(running);
}

#[test]
fn a_password_is_refused_on_the_command_line() {
    let node = start_node(0);
    let url = "nats://ingest:secret@127.0.0.1:1";
    let ended = run(&["--ipc", ipc(&node), "--machine", "a", "--publish", url]);
    assert!(ended_with(2, &ended).contains("MEMPOOL_INGEST_PUBLISH"), "{ended:?}");
    let mut command = command(["--ipc", ipc(&node), "--machine", "a"]);
    command.env("MEMPOOL_INGEST_PUBLISH", url);
    let mut running = Running::spawn(command).expect("the binary runs");
    wait_for(&mut running, "", &[" public=("]);
    let ended = running.end(Some(Signal::SIGTERM)).expect("the command ends");
    assert!(!ended.stderr.contains("secret") && !ended.stdout.contains("secret"), "{ended:?}");
}

#[test]
fn the_help_has_groups_and_examples() {
    let help = run(&["--help"]).stdout;
    for part in ["Ingestion", "Output", "Searchers' orders", "Recordings", "Fleet", "Examples"] {
        assert!(help.contains(&format!("{part}:")), "{part} in {help}");
    }
    assert_eq!(help.matches("\n  mempool-ingest ").count(), 5, "{help}");
    let version = run(&["--version"]).stdout;
    assert_eq!(version.trim(), concat!("mempool-ingest ", env!("CARGO_PKG_VERSION")));
}

#[test]
fn the_sample_unit_runs_the_command_with_a_file() {
    let unit = include_str!("../../../../etc/systemd/mempool-ingest.service");
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("a command");
    let args: Vec<_> = start.split(' ').skip(1).collect();
    let ["--config", path] = args.as_slice() else { panic!("{args:?}") };
    assert!(Path::new(path).is_absolute(), "{path}");
    assert!(unit.contains("Restart=always") && unit.contains("LimitNOFILE="), "{unit}");
}

/// Lets every user reach a file below the temporary folder.
fn open_folders(path: &Path) {
    let top = std::env::temp_dir();
    for folder in path.ancestors().skip(1).take_while(|folder| **folder != *top) {
        assert!(folder.starts_with(&top), "{}", folder.display());
        std::fs::set_permissions(folder, Permissions::from_mode(0o755)).expect("our folder");
    }
}

/// An unprivileged user and the group of the node. Only root can become another user: otherwise the
/// command runs as the owner of the socket.
const USER: u32 = 65_534;
const GROUP: u32 = 65_533;

fn is_root() -> bool {
    std::fs::metadata("/proc/self").expect("Linux").uid() == 0
}

/// Runs a command line of the unit as [`USER`], a member of [`GROUP`].
fn spawn_as_user(command_line: &str) -> Running {
    let mut command = Command::new("setpriv");
    if is_root() {
        command.args([format!("--reuid={USER}"), format!("--regid={USER}")]);
        command.arg(format!("--groups={GROUP}"));
    }
    command.args(command_line.split(' ')).env_remove("RUST_LOG");
    Running::spawn(command).expect("setpriv runs")
}

/// Under umask 022 a node creates a socket that its group cannot open, because connecting needs
/// write permission.
#[test]
fn the_units_commands_run_as_another_user_of_the_nodes_group() {
    let node = start_node(0);
    let socket = Path::new(ipc(&node));
    let folder = tempfile::tempdir().expect("a folder");
    let text = format!("status_interval = '1s'\n[fetcher]\nsources = ['{}']\n", ipc(&node));
    let file = written(folder.path(), &text);
    // The folder of the build may be closed to other users.
    let binary = folder.path().join("mempool-ingest");
    std::fs::copy(env!("CARGO_BIN_EXE_mempool-ingest"), &binary).expect("a copy");
    for path in [Path::new(&file), &binary, socket] {
        open_folders(path);
    }
    let unit = include_str!("../../../../etc/systemd/mempool-ingest.service");
    let unit = unit.replace("/usr/local/bin/mempool-ingest", binary.to_str().expect("text"));
    let unit = unit.replace("/etc/mempool-ingest.toml", &file);
    let [check, run] = ["ExecStartPre=-", "ExecStart="]
        .map(|key| unit.lines().find_map(|line| line.strip_prefix(key)).expect(key));
    if is_root() {
        std::os::unix::fs::chown(socket, None, Some(GROUP)).expect("our socket");
        std::fs::set_permissions(socket, Permissions::from_mode(0o755)).expect("our socket");
        for (command_line, code) in [(check, 1), (run, 2)] {
            let ended = spawn_as_user(command_line).end(None).expect("the command ends");
            let stderr = ended_with(code, &ended).to_lowercase();
            assert!(stderr.contains("permission denied"), "{command_line}: {stderr}");
        }
    }
    std::fs::set_permissions(socket, Permissions::from_mode(0o775)).expect("our socket");
    let ended = spawn_as_user(check).end(None).expect("the command ends");
    assert!(ended_with(0, &ended).contains("lists its pool"), "{ended:?}");
    let mut running = spawn_as_user(run);
    wait_for(&mut running, "live ", &[]);
    let ended = running.end(Some(Signal::SIGTERM)).expect("the command ends");
    ended_with(0, &ended);
}
