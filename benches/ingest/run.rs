//! One run: a fresh node, a fresh pool, one contender, and the figures of it.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use alloy::primitives::B256;
use mempool_ingest::{
    FetcherConfig, Ingest, IngestConfig, OrderPool, PoolConfig,
    order_pool::{Event, MAX_COUNT, Order},
    txpool_fetcher::{Announcements, Counts, EndReason},
};
use mock_node::{
    FullObjects, NodeConfig,
    workload::{Address, PreparedTx, TxKind, Workload},
};
use serde::{Deserialize, Serialize};
use testkit::{
    figures::{Times, histogram},
    node::{Announced, NodeProcess},
    usage::{self, ThreadUse, now_ns, process_cpu, resident_bytes},
};
use tokio::runtime::Runtime;

use crate::{
    node::{Node, NodePool},
    rivals,
};

/// A rival that has pooled nothing for so long will pool nothing more. The longest honest pause is
/// that of six blobs behind others, a tenth of a second.
const RIVAL_QUIET: Duration = Duration::from_secs(3);

/// Ours has so long without progress before its run ends: it has to recover by reconciliation (200
/// ms to settle, a listing of the pool) what overran its buffer. A list of a million transactions
/// takes longer; then the run has counted what it does not have.
const OURS_QUIET: Duration = Duration::from_secs(15);

/// Grain of the bench's own waiting; it is no part of any figure.
const POLL: Duration = Duration::from_millis(5);

/// Time for ours to connect and to stop.
const START_STOP: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Contender {
    /// One connection, one fetch at a time, two worker threads.
    Sequential,
    /// A second connection, a task for each hash, one worker thread.
    ConcurrentOneThread,
    /// The same with two worker threads.
    ConcurrentTwoThreads,
    Hashes,
    /// Ours, which gets whole transactions from a node whose senders it trusts.
    Full,
    /// Ours, in the process of the node.
    InProcess,
}

impl Contender {
    /// Those that connect to a node, in the order of the tables.
    pub(crate) const OVER_A_SOCKET: [Self; 5] = [
        Self::Sequential,
        Self::ConcurrentOneThread,
        Self::ConcurrentTwoThreads,
        Self::Hashes,
        Self::Full,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Sequential => "sequential, 2 worker threads",
            Self::ConcurrentOneThread => "plain concurrent, 1 worker thread",
            Self::ConcurrentTwoThreads => "plain concurrent, 2 worker threads",
            Self::Hashes => "ours, hashes",
            Self::Full => "ours, full objects",
            Self::InProcess => "ours, in process",
        }
    }

    /// How ours is configured; `None` for a rival.
    fn fetcher(self, node: &Node) -> Option<FetcherConfig> {
        let announcements = match self {
            Self::Full => Announcements::Full,
            Self::Hashes | Self::InProcess => Announcements::Hashes,
            Self::Sequential | Self::ConcurrentOneThread | Self::ConcurrentTwoThreads => {
                return None;
            }
        };
        let mut config = match node {
            Node::Process(node) => FetcherConfig::ipc(node.path()),
            Node::InProcess { pool, .. } => {
                FetcherConfig::in_process("node", Arc::clone(pool) as _)
            }
        };
        config.announcements = announcements;
        Some(config)
    }

    /// Starts a rival.
    fn start_rival(self, node: &Node, pool: OrderPool) -> Runtime {
        let Node::Process(node) = node else { panic!("a rival has a socket") };
        let started = match self {
            Self::Sequential => rivals::sequential(node.path(), pool),
            Self::ConcurrentOneThread => rivals::concurrent(node.path(), pool, 1),
            Self::ConcurrentTwoThreads => rivals::concurrent(node.path(), pool, 2),
            Self::Hashes | Self::Full | Self::InProcess => panic!("{self:?} is no rival"),
        };
        started.expect("the rival starts")
    }
}

/// What the node of one run is, and how it announces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Load {
    /// Transactions that are announced first, and are part of no figure.
    pub(crate) warm_up: usize,
    /// Transactions that are announced after them.
    pub(crate) count: usize,
    /// Announced a second.
    pub(crate) tps: u32,
    /// Of a thousand transactions, how many carry blobs; a fifth of those six.
    pub(crate) blobs_per_mille: u32,
    /// Which of its objects the node announces.
    pub(crate) full_objects: FullObjects,
}

impl Load {
    /// The rate, and what is unusual.
    pub(crate) fn name(&self) -> String {
        let mut name = self.tps.to_string();
        if let FullObjects::Dropped { per_mille, run } = self.full_objects {
            name += &format!(", of objects in runs of {run} {per_mille} per mille dropped");
        }
        name
    }

    /// The number of transactions that are announced.
    const fn total(&self) -> usize {
        self.warm_up + self.count
    }

    /// A node that announces this load when it is asked to, never by itself.
    fn configure(&self, config: NodeConfig) -> NodeConfig {
        let pool_limit = config.pool_limit.max(2 * self.total());
        NodeConfig {
            // The same for all runs, so each run's transactions are the first of the same list.
            seed: 7,
            blobs_per_mille: self.blobs_per_mille,
            full_objects: self.full_objects,
            pool_limit,
            // Objects are rendered when they are signed, whether this contender subscribes to them
            // or not: what a node does for them is no part of any figure. Nor is signing.
            render_ahead: true,
            signed_ahead: self.total(),
            ..config
        }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) announced: usize,
    /// How many a second.
    pub(crate) announced_per_s: f64,
    /// How many of them the subscriber saw.
    pub(crate) pooled: usize,
    /// From the node's announcement to the order visible to the subscriber.
    pub(crate) latency: Times,
    /// The same of what was visible before the last announcement: what a node that announces for
    /// ever would show.
    pub(crate) live: Times,
    /// How many of these there were in a second.
    pub(crate) live_per_s: f64,
    /// From the first announcement to the last order visible.
    pub(crate) wall: Duration,
    /// CPU time of this process, subscriber included.
    pub(crate) cpu: Duration,
    /// What each thread of this process used, by the thread's name.
    pub(crate) threads: BTreeMap<String, ThreadUse>,
    /// CPU time of the node's process.
    pub(crate) node_cpu: Duration,
    /// Announcements the node made more than 5 ms after they were due.
    pub(crate) late: usize,
    /// Announcements that ours lost from its buffer, recovered or not; rivals do not count theirs.
    pub(crate) lagged: u64,
    /// What became resident in this process from the first announcement to the last order.
    pub(crate) grown_bytes: usize,
}

impl Run {
    pub(crate) const fn lost(&self) -> usize {
        self.announced - self.pooled
    }

    /// CPU time of this process for each pooled transaction, in microseconds.
    pub(crate) fn cpu_us(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.pooled.max(1) as f64
    }

    /// CPU time of the node's process for each announced transaction, in microseconds.
    pub(crate) fn node_cpu_us(&self) -> f64 {
        self.node_cpu.as_secs_f64() * 1e6 / self.announced.max(1) as f64
    }

    /// Pooled a second, from the first announcement to the last order visible.
    pub(crate) fn pooled_per_s(&self) -> f64 {
        self.pooled as f64 / self.wall.as_secs_f64().max(1e-9)
    }

    /// Adds what follows from when each was announced and seen.
    fn summarize(&mut self, announced: &Announced, seen: &[(B256, u64)]) {
        let sent: HashMap<_, _> = announced.txs.iter().copied().collect();
        let seen: Vec<_> = seen.iter().filter(|(hash, _)| sent.contains_key(hash)).collect();
        let (mut latency, mut live) = (histogram(), histogram());
        let first = announced.txs.first().map_or(0, |(_, sent_at)| *sent_at);
        let end = announced.txs.last().map_or(0, |(_, sent_at)| *sent_at);
        for (hash, visible_at) in &seen {
            let late = visible_at.saturating_sub(sent[hash]);
            latency.saturating_record(late);
            if *visible_at <= end {
                live.saturating_record(late);
            }
        }
        let span = (end.saturating_sub(first) as f64 / 1e9).max(1e-9);
        let last = seen.iter().map(|(_, visible_at)| *visible_at).max().unwrap_or(first);
        (self.announced, self.pooled) = (announced.txs.len(), seen.len());
        self.announced_per_s = self.announced.saturating_sub(1) as f64 / span;
        (self.latency, self.live) = (Times::from(&latency), Times::from(&live));
        self.live_per_s = live.len() as f64 / span;
        self.wall = Duration::from_nanos(last.saturating_sub(first));
        (self.node_cpu, self.late) = (announced.cpu, announced.late);
    }
}

/// Nothing expires in a run.
const LONGEST_RUN: Duration = Duration::from_mins(30);

/// Signed at a time; only what is known of each is kept.
const SIGNED_TOGETHER: usize = 20_000;

/// What is known of a transaction before it is announced.
struct Expected {
    hash: B256,
    sender: Address,
    kind: TxKind,
}

/// What a node of this load announces, in this order, and the first of them whole: if they were
/// freed, the run would take their memory, and seem to take less.
fn expected(load: &Load) -> (Vec<Expected>, Vec<PreparedTx>) {
    let mut workload = Workload::new(load.configure(NodeConfig::new("")).workload());
    let first = workload.prepare(SIGNED_TOGETHER.min(load.total()));
    let known = |tx: &PreparedTx| Expected { hash: tx.hash, sender: tx.sender, kind: tx.kind };
    let mut expected: Vec<_> = first.iter().map(known).collect();
    while expected.len() < load.total() {
        let more = workload.prepare(SIGNED_TOGETHER.min(load.total() - expected.len()));
        expected.extend(more.iter().map(known));
    }
    (expected, first)
}

/// The node that announces this load, which begins with the transactions `first`.
fn start_node(contender: Contender, load: &Load, first: &[PreparedTx]) -> io::Result<Node> {
    if contender == Contender::InProcess {
        assert_eq!(first.len(), load.total(), "all in memory");
        let pool = Arc::new(NodePool::new(first));
        return Ok(Node::InProcess { pool, announced: Announced::default() });
    }
    let mut node = NodeProcess::spawn()?;
    node.start(|config| load.configure(config))?;
    Ok(Node::Process(node))
}

/// Runs one contender in this process, which does nothing else but be the node of a contender that
/// has it in its process.
pub(crate) fn run(contender: Contender, load: Load) -> io::Result<Run> {
    let (expected, first) = expected(&load);
    // Room for all: what is evicted is not lost, and evicting is no part of the comparison.
    let mut config = PoolConfig::default();
    config.max_txs = config.max_txs.max(2 * load.total());
    config.max_tx_bytes = config.max_tx_bytes.max(load.total() * 4096).min(MAX_COUNT);
    config.tx_retention = LONGEST_RUN;
    // The host's runtime for ours, which does its work on threads of its own.
    let host = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut node = start_node(contender, &load, &first)?;
    let ours = contender.fetcher(&node).map(|fetcher| {
        let start = Ingest::start(IngestConfig::new(fetcher, config.clone()));
        host.block_on(start).expect("ours starts")
    });
    let own = || OrderPool::new(config).expect("valid");
    let pool = ours.as_ref().map_or_else(own, |ingest| ingest.pool().clone());
    let rival = ours.is_none().then(|| contender.start_rival(&node, pool.clone()));
    // A rival is ready when it has subscribed, ours when its backfill of an empty pool is done too.
    let deadline = Instant::now() + START_STOP;
    while let Some(ingest) = ours.as_ref().filter(|ingest| !ingest.fetcher().is_live()) {
        assert!(Instant::now() < deadline, "not live: {:?}", ingest.fetcher().status());
        thread::sleep(POLL);
    }
    let seen = follow(&pool);
    let patience = if ours.is_some() { OURS_QUIET } else { RIVAL_QUIET };
    let mut warm_up = Announced::default();
    if load.warm_up > 0 {
        node.announce(load.warm_up, Some(load.tps)).expect("the node announces");
        wait(&seen, load.warm_up, patience);
        warm_up = node.take_announced().expect("the node stops");
    }

    let (cpu, threads, resident) = (process_cpu(), usage::threads(), resident_bytes());
    node.announce(load.count, Some(load.tps)).expect("the node announces");
    wait(&seen, load.total(), patience);
    let mut run = Run {
        cpu: process_cpu() - cpu - node.cpu_in_this_process(),
        threads: usage::threads(),
        grown_bytes: resident_bytes().saturating_sub(resident),
        ..Run::default()
    };
    for (name, used) in &mut run.threads {
        let before = threads.get(name).copied().unwrap_or_default();
        // Less, if one of several threads of that name has ended.
        used.cpu = used.cpu.saturating_sub(before.cpu);
        used.waits = used.waits.saturating_sub(before.waits);
    }

    let announced = node.take_announced().expect("the node stops");
    let seen = std::mem::take(&mut *seen.lock().expect(WHOLE));
    let counts = ours.map(|ingest| {
        let end = host.block_on(ingest.shutdown(START_STOP));
        assert_eq!(end.reason, EndReason::Stopped);
        end.counts
    });
    if let Some(rival) = rival {
        // Not waited for: a fetch that has not ended is lost by definition.
        rival.shutdown_background();
    }
    let hashes = warm_up.txs.iter().chain(&announced.txs).map(|(hash, _)| *hash);
    check(&expected, &hashes.collect::<Vec<_>>(), &seen, &pool, counts);
    run.lagged = counts.map_or(0, |counts| counts.lagged);
    run.summarize(&announced, &seen);
    Ok(run)
}

/// Equal work: the announced transactions are those of the list, whoever subscribes; what was
/// pooled is part of them, once each, with the right sender and its blobs. Ours has them all, but
/// for what overran its buffer and was counted.
fn check(
    expected: &[Expected],
    announced: &[B256],
    seen: &[(B256, u64)],
    pool: &OrderPool,
    counts: Option<Counts>,
) {
    let expected = &expected[..announced.len()];
    let mut missing: HashMap<_, _> = expected.iter().map(|tx| (tx.hash, tx)).collect();
    for (hash, tx) in announced.iter().zip(expected) {
        assert_eq!(*hash, tx.hash, "the node announced another transaction");
    }
    for (hash, _) in seen {
        let tx = missing.remove(hash).expect("pooled, and not announced or pooled twice");
        let order = pool.get(hash).expect("seen by the subscriber, so in the pool");
        let Order::Tx(pooled) = order.as_ref() else { panic!("no transaction: {hash}") };
        assert_eq!(pooled.sender(), tx.sender, "sender of {hash}");
        let blobs = match tx.kind {
            TxKind::Blob => 1,
            TxKind::SixBlobs => 6,
            _ => 0,
        };
        assert_eq!(pooled.blob_count(), blobs, "blobs of {hash}");
        assert_eq!(pooled.sidecar().is_some(), blobs > 0, "sidecar of {hash}");
    }
    if let Some(counts) = counts {
        let lost = missing.len() as u64;
        assert!(lost <= counts.lagged, "ours lost {lost} and does not know it: {counts:?}");
        let outcomes = (counts.balance(), counts.unfinished);
        assert_eq!(outcomes, (0, 0), "a hash without an outcome: {counts:?}");
    }
}

/// Orders, and when each was in front of the subscriber, by [`now_ns`].
type Seen = Arc<Mutex<Vec<(B256, u64)>>>;

/// A lock of what was seen.
const WHOLE: &str = "nobody panics with it";

/// Reads a pool as a builder would, on a thread that ends with it.
fn follow(pool: &OrderPool) -> Seen {
    let (seen, mut orders) = (Seen::default(), pool.subscribe_all());
    let noted = Arc::clone(&seen);
    let read = move || {
        while let Some(event) = orders.next_blocking() {
            match event {
                Ok(Event::Added(order)) => {
                    let seen = (*order.id().hash(), now_ns());
                    noted.lock().expect(WHOLE).push(seen);
                }
                Ok(_) => {}
                Err(_) => orders.resync(),
            }
        }
    };
    thread::Builder::new().name("subscriber".into()).spawn(read).expect("a thread");
    seen
}

/// Waits until everything is seen, or nothing has come for `patience`.
fn wait(seen: &Seen, expected: usize, patience: Duration) {
    let (mut before, mut since) = (0, Instant::now());
    while before < expected && since.elapsed() < patience {
        thread::sleep(POLL);
        let now = seen.lock().expect(WHOLE).len();
        if now != before {
            (before, since) = (now, Instant::now());
        }
    }
}
