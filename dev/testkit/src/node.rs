//! A mock node in a child process, for benches and tests that must not share a runtime or an
//! allocator with their node.
//!
//! It announces on a schedule and records the times, so that contenders of a bench are measured by
//! the same clock.

use std::{
    io,
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use alloy_primitives::B256;
use mock_node::{MockNode, NodeConfig};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::{
    bench::pace,
    process::{Process, reply, run_as, serve},
    usage::{now_ns, process_cpu},
};

const ROLE: &str = "__mock-node";

/// By how much an announcement may miss its schedule before it counts as late, because the machine
/// was too busy.
pub const LATE: Duration = Duration::from_millis(5);

/// The interval at which the child checks whether everything is announced.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// Start a new node in place of any earlier one. The response has the pending hashes.
    Start(Box<NodeConfig>),
    /// Announce `count` transactions of the load, `tps` per second or all at once.
    Announce { count: usize, tps: Option<u32> },
    /// Wait until everything is announced.
    Finish,
    /// Stop announcing. The response has what was announced.
    Stop,
}

/// The announcements between [`NodeProcess::announce`] and [`NodeProcess::stop`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Announced {
    /// The hashes in their order, each with the time by [`now_ns`] just before it was announced.
    pub txs: Vec<(B256, u64)>,
    /// How many were announced more than 5 ms after they were due.
    pub late: usize,
    /// The CPU time of the child process.
    pub cpu: Duration,
}

/// The handle to the child process. The process ends when this is dropped, and when the parent ends
/// for any reason.
#[derive(Debug)]
pub struct NodeProcess {
    process: Process,
    folder: TempDir,
}

impl NodeProcess {
    /// Runs the node if this process was started as such a child. A program that calls
    /// [`Self::spawn`] must call this first.
    #[must_use = "the node's exit code is the process's"]
    pub fn run_if_child() -> Option<ExitCode> {
        run_as(ROLE, respond)
    }

    /// Starts the process, without a node.
    pub fn spawn() -> io::Result<Self> {
        Ok(Self { process: Process::spawn(ROLE)?, folder: tempfile::tempdir()? })
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("node.ipc")
    }

    /// Starts a new node in place of any earlier one, and returns the pending hashes once it
    /// listens. Preloaded transactions are signed first, which takes 30 us for each.
    pub fn start(
        &mut self,
        adjust: impl FnOnce(NodeConfig) -> NodeConfig,
    ) -> io::Result<Vec<B256>> {
        let config = adjust(NodeConfig::new(self.path()));
        self.process.request(&Request::Start(Box::new(config)))
    }

    /// Announces the next `count` transactions of the load, `tps` per second or all at once.
    /// Transactions that were not signed ahead are signed now.
    pub fn announce(&mut self, count: usize, tps: Option<u32>) -> io::Result<()> {
        self.process.request(&Request::Announce { count, tps })
    }

    /// Waits until the last transaction was announced.
    pub fn finish(&mut self) -> io::Result<()> {
        self.process.request(&Request::Finish)
    }

    pub fn stop(&mut self) -> io::Result<Announced> {
        self.process.request(&Request::Stop)
    }
}

fn respond() -> io::Result<()> {
    let mut node: Option<Arc<MockNode>> = None;
    let mut announcing: Option<Announcing> = None;
    serve(|request| {
        let none = || io::Error::other("the node is not started, or announces nothing");
        match request {
            Request::Start(config) => {
                // The earlier node must release the path first.
                drop(node.take());
                let started = crate::state::start(*config).map_err(io::Error::other)?;
                reply(node.insert(Arc::new(started)).pending())
            }
            Request::Announce { count, tps } => {
                let node = Arc::clone(node.as_ref().ok_or_else(none)?);
                announcing = Some(Announcing::start(node, count, tps));
                reply(())
            }
            Request::Finish => {
                let announcing = announcing.as_ref().ok_or_else(none)?;
                while !announcing.thread.is_finished() {
                    thread::sleep(POLL_INTERVAL);
                }
                reply(())
            }
            Request::Stop => reply(announcing.take().ok_or_else(none)?.stop()),
        }
    })
}

struct Announcing {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Announced>,
    cpu: Duration,
}

impl Announcing {
    fn start(node: Arc<MockNode>, total: usize, tps: Option<u32>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let cpu = process_cpu();
        let thread = thread::spawn(move || {
            let mut announced = Announced::default();
            let steps = if tps.is_some() { total } else { 1 };
            for due in pace(tps).take(steps) {
                // Relaxed: no other memory depends on it.
                if stopped.load(Relaxed) {
                    break;
                }
                announced.late += usize::from(tps.is_some() && due.elapsed() > LATE);
                let announced_at = now_ns();
                let hashes = node.burst(total / steps).into_iter();
                announced.txs.extend(hashes.map(|hash| (hash, announced_at)));
            }
            announced
        });
        Self { stop, thread, cpu }
    }

    fn stop(self) -> Announced {
        self.stop.store(true, Relaxed);
        let announced = self.thread.join().expect("announcing does not panic");
        Announced { cpu: process_cpu() - self.cpu, ..announced }
    }
}
