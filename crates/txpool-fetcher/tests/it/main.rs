//! The fetcher against the mock node, against nodes of a few lines, and with pools of this process. Tests that need a
//! process of their own are beside this folder.

mod bad_peers;
mod deferral;
mod end_to_end;
mod faults;
mod full;
mod heads;
mod hostile_node;
mod in_process;
mod overload;
mod sink;
mod stream;
mod websocket;

use order_pool::{OrderPool, PoolConfig};
use testkit::ingest::eventually;
use txpool_fetcher::{Fetcher, FetcherConfig, Limits, TransactionSink};

/// A live fetcher with smaller limits than those of the crate.
async fn start_with(config: FetcherConfig, limits: Limits, sink: impl TransactionSink) -> Fetcher {
    let fetcher = Fetcher::start_with(config, limits, sink).await.expect("the fetcher starts");
    eventually("the source is live", || fetcher.is_live()).await;
    fetcher
}

/// The same into a pool.
async fn ingest_with(config: FetcherConfig, limits: Limits) -> (Fetcher, OrderPool) {
    let pool = OrderPool::new(PoolConfig::default()).expect("the defaults are valid");
    (start_with(config, limits, pool.clone()).await, pool)
}
