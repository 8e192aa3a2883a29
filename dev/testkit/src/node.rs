//! A mock node in a child process, for whatever must share neither a runtime nor an allocator with its node.
//!
//! It announces by a schedule when told to and notes when it did, so that whoever is measured against another is timed by
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

/// Later than this against its schedule, an announcement counts as late: the machine was too busy.
pub const LATE: Duration = Duration::from_millis(5);

/// Between two looks whether everything is announced.
const LOOK: Duration = Duration::from_millis(5);

#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// A fresh node, in place of any before; answered with the hashes that are pending.
    Start(Box<NodeConfig>),
    /// Announce so many of its load, so many a second or all at once.
    Announce(usize, Option<u32>),
    /// Wait until everything is announced.
    Finish,
    /// Stop announcing; answered with what was announced.
    Stop,
}

/// What the node did between [`NodeProcess::announce`] and [`NodeProcess::stop`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Announced {
    /// In their order, each with the time just before it was handed to the node, by [`now_ns`].
    pub txs: Vec<(B256, u64)>,
    /// How many were announced more than 5 ms after they were due.
    pub late: usize,
    /// CPU time of the node's process.
    pub cpu: Duration,
}

/// The child process, as its parent holds it. It ends when this is dropped, or when the parent dies in any way.
#[derive(Debug)]
pub struct NodeProcess {
    process: Process,
    folder: TempDir,
}

impl NodeProcess {
    /// Runs as the node's process if that is what this process was started for, until its end. The first thing that a
    /// program does which calls [`Self::spawn`].
    #[must_use = "the node's exit code is the process's"]
    pub fn run_if_child() -> Option<ExitCode> {
        run_as(ROLE, respond)
    }

    /// Starts the process, without a node yet.
    pub fn spawn() -> io::Result<Self> {
        Ok(Self { process: Process::spawn(ROLE)?, folder: tempfile::tempdir()? })
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("node.ipc")
    }

    /// Starts a fresh node, in place of any before, and returns the hashes that are pending once it listens. What is
    /// preloaded is signed before, at 30 us for each transaction.
    pub fn start(&mut self, with: impl FnOnce(NodeConfig) -> NodeConfig) -> io::Result<Vec<B256>> {
        let config = with(NodeConfig::new(self.path()));
        self.process.request(&Request::Start(Box::new(config)))
    }

    /// Announces the next `count` transactions of its load, `tps` a second or all at once. What the configuration did not
    /// have signed ahead is signed now.
    pub fn announce(&mut self, count: usize, tps: Option<u32>) -> io::Result<()> {
        self.process.request(&Request::Announce(count, tps))
    }

    /// Returns when the last announcement has been handed to the node.
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
        let none = || io::Error::other("not started, or not announcing");
        match request {
            Request::Start(config) => {
                // The one before holds the path.
                drop(node.take());
                let started = crate::state::start(*config).map_err(io::Error::other)?;
                reply(node.insert(Arc::new(started)).pending())
            }
            Request::Announce(count, tps) => {
                let node = Arc::clone(node.as_ref().ok_or_else(none)?);
                announcing = Some(Announcing::start(node, count, tps));
                reply(())
            }
            Request::Finish => {
                let announcing = announcing.as_ref().ok_or_else(none)?;
                while !announcing.thread.is_finished() {
                    thread::sleep(LOOK);
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
                // Relaxed: it carries nothing but itself.
                if stopped.load(Relaxed) {
                    break;
                }
                announced.late += usize::from(tps.is_some() && due.elapsed() > LATE);
                let at = now_ns();
                announced.txs.extend(node.burst(total / steps).into_iter().map(|hash| (hash, at)));
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
