//! The states and exit codes that docs/operations.md names, on a real anvil and a real geth. They fail, never skip, when a
//! node is missing.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use clap::Parser as _;
use devnet::{Process, RealNode, RealNodeKind};
use mempool_recorder::{Recording, RecordingConfig};
use testkit::command::Signal;

use crate::{
    config::{run, written},
    finish, start,
    terminal::Terminal,
    wait_for,
};

#[derive(clap::Parser)]
struct Load {
    #[command(flatten)]
    args: devnet::load::Args,
}

/// Transactions that the node is sent for each way to end.
const LOAD: usize = 100;

/// How the command ends.
#[derive(Debug, PartialEq)]
enum Ending {
    Signal(Signal),
    ClosedTerminal,
}

/// The default file is written, edited and checked; with it the command runs, its node restarts, and it ends in each way.
fn a_day_at(kind: RealNodeKind, client: &str) {
    let dir = tempfile::tempdir().expect("a folder");
    let mut node = RealNode::start(kind, dir.path(), Duration::from_secs(1)).expect("a node");
    let ipc = node.ipc_path().to_str().expect("text").to_owned();
    let text = run(&["config"]).stdout.replace("#sources = []", &format!("sources = ['{ipc}']"));
    let file = written(dir.path(), &text);

    let checked = run(&["check", "--config", &file]);
    assert_eq!(checked.status.code(), Some(0), "{checked:?}");
    for part in [client, "chain 1337", "announces ", "lists its pool"] {
        assert!(checked.stderr.contains(part), "{part} in {checked:?}");
    }
    for (args, code) in [(&["check"][..], 1), (&[], 2)] {
        let wrong = run(&[args, &["--config", &file, "--chain-id", "5"]].concat());
        assert_eq!(wrong.status.code(), Some(code), "{wrong:?}");
        assert!(wrong.stderr.contains("is on chain 1337, expected chain 5"), "{wrong:?}");
    }
    let mut waiting = start(["--ipc", &ipc, "--chain-id", "5", "--wait"]);
    wait_for(&mut waiting, "other_chain chain=1337 ", &[]);
    let (ended, _) = finish(waiting);
    let said = ended.stderr.matches("a source of another chain is not used").count();
    assert_eq!(said, 1, "{ended:?}");

    let signals = [Signal::SIGHUP, Signal::SIGTERM, Signal::SIGINT].map(Ending::Signal);
    for (at, ending) in signals.into_iter().chain([Ending::ClosedTerminal]).enumerate() {
        let path =
            |name: &str| dir.path().join(format!("{name}-{at}")).to_str().expect("text").to_owned();
        let (folder, hashes) = (path("recording"), path("hashes"));
        let args = ["--config", &file, "--record", &folder, "--hashes", &hashes];
        let load = ["load", "--ipc", &ipc, "--tps", "100", "--duration", "1s", "--accounts", "50"];
        let load = || devnet::load::run(&Load::parse_from(load).args).expect("it is accepted");
        let began;
        if let Ending::Signal(signal) = ending {
            let mut running = start(args);
            wait_for(&mut running, "live chain=1337 head=", &[]);
            load();
            Terminal::wait_for_hashes(hashes.as_ref(), LOAD);
            if at == 0 {
                node.kill9().expect("it runs");
                wait_for(&mut running, "connecting ", &[]);
                node.restart().expect("it starts");
                wait_for(&mut running, "live ", &[]);
            }
            began = Instant::now();
            let ended = running.end(Some(signal)).expect("it ends");
            assert_eq!(ended.status.code(), Some(0), "{ended:?}");
            let summary = ended.json().expect("the summary");
            let end = (&summary["end"], &summary["balance"]);
            assert_eq!(end, (&"Stopped".into(), &0.into()), "{summary}");
        } else {
            let mut terminal = Terminal::start("xterm", &args);
            terminal.wait_for("chain 1337");
            load();
            Terminal::wait_for_hashes(hashes.as_ref(), LOAD);
            began = Instant::now();
            terminal.close();
            assert_eq!(terminal.end(), Some(0));
        }
        assert!(began.elapsed() < Duration::from_secs(10), "{at}: {:?}", began.elapsed());
        let rows = Recording::open(&folder, RecordingConfig::default()).expect("it opens");
        let recorded: BTreeSet<_> =
            rows.filter_map(Result::ok).map(|row| row.tx.inner().tx_hash().to_string()).collect();
        let pooled = std::fs::read_to_string(&hashes).expect("a file");
        let pooled: BTreeSet<_> = pooled.lines().map(str::to_owned).collect();
        assert!(
            pooled.len() >= LOAD && recorded == pooled,
            "{at}: {} of {}",
            recorded.len(),
            pooled.len()
        );
    }
}

#[test]
#[ignore = "needs the nodes that scripts/real-nodes.sh installs, and is run by it"]
fn the_documented_states_and_exit_codes_are_those_on_a_real_anvil() {
    a_day_at(RealNodeKind::Anvil, "anvil/");
}

#[test]
#[ignore = "needs the nodes that scripts/real-nodes.sh installs, and is run by it"]
fn the_documented_states_and_exit_codes_are_those_on_a_real_geth() {
    a_day_at(RealNodeKind::Geth, "Geth/");
}

#[test]
#[ignore = "needs the nodes that scripts/real-nodes.sh installs, and is run by it"]
fn a_real_geth_that_has_nothing_of_mainnet_yet_is_syncing_on_a_real_node() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = |name| dir.path().join(name).to_str().expect("text").to_owned();
    let (data, ipc) = (path("data"), path("geth.ipc"));
    let args = ["--datadir", &data, "--ipcpath", &ipc, "--nodiscover", "--maxpeers", "0"];
    let args = args.into_iter().chain(["--port", "0", "--authrpc.port", "0"]);
    let args = args.map(str::to_owned).collect();
    let geth = Process::new("geth", args, Vec::new(), dir.path().join("geth.log"));
    let mut geth = geth.expect("geth");
    geth.spawn().expect("it starts");
    let mut running = start(["--ipc", &ipc, "--wait"]);
    wait_for(&mut running, "syncing chain=1 ", &[]);
    let (_, summary) = finish(running);
    assert!(summary["missing"].is_null(), "{summary}");
    let checked = run(&["check", "--ipc", &ipc]);
    assert_eq!(checked.status.code(), Some(1), "{checked:?}");
    assert!(checked.stderr.contains("chain 1: it is syncing, "), "{checked:?}");
    // Nor can a load be sent to it, whose accounts own nothing here.
    let load = ["load", "--ipc", &ipc, "--tps", "10", "--duration", "1s", "--accounts", "20"];
    let refused = devnet::load::run(&Load::parse_from(load).args).expect_err("all are refused");
    let refused = refused.to_string();
    assert!(refused.starts_with("nothing was accepted: "), "{refused}");
    assert!(
        refused.contains("Fund the accounts: 0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266 to "),
        "{refused}"
    );
}
