#![doc = include_str!("../README.md")]

mod announce;
mod audit;
mod chain;
mod config;
mod connection;
mod decode;
mod error;
mod fetch;
mod fetcher;
mod in_process;
mod in_process_pool;
mod metrics;
mod outcome;
mod pinning;
mod request;
mod sink;
mod source;
mod stream;
mod sync;

pub use self::{
    audit::{AuditMode, AuditReport, SnapshotError},
    config::*,
    connection::NodeInfo,
    decode::{
        Answer, FullAnnouncement, FullTransaction, Malformed, ObjectError, SidecarError,
        read_answer, read_object, read_raw, verify_blob_proofs,
    },
    error::{ConfigError, ConnectError, LossReason, SourceError, StartError},
    fetch::{deferral::DeferredStats, limit::ADAPTIVE_FLOOR},
    fetcher::{EndReason, Fetcher},
    in_process_pool::{
        AnnouncementStream, BlockStream, InProcess, InProcessPool, MinedBlock, PoolAnnouncement,
        PooledHashes,
    },
    metrics::METRICS,
    outcome::{Counts, Entry, Outcome},
    sink::{ChainEvent, Delivery, FetchedTransaction, Holding, SinkEvent, TransactionSink},
    source::{
        SourceStatus,
        machine::{Gap, GapReason, SourceState, StaleReason},
    },
    stream::TransactionStream,
};
pub use chain_view::{Block, BlockNonces, Head, NonceUpdate, PooledTransaction};
