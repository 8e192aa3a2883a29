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
    Plan,
    child::{Process, obey, own_cpu},
    sign::{LIVE, Prepared, Signer},
    stage::Policy,
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
    /// Begin to announce what was prepared.
    Announce(Pace),
    /// Stop announcing; answered with what was announced.
    Stop,
    /// Announce so many of the node's own at once; answered with their hashes.
    Burst(usize),
    /// Mine what was announced, and forget what was prepared.
    Reset,
}

/// How announcements follow each other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Pace {
    pub(crate) tps: u32,
    /// When so many more come at once, counted from the first.
    pub(crate) bursts: Vec<(Duration, usize)>,
}

impl Pace {
    pub(crate) const fn steady(tps: u32) -> Self {
        Self { tps, bursts: Vec::new() }
    }
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
    pub(crate) lasted: Duration,
    /// How long before the order to stop all that was prepared had been announced.
    pub(crate) short: Option<Duration>,
}

impl Announced {
    /// Says so if the announcements ended before what they stand beside: what is printed as live
    /// latency is then of a part of it. The quick pass prints no figures to go by.
    pub(crate) fn warn_if_short(&self, plan: &Plan, policy: Policy) {
        if let (Some(short), false) = (self.short, plan.is_test) {
            println!(
                "warning: under {policy:?} all {} announcements were made {:.1} s before the load ended",
                self.count,
                short.as_secs_f64()
            );
        }
    }
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
        self.hashes(&Order::Prepare(count))
    }

    pub(crate) fn announce(&mut self, pace: Pace) -> io::Result<()> {
        self.done(&Order::Announce(pace))
    }

    pub(crate) fn burst(&mut self, count: usize) -> io::Result<Vec<B256>> {
        self.hashes(&Order::Burst(count))
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

    fn hashes(&mut self, order: &Order) -> io::Result<Vec<B256>> {
        match self.process.ask(order)? {
            Answer::Hashes(hashes) => Ok(hashes),
            _ => Err(unexpected()),
        }
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
    let mut announced: Vec<B256> = Vec::new();
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
            Order::Announce(pace) => {
                let node = Arc::clone(node.as_ref().ok_or_else(none)?);
                announcing = Some(Announcing::start(node, Arc::clone(&prepared), pace));
                Answer::Done
            }
            Order::Stop => {
                let ended = announcing.take().ok_or_else(none)?.stop();
                announced.extend(prepared[..ended.count].iter().map(|tx| tx.hash));
                // What was signed and not announced would leave a gap in the nonces.
                signer.take_back(prepared.len() - ended.count);
                Answer::Announced(ended)
            }
            Order::Burst(count) => {
                let hashes = node.as_ref().ok_or_else(none)?.burst(count);
                announced.extend(&hashes);
                Answer::Hashes(hashes)
            }
            Order::Reset => {
                let node = node.as_ref().ok_or_else(none)?;
                node.mine_only(&announced).map_err(io::Error::other)?;
                announced.clear();
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
    thread: JoinHandle<(usize, usize, Option<Instant>)>,
    start: Instant,
    cpu: Duration,
}

impl Announcing {
    fn start(node: Arc<MockNode>, txs: Arc<Vec<Prepared>>, pace: Pace) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (start, cpu) = (Instant::now(), own_cpu());
        let thread = thread::spawn(move || {
            let submit = |tx: &Prepared| {
                node.submit(tx.raw.clone()).expect("signed in the order of its nonces");
            };
            let mut bursts = pace.bursts.iter().peekable();
            let (mut next, mut late, mut ran_out) = (0, 0, None);
            for number in 0_u64.. {
                // Due by the schedule, whatever happened to those before: no drift.
                let after = number * 1_000_000_000 / u64::from(pace.tps);
                let due = start + Duration::from_nanos(after);
                if let Some(wait) = due.checked_duration_since(Instant::now()) {
                    thread::sleep(wait);
                }
                // Relaxed: it carries nothing but itself.
                if stopped.load(Relaxed) {
                    break;
                }
                if next == txs.len() {
                    ran_out = Some(Instant::now());
                    break;
                }
                late += usize::from(due.elapsed() > LATE);
                let burst = bursts.next_if(|(at, _)| start + *at <= due).map_or(0, |(_, n)| *n);
                let end = (next + 1 + burst).min(txs.len());
                txs[next..end].iter().for_each(submit);
                next = end;
            }
            (next, late, ran_out)
        });
        Self { stop, thread, start, cpu }
    }

    fn stop(self) -> Announced {
        let now = Instant::now();
        self.stop.store(true, Relaxed);
        let (count, late, ran_out) = self.thread.join().expect("announcing does not panic");
        let short = ran_out.map(|at| now.saturating_duration_since(at));
        Announced { count, late, cpu: own_cpu() - self.cpu, lasted: self.start.elapsed(), short }
    }
}

// The signer signs for the chain that the node is on.
const _: () = assert!(crate::sign::CHAIN_ID == DEV_CHAIN_ID);
