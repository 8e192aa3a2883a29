//! Publishers and sources on real NATS servers, which `scripts/real-nodes.sh` installs. They fail, never
//! skip, when the server is missing.
#![cfg(feature = "real-nodes")]

mod cluster;
mod failures;
mod fleet;
mod malformed;
mod rights;

use std::{
    collections::BTreeSet,
    time::{Duration, Instant, SystemTime},
};

use alloy_consensus::transaction::Recovered;
use alloy_eips::eip2718::Decodable2718 as _;
use alloy_primitives::B256;
use devnet::{NatsConfig, NatsServer};
use mock_node::workload::{Mix, Workload, WorkloadConfig};
use order_pool::{Event, OrderPool, Origin, PoolConfig, PooledTransaction, Transaction};
use order_stream::{
    Backoff, Publisher, PublisherConfig, PublisherStats, ServerConfig, Source, SourceConfig,
    SourceStats, State, StreamsConfig, ensure_streams,
};
use tempfile::TempDir;

/// Far longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

const CHAIN: u64 = 1;

/// A server with the streams of a chain.
struct Stage {
    server: NatsServer,
    dir: TempDir,
}

impl Stage {
    async fn new(streams: StreamsConfig) -> Self {
        let stage = Self::without_streams(&NatsConfig::default());
        ensure_streams(&stage.config(), &streams).await.expect("streams");
        stage
    }

    fn without_streams(config: &NatsConfig) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let server = NatsServer::start(dir.path(), config).expect("a server");
        Self { server, dir }
    }

    fn config(&self) -> ServerConfig {
        quick(ServerConfig::new(self.server.url()))
    }

    fn publisher(&self, pool: &OrderPool, machine: &str) -> Publisher {
        let config = PublisherConfig::new(self.config(), CHAIN, machine).with_backoff(BACKOFF);
        Publisher::start(pool, config).expect("a publisher")
    }

    fn source(&self, pool: &OrderPool, name: &str) -> Source {
        Source::start(pool, self.source_config(name)).expect("a source")
    }

    fn source_config(&self, name: &str) -> SourceConfig {
        let config = SourceConfig::new(self.config(), CHAIN, name);
        config.with_backoff(BACKOFF)
    }

    async fn client(&self) -> async_nats::jetstream::Context {
        let client = async_nats::connect(self.server.url()).await.expect("a connection");
        async_nats::jetstream::new(client)
    }
}

const BACKOFF: Backoff =
    Backoff { base: Duration::from_millis(50), cap: Duration::from_millis(500) };

fn quick(server: ServerConfig) -> ServerConfig {
    server.with_times(Duration::from_secs(5), Duration::from_secs(1))
}

fn streams() -> StreamsConfig {
    // Longer than a test, whose pools do not expire anything either.
    let age = Duration::from_secs(600);
    StreamsConfig::new(CHAIN).with_max_ages(age, age).with_duplicate_window(age)
}

fn pool() -> OrderPool {
    OrderPool::new(PoolConfig::default()).expect("a pool")
}

fn transactions(seed: u64, count: usize, blobs_per_mille: u32) -> Vec<Transaction> {
    let mix = Mix { blobs_per_mille, six_blobs_per_mille: 0, ..Mix::default() };
    let config = WorkloadConfig { accounts: 100, mix, ..WorkloadConfig::new(seed, CHAIN) };
    let transaction = |tx: mock_node::workload::PreparedTx| {
        let read = PooledTransaction::decode_2718_exact(&tx.raw).expect("a transaction");
        let tx = Recovered::new_unchecked(read, tx.sender);
        Transaction::new(tx, Origin::Mempool, SystemTime::now())
    };
    Workload::new(config).prepare(count).into_iter().map(transaction).collect()
}

fn insert(pool: &OrderPool, txs: &[Transaction]) {
    for tx in txs {
        pool.insert_transaction(tx.clone());
    }
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

async fn until_live(publisher: &Publisher) {
    until("a live publisher", || publisher.state() == State::Live).await;
}

/// Ends it; every message has one outcome, and none is unfinished.
async fn finish(publisher: Publisher) -> PublisherStats {
    let stats = publisher.shutdown(PATIENCE).await;
    assert_eq!(
        stats.published,
        stats.stored + stats.duplicate + stats.refused_total(),
        "{stats:?}"
    );
    assert_eq!(stats.unfinished, 0);
    stats
}

async fn finish_source(source: Source) -> SourceStats {
    let stats = source.shutdown(PATIENCE).await;
    let outcomes = stats.pooled + stats.known + stats.refused + stats.malformed;
    assert_eq!(stats.received, outcomes, "{stats:?}");
    assert_eq!(stats.malformed, 0);
    stats
}
