//! A process of a fleet, with a pool and a builder that reads it. It can be an ingest with an RPC
//! server, a builder with a node, a builder of a fleet, a publisher of its own transactions, or a
//! subscriber of bare messages. It reports what its builder has seen since the previous report.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    thread,
    time::{Duration, Instant, SystemTime},
};

use alloy_eips::eip7594::BlobTransactionSidecarVariant;
use alloy_primitives::{Address, B256, hex};
use async_nats::{Client, HeaderMap};
use futures::StreamExt as _;
use mempool_ingest::{
    FetcherConfig, Ingest, IngestConfig, NodeAdmissionConfig, OrderPool, OrderRpcConfig,
    PoolConfig,
    load_control::Limit,
    order_pool::{Event, Order, Origin, Transaction, Upkeep, UpkeepConfig},
    txpool_fetcher::{Announcements, Endpoint, SourceState, StartPolicy},
};
use mock_node::{
    DEV_CHAIN_ID,
    workload::{PreparedTx, Workload, WorkloadConfig},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use order_stream::{
    Flow, Publisher, PublisherConfig, ServerConfig, Source, SourceConfig, State,
    wire::{Encoded, encode_transaction},
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::{
    bench::pace,
    ingest::roomy,
    process::{Process, reply, run_as, serve},
    usage::{
        bound_open_files, established_connections, now_ns, peak_resident_bytes, process_cpu,
        resident_bytes,
    },
};

const ROLE: &str = "__member";

/// The interval at which a member compares its pool with a node; the default is a minute.
pub const AUDIT: Duration = Duration::from_secs(20);

/// How long a bench waits for a member before it fails.
const LONGEST: Duration = Duration::from_secs(120);

/// The subject of bare NATS messages, which no stream stores.
const BARE: &str = "bare.tx";

/// How long a report waits until the builder has read all events. It takes longer only if an attack
/// fills the pool faster than the builder reads.
const PATIENCE: Duration = Duration::from_secs(5);

/// The cap on orders of callers. A holder may use a thirty-second of it, which is more than honest
/// searchers behind one address have at a time. All together it is less than an attacker sends.
const CAP: usize = 4_000;
/// The cap on removed orders in the log. It is so low that the latest orders of attackers do not
/// dominate the memory.
const LOG_BYTES: usize = 8 << 20;

/// The most hashes that the fetcher remembers, and the most bytes of each: an entry of 48 bytes in
/// a table that is half full. The runs take three quarters of an hour to fill it.
const MOST_REMEMBERED: u64 = 1 << 19;
const REMEMBERED_BYTES: usize = 96;

/// The most accepted orders that the pool remembers, and the most bytes of each.
const MOST_ACCEPTED: usize = 1 << 20;
const ACCEPTED_BYTES: usize = 24;

/// How long a small pool keeps what no node lists: longer than the time between two comparisons, in
/// which an unlisted transaction may be listed again.
pub const RETENTION: Duration = Duration::from_secs(35);

/// How long each part may take to stop.
const STOPPED: Duration = Duration::from_secs(5);

/// The bytes of the node's share with [`Setup::SmallNodeShare`].
pub const SMALL_NODE_SHARE_BYTES: usize = 32 << 20;

/// The sizes and limits of the machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Setup {
    /// Small pools, which attackers fill within a run.
    #[default]
    Small,
    /// The defaults.
    Default,
    /// The gate is `unlimited`: it admits everyone, and callers wait for permits in one queue with
    /// internal work.
    NoGate,
    /// Room for all transactions of a run.
    Roomy,
    /// The node is asked about the accounts of senders.
    NodeAdmission,
    /// The node's share has [`SMALL_NODE_SHARE_BYTES`].
    SmallNodeShare,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Config {
    pub nodes: Vec<PathBuf>,
    /// The known signers of its RPC server, if it has one.
    pub rpc: Option<Vec<Address>>,
    pub name: String,
    /// The NATS servers to which it publishes. The next field has those from which it reads.
    pub publishes_to: Vec<String>,
    pub reads_from: Vec<String>,
    /// Whether it subscribes to whole transactions where a node supports that.
    pub takes_objects: bool,
    pub is_slow: bool,
    pub has_heads: bool,
    /// Whether it uses only the public stream.
    pub is_public: bool,
    /// How many transactions it signs before it starts, for [`Member::insert`] and
    /// [`Member::send`].
    pub signs: usize,
    /// The NATS servers whose bare messages count as orders that its builder has seen.
    pub bare_from: Vec<String>,
    /// The trusted proxies of its RPC server, see [`OrderRpcConfig`].
    pub trusted_proxies: Vec<IpAddr>,
    pub trusted_fronts: Vec<IpAddr>,
    /// Additional environment variables of its process.
    pub variables: Vec<(String, PathBuf)>,
    pub setup: Setup,
}

#[derive(Debug, Serialize, Deserialize)]
enum Request {
    Start(Box<Config>),
    Look,
    Progress,
    /// Pool the signed transactions, this many per second or all at once.
    Insert(Option<u32>),
    /// Publish the signed transactions as bare messages on these servers, this many per second.
    Send(Vec<String>, u32),
    /// Refuse further files to the process, or permit them again.
    RefuseFiles(bool),
    Finish,
}

/// An event that a builder has seen. It is reported with the hash of the transaction or the bundle
/// hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Seen {
    Added,
    /// An order was removed, with the reason.
    Removed(String),
    /// A head, with its number; it is reported with its hash.
    Head(u64),
    /// This many events were missed. All orders of the pool follow.
    Resync(u64),
}

/// The state of a member, and what its builder has seen since the previous report.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// The events in their order, each with its time.
    pub seen: Vec<(u64, Seen, B256)>,
    /// Whether the builder has read all events.
    pub is_current: bool,
    /// The number of orders of the builder, and that of the pool, if the builder was current.
    pub sizes: Option<(usize, usize)>,
    /// The hashes that entered the fetcher, less those that left it and those in flight.
    pub balance: i64,
    pub resident_bytes: usize,
    /// The bytes of the orders of the builder, and of the remembered hashes.
    pub held_bytes: usize,
    /// The highest resident memory since the previous report.
    pub peak_bytes: usize,
    /// Without the connections of searchers, of which there are fewer for a while after a fault.
    pub open_files: usize,
    pub threads: usize,
    /// Whether the source of each node is live.
    pub live_sources: Vec<bool>,
    /// Whether each source says that its node announces whole transactions.
    pub has_objects: Vec<bool>,
    /// How often each source has lost a connection.
    pub reconnects: Vec<u64>,
    /// Whether all sources are live, and all publishers say that they are ready.
    pub is_ready: bool,
    /// For each publisher, how many messages the stream has acknowledged, and how many wait for
    /// that.
    pub published: Vec<(u64, u64)>,
    /// The blob transactions that the builder has with the proofs of EIP-4844.
    pub old_sidecars: Vec<B256>,
}

impl Report {
    /// Whether the counts of hashes do not balance, or the builder and its pool differ.
    pub fn is_miscounted(&self) -> bool {
        self.balance != 0 || self.sizes.is_some_and(|(view, pool)| view != pool)
    }
}

/// The progress of a member, which costs less than a [`Report`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Progress {
    /// The number of orders that the builder has seen.
    pub seen: usize,
    /// Whether all its sources have caught up.
    pub is_live: bool,
    /// The number of messages that its publishers have stored.
    pub stored: u64,
    /// CPU time since its start.
    pub cpu: Duration,
}

/// When each order was submitted or seen, by the clock of [`now_ns`].
pub type Log = Vec<(B256, u64)>;

#[derive(Debug)]
pub struct Member(Process);

impl Member {
    /// Runs as a member if this process was started for it.
    #[must_use = "the member's exit code is the process's"]
    pub fn run_if_child() -> Option<ExitCode> {
        run_as(ROLE, respond)
    }

    pub fn start(config: &Config) -> io::Result<(Self, Option<SocketAddr>)> {
        let variables = config.variables.iter().map(|(name, path)| (name.as_str(), path.as_path()));
        let mut process = Process::spawn_with(ROLE, variables)?;
        let address = process.request(&Request::Start(Box::new(config.clone())))?;
        Ok((Self(process), address))
    }

    /// Requests a report; [`Self::report`] waits for it.
    pub fn ask(&mut self) -> io::Result<()> {
        self.0.send(&Request::Look)
    }

    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(kill(Pid::from_raw(self.0.id() as i32), signal)?)
    }

    /// Makes the kernel refuse further files to the process, or permit them again.
    pub fn refuse_files(&mut self, is_refused: bool) -> io::Result<()> {
        self.0.request(&Request::RefuseFiles(is_refused))
    }

    /// Shuts the member down, after it has published all accepted orders. Returns the orders that
    /// its builder has seen since the last report. The process fails if its counts do not balance.
    pub fn finish(mut self) -> io::Result<Log> {
        self.0.request(&Request::Finish)
    }

    /// Pools the signed transactions. Returns when each was submitted.
    pub fn insert(&mut self, tps: Option<u32>) -> io::Result<Log> {
        self.0.request(&Request::Insert(tps))
    }

    /// Sends the signed transactions as bare messages. Returns when each was submitted to the
    /// client.
    pub fn send(&mut self, servers: &[String], tps: u32) -> io::Result<Log> {
        self.0.request(&Request::Send(servers.to_vec(), tps))
    }

    /// Waits until `condition` is true; fails after two minutes.
    pub fn wait(
        &mut self,
        description: &str,
        condition: impl Fn(&Progress) -> bool,
    ) -> io::Result<Progress> {
        let begin = Instant::now();
        loop {
            let progress: Progress = self.0.request(&Request::Progress)?;
            if condition(&progress) {
                return Ok(progress);
            }
            if begin.elapsed() > LONGEST {
                let late = format!("not within {LONGEST:?}: {description}: {progress:?}");
                return Err(io::Error::other(late));
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn report(&mut self) -> io::Result<Report> {
        self.0.receive()
    }
}

#[derive(Default)]
struct View {
    seen: Vec<(u64, Seen, B256)>,
    /// The number of orders so far.
    accepted: usize,
    /// The size of each order, in bytes.
    live: HashMap<B256, usize>,
    /// Blob transactions with the proofs of EIP-4844.
    old_sidecars: HashSet<B256>,
    is_current: bool,
    /// A report waits, so a slow builder must not pause.
    is_asked: bool,
}

/// The running parts of a member.
#[derive(Default)]
struct Parts {
    ingest: Option<Ingest>,
    publishers: Vec<Publisher>,
    sources: Vec<Source>,
    upkeep: Option<Upkeep>,
    pool: Option<OrderPool>,
    bare: Option<Client>,
    /// The CPU time of the process when all parts had started.
    cpu: Duration,
}

fn respond() -> io::Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    let view = Arc::new(Mutex::new(View::default()));
    let (mut parts, mut signed) = (Parts::default(), Vec::new());
    let none = || io::Error::other("not started");
    serve(|request| match request {
        Request::Start(config) => {
            if config.signs > 0 {
                let mut load = Workload::new(WorkloadConfig::new(7, DEV_CHAIN_ID));
                signed.extend(load.prepare(config.signs).iter().map(pooled));
            }
            parts = runtime.block_on(start(&config, &view)).map_err(io::Error::other)?;
            let pool = parts.pool.clone().ok_or_else(none)?;
            let (view, is_slow) = (Arc::clone(&view), config.is_slow);
            thread::spawn(move || follow(&pool, &view, is_slow));
            let rpc = parts.ingest.as_ref().and_then(|ingest| ingest.rpc());
            reply(rpc.map(|rpc| rpc.local_addr()))
        }
        Request::Look => reply(look(&parts, &view)),
        Request::RefuseFiles(is_refused) => {
            bound_open_files(is_refused.then(|| entries("/proc/self/fd") as u64))?;
            reply(())
        }
        Request::Progress => reply(progress(&parts, &view)),
        Request::Insert(tps) => {
            let pool = parts.pool.as_ref().ok_or_else(none)?;
            reply(paced(std::mem::take(&mut signed), tps, |tx| {
                let hash = *tx.hash();
                pool.insert_transaction(tx);
                hash
            }))
        }
        Request::Send(servers, tps) => {
            let client = runtime.block_on(connect(&servers)).map_err(io::Error::other)?;
            let encoded =
                signed.drain(..).map(|tx| encode_transaction(&tx, Duration::ZERO)).collect();
            let sent = paced(encoded, Some(tps), |tx: Encoded| {
                let mut headers = HeaderMap::new();
                headers.insert("Nats-Msg-Id", hex::encode(tx.id));
                let sent = client.publish_with_headers(BARE, headers, tx.payload);
                runtime.block_on(sent).expect("the client runs");
                tx.id
            });
            // Without this, the last messages would be lost with the client.
            runtime.block_on(client.flush()).map_err(io::Error::other)?;
            reply(sent)
        }
        Request::Finish => {
            runtime.block_on(finish(std::mem::take(&mut parts)));
            let seen = std::mem::take(&mut view.lock().seen).into_iter();
            let added = seen.filter(|(_, seen, _)| *seen == Seen::Added);
            reply(added.map(|(seen_at, _, hash)| (hash, seen_at)).collect::<Log>())
        }
    })
}

fn pooled(tx: &PreparedTx) -> Transaction {
    Transaction::new(tx.recovered(), Origin::Mempool, SystemTime::now())
}

/// Submits each item when it is due, however late earlier ones were.
fn paced<T>(items: Vec<T>, tps: Option<u32>, mut submit: impl FnMut(T) -> B256) -> Log {
    let due = items.into_iter().zip(pace(tps));
    let submitted = due.map(|(item, _)| {
        let submitted_at = now_ns();
        (submit(item), submitted_at)
    });
    submitted.collect()
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn connect(servers: &[String]) -> Result<Client, Failure> {
    Ok(async_nats::connect(servers).await?)
}

async fn subscribe(servers: &[String], view: Arc<Mutex<View>>) -> Result<Client, Failure> {
    let client = connect(servers).await?;
    let mut messages = client.subscribe(BARE).await?;
    client.flush().await?;
    tokio::spawn(async move {
        while let Some(message) = messages.next().await {
            let received_at = now_ns();
            let id = message.headers.as_ref().and_then(|headers| headers.get("Nats-Msg-Id"));
            let id = id.and_then(|id| id.as_str().parse().ok()).expect("the publisher sets it");
            let mut view = view.lock();
            view.accepted += 1;
            view.seen.push((received_at, Seen::Added, id));
        }
    });
    Ok(client)
}

async fn start(config: &Config, view: &Arc<Mutex<View>>) -> Result<Parts, Failure> {
    let mut pool = if config.setup == Setup::Roomy { roomy() } else { PoolConfig::default() };
    if config.setup == Setup::Small {
        // What a node lists is kept for longer. Builders of a fleet have no node: machines publish
        // it again within the default time.
        if !config.nodes.is_empty() {
            pool.tx_retention = RETENTION;
        }
        (pool.max_external_txs, pool.max_bundles, pool.max_cancellations) = (CAP, CAP, CAP);
        pool.log_bytes = LOG_BYTES;
    }
    if config.setup == Setup::SmallNodeShare {
        pool.max_tx_bytes = SMALL_NODE_SHARE_BYTES;
    }
    if config.is_slow {
        pool.log_events = 1_024;
    }
    let mut parts = Parts::default();
    if config.nodes.is_empty() {
        let pool = OrderPool::new(pool)?;
        parts.upkeep = Some(Upkeep::start(&pool, UpkeepConfig::default(), || false)?);
        parts.pool = Some(pool);
    } else {
        let sources = config.nodes.iter().cloned().map(Endpoint::Ipc);
        let announcements = [Announcements::Hashes, Announcements::Auto];
        let mut fetcher = FetcherConfig::new(sources);
        fetcher.start = StartPolicy::WaitForNode;
        fetcher.audit_interval = Some(AUDIT);
        fetcher.announcements = announcements[usize::from(config.takes_objects)];
        fetcher.chain_id = Some(DEV_CHAIN_ID);
        let mut host = IngestConfig::new(fetcher, pool);
        if config.setup == Setup::NoGate {
            host.gate.requests = Limit::Unlimited;
        }
        if config.setup == Setup::NodeAdmission {
            host.node_admission = Some(NodeAdmissionConfig::default());
        }
        let mut ingest = Ingest::start(host).await?;
        if let Some(known) = &config.rpc {
            let known: HashSet<Address> = known.iter().copied().collect();
            let mut rpc = OrderRpcConfig::new(DEV_CHAIN_ID);
            rpc.trusted_proxies = config.trusted_proxies.clone();
            rpc.trusted_fronts = config.trusted_fronts.clone();
            ingest.start_rpc_with(rpc, |host| {
                host.with_known_signers(move |signer| known.contains(&signer))
            })?;
        }
        parts.pool = Some(ingest.pool().clone());
        parts.ingest = Some(ingest);
    }
    let pool = parts.pool.as_ref().expect("set above");
    for flow in [Flow::Public, Flow::Private] {
        if flow == Flow::Private && config.is_public {
            continue;
        }
        if !config.publishes_to.is_empty() {
            let server = ServerConfig::cluster(&config.publishes_to);
            let mut publisher = PublisherConfig::new(server, DEV_CHAIN_ID, &config.name);
            publisher.flow = flow;
            publisher.heads = config.has_heads;
            parts.publishers.push(Publisher::start(pool, publisher)?);
        }
        if !config.reads_from.is_empty() {
            let server = ServerConfig::cluster(&config.reads_from);
            let mut source = SourceConfig::new(server, DEV_CHAIN_ID, &config.name);
            source.flow = flow;
            source.heads = flow == Flow::Public;
            parts.sources.push(Source::start(pool, source)?);
        }
    }
    if !config.bare_from.is_empty() {
        parts.bare = Some(subscribe(&config.bare_from, Arc::clone(view)).await?);
    }
    parts.cpu = process_cpu();
    Ok(parts)
}

/// Stops the parts that accept orders first, then those that publish them.
async fn finish(parts: Parts) {
    if let Some(ingest) = parts.ingest {
        ingest.shutdown(STOPPED).await;
    }
    for publisher in parts.publishers {
        let stats = publisher.shutdown(STOPPED).await.stats;
        let ended = stats.stored + stats.duplicate + stats.refused_total() + stats.unfinished;
        assert_eq!(stats.published + stats.unpublished, ended, "{stats:?}");
    }
    for source in parts.sources {
        let stats = source.shutdown(STOPPED).await.stats;
        let ended = stats.pooled + stats.known + stats.superseded + stats.refused + stats.malformed;
        assert_eq!(stats.received, ended, "{stats:?}");
    }
}

/// Reads the pool like a builder. A slow builder pauses for two of five seconds.
fn follow(pool: &OrderPool, view: &Mutex<View>, is_slow: bool) {
    let mut events = pool.subscribe_all();
    let begin = Instant::now();
    loop {
        let next = events.next_timeout(Duration::from_millis(20));
        let seen_at = now_ns();
        let mut view = view.lock();
        match next {
            Some(Ok(event)) => view.see(event, seen_at),
            Some(Err(lagged)) => {
                events.resync();
                view.live.clear();
                view.old_sidecars.clear();
                view.seen.push((seen_at, Seen::Resync(lagged.missed), B256::ZERO));
            }
            None => {}
        }
        view.is_current = events.behind() == 0 && !events.is_replaying();
        let may_pause = is_slow && !view.is_asked && begin.elapsed().as_secs() % 5 < 2;
        drop(view);
        if may_pause {
            thread::sleep(Duration::from_millis(50));
        }
    }
}

impl View {
    fn see(&mut self, event: Event, seen_at: u64) {
        let content = |order: &Order| match order {
            Order::Tx(tx) => *tx.hash(),
            Order::Bundle(bundle) => *bundle.hash(),
            _ => B256::ZERO,
        };
        let (seen, hash) = match event {
            Event::Added(order) => {
                self.accepted += 1;
                self.live.insert(*order.id().hash(), order.size_bytes());
                if let Order::Tx(tx) = &*order
                    && matches!(tx.sidecar(), Some(BlobTransactionSidecarVariant::Eip4844(_)))
                {
                    self.old_sidecars.insert(*tx.hash());
                }
                (Seen::Added, content(&order))
            }
            Event::Removed { order, reason } => {
                self.live.remove(order.id().hash());
                self.old_sidecars.remove(order.id().hash());
                (Seen::Removed(format!("{reason:?}")), content(&order))
            }
            Event::Head(head) => (Seen::Head(head.number), head.hash),
            _ => return,
        };
        self.seen.push((seen_at, seen, hash));
    }
}

fn progress(parts: &Parts, view: &Mutex<View>) -> Progress {
    let is_live = |state| state == State::Live;
    // A publisher ends its first comparison with the first event of the pool.
    let is_ready = |state| is_live(state) || state == State::CatchingUp;
    Progress {
        seen: view.lock().accepted,
        is_live: parts.ingest.as_ref().is_none_or(|ingest| ingest.fetcher().is_live())
            && parts.sources.iter().all(|source| is_live(source.state()))
            && parts.publishers.iter().all(|publisher| is_ready(publisher.state())),
        stored: parts.publishers.iter().map(|publisher| publisher.stats().stored).sum(),
        cpu: process_cpu().saturating_sub(parts.cpu),
    }
}

fn look(parts: &Parts, view: &Mutex<View>) -> Report {
    let deadline = Instant::now() + PATIENCE;
    view.lock().is_asked = true;
    let mut report = Report::default();
    let fetcher = parts.ingest.as_ref().map(Ingest::fetcher);
    // Both are read while orders arrive, so only a lasting difference counts.
    for attempt in 0.. {
        thread::sleep(Duration::from_millis(if attempt == 0 { 1 } else { 20 }));
        let mut view = view.lock();
        report.is_current = view.is_current;
        if let (true, Some(pool)) = (view.is_current, &parts.pool) {
            report.sizes = Some((view.live.len(), pool.len()));
            report.held_bytes = view.live.values().sum::<usize>()
                + view.accepted.min(MOST_ACCEPTED) * ACCEPTED_BYTES;
        }
        report.balance = fetcher.map_or(0, |fetcher| fetcher.counts().balance());
        let is_settled = report.sizes.is_some() && !report.is_miscounted();
        if is_settled || Instant::now() > deadline {
            view.is_asked = false;
            report.seen = std::mem::take(&mut view.seen);
            report.old_sidecars = view.old_sidecars.iter().copied().collect();
            break;
        }
    }
    let pooled = fetcher.map_or(0, |fetcher| fetcher.counts().pooled);
    report.held_bytes += pooled.min(MOST_REMEMBERED) as usize * REMEMBERED_BYTES;
    report.resident_bytes = resident_bytes();
    report.peak_bytes = peak_resident_bytes();
    let rpc = parts.ingest.as_ref().and_then(Ingest::rpc);
    let connections = rpc.map_or(0, |rpc| established_connections(rpc.local_addr().port()));
    report.open_files = entries("/proc/self/fd").saturating_sub(connections);
    report.threads = entries("/proc/self/task");
    let sources = fetcher.map(|fetcher| fetcher.status()).unwrap_or_default();
    report.live_sources = sources.iter().map(|source| source.state == SourceState::Live).collect();
    let has_objects = |announcements| announcements == Announcements::Full;
    report.has_objects = sources.iter().map(|source| has_objects(source.announcements)).collect();
    report.reconnects = sources.iter().map(|source| source.reconnects).collect();
    let published = parts.publishers.iter().map(|publisher| {
        let stats = publisher.stats();
        (stats.stored + stats.duplicate, stats.unfinished)
    });
    report.published = published.collect();
    report.is_ready = report.live_sources.iter().all(|is_live| *is_live)
        && parts.publishers.iter().all(|publisher| publisher.readiness()());
    report
}

fn entries(folder: &str) -> usize {
    fs::read_dir(folder).map_or(0, Iterator::count)
}
