//! Publishers and sources on real NATS servers, which `scripts/real-nodes.sh` installs. Without a
//! server these tests fail; they are never skipped.
#![cfg(feature = "real-nodes")]

mod chaos;
mod cluster;
mod failures;
mod fleet;
mod proxy;
mod resets;
mod rights;
mod searchers;
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
use testkit::{
    configured,
    devnet::{NatsConfig, NatsServer},
};

/// Far longer than anything takes, also on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(90);

const CHAIN: u64 = 1;

/// The public stream, which most tests use.
const STREAM: &str = "MEMPOOL_1_PUBLIC";

/// A NATS server, with the streams of a chain.
struct Fixture {
    server: NatsServer,
    dir: TempDir,
}

impl Fixture {
    async fn new() -> Self {
        let fixture = Self::without_streams(&NatsConfig::default());
        fixture.create_streams(&fixture.config()).await;
        fixture
    }

    /// Returns a fixture with the pool of a publisher and the pool of a builder.
    async fn with_pools() -> (Self, OrderPool, OrderPool) {
        (Self::new().await, pool(), pool())
    }

    fn without_streams(config: &NatsConfig) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let server = NatsServer::start(dir.path(), config).expect("a server");
        Self { server, dir }
    }

    async fn create_streams(&self, admin: &ServerConfig) {
        for flow in [Flow::Public, Flow::Private] {
            ensure_stream(admin, &stream(flow)).await.expect("a stream");
        }
    }

    fn config(&self) -> ServerConfig {
        ServerConfig::new(self.server.url())
    }

    fn publisher_for_flow(&self, pool: &OrderPool, flow: Flow, machine: &str) -> Publisher {
        let config = PublisherConfig::new(self.config(), CHAIN, machine);
        Publisher::start(pool, configured(config, |config| config.flow = flow))
            .expect("a publisher")
    }

    fn publisher(&self, pool: &OrderPool, machine: &str) -> Publisher {
        self.publisher_for_flow(pool, Flow::Public, machine)
    }

    fn source_for_flow(&self, pool: &OrderPool, flow: Flow, name: &str) -> Source {
        let config = configured(SourceConfig::new(self.config(), CHAIN, name), |config| {
            config.flow = flow;
            config.heads = true;
        });
        Source::start(pool, config).expect("a source")
    }

    fn source(&self, pool: &OrderPool, name: &str) -> Source {
        self.source_for_flow(pool, Flow::Public, name)
    }

    /// Starts a publisher of the first pool and a source of the second.
    fn both(&self, flow: Flow, ingested: &OrderPool, built: &OrderPool) -> (Publisher, Source) {
        (self.publisher_for_flow(ingested, flow, "a"), self.source_for_flow(built, flow, "one"))
    }

    /// Publishes transactions, and waits until the stream has them.
    async fn publish(&self, pool: &OrderPool, txs: &[Transaction]) -> Publisher {
        insert(pool, txs);
        let publisher = self.publisher(pool, "a");
        wait_until("stored", || publisher.stats().stored == txs.len() as u64).await;
        publisher
    }

    async fn client(&self) -> async_nats::jetstream::Context {
        let client = async_nats::connect(self.server.url()).await.expect("a connection");
        async_nats::jetstream::new(client)
    }
}

/// A publisher of the public flow.
fn publisher(server: ServerConfig, pool: &OrderPool, machine: &str) -> Publisher {
    Publisher::start(pool, PublisherConfig::new(server, CHAIN, machine)).expect("a publisher")
}

/// A source of the public flow that does not apply heads.
fn source(server: ServerConfig, pool: &OrderPool) -> Source {
    Source::start(pool, SourceConfig::new(server, CHAIN, "one")).expect("a source")
}

/// A stream that keeps messages for longer than a test takes. Pools expire nothing within a test
/// either.
fn stream(flow: Flow) -> StreamConfig {
    configured(StreamConfig::new(flow, CHAIN), |config| config.max_age = Duration::from_secs(600))
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

/// A block, by its number and its branch, and the branch of its parent.
fn block(number: u64, branch: u64, parent_branch: u64, mined: &[B256]) -> Block {
    let hash =
        |number: u64, branch: u64| B256::left_padding_from(&(number << 8 | branch).to_be_bytes());
    Block::new(Head::new(number, hash(number, branch), hash(number - 1, parent_branch)), mined)
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

/// Waits until the condition holds. Returns how long that took.
async fn wait_until(description: &str, mut condition: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < TIMEOUT, "not within {TIMEOUT:?}: {description}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    began.elapsed()
}

/// Waits until both pools hold as many transactions, and checks that they hold the same.
async fn wait_until_equal(pool: &OrderPool, other: &OrderPool) -> Duration {
    let count = |pool: &OrderPool| pool.stats().txs;
    let took = wait_until("equal pools", || count(pool) == count(other)).await;
    assert_eq!(hashes(pool), hashes(other));
    took
}

fn is_lost(state: State) -> bool {
    matches!(state, State::Disconnected { .. } | State::Connecting)
}

async fn wait_for_state_of_both(state: State, publisher: &Publisher, source: &Source) {
    wait_until(&format!("both are {state:?}"), || {
        publisher.state() == state && source.state() == state
    })
    .await;
}

async fn wait_until_live(publisher: &Publisher) {
    wait_until("a live publisher", || publisher.state() == State::Live).await;
}

/// Shuts a publisher down, and checks that every message has one outcome and none is unfinished.
async fn finish(publisher: Publisher) -> PublisherStats {
    let end = publisher.shutdown(TIMEOUT).await;
    assert_eq!(end.state, State::Ended, "{end:?}");
    let stats = end.stats;
    let outcomes = stats.stored + stats.duplicate + stats.refused_total();
    assert_eq!((stats.published, stats.unfinished), (outcomes, 0), "{stats:?}");
    stats
}

/// Shuts a source down, and checks that every message has one outcome.
async fn finish_source(source: Source) -> SourceStats {
    let end = source.shutdown(TIMEOUT).await;
    assert_eq!(end.state, State::Ended, "{end:?}");
    let stats = end.stats;
    let SourceStats { pooled, known, superseded, refused, malformed, .. } = stats;
    let outcomes = pooled + known + superseded + refused + malformed;
    assert_eq!(stats.received, outcomes, "{stats:?}");
    assert_eq!(stats.malformed, 0);
    stats
}

async fn finish_all<const P: usize, const S: usize>(
    publishers: [Publisher; P],
    sources: [Source; S],
) {
    for publisher in publishers {
        finish(publisher).await;
    }
    for source in sources {
        finish_source(source).await;
    }
}
