//! The mock node as a process of its own: this program again, told what to do over its stdin.
//!
//! It announces on its own schedule and notes when it did, so that all three contenders are timed
//! by the clock of the same announcements, whatever they note themselves.

use std::{
    io,
    path::PathBuf,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use mock_node::{Latency, MockNode, NodeConfig};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::child::{Process, obey, own_cpu};

/// The first argument that makes this program the node.
const CHILD: &str = "__mock-node";

/// All transactions of all runs come from this seed, so each run's are the first of the same list.
const SEED: u64 = 7;

/// Of a thousand transactions, how many carry blobs; a fifth of those six. The example's default.
const BLOBS_PER_MILLE: u32 = 5;

/// Later than this against its schedule, an announcement counts as late: the machine was too busy.
const LATE: Duration = Duration::from_millis(5);

/// What the node of one run is, and how it announces.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Load {
    pub(crate) latency: Duration,
    pub(crate) count: usize,
    /// `None` announces all at once.
    pub(crate) tps: Option<u32>,
}

impl Load {
    /// The node's answer time, for people.
    pub(crate) fn answer(&self) -> String {
        format!("{} ms", self.latency.as_secs_f64() * 1e3)
    }

    /// The node that announces this load when told to, never by itself.
    pub(crate) fn config(&self, path: PathBuf) -> NodeConfig {
        let latency = match self.latency {
            Duration::ZERO => Latency::None,
            time => Latency::Fixed(time),
        };
        NodeConfig::new(path)
            .with_seed(SEED)
            .with_blobs_per_mille(BLOBS_PER_MILLE)
            .with_latency(latency)
            // A paced load is signed before the start; its first announcement never comes, since
            // ours, which are stamped, take its transactions.
            .with_tps(1)
            .with_count(Some(self.count as u64))
            .with_start_delay(Duration::from_hours(24))
    }
}

#[derive(Debug, Serialize, Deserialize)]
enum Order {
    /// Listen at this path with the load signed.
    Start(PathBuf, Load),
    /// Announce.
    Go,
    /// Stop and say what happened.
    Stop,
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Done,
    Announced(Announced),
}

/// What the node did in one run.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Announced {
    /// In their order, each with the time just before it was handed to the node, by [`now_ns`].
    pub(crate) hashes: Vec<(B256, u64)>,
    /// How many were announced more than 5 ms after they were due.
    pub(crate) late: usize,
    /// CPU time of the node's process from the first announcement to the stop.
    pub(crate) cpu: Duration,
}

/// `CLOCK_MONOTONIC`, the same in all processes of the machine, in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every Linux has this clock");
    time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
}

/// Runs as the node if that is what we were started for.
pub(crate) fn run_if_child() -> Option<ExitCode> {
    (std::env::args_os().nth(1)? == CHILD).then(|| match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the mock node: {error}");
            ExitCode::FAILURE
        }
    })
}

fn serve() -> io::Result<()> {
    let none = || io::Error::other("not started");
    let mut node: Option<(MockNode, Load)> = None;
    let mut announced = None;
    obey(|order| {
        match order {
            Order::Start(path, load) => {
                // The proofs of the blobs are made once for the process, not for every node.
                let started = MockNode::start(load.config(path)).map_err(io::Error::other)?;
                node = Some((started, load));
                Ok(Answer::Done)
            }
            Order::Go => {
                let (node, load) = node.as_ref().ok_or_else(none)?;
                let before = own_cpu();
                let (hashes, late) = announce(node, load);
                announced = Some((hashes, late, before));
                Ok(Answer::Done)
            }
            Order::Stop => {
                let (hashes, late, before) = announced.take().ok_or_else(none)?;
                let cpu = own_cpu() - before;
                node = None;
                Ok(Answer::Announced(Announced { hashes, late, cpu }))
            }
        }
    })
}

fn announce(node: &MockNode, load: &Load) -> (Vec<(B256, u64)>, usize) {
    let Some(tps) = load.tps else {
        let at = now_ns();
        return (node.burst(load.count).into_iter().map(|hash| (hash, at)).collect(), 0);
    };
    let start = Instant::now();
    let mut hashes = Vec::with_capacity(load.count);
    let mut late = 0;
    for number in 0..load.count as u64 {
        // Due by the schedule, whatever happened to those before: the pace does not drift.
        let due = start + Duration::from_nanos(number * 1_000_000_000 / u64::from(tps));
        if let Some(wait) = due.checked_duration_since(Instant::now()) {
            thread::sleep(wait);
        }
        late += usize::from(due.elapsed() > LATE);
        let at = now_ns();
        hashes.extend(node.burst(1).into_iter().map(|hash| (hash, at)));
    }
    (hashes, late)
}

/// The node's process, as the bench holds it.
#[derive(Debug)]
pub(crate) struct NodeProcess {
    process: Process,
    path: PathBuf,
}

impl NodeProcess {
    pub(crate) fn spawn() -> io::Result<Self> {
        let path =
            std::env::temp_dir().join(format!("mempool-ingest-bench-{}.ipc", std::process::id()));
        Ok(Self { process: Process::spawn(CHILD)?, path })
    }

    /// A fresh node with its load signed; returns where it listens.
    pub(crate) fn start(&mut self, load: Load) -> io::Result<PathBuf> {
        self.done(&Order::Start(self.path.clone(), load))?;
        Ok(self.path.clone())
    }

    /// Announces the load; returns when the last announcement has been handed to the node.
    pub(crate) fn announce(&mut self) -> io::Result<()> {
        self.done(&Order::Go)
    }

    /// Stops the node.
    pub(crate) fn stop(&mut self) -> io::Result<Announced> {
        match self.process.ask(&Order::Stop)? {
            Answer::Announced(announced) => Ok(announced),
            Answer::Done => Err(io::Error::other("the node answered something else")),
        }
    }

    fn done(&mut self, order: &Order) -> io::Result<()> {
        match self.process.ask(order)? {
            Answer::Done => Ok(()),
            Answer::Announced(_) => Err(io::Error::other("the node answered something else")),
        }
    }
}
