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
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use mock_node::{MockNode, NodeConfig};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::{
    process::{Process, reply, run_as, serve},
    sign::{LIVE, Prepared, Signer},
    usage::{now_ns, process_cpu},
};

const ROLE: &str = "__mock-node";

/// Later than this against its schedule, an announcement counts as late: the machine was too busy.
const LATE: Duration = Duration::from_millis(5);

#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// A fresh node, in place of any before; answered with the hashes that are pending.
    Start(Box<NodeConfig>),
    /// Sign so many for announcing; answered with their hashes.
    Prepare(usize),
    Announce(What, Pace),
    /// Wait until everything is announced.
    Finish,
    /// Stop announcing; answered with what was announced.
    Stop,
    /// Mine what was announced, and forget what was prepared.
    Reset,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum What {
    /// So many transactions of the load that the node's configuration describes.
    OwnLoad(usize),
    /// Those of [`NodeProcess::prepare`].
    Prepared,
}

/// How announcements follow each other.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Pace {
    Steady(u32),
    AtOnce,
}

/// What the node did between [`NodeProcess::announce`] and [`NodeProcess::stop`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Announced {
    pub count: usize,
    /// Those of the node's own load in their order, each with the time just before it was handed to the node, by
    /// [`now_ns`]. Empty for prepared ones, of which the first [`Self::count`] were announced.
    pub own: Vec<(B256, u64)>,
    /// How many were announced more than 5 ms after they were due.
    pub late: usize,
    /// CPU time of the node's process.
    pub cpu: Duration,
    /// How long before the stop everything had been announced; `None` if something was left.
    pub short: Option<Duration>,
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
    pub fn start(
        &mut self,
        configure: impl FnOnce(NodeConfig) -> NodeConfig,
    ) -> io::Result<Vec<B256>> {
        let config = configure(NodeConfig::new(self.path()));
        self.process.request(&Request::Start(Box::new(config)))
    }

    /// Signs so many token transfers of accounts that the node's own load does not use, and returns their hashes.
    pub fn prepare(&mut self, count: usize) -> io::Result<Vec<B256>> {
        self.process.request(&Request::Prepare(count))
    }

    pub fn announce(&mut self, what: What, pace: Pace) -> io::Result<()> {
        self.process.request(&Request::Announce(what, pace))
    }

    /// Returns when the last announcement has been handed to the node.
    pub fn finish(&mut self) -> io::Result<()> {
        self.process.request(&Request::Finish)
    }

    pub fn stop(&mut self) -> io::Result<Announced> {
        self.process.request(&Request::Stop)
    }

    /// Mines what was announced, so that the node holds what it held at its start.
    pub fn reset(&mut self) -> io::Result<()> {
        self.process.request(&Request::Reset)
    }
}

/// Runs as the node's process.
fn respond() -> io::Result<()> {
    let mut signer = Signer::new(LIVE);
    let mut node: Option<Arc<MockNode>> = None;
    let mut prepared: Arc<Vec<Prepared>> = Arc::default();
    let mut announcing: Option<Announcing> = None;
    let mut announced: Vec<B256> = Vec::new();
    serve(|request| {
        let none = || io::Error::other("not started, or not announcing");
        match request {
            Request::Start(config) => {
                // The one before holds the path.
                drop(node.take());
                announced.clear();
                let started = mock_state::start(*config).map_err(io::Error::other)?;
                reply(node.insert(Arc::new(started)).pending())
            }
            Request::Prepare(count) => {
                prepared = Arc::new(signer.sign(count));
                reply(prepared.iter().map(|tx| tx.hash).collect::<Vec<_>>())
            }
            Request::Announce(what, pace) => {
                let node = Arc::clone(node.as_ref().ok_or_else(none)?);
                let txs = Arc::clone(&prepared);
                announcing = Some(match what {
                    What::OwnLoad(count) => {
                        Announcing::start(pace, count, move |_, count| node.burst(count))
                    }
                    What::Prepared => Announcing::start(pace, txs.len(), move |first, count| {
                        for tx in &txs[first..][..count] {
                            let raw = tx.raw.clone();
                            node.submit(raw).expect("signed in the order of its nonces");
                        }
                        Vec::new()
                    }),
                });
                reply(())
            }
            Request::Finish => {
                announcing.as_mut().ok_or_else(none)?.finish();
                reply(())
            }
            Request::Stop => {
                let ended = announcing.take().ok_or_else(none)?.stop();
                if ended.own.is_empty() {
                    announced.extend(prepared[..ended.count].iter().map(|tx| tx.hash));
                    // What was signed and not announced would leave a gap in the nonces.
                    signer.take_back(prepared.len() - ended.count);
                } else {
                    announced.extend(ended.own.iter().map(|(hash, _)| *hash));
                }
                reply(ended)
            }
            Request::Reset => {
                let node = node.as_ref().ok_or_else(none)?;
                node.mine_only(&announced).map_err(io::Error::other)?;
                announced.clear();
                reply(())
            }
        }
    })
}

struct Announcing {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Ended>>,
    ended: Ended,
    cpu: Duration,
}

#[derive(Default)]
struct Ended {
    count: usize,
    own: Vec<(B256, u64)>,
    late: usize,
    all: Option<Instant>,
}

impl Announcing {
    /// `announce` is given how many were announced before and how many are next.
    fn start(
        pace: Pace,
        total: usize,
        announce: impl Fn(usize, usize) -> Vec<B256> + Send + 'static,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (start, cpu) = (Instant::now(), process_cpu());
        let thread = thread::spawn(move || {
            let mut ended = Ended::default();
            for number in 0_u64.. {
                // Due by the schedule, whatever happened to those before: the pace does not drift.
                let after = match pace {
                    Pace::Steady(tps) => number * 1_000_000_000 / u64::from(tps),
                    Pace::AtOnce => 0,
                };
                let due = start + Duration::from_nanos(after);
                if let Some(wait) = due.checked_duration_since(Instant::now()) {
                    thread::sleep(wait);
                }
                // Relaxed: it carries nothing but itself.
                if stopped.load(Relaxed) {
                    break;
                }
                let left = total - ended.count;
                let count = match pace {
                    Pace::Steady(_) => {
                        ended.late += usize::from(due.elapsed() > LATE);
                        left.min(1)
                    }
                    Pace::AtOnce => left,
                };
                let at = now_ns();
                ended.own.extend(announce(ended.count, count).into_iter().map(|hash| (hash, at)));
                ended.count += count;
                if ended.count == total {
                    ended.all = Some(Instant::now());
                    break;
                }
            }
            ended
        });
        Self { stop, thread: Some(thread), ended: Ended::default(), cpu }
    }

    fn finish(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.ended = thread.join().expect("announcing does not panic");
        }
    }

    fn stop(mut self) -> Announced {
        let now = Instant::now();
        self.stop.store(true, Relaxed);
        self.finish();
        let Ended { count, own, late, all } = self.ended;
        Announced {
            count,
            own,
            late,
            cpu: process_cpu() - self.cpu,
            short: all.map(|at| now.saturating_duration_since(at)),
        }
    }
}
