#![doc = include_str!("../README.md")]

mod ingest;

pub use self::ingest::{Ingest, IngestError, UPKEEP_INTERVAL};
pub use order_pool::{self, OrderPool, PoolConfig};
pub use txpool_fetcher::{self, Fetcher, FetcherConfig};
