//! A member of a fleet in a process of its own: a machine that ingests, a builder, a publisher of what it signed itself,
//! or a subscriber of bare messages. What it uses is its own, and it can be killed.

use std::{
    io,
    path::PathBuf,
    process::ExitCode,
    thread,
    time::{Duration, Instant, SystemTime},
};

use alloy_primitives::B256;
use async_nats::{Client, HeaderMap};
use futures::StreamExt as _;
use mempool_ingest::{
    Fetcher, FetcherConfig, OrderPool,
    order_pool::{Origin, Transaction},
};
use mock_node::{
    DEV_CHAIN_ID,
    workload::{PreparedTx, Workload, WorkloadConfig},
};
use order_stream::{
    Publisher, PublisherConfig, ServerConfig, Source, SourceConfig, State,
    wire::{Encoded, encode_transaction},
};
use serde::{Deserialize, Serialize};
use testkit::{
    bench,
    ingest::roomy,
    process::{Process, reply, run_as, serve},
    seen::Seen,
    usage::{now_ns, process_cpu},
};
use tokio::runtime::Runtime;

const ROLE: &str = "__fleet-member";

/// The subject of bare messages, which no stream stores.
const BARE: &str = "bare.tx";

/// The name that the machine of the benches has.
const MACHINE: &str = "ingest-1";

/// Longest wait for the last order of a run, or its acknowledgement.
const LONGEST: Duration = Duration::from_secs(120);

/// How long a member waits for what is on its way when it ends.
const STOP_DEADLINE: Duration = Duration::from_secs(5);

/// Where the transactions of a member come from.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Feed {
    /// It signs so many before it starts.
    Own(usize),
    /// The node on this socket.
    Node(PathBuf),
    /// The stream on these servers, as a builder of this name.
    Stream { servers: Vec<String>, name: String },
    /// Bare messages on these servers.
    Bare { servers: Vec<String> },
}

#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// Publish to these servers, if there are any.
    Start(Feed, Vec<String>),
    /// Pool what was signed, at a rate or at once.
    Insert(Option<u32>),
    /// Publish what was signed as bare messages on these servers.
    Send(Vec<String>, u32),
    Look,
    Finish,
}

/// When each order was handed over, or seen, by the clock of [`now_ns`].
pub(crate) type Log = Vec<(B256, u64)>;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Look {
    pub(crate) seen: usize,
    /// Whether its source, of whatever kind, has everything that it can have.
    pub(crate) is_live: bool,
    pub(crate) stored: u64,
    /// CPU time since its start.
    pub(crate) cpu: Duration,
}

/// A member, as the bench holds it.
pub(crate) struct Member(Process);

impl Member {
    /// Runs as a member if this process was started for it.
    pub(crate) fn run_if_child() -> Option<ExitCode> {
        run_as(ROLE, respond)
    }

    /// A member that publishes to these servers, if there are any.
    pub(crate) fn start(feed: Feed, publish: &[String]) -> io::Result<Self> {
        let mut member = Self(Process::spawn(ROLE)?);
        member.0.request::<()>(&Request::Start(feed, publish.to_vec()))?;
        Ok(member)
    }

    pub(crate) fn builder(servers: &[String], number: usize) -> io::Result<Self> {
        let name = format!("builder-{number}");
        Self::start(Feed::Stream { servers: servers.to_vec(), name }, &[])
    }

    /// Pools what was signed, and returns when each was handed to the pool.
    pub(crate) fn insert(&mut self, tps: Option<u32>) -> io::Result<Log> {
        self.0.request(&Request::Insert(tps))
    }

    /// Sends what was signed as bare messages, and returns when each was handed to the client.
    pub(crate) fn send(&mut self, servers: &[String], tps: u32) -> io::Result<Log> {
        self.0.request(&Request::Send(servers.to_vec(), tps))
    }

    /// Ends what it does, and returns what its subscriber saw. Its process fails if its counts do not add up.
    pub(crate) fn finish(mut self) -> io::Result<Log> {
        self.0.request(&Request::Finish)
    }

    /// Waits until `is_done`; fails when it is not in time.
    pub(crate) fn wait(&mut self, what: &str, is_done: impl Fn(&Look) -> bool) -> io::Result<Look> {
        let begin = Instant::now();
        loop {
            let look: Look = self.0.request(&Request::Look)?;
            if is_done(&look) {
                return Ok(look);
            }
            if begin.elapsed() > LONGEST {
                return Err(io::Error::other(format!("not after {LONGEST:?}: {what}: {look:?}")));
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

struct Parts {
    pool: OrderPool,
    fetcher: Option<Fetcher>,
    source: Option<Source>,
    publisher: Option<Publisher>,
    bare: Option<Client>,
    seen: Seen,
    cpu: Duration,
}

impl Parts {
    async fn start(feed: Feed, publish: Vec<String>) -> io::Result<Self> {
        let pool = OrderPool::new(roomy()).map_err(io::Error::other)?;
        let seen = Seen::follow(&pool);
        let (mut fetcher, mut source, mut bare) = (None, None, None);
        match feed {
            Feed::Own(_) => {}
            Feed::Node(ipc) => {
                let started = Fetcher::start(FetcherConfig::ipc(ipc), pool.clone()).await;
                fetcher = Some(started.map_err(io::Error::other)?);
            }
            Feed::Stream { servers, name } => {
                let config = SourceConfig::new(ServerConfig::cluster(servers), DEV_CHAIN_ID, name);
                source = Some(Source::start(&pool, config).map_err(io::Error::other)?);
            }
            Feed::Bare { servers } => bare = Some(subscribe(&servers, seen.clone()).await?),
        }
        let publisher = if publish.is_empty() {
            None
        } else {
            let server = ServerConfig::cluster(publish);
            let config = PublisherConfig::new(server, DEV_CHAIN_ID, MACHINE);
            let config = PublisherConfig { heads: false, ..config };
            Some(Publisher::start(&pool, config).map_err(io::Error::other)?)
        };
        Ok(Self { pool, fetcher, source, publisher, bare, seen, cpu: process_cpu() })
    }

    fn look(&self) -> Look {
        let is_live = |state| state == State::Live;
        // It ends its first comparison with the first event of the pool.
        let is_ready = |state| is_live(state) || state == State::CatchingUp;
        Look {
            seen: self.seen.count(),
            is_live: self.fetcher.as_ref().is_none_or(Fetcher::is_live)
                && self.source.as_ref().is_none_or(|source| is_live(source.state()))
                && self.publisher.as_ref().is_none_or(|publisher| is_ready(publisher.state())),
            stored: self.publisher.as_ref().map_or(0, |publisher| publisher.stats().stored),
            cpu: process_cpu().saturating_sub(self.cpu),
        }
    }

    async fn finish(self) -> Log {
        if let Some(fetcher) = self.fetcher {
            fetcher.shutdown(STOP_DEADLINE).await;
        }
        if let Some(publisher) = self.publisher {
            let stats = publisher.shutdown(STOP_DEADLINE).await.stats;
            let ended = stats.stored + stats.duplicate + stats.refused_total() + stats.unfinished;
            assert_eq!(stats.published, ended, "{stats:?}");
        }
        if let Some(source) = self.source {
            let stats = source.shutdown(STOP_DEADLINE).await.stats;
            let ended =
                stats.pooled + stats.known + stats.superseded + stats.refused + stats.malformed;
            assert_eq!(stats.received, ended, "{stats:?}");
        }
        drop(self.bare);
        self.seen.take()
    }
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
            seen.note(id.expect("the publisher sets it"), at);
        }
    });
    Ok(client)
}

/// Hands each over when it is due, whatever happened to those before.
fn pace<T>(items: Vec<T>, tps: Option<u32>, mut hand_over: impl FnMut(T) -> B256) -> Log {
    let mut sent = Vec::with_capacity(items.len());
    for (item, _) in items.into_iter().zip(bench::pace(tps)) {
        let at = now_ns();
        sent.push((hand_over(item), at));
    }
    sent
}

fn respond() -> io::Result<()> {
    let runtime = Runtime::new()?;
    let mut load = Workload::new(WorkloadConfig::new(7, DEV_CHAIN_ID));
    let mut signed = Vec::new();
    let mut parts = None;
    let pooled =
        |tx: &PreparedTx| Transaction::new(tx.recovered(), Origin::Mempool, SystemTime::now());
    let none = || io::Error::other("not started");
    serve(|request| match request {
        Request::Start(feed, publish) => {
            if let Feed::Own(count) = feed {
                signed.extend(load.prepare(count).iter().map(pooled));
            }
            parts = Some(runtime.block_on(Parts::start(feed, publish))?);
            reply(())
        }
        Request::Insert(tps) => {
            let pool = &parts.as_ref().ok_or_else(none)?.pool;
            reply(pace(std::mem::take(&mut signed), tps, |tx| {
                let hash = *tx.hash();
                pool.insert_transaction(tx);
                hash
            }))
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
            reply(sent)
        }
        Request::Look => reply(parts.as_ref().ok_or_else(none)?.look()),
        Request::Finish => {
            let parts = parts.take().ok_or_else(none)?;
            reply(runtime.block_on(parts.finish()))
        }
    })
}
