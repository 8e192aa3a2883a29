//! The mock node as a process of its own: this program again, told what to do over its stdin.
//!
//! It announces on its own schedule and notes when it did, so that all three contenders are timed
//! by the clock of the same announcements, whatever they note themselves.

use std::{
    io::{self, BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use mock_node::{Latency, MockNode, NodeConfig};
use nix::{
    sys::resource::{Usage, UsageWho, getrusage},
    time::{ClockId, clock_gettime},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

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

/// User and system time so far, of the process or of the calling thread.
pub(crate) fn cpu(who: UsageWho) -> Duration {
    let usage: Usage = getrusage(who).expect("asked for what exists");
    let time = |time: nix::sys::time::TimeVal| {
        Duration::from_secs(time.tv_sec() as u64) + Duration::from_micros(time.tv_usec() as u64)
    };
    time(usage.user_time()) + time(usage.system_time())
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

/// Obeys until stdin ends, which it also does when the bench dies in any way.
fn serve() -> Result<(), Box<dyn std::error::Error>> {
    let mut stdin = io::stdin().lock();
    while let Some(order) = read(&mut stdin)? {
        let Order::Start(path, load) = order else { return Err("not started yet".into()) };
        // The proofs of the blobs are made once for the process, not for every node.
        let node = MockNode::start(load.config(path))?;
        write(&mut io::stdout(), &())?;
        match read(&mut stdin)? {
            Some(Order::Go) => {}
            Some(_) => return Err("expected the word to go".into()),
            None => break,
        }
        let before = cpu(UsageWho::RUSAGE_SELF);
        let (hashes, late) = announce(&node, &load);
        write(&mut io::stdout(), &())?;
        match read(&mut stdin)? {
            Some(Order::Stop) => {}
            Some(_) => return Err("expected a stop".into()),
            None => break,
        }
        let cpu = cpu(UsageWho::RUSAGE_SELF) - before;
        drop(node);
        write(&mut io::stdout(), &Announced { hashes, late, cpu })?;
    }
    Ok(())
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

/// The node's process, as the bench holds it. Its stdin closes when this is dropped: then it ends.
#[derive(Debug)]
pub(crate) struct NodeProcess {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    path: PathBuf,
}

impl NodeProcess {
    pub(crate) fn spawn() -> io::Result<Self> {
        let path =
            std::env::temp_dir().join(format!("mempool-ingest-bench-{}.ipc", std::process::id()));
        let mut child = Command::new(std::env::current_exe()?)
            .arg(CHILD)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let orders = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("it is piped"));
        Ok(Self { child, orders, answers, path })
    }

    /// A fresh node with its load signed; returns where it listens.
    pub(crate) fn start(&mut self, load: Load) -> io::Result<PathBuf> {
        let path = self.path.clone();
        self.ask::<()>(&Order::Start(path.clone(), load))?;
        Ok(path)
    }

    /// Announces the load; returns when the last announcement has been handed to the node.
    pub(crate) fn announce(&mut self) -> io::Result<()> {
        self.ask(&Order::Go)
    }

    /// Stops the node.
    pub(crate) fn stop(&mut self) -> io::Result<Announced> {
        self.ask(&Order::Stop)
    }

    fn ask<T: DeserializeOwned>(&mut self, order: &Order) -> io::Result<T> {
        let orders = self.orders.as_mut().expect("taken only by the drop");
        write(orders, order)?;
        read(&mut self.answers)?.ok_or_else(|| io::Error::other("the mock node has ended"))
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        drop(self.orders.take());
        if let Err(error) = self.child.wait() {
            eprintln!("warning: waiting for the mock node: {error}");
        }
    }
}

fn read<T: DeserializeOwned>(from: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = String::new();
    match from.read_line(&mut line)? {
        0 => Ok(None),
        _ => Ok(Some(serde_json::from_str(&line)?)),
    }
}

fn write(to: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}
