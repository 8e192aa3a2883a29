#![doc = include_str!("../README.md")]

mod config;
mod connection;
mod deferral;
mod error;
mod fetch;
mod fetcher;
mod full;
mod heads;
mod in_process;
mod limit;
mod machine;
mod metrics;
mod outcome;
mod pinning;
#[cfg(feature = "order-pool")]
mod pool_sink;
mod reconcile;
mod request;
mod request_connections;
mod seen;
mod sink;
mod sink_thread;
mod slots;
mod snapshot;
mod source;
mod stream;
mod sync;
mod tx;

pub use self::{
    config::*,
    connection::NodeInfo,
    deferral::DeferredStats,
    error::{ConfigError, ConnectError, LossReason, SourceError, StartError},
    fetcher::{EndReason, Fetcher},
    full::{FullAnnouncement, FullTransaction, ObjectError, read_object},
    in_process::{
        AnnouncementStream, BlockStream, InProcess, InProcessPool, MinedBlock, PoolAnnouncement,
        PooledHashes,
    },
    limit::ADAPTIVE_FLOOR,
    machine::{Gap, GapReason, SourceState, StaleReason},
    metrics::METRICS,
    outcome::{Counts, Entry, Outcome},
    reconcile::{AuditMode, AuditReport},
    sink::{ChainEvent, Delivery, FetchedTransaction, Holding, SinkEvent, TransactionSink},
    snapshot::SnapshotError,
    source::SourceStatus,
    stream::TransactionStream,
    tx::{Answer, Malformed, SidecarError, read_answer, read_raw, verify_blob_proofs},
};
pub use chain_view::{Block, BlockNonces, Head, NonceUpdate, PooledTransaction};
