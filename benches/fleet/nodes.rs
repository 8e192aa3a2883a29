//! Two mock nodes in a process of their own, whose pools overlap.

use std::{
    io,
    path::PathBuf,
    process::ExitCode,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use mock_node::{MockNode, NodeConfig};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use testkit::{
    process::{Process, run_as, serve},
    sign::{LIVE, Signer},
    usage::now_ns,
};

const ROLE: &str = "__fleet-nodes";

/// Of a thousand accounts, those whose transactions reach both nodes; the others' reach one of them, half each. By
/// account, since a node that lacks a transaction keeps its sender's next ones back.
const SHARED: usize = 700;
const ACCOUNTS: usize = LIVE.end - LIVE.start;

#[derive(Debug, Serialize, Deserialize)]
enum Request {
    Start([PathBuf; 2], usize),
    Announce(u32),
    Finish,
}

#[derive(Debug, Serialize, Deserialize)]
enum Response {
    Done,
    Announced(Vec<Announced>),
}

/// One transaction.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Announced {
    pub(crate) hash: B256,
    /// By the clock of [`now_ns`].
    pub(crate) at: u64,
    /// Which of the nodes announced it.
    pub(crate) by: [bool; 2],
}

/// The process, as the bench holds it.
pub(crate) struct Nodes {
    process: Process,
    folder: TempDir,
}

impl Nodes {
    pub(crate) fn run_if_child() -> Option<ExitCode> {
        run_as(ROLE, respond)
    }

    /// Signs `count` transactions and starts the nodes.
    pub(crate) fn start(count: usize) -> io::Result<Self> {
        let mut nodes = Self { process: Process::spawn(ROLE)?, folder: tempfile::tempdir()? };
        let paths = [nodes.path(0), nodes.path(1)];
        nodes.done(&Request::Start(paths, count))?;
        Ok(nodes)
    }

    pub(crate) fn path(&self, node: usize) -> PathBuf {
        self.folder.path().join(format!("node-{node}.ipc"))
    }

    /// Begins to announce what was signed.
    pub(crate) fn announce(&mut self, tps: u32) -> io::Result<()> {
        self.done(&Request::Announce(tps))
    }

    /// Waits until all is announced.
    pub(crate) fn finish(&mut self) -> io::Result<Vec<Announced>> {
        match self.process.request(&Request::Finish)? {
            Response::Announced(announced) => Ok(announced),
            Response::Done => Err(unexpected()),
        }
    }

    fn done(&mut self, request: &Request) -> io::Result<()> {
        match self.process.request(request)? {
            Response::Done => Ok(()),
            Response::Announced(_) => Err(unexpected()),
        }
    }
}

fn unexpected() -> io::Error {
    io::Error::other("the nodes' process answered something else")
}

/// Runs as the nodes.
fn respond() -> io::Result<()> {
    let mut nodes: Option<[MockNode; 2]> = None;
    let mut signed = Vec::new();
    let mut running: Option<JoinHandle<([MockNode; 2], Vec<Announced>)>> = None;
    serve(|request| {
        let none = || io::Error::other("not started, or not announcing");
        Ok(match request {
            Request::Start(paths, count) => {
                signed = Signer::new(LIVE).sign(count);
                let [first, second] = paths.map(|path| {
                    MockNode::start(NodeConfig { pool_limit: 2 * count, ..NodeConfig::new(path) })
                });
                nodes = Some([first.map_err(io::Error::other)?, second.map_err(io::Error::other)?]);
                Response::Done
            }
            Request::Announce(tps) => {
                let (nodes, signed) = (nodes.take().ok_or_else(none)?, std::mem::take(&mut signed));
                running = Some(thread::spawn(move || {
                    let announced = announce(&nodes, signed, tps);
                    (nodes, announced)
                }));
                Response::Done
            }
            Request::Finish => {
                let thread = running.take().ok_or_else(none)?;
                let (back, announced) = thread.join().map_err(|_| none())?;
                nodes = Some(back);
                Response::Announced(announced)
            }
        })
    })
}

fn announce(nodes: &[MockNode; 2], txs: Vec<testkit::sign::Prepared>, tps: u32) -> Vec<Announced> {
    let start = Instant::now();
    let mut announced = Vec::with_capacity(txs.len());
    for (number, tx) in txs.into_iter().enumerate() {
        let due = start + Duration::from_nanos(number as u64 * 1_000_000_000 / u64::from(tps));
        if let Some(wait) = due.checked_duration_since(Instant::now()) {
            thread::sleep(wait);
        }
        let account = number % ACCOUNTS;
        let is_second = account >= SHARED + (ACCOUNTS - SHARED) / 2;
        let by = [account < SHARED || !is_second, account < SHARED || is_second];
        let at = now_ns();
        // Either node is first as often as the other.
        let order = if number % 2 == 0 { [0, 1] } else { [1, 0] };
        for node in order.into_iter().filter(|node| by[*node]) {
            nodes[node].submit(tx.raw.clone()).expect("signed in the order of its nonces");
        }
        announced.push(Announced { hash: tx.hash, at, by });
    }
    announced
}
