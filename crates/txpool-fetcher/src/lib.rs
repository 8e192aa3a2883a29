//! Skeleton docs.

mod config;
mod core;
mod error;
mod fetcher;
mod heads;
mod link;
mod machine;
mod metrics;
mod mined;
mod outcome;
#[cfg(feature = "order-pool")]
mod pool_sink;
mod reconcile;
mod seen;
mod sink;
mod slots;
mod snapshot;
mod source;
mod tx;

pub use self::{
    config::*,
    error::{CallError, ConfigError, ConnectError, LossReason, StartError},
    fetcher::{EndReason, Fetcher},
    link::NodeInfo,
    machine::{Gap, GapReason, Role, SourceState, StaleReason},
    metrics::METRICS,
    outcome::{Counts, Entry, Outcome},
    reconcile::{AuditMode, AuditReport},
    sink::{Delivery, FetchedTransaction, HeadUpdate, Holding, TransactionSink},
    snapshot::SnapshotError,
    source::SourceStatus,
    tx::{Answer, Malformed, PooledTransaction, read_answer, read_raw},
};
