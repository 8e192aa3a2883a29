//! A mock execution node's IPC interface with a pool, a chain, its own load and its own faults, for
//! tests, benches and examples.
//!
//! Start with [`MockNode`]. It answers over a Unix socket like reth 2.5, byte for byte where a
//! client can tell the difference: framing, error codes, the two forms of blob transactions, the
//! order of announcements. By default it executes nothing: used gas is the sum of the limits, and
//! balances are ignored. With [`NodeConfig::state`] and `testkit::state` the mined blocks are
//! executed, and requests for the state are answered. Roots are always digests. Blob proofs of
//! clients are not verified; those of its own load are valid.
//!
//! ```text
//!  workload (seed) --signed--> pace, bursts ----+
//!  eth_sendRawTransaction, submit() ------------+--> core: pool and chain --announcements, heads-->
//!  mine(), mine_private(), reorg(), block time -+         ^              outbox of each connection
//!                                                         +-- look-ups <-- rpc <-- framing <-- socket
//! ```
//!
//! # The life of one transaction
//! A transaction of the load is drawn from the seed, signed before its turn, and inserted into the
//! pool when it is due. It is announced to every subscription under the lock that orders all
//! events, and returned when it is requested by its hash, after the configured latency. It is
//! mined, and dropped with its block after [`HISTORY_BLOCKS`].
//!
//! # Faults and quirks
//! A fault occurs once, or as many times as it says: by [`MockNode::inject`], or in a
//! [`FaultPlan`]. A quirk holds until [`MockNode::set_quirks`] changes it; [`NodeConfig::quirks`]
//! sets it from the start.
//!
//! | misbehaviour | set by |
//! |---|---|
//! | connections close: now, in the middle of a message, when accepted, once subscribed | [`Fault::Close`], [`Fault::CloseMidFrame`], [`Fault::CloseOnAccept`], [`Fault::CloseAfterSubscribe`] |
//! | a connection closes after each answer | [`Quirks::closes_after_answer`] |
//! | connections are not read or written, for a while or for ever | [`Fault::Stall`], [`Fault::GoDead`] |
//! | requests get no answer while announcements continue: all, or those of one method | [`Quirks::is_mute`], [`Quirks::methods`] |
//! | announcements of hashes, objects or heads stop while requests are answered | [`Quirks::silent`] |
//! | new subscriptions to transactions get no notification | [`Fault::SilenceSubscriptions`] |
//! | a subscription ends on an open connection, with or without a notification | [`Fault::EndSubscriptions`] |
//! | announcements are lost, repeated, or come in bursts | [`Fault::DropNotifications`], [`Fault::DropObjects`], [`Fault::Duplicate`], [`Fault::Burst`] |
//! | whole transactions are refused, announced as hashes, or dropped in runs | [`NodeConfig::full_objects`] |
//! | a notification comes before the reply that names its subscription | [`Quirks::notifies_before_reply`] |
//! | a raw transaction is `null` shortly after its announcement | [`Quirks::null_after_announcement`] |
//! | a blob transaction has no sidecar, or no blobs, for a while | [`Quirks::incomplete_blobs`] |
//! | a raw transaction is wrapped in an RLP string | [`Quirks::wraps_raw`] |
//! | single answers with raw transactions are wrong, late, missing, or 8 MB long | [`Fault::Answers`] |
//! | an unknown transaction is answered with `"0x"`, or with an error | [`NodeConfig::unknown_is_empty`], [`Quirks::unknown_error`] |
//! | a method is missing or refused: no raw transactions, no client version, no list | [`Quirks::methods`] |
//! | answers are late, in reverse order, sent twice, or have other ids | [`Quirks::delay`], [`Quirks::reverse_window`], [`Quirks::answers_twice`], [`Quirks::ids`] |
//! | errors are texts | [`Quirks::text_errors`] |
//! | HTML replaces the first answer, or the handshake of a WebSocket | [`Quirks::html_first`], [`WebSocketQuirks::is_html`] |
//! | WebSocket frames are binary | [`WebSocketQuirks::is_binary`] |
//! | unsolicited lines are sent | [`Fault::SendLine`] |
//! | connections are refused with a text | [`Fault::TableFull`] |
//! | the node restarts, with another pool; with another genesis | [`Fault::Restart`], [`Fault::Reset`] |
//! | blocks are replaced | [`Fault::Reorg`] |
//! | the node is syncing; its clock is wrong | [`Quirks::is_syncing`], [`Quirks::clock_offset_s`] |
//! | its capacity is limited; its list takes long | [`NodeConfig::capacity`], [`NodeConfig::list_time`] |
//!
//! # What can be lost
//! A client for which more than 256 MiB are queued is disconnected; reth would queue without a
//! bound. Losses by faults are counted in [`Stats::notifications_dropped`] and
//! [`Stats::bad_answers`].
//!
//! # Threads and shutdown
//! One thread serves the socket on its own runtime, and one delays answers. Depending on the
//! configuration, further threads announce the load, mine, and inject the plan of faults.
//! [`MockNode::shutdown`], or dropping the node, ends all threads before it returns.
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
mod quirks;
mod rpc;
mod shared;
pub mod state;
mod stats;
mod tx;
mod websocket;
pub mod workload;

pub use capacity::Capacity;
pub use chain::{Block, HISTORY_BLOCKS};
pub use config::{DEV_CHAIN_ID, FullObjects, LoadStart, NodeConfig};
pub use error::{NodeError, TxRefused};
pub use faults::{BadAnswer, Fault, FaultPlan, LARGE_ANSWER_BYTES, OddLine, Target};
pub use node::{MockNode, Reorg};
pub use quirks::{AnswerIds, IncompleteBlobs, IncompleteForm, MethodQuirk, Quirks, Topic};
pub use stats::Stats;
pub use websocket::{WebSocketBridge, WebSocketQuirks};
pub use workload::DEFAULT_ACCOUNTS;
