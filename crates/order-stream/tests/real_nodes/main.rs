//! Publishers and sources on real NATS servers, which `scripts/real-nodes.sh` installs. They fail, never
//! skip, when the server is missing.
#![cfg(feature = "real-nodes")]

mod cluster;
mod failures;
mod fleet;
mod proxy;
mod resets;
mod rights;
mod time;

use std::{
    collections::BTreeSet,
    time::{Duration, Instant, SystemTime},
};

use alloy_primitives::B256;
use mock_node::workload::{Mix, Workload, WorkloadConfig};
use order_pool::{Block, Event, Head, OrderPool, Origin, PoolConfig, Transaction};
use order_stream::{
    Flow, Publisher, PublisherConfig, PublisherStats, ServerConfig, Source, SourceConfig,
    SourceStats, State, StreamConfig, ensure_stream,
};
use tempfile::TempDir;
use testkit::devnet::{NatsConfig, NatsServer};

/// Far longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

const CHAIN: u64 = 1;

/// The stream of most tests.
const STREAM: &str = "MEMPOOL_1_PUBLIC";

/// A server, with the streams of a chain.
struct Stage {
    server: NatsServer,
    dir: TempDir,
}

impl Stage {
    async fn new() -> Self {
        let stage = Self::without_streams(&NatsConfig::default());
        stage.make(&stage.config()).await;
        stage
    }

    /// With a pool that is published, and one that is built on.
    async fn with_pools() -> (Self, OrderPool, OrderPool) {
        (Self::new().await, pool(), pool())
    }

    fn without_streams(config: &NatsConfig) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let server = NatsServer::start(dir.path(), config).expect("a server");
        Self { server, dir }
    }

    async fn make(&self, admin: &ServerConfig) {
        for flow in [Flow::Public, Flow::Private] {
            ensure_stream(admin, &stream(flow)).await.expect("a stream");
        }
    }

    fn config(&self) -> ServerConfig {
        ServerConfig::new(self.server.url())
    }

    fn publisher_of(&self, pool: &OrderPool, flow: Flow, machine: &str) -> Publisher {
        let config = PublisherConfig::new(self.config(), CHAIN, machine);
        Publisher::start(pool, PublisherConfig { flow, ..config }).expect("a publisher")
    }

    fn publisher(&self, pool: &OrderPool, machine: &str) -> Publisher {
        self.publisher_of(pool, Flow::Public, machine)
    }

    fn source_of(&self, pool: &OrderPool, flow: Flow, name: &str) -> Source {
        let config =
            SourceConfig { flow, heads: true, ..SourceConfig::new(self.config(), CHAIN, name) };
        Source::start(pool, config).expect("a source")
    }

    fn source(&self, pool: &OrderPool, name: &str) -> Source {
        self.source_of(pool, Flow::Public, name)
    }

    fn both(&self, flow: Flow, ingested: &OrderPool, built: &OrderPool) -> (Publisher, Source) {
        (self.publisher_of(ingested, flow, "a"), self.source_of(built, flow, "one"))
    }

    /// Publishes these, until the stream has them.
    async fn publish(&self, pool: &OrderPool, txs: &[Transaction]) -> Publisher {
        insert(pool, txs);
        let publisher = self.publisher(pool, "a");
        until("stored", || publisher.stats().stored == txs.len() as u64).await;
        publisher
    }

    async fn client(&self) -> async_nats::jetstream::Context {
        let client = async_nats::connect(self.server.url()).await.expect("a connection");
        async_nats::jetstream::new(client)
    }
}

/// Of the public flow.
fn publisher(server: ServerConfig, pool: &OrderPool, machine: &str) -> Publisher {
    Publisher::start(pool, PublisherConfig::new(server, CHAIN, machine)).expect("a publisher")
}

/// The same, without heads.
fn source(server: ServerConfig, pool: &OrderPool) -> Source {
    Source::start(pool, SourceConfig::new(server, CHAIN, "one")).expect("a source")
}

/// Keeps messages for longer than a test, whose pools do not expire anything either.
fn stream(flow: Flow) -> StreamConfig {
    StreamConfig { max_age: Duration::from_secs(600), ..StreamConfig::new(flow, CHAIN) }
}

fn pool() -> OrderPool {
    OrderPool::new(PoolConfig::default()).expect("a pool")
}

fn transactions(seed: u64, count: usize, blobs_per_mille: u32) -> Vec<Transaction> {
    let mix = Mix { blobs_per_mille, six_blobs_per_mille: 0, ..Mix::default() };
    let config = WorkloadConfig { accounts: 100, mix, ..WorkloadConfig::new(seed, CHAIN) };
    let transaction = |tx: &mock_node::workload::PreparedTx| {
        Transaction::new(tx.recovered(), Origin::Mempool, SystemTime::now())
    };
    Workload::new(config).prepare(count).iter().map(transaction).collect()
}

fn insert(pool: &OrderPool, txs: &[Transaction]) {
    for tx in txs {
        pool.insert_transaction(tx.clone());
    }
}

/// A block by its number and its branch.
fn block(number: u64, branch: u64, of_parent: u64, mined: &[B256]) -> Block {
    let hash =
        |number: u64, branch: u64| B256::left_padding_from(&(number << 8 | branch).to_be_bytes());
    Block::new(Head::new(number, hash(number, branch), hash(number - 1, of_parent)), mined)
}

/// The hashes of the pooled transactions.
fn hashes(pool: &OrderPool) -> BTreeSet<B256> {
    let mut events = pool.subscribe_all();
    let mut found = BTreeSet::new();
    while events.is_replaying() {
        if let Some(Ok(Event::Added(order))) = events.try_next() {
            found.insert(*order.id().hash());
        }
    }
    found
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    began.elapsed()
}

/// Until the second pool holds as many transactions as the first; then both hold the same.
async fn until_equal(pool: &OrderPool, other: &OrderPool) -> Duration {
    let count = |pool: &OrderPool| pool.stats().txs;
    let took = until("equal pools", || count(pool) == count(other)).await;
    assert_eq!(hashes(pool), hashes(other));
    took
}

fn is_lost(state: State) -> bool {
    matches!(state, State::Disconnected { .. } | State::Connecting)
}

async fn until_both(state: State, publisher: &Publisher, source: &Source) {
    let are_so = || (publisher.state(), source.state()) == (state, state);
    until(&format!("both are {state:?}"), are_so).await;
}

async fn until_live(publisher: &Publisher) {
    until("a live publisher", || publisher.state() == State::Live).await;
}

/// Ends it; every message has one outcome, and none is unfinished.
async fn finish(publisher: Publisher) -> PublisherStats {
    let end = publisher.shutdown(PATIENCE).await;
    assert_eq!(end.state, State::Ended, "{end:?}");
    let stats = end.stats;
    let outcomes = stats.stored + stats.duplicate + stats.refused_total();
    assert_eq!((stats.published, stats.unfinished), (outcomes, 0), "{stats:?}");
    stats
}

async fn finish_source(source: Source) -> SourceStats {
    let end = source.shutdown(PATIENCE).await;
    assert_eq!(end.state, State::Ended, "{end:?}");
    let stats = end.stats;
    let SourceStats { pooled, known, superseded, refused, malformed, .. } = stats;
    let outcomes = pooled + known + superseded + refused + malformed;
    assert_eq!(stats.received, outcomes, "{stats:?}");
    assert_eq!(stats.malformed, 0);
    stats
}

async fn finish_all<const P: usize, const S: usize>(from: [Publisher; P], to: [Source; S]) {
    for publisher in from {
        finish(publisher).await;
    }
    for source in to {
        finish_source(source).await;
    }
}
