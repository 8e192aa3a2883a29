#![doc = include_str!("../README.md")]

mod ingest;

pub use self::ingest::{Ingest, IngestConfig, IngestEnd, IngestError};
pub use load_control::{self, LoadMonitor};
pub use order_pool::{self, OrderPool, PoolConfig};
#[cfg(feature = "rpc")]
pub use order_rpc::{self, OrderRpcConfig};
pub use txpool_fetcher::{self, Fetcher, FetcherConfig};
