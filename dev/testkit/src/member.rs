//! A process with a pool, and a builder that reads it: an ingest with an RPC server, a builder
//! beside a node, a builder of a fleet, a publisher of what it has signed itself, or a subscriber
//! of bare messages. It tells what its builder has seen since the look before.

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

use alloy_primitives::{Address, B256, hex};
use async_nats::{Client, HeaderMap};
use futures::StreamExt as _;
use mempool_ingest::{
    FetcherConfig, Ingest, IngestConfig, OrderPool, OrderRpcConfig, PoolConfig,
    load_control::{GateConfig, Limit},
    order_pool::{Event, Order, Origin, Transaction, Upkeep, UpkeepConfig},
    txpool_fetcher::{Announcements, Endpoint, Fetcher, SourceState, StartPolicy},
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
    usage::{bound_resources, now_ns, peak_resident_bytes, process_cpu, resident_bytes},
};

const ROLE: &str = "__member";

/// Between two comparisons of a member with a node; the default is a minute.
pub const AUDIT: Duration = Duration::from_secs(20);

/// Longest wait for what a bench waits for.
const LONGEST: Duration = Duration::from_secs(120);

/// The subject of bare messages, which no stream stores.
const BARE: &str = "bare.tx";

/// For its builder to read what there is. Longer only if an attack fills its pool faster than it reads.
const PATIENCE: Duration = Duration::from_secs(5);

/// Of what callers send, in orders. A holder has a thirty-second of it: more than honest searchers behind one address have at
/// a time, and together it is less than an attacker sends.
const CAP: usize = 4_000;
/// Of orders that are gone: so few that what memory becomes is not what attackers have sent last.
const LOG_BYTES: usize = 8 << 20;

/// Hashes that the fetcher remembers at most, and what each takes at most: an entry of 48 bytes in a table that is half full.
/// These runs take three quarters of an hour to fill it.
const MOST_REMEMBERED: u64 = 1 << 19;
const REMEMBERED_BYTES: usize = 96;

/// The same of orders that the pool has accepted.
const MOST_ACCEPTED: usize = 1 << 20;
const ACCEPTED_BYTES: usize = 24;

/// For each part to stop.
const STOPPED: Duration = Duration::from_secs(5);

/// How the machines are set up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Setup {
    /// Pools so small that attackers fill them within a run.
    #[default]
    Small,
    /// The defaults.
    Default,
    /// Their gate lets everyone in, and callers wait for permits in one queue with internal work:
    /// what an operator gets who sets `unlimited`.
    NoGate,
    /// Room for all transactions of a run.
    Roomy,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Config {
    pub nodes: Vec<PathBuf>,
    /// The signers that it knows, if it has an RPC server.
    pub rpc: Option<Vec<Address>>,
    pub name: String,
    /// NATS servers to which it publishes, and from which it reads.
    pub publishes_to: Vec<String>,
    pub reads_from: Vec<String>,
    /// Whether it takes whole transactions where a node has them.
    pub takes_objects: bool,
    pub is_slow: bool,
    pub has_heads: bool,
    /// Of the streams only the public one.
    pub is_public: bool,
    /// It signs so many transactions before it starts, for [`Member::insert`] and [`Member::send`].
    pub signs: usize,
    /// NATS servers whose bare messages count as orders that its builder has seen.
    pub bare_from: Vec<String>,
    /// Of its RPC server, see [`OrderRpcConfig`].
    pub trusted_proxies: Vec<IpAddr>,
    pub trusted_fronts: Vec<IpAddr>,
    /// What its process finds in its environment besides ours.
    pub variables: Vec<(String, PathBuf)>,
    pub setup: Setup,
}

#[derive(Debug, Serialize, Deserialize)]
enum Request {
    Start(Box<Config>),
    Look,
    Progress,
    /// Pool what was signed, so many a second or at once.
    Insert(Option<u32>),
    /// Publish what was signed as bare messages on these servers.
    Send(Vec<String>, u32),
    /// Open no further file and start no further thread, or as many as before.
    RefuseResources(bool),
    Finish,
}

/// What a builder sees, with the hash of a transaction or the bundle hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Seen {
    Added,
    /// And why.
    Removed(String),
    /// The head's number; the hash is its own.
    Head(u64),
    /// So many events were missed: what follows is all that there is.
    Resync(u64),
}

/// Of one look.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// In their order, each with its time.
    pub seen: Vec<(u64, Seen, B256)>,
    /// Whether the builder has read all that there was.
    pub is_current: bool,
    /// Orders that the builder has and that the pool has, if the builder was current.
    pub sizes: Option<(usize, usize)>,
    /// Hashes that entered the fetcher less those that left it and those under way.
    pub balance: i64,
    pub resident_bytes: usize,
    /// Of the orders that the builder has, and of the hashes that are remembered.
    pub held_bytes: usize,
    /// The most since the look before.
    pub peak_bytes: usize,
    pub open_files: usize,
    pub threads: usize,
    /// Of each node that it reads, whether its source says that it is live.
    pub live_sources: Vec<bool>,
    /// Whether all its sources and publishers say that they are live.
    pub is_ready: bool,
}

impl Report {
    /// Whether the counts of hashes do not add up, or the builder's reader and its pool differ.
    pub fn is_miscounted(&self) -> bool {
        self.balance != 0 || self.sizes.is_some_and(|(view, pool)| view != pool)
    }
}

/// How far it is; cheaper than a [`Report`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Progress {
    /// Orders that came.
    pub seen: usize,
    /// Whether its sources, of whatever kind, have everything that they can have.
    pub is_live: bool,
    /// What its publishers have stored.
    pub stored: u64,
    /// CPU time since its start.
    pub cpu: Duration,
}

/// When each order was handed over, or seen, by the clock of [`now_ns`].
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

    /// Asks for a report; [`Self::report`] waits for it.
    pub fn ask(&mut self) -> io::Result<()> {
        self.0.send(&Request::Look)
    }

    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(kill(Pid::from_raw(self.0.id() as i32), signal)?)
    }

    /// From now on the kernel refuses it further files and threads, or no longer.
    pub fn refuse_resources(&mut self, is_refused: bool) -> io::Result<()> {
        self.0.request(&Request::RefuseResources(is_refused))
    }

    /// Shuts everything down: what it has accepted is published first. Returns the orders that its
    /// builder has seen since the last look. Its process fails if its counts do not add up.
    pub fn finish(mut self) -> io::Result<Log> {
        self.0.request(&Request::Finish)
    }

    /// Pools what was signed, and returns when each was handed to the pool.
    pub fn insert(&mut self, tps: Option<u32>) -> io::Result<Log> {
        self.0.request(&Request::Insert(tps))
    }

    /// Sends what was signed as bare messages, and returns when each was handed to the client.
    pub fn send(&mut self, servers: &[String], tps: u32) -> io::Result<Log> {
        self.0.request(&Request::Send(servers.to_vec(), tps))
    }

    /// Waits until it is `done`; fails when it is not in time.
    pub fn wait(&mut self, what: &str, done: impl Fn(&Progress) -> bool) -> io::Result<Progress> {
        let begin = Instant::now();
        loop {
            let progress: Progress = self.0.request(&Request::Progress)?;
            if done(&progress) {
                return Ok(progress);
            }
            if begin.elapsed() > LONGEST {
                let late = format!("not after {LONGEST:?}: {what}: {progress:?}");
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
    /// Orders that came.
    accepted: usize,
    /// By order, its size in bytes.
    live: HashMap<B256, usize>,
    is_current: bool,
    /// A look waits: no pause now.
    is_asked: bool,
}

/// Keeps running what it starts.
#[derive(Default)]
struct Parts {
    ingest: Option<Ingest>,
    publishers: Vec<Publisher>,
    sources: Vec<Source>,
    upkeep: Option<Upkeep>,
    pool: Option<OrderPool>,
    bare: Option<Client>,
    /// Of this process until all of it had started.
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
        Request::RefuseResources(is_refused) => {
            bound_resources(is_refused.then(|| entries("/proc/self/fd") as u64))?;
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
            // Or its last messages would go with it.
            runtime.block_on(client.flush()).map_err(io::Error::other)?;
            reply(sent)
        }
        Request::Finish => {
            runtime.block_on(finish(std::mem::take(&mut parts)));
            let seen = std::mem::take(&mut view.lock().seen).into_iter();
            let added = seen.filter(|(_, seen, _)| *seen == Seen::Added);
            reply(added.map(|(at, _, hash)| (hash, at)).collect::<Log>())
        }
    })
}

fn pooled(tx: &PreparedTx) -> Transaction {
    Transaction::new(tx.recovered(), Origin::Mempool, SystemTime::now())
}

/// Hands each over when it is due, whatever happened to those before.
fn paced<T>(items: Vec<T>, tps: Option<u32>, mut hand_over: impl FnMut(T) -> B256) -> Log {
    let due = items.into_iter().zip(pace(tps));
    let handed = due.map(|(item, _)| {
        let at = now_ns();
        (hand_over(item), at)
    });
    handed.collect()
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
            let at = now_ns();
            let id = message.headers.as_ref().and_then(|headers| headers.get("Nats-Msg-Id"));
            let id = id.and_then(|id| id.as_str().parse().ok()).expect("the publisher sets it");
            let mut view = view.lock();
            view.accepted += 1;
            view.seen.push((at, Seen::Added, id));
        }
    });
    Ok(client)
}

async fn start(config: &Config, view: &Arc<Mutex<View>>) -> Result<Parts, Failure> {
    let mut pool = if config.setup == Setup::Roomy { roomy() } else { PoolConfig::default() };
    if config.setup == Setup::Small {
        pool.tx_retention = Duration::from_mins(5);
        (pool.max_external_txs, pool.max_bundles, pool.max_cancellations) = (CAP, CAP, CAP);
        pool.log_bytes = LOG_BYTES;
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
        let fetcher = FetcherConfig {
            start: StartPolicy::WaitForNode,
            audit_interval: Some(AUDIT),
            announcements: announcements[usize::from(config.takes_objects)],
            chain_id: Some(DEV_CHAIN_ID),
            ..FetcherConfig::new(sources)
        };
        let mut host = IngestConfig::new(fetcher, pool);
        if config.setup == Setup::NoGate {
            host.gate = GateConfig { requests: Limit::Unlimited, ..GateConfig::default() };
        }
        let mut ingest = Ingest::start(host).await?;
        if let Some(known) = &config.rpc {
            let known: HashSet<Address> = known.iter().copied().collect();
            let rpc = OrderRpcConfig {
                trusted_proxies: config.trusted_proxies.clone(),
                trusted_fronts: config.trusted_fronts.clone(),
                ..OrderRpcConfig::new(DEV_CHAIN_ID)
            };
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
            let publisher = PublisherConfig::new(server, DEV_CHAIN_ID, &config.name);
            let publisher = PublisherConfig { flow, heads: config.has_heads, ..publisher };
            parts.publishers.push(Publisher::start(pool, publisher)?);
        }
        if !config.reads_from.is_empty() {
            let server = ServerConfig::cluster(&config.reads_from);
            let source = SourceConfig::new(server, DEV_CHAIN_ID, &config.name);
            let source = SourceConfig { flow, heads: flow == Flow::Public, ..source };
            parts.sources.push(Source::start(pool, source)?);
        }
    }
    if !config.bare_from.is_empty() {
        parts.bare = Some(subscribe(&config.bare_from, Arc::clone(view)).await?);
    }
    parts.cpu = process_cpu();
    Ok(parts)
}

/// First what takes orders in, then what passes them on.
async fn finish(parts: Parts) {
    if let Some(ingest) = parts.ingest {
        ingest.shutdown(STOPPED).await;
    }
    for publisher in parts.publishers {
        let stats = publisher.shutdown(STOPPED).await.stats;
        let ended = stats.stored + stats.duplicate + stats.refused_total() + stats.unfinished;
        assert_eq!(stats.published, ended, "{stats:?}");
    }
    for source in parts.sources {
        let stats = source.shutdown(STOPPED).await.stats;
        let ended = stats.pooled + stats.known + stats.superseded + stats.refused + stats.malformed;
        assert_eq!(stats.received, ended, "{stats:?}");
    }
}

/// Reads as a builder does. A slow one pauses for two seconds of five.
fn follow(pool: &OrderPool, view: &Mutex<View>, is_slow: bool) {
    let mut events = pool.subscribe_all();
    let begin = Instant::now();
    loop {
        let (next, at) = (events.next_timeout(Duration::from_millis(20)), now_ns());
        let mut view = view.lock();
        match next {
            Some(Ok(event)) => view.see(event, at),
            Some(Err(lagged)) => {
                events.resync();
                view.live.clear();
                view.seen.push((at, Seen::Resync(lagged.missed), B256::ZERO));
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
    fn see(&mut self, event: Event, at: u64) {
        let content = |order: &Order| match order {
            Order::Tx(tx) => *tx.hash(),
            Order::Bundle(bundle) => *bundle.hash(),
            _ => B256::ZERO,
        };
        let (seen, hash) = match event {
            Event::Added(order) => {
                self.accepted += 1;
                self.live.insert(*order.id().hash(), order.size_bytes());
                (Seen::Added, content(&order))
            }
            Event::Removed { order, reason } => {
                self.live.remove(order.id().hash());
                (Seen::Removed(format!("{reason:?}")), content(&order))
            }
            Event::Head(head) => (Seen::Head(head.number), head.hash),
            _ => return,
        };
        self.seen.push((at, seen, hash));
    }
}

fn progress(parts: &Parts, view: &Mutex<View>) -> Progress {
    let is_live = |state| state == State::Live;
    // It ends its first comparison with the first event of the pool.
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
    // Both are read while orders come: a difference counts that stays.
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
            break;
        }
    }
    let pooled = fetcher.map_or(0, |fetcher| fetcher.counts().pooled);
    report.held_bytes += pooled.min(MOST_REMEMBERED) as usize * REMEMBERED_BYTES;
    report.resident_bytes = resident_bytes();
    report.peak_bytes = peak_resident_bytes();
    (report.open_files, report.threads) = (entries("/proc/self/fd"), entries("/proc/self/task"));
    let sources = fetcher.map(Fetcher::status).unwrap_or_default();
    report.live_sources = sources.iter().map(|source| source.state == SourceState::Live).collect();
    report.is_ready = report.live_sources.iter().all(|is_live| *is_live)
        && parts.publishers.iter().all(|publisher| publisher.state() == State::Live);
    report
}

fn entries(folder: &str) -> usize {
    fs::read_dir(folder).map_or(0, Iterator::count)
}
