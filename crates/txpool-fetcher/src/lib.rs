#![doc = include_str!("../README.md")]
#![cfg_attr(not(test), deny(clippy::future_not_send, clippy::panic, clippy::unwrap_used))]
#![cfg_attr(not(feature = "node"), expect(dead_code, reason = "what only a transport uses"))]

mod announce;
mod answer;
mod audit;
mod buffer;
mod chain;
mod config;
mod context;
mod decode;
mod error;
mod fetch;
mod fetcher;
mod gap;
mod in_process;
mod in_process_pool;
mod limits;
mod metrics;
mod node;
mod outcome;
mod sink;
mod source;
mod stream;
mod sync;
mod tasks;

#[cfg(feature = "test-limits")]
pub use self::limits::Limits;
pub use self::{
    audit::{AuditMode, AuditReport},
    config::*,
    decode::{
        Malformed, RawTransaction, SidecarError, read_raw, read_response, verify_blob_proofs,
    },
    error::{
        CallError, ConfigError, ConnectError, LossReason, SnapshotError, SourceError, StartError,
    },
    fetch::{ADAPTIVE_FLOOR, DeferredStats},
    fetcher::{EndReason, Fetcher, FetcherEnd},
    gap::{Gap, GapReason},
    in_process_pool::{
        AnnouncementStream, BlockStream, InProcess, InProcessPool, MinedBlock, PoolAnnouncement,
        PooledHashes, announcements_of,
    },
    limits::ANNOUNCEMENT_BUFFER,
    metrics::METRICS,
    node::{NodeClient, NodeInfo},
    outcome::{Counts, Entry, Outcome},
    sink::{ChainEvent, Delivery, FetchedTransaction, Holding, SinkEvent, TransactionSink},
    source::{SourceState, SourceStatus},
    stream::TransactionStream,
};
pub use chain_view::{Block, BlockNonces, Head, NonceUpdate, PooledTransaction};
/// The versions whose types stand in this crate's signatures.
pub use {alloy_consensus, alloy_primitives};
