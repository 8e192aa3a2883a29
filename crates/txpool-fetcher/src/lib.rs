#![doc = include_str!("../README.md")]
#![cfg_attr(not(test), deny(clippy::future_not_send, clippy::panic, clippy::unwrap_used))]
#![cfg_attr(
    not(feature = "node"),
    expect(dead_code, reason = "parts of the crate are used by a transport alone")
)]

// The modules in reading order.

// What a host sees: the fetcher and its handle, its configuration, errors, counts and gaps.
mod fetcher;

mod handle;

mod config;

mod error;

mod outcome;

mod gap;

mod stream;

// Where transactions go.
mod sink;

// One source: its state machine, its connections, and what it announces.
mod source;

mod node;

mod announce;

// A pool in this process as a source.
mod in_process_pool;

mod in_process;

// One hash, from its entry to its outcome.
mod fetch;

mod decode;

// The chain, and the comparisons with a node's pool.
mod chain;

mod audit;

mod answer;

// What the others share.
mod context;

mod limits;

mod metrics;

mod tasks;

mod buffer;

mod sync;

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
    handle::FetcherHandle,
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
