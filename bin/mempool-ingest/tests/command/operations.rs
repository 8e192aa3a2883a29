//! Runs the command on a real anvil and a real geth. The tests fail, never skip, when a node is
//! missing.

use std::time::Duration;

use clap::Parser as _;
use mempool_ingest_cli::DEFAULT_CONFIG;
use testkit::devnet::{Process, RealNode, RealNodeKind, load};

use crate::{
    config::{run, written},
    ended_with, finish, start, wait_for,
};

/// The commented example of a source in the default file.
const EXAMPLE: &str = "#sources = [\"/data/reth.ipc\"]";

#[test]
#[ignore = "needs the nodes that scripts/real-nodes.sh installs, and is run by it"]
fn the_default_file_passes_its_check_on_a_real_node() {
    for (kind, client) in [(RealNodeKind::Anvil, "anvil/"), (RealNodeKind::Geth, "Geth/")] {
        let dir = tempfile::tempdir().expect("a folder");
        let node = RealNode::start(kind, dir.path(), Duration::from_secs(1)).expect("a node");
        let ipc = node.ipc_path().to_str().expect("text");
        assert!(DEFAULT_CONFIG.contains(EXAMPLE));
        let text = DEFAULT_CONFIG.replace(EXAMPLE, &format!("sources = ['{ipc}']"));
        let checked = run(&["check", "--config", &written(dir.path(), &text)]);
        let said = ended_with(0, &checked);
        for part in [client, "chain 1337", "announces ", "lists its pool"] {
            assert!(said.contains(part), "{part} in {checked:?}");
        }
    }
}

#[test]
#[ignore = "needs the nodes that scripts/real-nodes.sh installs, and is run by it"]
fn an_empty_geth_is_syncing_on_a_real_node() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = |name| dir.path().join(name).to_str().expect("text").to_owned();
    let (data, ipc) = (path("data"), path("geth.ipc"));
    let mut geth = Process::new("geth", dir.path().join("geth.log")).expect("geth");
    geth.command().args(["--datadir", &data, "--ipcpath", &ipc, "--nodiscover"]);
    geth.command().args(["--maxpeers", "0", "--port", "0", "--authrpc.port", "0"]);
    geth.spawn().expect("it starts");
    let mut running = start(["--ipc", &ipc, "--wait"]);
    wait_for(&mut running, "syncing chain=1 ", &[]);
    let (_, summary) = finish(running);
    assert!(summary["missing"].is_null(), "{summary}");
    let checked = run(&["check", "--ipc", &ipc]);
    assert!(ended_with(1, &checked).contains("chain 1: it is syncing, "), "{checked:?}");
    // A load is refused too, because its accounts own nothing on this chain.
    let args = ["load", "--ipc", &ipc, "--tps", "10", "--duration", "1s", "--accounts", "20"];
    let refused = load::run(&load::Args::parse_from(args)).expect_err("all are refused");
    let refused = refused.to_string();
    assert!(refused.starts_with("nothing was accepted: "), "{refused}");
    let accounts = "Fund the accounts: 0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266 to ";
    assert!(refused.contains(accounts), "{refused}");
}
