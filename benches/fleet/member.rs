//! A member of a fleet in a process of its own: a machine that ingests, a builder, a publisher of what it signed itself,
//! or a subscriber of bare messages. What it uses is its own, and it can be killed.

use std::{
    io,
    path::PathBuf,
    process::ExitCode,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant, SystemTime},
};

use alloy_consensus::transaction::SignerRecoverable as _;
use alloy_eips::eip2718::Decodable2718 as _;
use alloy_primitives::B256;
use async_nats::{Client, HeaderMap};
use futures::StreamExt as _;
use mempool_ingest::{
    Fetcher, FetcherConfig, OrderPool, PoolConfig,
    order_pool::{Event, Origin, Transaction},
    txpool_fetcher::PooledTransaction,
};
use mock_node::DEV_CHAIN_ID;
use order_stream::{
    Publisher, PublisherConfig, ServerConfig, Source, SourceConfig, State,
    wire::{Encoded, encode_transaction},
};
use serde::{Deserialize, Serialize};
use testkit::{
    process::{Process, run_as, serve},
    sign::{LIVE, Signer},
    usage::{now_ns, process_cpu},
};
use tokio::runtime::Runtime;

const ROLE: &str = "__fleet-member";

/// The subject of bare messages, which no stream stores.
const BARE: &str = "bare.tx";

/// The names that machines of the benches have.
pub(crate) const MACHINES: [&str; 2] = ["ingest-1", "ingest-2"];

/// How long a member waits for what is on its way when it ends.
const STOP_DEADLINE: Duration = Duration::from_secs(5);

/// Where the transactions of a member come from.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Feed {
    /// It signs them.
    Own,
    /// The node on this socket.
    Node(PathBuf),
    /// The stream on these servers, as a builder of this name.
    Stream { servers: Vec<String>, name: String },
    /// Bare messages on these servers.
    Bare { servers: Vec<String> },
}

/// What a member publishes to.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Publish {
    pub(crate) servers: Vec<String>,
    pub(crate) machine: String,
}

#[derive(Debug, Serialize, Deserialize)]
enum Request {
    Start(Feed, Option<Publish>),
    /// Sign so many.
    Sign(usize),
    /// Pool what was signed, at a rate or at once.
    Insert(Option<u32>),
    /// Publish what was signed as bare messages on these servers.
    Send(Vec<String>, u32),
    Look,
    Report,
}

#[derive(Debug, Serialize, Deserialize)]
enum Response {
    Done,
    Sent(Vec<(B256, u64)>),
    Look(Look),
    Report(Box<Report>),
}

/// What a member has done so far.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Look {
    /// Orders that its subscriber saw.
    pub(crate) seen: usize,
    /// Whether its source, of whatever kind, has everything that it can have.
    pub(crate) is_live: bool,
    /// The counts of its publisher, if it publishes.
    pub(crate) publisher: PublisherCounts,
    /// CPU time since its start.
    pub(crate) cpu: Duration,
}

/// Of `PublisherStats`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PublisherCounts {
    pub(crate) published: u64,
    pub(crate) stored: u64,
    pub(crate) duplicate: u64,
    pub(crate) refused: u64,
    pub(crate) unfinished: u64,
}

impl PublisherCounts {
    pub(crate) const fn is_balanced(&self) -> bool {
        self.published == self.stored + self.duplicate + self.refused + self.unfinished
    }
}

/// Of `SourceStats`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct SourceCounts {
    pub(crate) received: u64,
    pub(crate) pooled: u64,
    pub(crate) known: u64,
    pub(crate) refused: u64,
    pub(crate) malformed: u64,
    pub(crate) missed: u64,
}

impl SourceCounts {
    pub(crate) const fn is_balanced(&self) -> bool {
        self.received == self.pooled + self.known + self.refused + self.malformed
    }
}

/// The end of a member.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Each order that its subscriber saw, and when.
    pub(crate) seen: Vec<(B256, u64)>,
    pub(crate) publisher: PublisherCounts,
    pub(crate) source: SourceCounts,
}

/// A member, as the bench holds it.
pub(crate) struct Member(Process);

impl Member {
    /// Runs as a member if this process was started for it.
    pub(crate) fn run_if_child() -> Option<ExitCode> {
        run_as(ROLE, respond)
    }

    pub(crate) fn start(feed: Feed, publish: Option<Publish>) -> io::Result<Self> {
        let mut member = Self(Process::spawn(ROLE)?);
        member.done(&Request::Start(feed, publish))?;
        Ok(member)
    }

    pub(crate) fn builder(servers: &[String], number: usize) -> io::Result<Self> {
        let name = format!("builder-{number}");
        Self::start(Feed::Stream { servers: servers.to_vec(), name }, None)
    }

    pub(crate) fn sign(&mut self, count: usize) -> io::Result<()> {
        self.done(&Request::Sign(count))
    }

    /// Pools what was signed, and returns when each was handed to the pool.
    pub(crate) fn insert(&mut self, tps: Option<u32>) -> io::Result<Vec<(B256, u64)>> {
        self.sent(&Request::Insert(tps))
    }

    /// Sends what was signed as bare messages, and returns when each was handed to the client.
    pub(crate) fn send(&mut self, servers: &[String], tps: u32) -> io::Result<Vec<(B256, u64)>> {
        self.sent(&Request::Send(servers.to_vec(), tps))
    }

    pub(crate) fn look(&mut self) -> io::Result<Look> {
        match self.0.request(&Request::Look)? {
            Response::Look(look) => Ok(look),
            other => Err(unexpected(&other)),
        }
    }

    /// Ends what it does.
    pub(crate) fn report(mut self) -> io::Result<Report> {
        match self.0.request(&Request::Report)? {
            Response::Report(report) => Ok(*report),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) fn kill9(self) -> io::Result<()> {
        self.0.kill9()
    }

    /// Waits until `is_done`; fails when it is not in time.
    pub(crate) fn wait(
        &mut self,
        what: &str,
        limit: Duration,
        is_done: impl Fn(&Look) -> bool,
    ) -> io::Result<Look> {
        let begin = Instant::now();
        loop {
            let look = self.look()?;
            if is_done(&look) {
                return Ok(look);
            }
            if begin.elapsed() > limit {
                return Err(io::Error::other(format!("not after {limit:?}: {what}: {look:?}")));
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn sent(&mut self, request: &Request) -> io::Result<Vec<(B256, u64)>> {
        match self.0.request(request)? {
            Response::Sent(sent) => Ok(sent),
            other => Err(unexpected(&other)),
        }
    }

    fn done(&mut self, request: &Request) -> io::Result<()> {
        match self.0.request(request)? {
            Response::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }
}

fn unexpected(response: &Response) -> io::Error {
    io::Error::other(format!("the member answered {response:?}"))
}

type Seen = Arc<Mutex<Vec<(B256, u64)>>>;

fn lock(seen: &Seen) -> MutexGuard<'_, Vec<(B256, u64)>> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The running parts of a member.
struct Parts {
    pool: OrderPool,
    fetcher: Option<Fetcher>,
    source: Option<Source>,
    publisher: Option<Publisher>,
    bare: Option<Client>,
    seen: Seen,
    cpu: Duration,
}

/// Room for every transaction of a bench until its end, whoever sent it.
fn roomy() -> PoolConfig {
    PoolConfig {
        max_txs: 600_000,
        max_tx_bytes: 4 << 30,
        max_external_txs: 600_000,
        max_external_tx_bytes: 4 << 30,
        tx_retention: Duration::from_secs(3600),
        ..PoolConfig::default()
    }
}

impl Parts {
    async fn start(feed: Feed, publish: Option<Publish>) -> io::Result<Self> {
        let pool = OrderPool::new(roomy()).map_err(io::Error::other)?;
        let seen = Seen::default();
        follow(pool.clone(), Arc::clone(&seen));
        let (mut fetcher, mut source, mut bare) = (None, None, None);
        match feed {
            Feed::Own => {}
            Feed::Node(ipc) => {
                let started = Fetcher::start(FetcherConfig::ipc(ipc), pool.clone()).await;
                fetcher = Some(started.map_err(io::Error::other)?);
            }
            Feed::Stream { servers, name } => {
                let config = SourceConfig::new(ServerConfig::cluster(servers), DEV_CHAIN_ID, name);
                source = Some(Source::start(&pool, config).map_err(io::Error::other)?);
            }
            Feed::Bare { servers } => bare = Some(subscribe(&servers, Arc::clone(&seen)).await?),
        }
        let publisher = match publish {
            Some(Publish { servers, machine }) => {
                let server = ServerConfig::cluster(servers);
                let config = PublisherConfig::new(server, DEV_CHAIN_ID, machine);
                let config = PublisherConfig { heads: false, ..config };
                Some(Publisher::start(&pool, config).map_err(io::Error::other)?)
            }
            None => None,
        };
        Ok(Self { pool, fetcher, source, publisher, bare, seen, cpu: process_cpu() })
    }

    fn look(&self) -> Look {
        let is_live = |state| state == State::Live;
        // It ends its first comparison with the first event of the pool.
        let is_ready = |state| is_live(state) || state == State::CatchingUp;
        Look {
            seen: lock(&self.seen).len(),
            is_live: self.fetcher.as_ref().is_none_or(Fetcher::is_live)
                && self.source.as_ref().is_none_or(|source| is_live(source.state()))
                && self.publisher.as_ref().is_none_or(|publisher| is_ready(publisher.state())),
            publisher: self.publisher.as_ref().map(publisher_counts).unwrap_or_default(),
            cpu: process_cpu().saturating_sub(self.cpu),
        }
    }

    async fn report(self) -> Report {
        if let Some(fetcher) = self.fetcher {
            fetcher.shutdown(STOP_DEADLINE).await;
        }
        let mut report = Report::default();
        if let Some(publisher) = self.publisher {
            report.publisher = counts(&publisher.shutdown(STOP_DEADLINE).await.stats);
        }
        if let Some(source) = self.source {
            let stats = source.shutdown(STOP_DEADLINE).await.stats;
            report.source = SourceCounts {
                received: stats.received,
                pooled: stats.pooled,
                known: stats.known,
                refused: stats.refused,
                malformed: stats.malformed,
                missed: stats.missed,
            };
        }
        drop(self.bare);
        report.seen = std::mem::take(&mut lock(&self.seen));
        report
    }
}

fn publisher_counts(publisher: &Publisher) -> PublisherCounts {
    counts(&publisher.stats())
}

fn counts(stats: &order_stream::PublisherStats) -> PublisherCounts {
    PublisherCounts {
        published: stats.published,
        stored: stats.stored,
        duplicate: stats.duplicate,
        refused: stats.refused_total(),
        unfinished: stats.unfinished,
    }
}

/// Notes when each order is in front of a subscriber.
fn follow(pool: OrderPool, seen: Seen) {
    let mut orders = pool.subscribe_all();
    // It ends with the pool, or with the process.
    thread::spawn(move || {
        while let Some(event) = orders.next_blocking() {
            match event {
                Ok(Event::Added(order)) => lock(&seen).push((*order.id().hash(), now_ns())),
                Ok(_) => {}
                Err(_) => orders.resync(),
            }
        }
    });
}

async fn connect(servers: &[String]) -> io::Result<Client> {
    async_nats::connect(servers).await.map_err(io::Error::other)
}

async fn subscribe(servers: &[String], seen: Seen) -> io::Result<Client> {
    let client = connect(servers).await?;
    let mut messages = client.subscribe(BARE).await.map_err(io::Error::other)?;
    client.flush().await.map_err(io::Error::other)?;
    tokio::spawn(async move {
        while let Some(message) = messages.next().await {
            let at = now_ns();
            let id = message.headers.as_ref().and_then(|headers| headers.get("Nats-Msg-Id"));
            let id = id.and_then(|id| id.as_str().parse::<B256>().ok());
            lock(&seen).push((id.expect("the publisher sets it"), at));
        }
    });
    Ok(client)
}

/// What was signed, as a pool has it.
fn sign(signer: &mut Signer, count: usize) -> Vec<Transaction> {
    let pooled = |raw: &[u8]| {
        let tx = PooledTransaction::decode_2718_exact(raw).expect("it was signed here");
        let tx = tx.try_into_recovered().expect("it was signed here");
        Transaction::new(tx, Origin::Mempool, SystemTime::now())
    };
    signer.sign(count).iter().map(|tx| pooled(&tx.raw)).collect()
}

/// Hands each over when it is due, whatever happened to those before.
fn pace<T>(items: Vec<T>, tps: Option<u32>, mut hand_over: impl FnMut(T) -> B256) -> Response {
    let start = Instant::now();
    let mut sent = Vec::with_capacity(items.len());
    for (number, item) in (0_u64..).zip(items) {
        let after = tps.map_or(0, |tps| number * 1_000_000_000 / u64::from(tps));
        let due = start + Duration::from_nanos(after);
        if let Some(wait) = due.checked_duration_since(Instant::now()) {
            thread::sleep(wait);
        }
        let at = now_ns();
        sent.push((hand_over(item), at));
    }
    Response::Sent(sent)
}

/// Runs as a member.
fn respond() -> io::Result<()> {
    let runtime = Runtime::new()?;
    let mut signer = Signer::new(LIVE);
    let mut signed = Vec::new();
    let mut parts = None;
    serve(|request| {
        let none = || io::Error::other("not started");
        Ok(match request {
            Request::Start(feed, publish) => {
                parts = Some(runtime.block_on(Parts::start(feed, publish))?);
                Response::Done
            }
            Request::Sign(count) => {
                signed = sign(&mut signer, count);
                Response::Done
            }
            Request::Insert(tps) => {
                let pool = &parts.as_ref().ok_or_else(none)?.pool;
                pace(std::mem::take(&mut signed), tps, |tx| {
                    let hash = *tx.hash();
                    pool.insert_transaction(tx);
                    hash
                })
            }
            Request::Send(servers, tps) => {
                let client = runtime.block_on(connect(&servers))?;
                let encoded = signed.drain(..).map(|tx| encode_transaction(&tx)).collect();
                let sent = pace(encoded, Some(tps), |tx: Encoded| {
                    let mut headers = HeaderMap::new();
                    headers.insert("Nats-Msg-Id", alloy_primitives::hex::encode(tx.id));
                    let sent = client.publish_with_headers(BARE, headers, tx.payload);
                    runtime.block_on(sent).expect("the client runs");
                    tx.id
                });
                // Or its last messages would go with it.
                runtime.block_on(client.flush()).map_err(io::Error::other)?;
                sent
            }
            Request::Look => Response::Look(parts.as_ref().ok_or_else(none)?.look()),
            Request::Report => {
                let parts = parts.take().ok_or_else(none)?;
                Response::Report(Box::new(runtime.block_on(parts.report())))
            }
        })
    })
}
