#![doc = include_str!("../README.md")]
#![cfg_attr(not(test), deny(clippy::future_not_send, clippy::panic, clippy::unwrap_used))]

mod ingest;
#[cfg(feature = "rpc")]
mod node_admission;
#[cfg(feature = "telemetry")]
pub mod telemetry;

/// Compiles the snippets of the document.
#[cfg(doctest)]
#[doc = include_str!("../docs/linking.md")]
struct Linking;

pub use self::ingest::{Ingest, IngestConfig, IngestEnd, IngestError};
#[cfg(feature = "rpc")]
pub use self::node_admission::{DEFAULT_MAX_NONCES_AHEAD, NodeAdmissionConfig};
pub use load_control::{self, LoadMonitor};
pub use order_pool::{self, OrderPool, PoolConfig};
/// The versions whose types stand in the signatures of the crates.
pub use order_pool::{alloy_consensus, alloy_primitives};
#[cfg(feature = "rpc")]
pub use order_rpc::{self, OrderRpcConfig};
pub use txpool_fetcher::{self, Fetcher, FetcherConfig};
