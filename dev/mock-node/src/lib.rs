//! A mock execution node's IPC interface with a pool, a chain, its own load and its own faults, for
//! tests, benches and examples.
//!
//! It answers over a Unix socket as reth 2.5 does, byte for byte where a client can tell: framing,
//! error codes, the two forms of blob transactions, the order of announcements. By default it
//! executes nothing: gas used is the sum of the limits, and balances are ignored. With
//! [`NodeConfig::state`] and the crate `mock-state` the mined blocks are executed and requests for the
//! state are answered.
//! Roots are always digests. Blob proofs from clients are not verified; those that it serves are
//! valid.
//!
//! ```text
//!  workload (seed) --signed ahead--> pace, bursts --+
//!  eth_sendRawTransaction, submit() ----------------+--> core: pool + chain --announcements, heads--> outbox of
//!  mine(), mine_private(), reorg(), block time -----+        ^                                       each connection
//!                                                            +---- look-ups <-- rpc <-- framing <-- socket
//! ```
//!
//! # The life of one transaction
//! It is planned from the seed, signed before its turn, inserted into the pool at its due time, announced to every
//! subscription under the lock that orders all events, returned when it is requested by its hash (after the configured
//! latency, during which other responses may wait too), mined, and dropped with its block after [`HISTORY_BLOCKS`].
//!
//! # What is lost, and where it is counted
//! A reader that lets more than 256 MiB wait is disconnected; reth would queue for it without a bound. An announcement
//! without a subscription is not sent. Injected losses are counted in
//! [`Stats::notifications_dropped`] and [`Stats::bad_answers`].
//!
//! # Threads and shutdown
//! One thread serves the socket on a runtime of its own, one holds delayed responses, and, as
//! configured, one each paces, mines and runs the plan of faults.
//! [`MockNode::shutdown`], or dropping the node, ends all of them before it returns.
//!
//! ```
//! use mock_node::{Fault, MockNode, NodeConfig, Target};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let path = std::env::temp_dir().join(format!("mock-node-doc-{}.ipc", std::process::id()));
//! let node = MockNode::start(NodeConfig { accounts: 10, preload: 3, ..NodeConfig::new(&path) })?;
//! let hashes = node.burst(2);
//! assert_eq!(node.pending().len(), 5);
//! assert!(node.raw(hashes[0]).is_some());
//! assert_eq!(node.mine().txs.len(), 5);
//! node.inject(Fault::Close(Target::All));
//! node.shutdown();
//! # Ok(())
//! # }
//! ```
#![allow(missing_docs, reason = "not published: what a name and its type say stands nowhere else")]

mod capacity;
mod chain;
pub mod cli;
mod config;
mod core;
mod delays;
mod error;
mod faults;
mod node;
mod outbox;
mod pool;
mod rpc;
mod shared;
pub mod state;
mod stats;
mod tx;
pub mod workload;

pub use capacity::Capacity;
pub use chain::{Block, HISTORY_BLOCKS};
pub use config::{DEV_CHAIN_ID, FullObjects, LoadStart, NodeConfig};
pub use error::{NodeError, TxRefused};
pub use faults::{BadAnswer, Fault, FaultPlan, LARGE_ANSWER_BYTES, Target};
pub use node::{MockNode, Reorg};
pub use stats::Stats;
pub use workload::DEFAULT_ACCOUNTS;

/// Locks. A panic in a test's thread must not take the node down with it; what is done under each lock is whole or not
/// begun.
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
