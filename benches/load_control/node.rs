//! The mock node as a process of its own. What is pending at the start of a run is the same in all
//! runs: what a run announced is mined at its end, so that the node is signed full only once.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use mock_node::{DEV_CHAIN_ID, MockNode, NodeConfig};
use serde::{Deserialize, Serialize};

use crate::{
    child::{Process, cpu, obey},
    sign::{LIVE, Prepared, Signer},
};

pub(crate) const ROLE: &str = "__node";

/// Later than this against its schedule, an announcement counts as late: the machine was too busy.
const LATE: Duration = Duration::from_millis(5);

#[derive(Debug, Serialize, Deserialize)]
enum Order {
    /// A fresh node at this path with so many pending; answered with their hashes.
    Start(PathBuf, usize),
    /// Sign so many for announcing; answered with their hashes.
    Prepare(usize),
    /// Begin to announce what was prepared, so many a second or all at once.
    Announce(Option<u32>),
    /// Stop announcing; answered with what was announced.
    Stop,
    /// Mine what was announced, and forget what was prepared.
    Reset,
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Hashes(Vec<B256>),
    Announced(Announced),
    Done,
}

/// What the node did in one run.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Announced {
    /// The first so many of what was prepared.
    pub(crate) count: usize,
    /// How many of these more than 5 ms after they were due.
    pub(crate) late: usize,
    /// CPU time of the node's process meanwhile.
    pub(crate) cpu: Duration,
}

/// The node's process, as the bench holds it.
#[derive(Debug)]
pub(crate) struct Node {
    process: Process,
    folder: tempfile::TempDir,
    /// Pending at the start of every run.
    pub(crate) preloaded: Vec<B256>,
}

impl Node {
    pub(crate) fn spawn(preload: usize) -> io::Result<Self> {
        let mut process = Process::spawn(ROLE)?;
        let folder = tempfile::tempdir()?;
        let Answer::Hashes(preloaded) =
            process.ask(&Order::Start(folder.path().join("node.ipc"), preload))?
        else {
            return Err(unexpected());
        };
        Ok(Self { process, folder, preloaded })
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("node.ipc")
    }

    pub(crate) fn prepare(&mut self, count: usize) -> io::Result<Vec<B256>> {
        match self.process.ask(&Order::Prepare(count))? {
            Answer::Hashes(hashes) => Ok(hashes),
            _ => Err(unexpected()),
        }
    }

    pub(crate) fn announce(&mut self, tps: Option<u32>) -> io::Result<()> {
        self.done(&Order::Announce(tps))
    }

    pub(crate) fn stop(&mut self) -> io::Result<Announced> {
        match self.process.ask(&Order::Stop)? {
            Answer::Announced(announced) => Ok(announced),
            _ => Err(unexpected()),
        }
    }

    pub(crate) fn reset(&mut self) -> io::Result<()> {
        self.done(&Order::Reset)
    }

    fn done(&mut self, order: &Order) -> io::Result<()> {
        match self.process.ask(order)? {
            Answer::Done => Ok(()),
            _ => Err(unexpected()),
        }
    }
}

fn unexpected() -> io::Error {
    io::Error::other("the node answered something else")
}

/// Runs as the node.
pub(crate) fn serve() -> io::Result<()> {
    let mut signer = Signer::new(LIVE);
    let mut node: Option<Arc<MockNode>> = None;
    let mut prepared: Arc<Vec<Prepared>> = Arc::default();
    let mut announcing: Option<Announcing> = None;
    let mut announced = 0;
    obey(|order| {
        let none = || io::Error::other("not started, or not announcing");
        Ok(match order {
            Order::Start(path, preload) => {
                let node = node.insert(Arc::new(start(&path, preload)?));
                Answer::Hashes(node.pending())
            }
            Order::Prepare(count) => {
                prepared = Arc::new(signer.sign(count));
                Answer::Hashes(prepared.iter().map(|tx| tx.hash).collect())
            }
            Order::Announce(tps) => {
                let node = Arc::clone(node.as_ref().ok_or_else(none)?);
                announcing = Some(Announcing::start(node, Arc::clone(&prepared), tps));
                Answer::Done
            }
            Order::Stop => {
                let ended = announcing.take().ok_or_else(none)?.stop();
                announced = ended.count;
                Answer::Announced(ended)
            }
            Order::Reset => {
                let hashes: Vec<_> = prepared[..announced].iter().map(|tx| tx.hash).collect();
                let node = node.as_ref().ok_or_else(none)?;
                node.mine_only(&hashes).map_err(io::Error::other)?;
                // What was signed and not announced would leave a gap in the nonces.
                signer = Signer::after(&signer, prepared.len() - announced);
                (prepared, announced) = (Arc::default(), 0);
                Answer::Done
            }
        })
    })
}

fn start(path: &Path, preload: usize) -> io::Result<MockNode> {
    MockNode::start(NodeConfig::new(path).with_preload(preload)).map_err(io::Error::other)
}

struct Announcing {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(usize, usize)>,
    cpu: Duration,
}

impl Announcing {
    fn start(node: Arc<MockNode>, txs: Arc<Vec<Prepared>>, tps: Option<u32>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let cpu = cpu();
        let thread = thread::spawn(move || {
            let start = Instant::now();
            let mut late = 0;
            for (number, tx) in txs.iter().enumerate() {
                if let Some(tps) = tps {
                    // Due by the schedule, whatever happened to those before: no drift.
                    let after = number as u64 * 1_000_000_000 / u64::from(tps);
                    let due = start + Duration::from_nanos(after);
                    if let Some(wait) = due.checked_duration_since(Instant::now()) {
                        thread::sleep(wait);
                    }
                    // Relaxed: it carries nothing but itself.
                    if stopped.load(Relaxed) {
                        return (number, late);
                    }
                    late += usize::from(due.elapsed() > LATE);
                }
                node.submit(tx.raw.clone()).expect("signed in the order of its nonces");
            }
            (txs.len(), late)
        });
        Self { stop, thread, cpu }
    }

    fn stop(self) -> Announced {
        self.stop.store(true, Relaxed);
        let (count, late) = self.thread.join().expect("announcing does not panic");
        Announced { count, late, cpu: cpu() - self.cpu }
    }
}

// The signer signs for the chain that the node is on.
const _: () = assert!(crate::sign::CHAIN_ID == DEV_CHAIN_ID);
