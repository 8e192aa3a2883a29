//! A process with a pool, and a builder that reads it: an ingest with an RPC server, a builder beside a node, or a builder of
//! a fleet. It tells what its builder has seen since the look before.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use alloy_primitives::{Address, B256};
use mempool_ingest::{
    FetcherConfig, Ingest, IngestConfig, OrderPool, OrderRpcConfig, PoolConfig,
    load_control::{GateConfig, Limit},
    order_pool::{Event, Order, Upkeep, UpkeepConfig},
    txpool_fetcher::{Announcements, Endpoint, StartPolicy},
};
use mock_node::DEV_CHAIN_ID;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use order_stream::{Flow, Publisher, PublisherConfig, ServerConfig, Source, SourceConfig};
use serde::{Deserialize, Serialize};
use testkit::{
    process::{Process, reply, serve},
    usage::{now_ns, peak_resident_bytes, resident_bytes},
};

use crate::{
    lock,
    world::{AUDIT, Setup},
};

pub(crate) const ROLE: &str = "__member";

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

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Config {
    pub(crate) nodes: Vec<PathBuf>,
    /// The signers that it knows, if it has an RPC server.
    pub(crate) rpc: Option<Vec<Address>>,
    pub(crate) name: String,
    /// NATS servers to which it publishes, and from which it reads.
    pub(crate) publishes_to: Vec<String>,
    pub(crate) reads_from: Vec<String>,
    /// Whether it takes whole transactions where a node has them.
    pub(crate) takes_objects: bool,
    pub(crate) is_slow: bool,
    pub(crate) has_heads: bool,
    pub(crate) setup: Setup,
}

#[derive(Debug, Serialize, Deserialize)]
enum Request {
    Start(Box<Config>),
    Look,
    Finish,
}

/// What a builder sees, with the hash of a transaction or the bundle hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Seen {
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
pub(crate) struct Report {
    /// In their order, each with its time.
    pub(crate) seen: Vec<(u64, Seen, B256)>,
    /// Whether the builder has read all that there was.
    pub(crate) is_current: bool,
    /// Orders that the builder has and that the pool has, if the builder was current.
    pub(crate) sizes: Option<(usize, usize)>,
    /// Hashes that entered the fetcher less those that left it and those under way.
    pub(crate) balance: i64,
    pub(crate) resident_bytes: usize,
    /// Of the orders that the builder has, and of the hashes that are remembered.
    pub(crate) held_bytes: usize,
    /// The most since the look before.
    pub(crate) peak_bytes: usize,
    pub(crate) open_files: usize,
    pub(crate) threads: usize,
}

impl Report {
    /// Whether the counts of hashes do not add up, or the builder's reader and its pool differ.
    pub(crate) fn is_miscounted(&self) -> bool {
        self.balance != 0 || self.sizes.is_some_and(|(view, pool)| view != pool)
    }
}

#[derive(Debug)]
pub(crate) struct Member(Process);

impl Member {
    pub(crate) fn start(config: &Config) -> io::Result<(Self, Option<SocketAddr>)> {
        let mut process = Process::spawn(ROLE)?;
        let address = process.request(&Request::Start(Box::new(config.clone())))?;
        Ok((Self(process), address))
    }

    /// Asks for a report; [`Self::report`] waits for it.
    pub(crate) fn ask(&mut self) -> io::Result<()> {
        self.0.send(&Request::Look)
    }

    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(kill(Pid::from_raw(self.0.id() as i32), signal)?)
    }

    /// Shuts everything down: what it has accepted is published first.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.0.request(&Request::Finish)
    }

    pub(crate) fn report(&mut self) -> io::Result<Report> {
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
}

pub(crate) fn respond() -> io::Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    let view = Arc::new(Mutex::new(View::default()));
    let mut parts = Parts::default();
    serve(|request| match request {
        Request::Start(config) => {
            parts = runtime.block_on(start(&config)).map_err(io::Error::other)?;
            let pool = parts.pool.clone().ok_or_else(|| io::Error::other("no pool"))?;
            let (view, is_slow) = (Arc::clone(&view), config.is_slow);
            thread::spawn(move || follow(&pool, &view, is_slow));
            let rpc = parts.ingest.as_ref().and_then(|ingest| ingest.rpc());
            reply(rpc.map(|rpc| rpc.local_addr()))
        }
        Request::Look => reply(look(&parts, &view)),
        Request::Finish => {
            runtime.block_on(finish(std::mem::take(&mut parts)));
            reply(())
        }
    })
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn start(config: &Config) -> Result<Parts, Failure> {
    let mut pool = PoolConfig::default();
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
        let fetcher = FetcherConfig {
            start: StartPolicy::WaitForNode,
            audit_interval: Some(AUDIT),
            announcements: if config.takes_objects {
                Announcements::Auto
            } else {
                Announcements::Hashes
            },
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
            ingest.start_rpc_with(OrderRpcConfig::new(DEV_CHAIN_ID), |host| {
                host.with_known_signers(move |signer| known.contains(&signer))
            })?;
        }
        parts.pool = Some(ingest.pool().clone());
        parts.ingest = Some(ingest);
    }
    let pool = parts.pool.as_ref().expect("set above");
    for flow in [Flow::Public, Flow::Private] {
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
        source.shutdown(STOPPED).await;
    }
}

/// Reads as a builder does. A slow one pauses for two seconds of five.
fn follow(pool: &OrderPool, view: &Mutex<View>, is_slow: bool) {
    let mut events = pool.subscribe_all();
    let begin = Instant::now();
    loop {
        let next = events.next_timeout(Duration::from_millis(20));
        let mut view = lock(view);
        match next {
            Some(Ok(event)) => view.see(event),
            Some(Err(lagged)) => {
                events.resync();
                view.live.clear();
                view.seen.push((now_ns(), Seen::Resync(lagged.missed), B256::ZERO));
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
    fn see(&mut self, event: Event) {
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
        self.seen.push((now_ns(), seen, hash));
    }
}

fn look(parts: &Parts, view: &Mutex<View>) -> Report {
    let deadline = Instant::now() + PATIENCE;
    lock(view).is_asked = true;
    let mut report = Report::default();
    let fetcher = parts.ingest.as_ref().map(Ingest::fetcher);
    // Both are read while orders come: a difference counts that stays.
    for attempt in 0.. {
        thread::sleep(Duration::from_millis(if attempt == 0 { 1 } else { 20 }));
        let mut view = lock(view);
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
    let count = |path| fs::read_dir(path).map_or(0, Iterator::count);
    (report.open_files, report.threads) = (count("/proc/self/fd"), count("/proc/self/task"));
    report
}

/// What a builder has, as its reports tell it.
#[derive(Debug, Default)]
pub(crate) struct Mirror {
    /// How often each content is there: the same transactions may stand in bundles for several blocks.
    live: HashMap<B256, u32>,
    /// What it saw of each, of those that somebody asks for.
    pub(crate) lives: HashMap<B256, Vec<(u64, Seen)>>,
    /// The latest heads, each with its time.
    pub(crate) heads: Vec<(u64, u64)>,
    pub(crate) missed: u64,
    /// Transactions that came while they were there.
    pub(crate) twice: Vec<B256>,
    /// Resident memory at the first look, and the most since, in bytes.
    pub(crate) memory: [usize; 2],
    /// Resident memory beside [`Report::held_bytes`], open files and threads at each look.
    pub(crate) uses: Vec<(u64, [usize; 3])>,
}

impl Mirror {
    pub(crate) fn has(&self, hash: &B256) -> bool {
        self.live.get(hash).is_some_and(|count| *count > 0)
    }

    /// Since when it knows a block or a later one.
    pub(crate) fn reached(&self, block: u64) -> Option<u64> {
        let known = self.heads.iter().rev().take_while(|(head, _)| *head >= block);
        known.last().map(|(_, at)| *at)
    }

    pub(crate) fn take(&mut self, report: &Report, is_ours: impl Fn(&B256) -> bool) {
        for (at, seen, hash) in &report.seen {
            match seen {
                Seen::Added => {
                    let count = self.live.entry(*hash).or_default();
                    *count += 1;
                    // A bundle may be there for several blocks; ours are for one each.
                    if *count > 1 && is_ours(hash) {
                        self.twice.push(*hash);
                    }
                }
                Seen::Removed(_) => {
                    if let Some(count) = self.live.get_mut(hash) {
                        *count = count.saturating_sub(1);
                    }
                }
                Seen::Head(number) => {
                    if self.heads.last().is_none_or(|(head, _)| head != number) {
                        self.heads.push((*number, *at));
                    }
                }
                Seen::Resync(missed) => {
                    self.live.clear();
                    self.missed += missed;
                }
            }
            if matches!(seen, Seen::Added | Seen::Removed(_)) && is_ours(hash) {
                self.lives.entry(*hash).or_default().push((*at, seen.clone()));
            }
        }
        self.live.retain(|_, count| *count > 0);
        let [idle, peak] = self.memory;
        self.memory = match self.uses.is_empty() {
            true => [report.resident_bytes; 2],
            false => [idle, peak.max(report.peak_bytes)],
        };
        let beside = report.resident_bytes.saturating_sub(report.held_bytes);
        let uses = [beside, report.open_files, report.threads];
        self.uses.push((now_ns(), uses));
    }

    /// What it saw of an order, and its latest heads, each with its time.
    pub(crate) fn life(&self, who: &str, hash: &B256) -> Vec<(u64, String)> {
        let seen = self.lives.get(hash).into_iter().flatten();
        let seen = seen.map(|(at, seen)| (*at, format!("{who}: {seen:?}")));
        let heads = self.heads.iter().rev().take(6);
        seen.chain(heads.map(|(head, at)| (*at, format!("{who} has head {head}")))).collect()
    }

    /// How many orders it has.
    pub(crate) fn len(&self) -> usize {
        self.live.values().map(|count| *count as usize).sum()
    }
}
