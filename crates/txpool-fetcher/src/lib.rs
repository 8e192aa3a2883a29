//! Fetches every pending transaction of an execution node, within microseconds of its
//! announcement, and accounts for each hash.
//!
//! # What it is for
//! A block builder needs the public mempool of its local node: raw, with blob sidecars, now. A node
//! announces hashes (`eth_subscribe("newPendingTransactions")`); the transactions have to be asked
//! for. This crate listens, asks, decodes, recovers senders and hands the result to a
//! [`TransactionSink`].
//!
//! # What it does not do
//! It keeps no pool (see `order-pool`), validates nothing beyond the signature, the hash and the
//! chain id, sends no transactions, and talks to no peers.
//!
//! # The way of one transaction
//! ```text
//!            thread mempool-io (keeps the sockets empty)          threads mempool-worker
//!  node --listening--> broadcast buffer --> seen? --> slot --+
//!       --newHeads---> what blocks took                      |
//!       <--asking-- eth_getRawTransactionByHash -------------+
//!       ---------- answer ----------------------------------> decode, recover --> TransactionSink
//!       ---------- txpool_content (own connection, streamed) -> compare --> what is missing
//! ```
//! 1. The subscription connection brings a hash; the moment it was read from the socket is noted.
//! 2. It enters: counted as `announced`. Seen before, it leaves as [`Outcome::Known`]; in a recent
//!    block, as [`Outcome::Mined`].
//! 3. It waits for one of 64 slots, and is asked for on the request connection.
//! 4. A worker decodes the answer, checks that its hash is the one asked for, recovers the sender
//!    (libsecp256k1, 34 us) and calls [`TransactionSink::deliver`].
//! 5. It leaves with exactly one [`Outcome`].
//!
//! Whatever entered has left or is under way: [`Counts::balance`] is zero whenever nothing moves.
//!
//! # What can be lost, and where it shows
//! | what | why | where it shows | what brings it in |
//! |---|---|---|---|
//! | announcements in our buffer | the sink is slower than the node for longer than 16,384 announcements | [`Counts::lagged`] | comparison with the node's pool, at once |
//! | announcements while not connected | the node restarted, the connection died | a [`Gap`] in [`SourceStatus::gaps`] | backfill after the reconnect |
//! | announcements inside the node | reth drops hashes when its listener's 2048 slots are full; geth leaves a connection dead without an end of file | [`AuditReport::missing`], `mempool_fetcher_missing_seconds` | the audit (once a minute); pings |
//! | transactions before the start | nobody listened | [`Counts::backfilled`] | the start-up backfill |
//! | pending blob transactions geth cannot list | `txpool_content` leaves them out | [`AuditReport::unlistable`] | nothing: it is a number |
//! | a hash without an answer | time-outs or errors, 4 times | [`Counts::failed`] | the next audit |
//! | a transaction replaced before it was asked for | the node has it no longer | [`Counts::gone`] | nothing: it is gone |
//!
//! # Connections
//! One connection listens and one asks, so that no answer can delay an announcement; both live on a
//! thread of the fetcher's own, so that a host that blocks its runtime does not make geth freeze
//! all its subscribers. Each is opened with a typed error ([`ConnectError`]), pinged, and ends with
//! a reason ([`LossReason`]). The reconnect is ours, without an end by default: alloy's own gives up
//! after 10 tries and loses what was announced in between without a sign.
//!
//! # Shutdown
//! [`Fetcher::shutdown`] stops, waits (at most as long as told) and returns the reason and the final
//! counts. Afterwards no thread or task of the fetcher lives. Dropping the [`Fetcher`] stops without
//! waiting. It never exits or cancels its host.
//!
//! # Example
//! ```no_run
//! use tokio::sync::mpsc;
//! use txpool_fetcher::{FetchedTransaction, Fetcher, FetcherConfig};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let (sink, mut transactions) = mpsc::channel::<FetchedTransaction>(1024);
//! let fetcher = Fetcher::start(FetcherConfig::ipc("/tmp/reth.ipc"), sink).await?;
//! while let Some(tx) = transactions.recv().await {
//!     println!("{} from {}", tx.hash(), tx.tx.signer());
//! }
//! println!("{:?}", fetcher.counts());
//! # Ok(()) }
//! ```
//!
//! # Features
//! - `order-pool` (default): implements [`TransactionSink`] for `order_pool::OrderPool`.

mod config;
mod connection;
mod deferral;
mod error;
mod fetch;
mod fetcher;
mod full;
mod heads;
mod limit;
mod machine;
mod metrics;
mod mined;
mod outcome;
#[cfg(feature = "order-pool")]
mod pool_sink;
mod reconcile;
// Not wired in yet.
#[allow(dead_code, unused_imports)]
mod request;
mod request_connections;
mod seen;
mod sink;
mod slots;
mod snapshot;
mod source;
mod sync;
mod tx;
mod workers;

pub use self::{
    config::*,
    connection::NodeInfo,
    deferral::DeferredStats,
    error::{CallError, ConfigError, ConnectError, LossReason, StartError},
    fetcher::{EndReason, Fetcher},
    full::{FullAnnouncement, FullTransaction, ObjectError, read_object},
    limit::{ADAPTIVE_FLOOR, MAX_RETRY_AFTER},
    machine::{Gap, GapReason, Role, SourceState, StaleReason},
    metrics::METRICS,
    outcome::{Counts, Entry, Outcome},
    reconcile::{AuditMode, AuditReport},
    sink::{Delivery, FetchedTransaction, HeadUpdate, Holding, TransactionSink},
    snapshot::SnapshotError,
    source::SourceStatus,
    tx::{
        Answer, Malformed, PooledTransaction, SidecarError, read_answer, read_raw,
        verify_blob_proofs,
    },
};
