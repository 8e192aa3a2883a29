//! A mock execution node's IPC interface with a pool, a chain, its own load and its own faults, for
//! tests, benches and examples.
//!
//! It answers over a Unix socket as reth 2.5 does, byte for byte where a client can tell: framing,
//! error codes, the two forms of blob transactions, the order of announcements. By default it
//! executes nothing: gas used is the sum of the limits, and balances are ignored. With
//! [`NodeConfig::state`] and `testkit::state` the mined blocks are executed and requests for the
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
//! # What can go wrong
//! A fault strikes once, with [`MockNode::inject`], from a [`FaultPlan`], or as often as it says. A quirk holds until
//! [`MockNode::set_quirks`] changes it, or from the start with [`NodeConfig::quirks`].
//!
//! | what goes wrong | set by |
//! |---|---|
//! | connections close: now, in the middle of a message, when accepted, once subscribed | [`Fault::Close`], [`Fault::CloseMidFrame`], [`Fault::CloseOnAccept`], [`Fault::CloseAfterSubscribe`] |
//! | a connection closes after each answer | [`Quirks::closes_after_answer`] |
//! | connections are neither read nor written, for a while or for ever | [`Fault::Stall`], [`Fault::GoDead`] |
//! | requests have no answer while announcements go on; those for one method | [`Quirks::is_mute`], [`Quirks::methods`] |
//! | announcements stop while requests are answered: hashes, objects, heads | [`Quirks::silent`] |
//! | a subscription ends on a live connection, with `params.error` or without a word | [`Fault::EndSubscriptions`] |
//! | announcements are lost, doubled, or come in bursts | [`Fault::DropNotifications`], [`Fault::DropObjects`], [`Fault::Duplicate`], [`Fault::Burst`] |
//! | whole transactions are refused, announced as hashes, or dropped in runs | [`NodeConfig::full_objects`] |
//! | a notification comes before the reply that names its subscription | [`Quirks::notifies_before_reply`] |
//! | a raw transaction is `null` just after its announcement | [`Quirks::null_after_announcement`] |
//! | a blob transaction has no sidecar, or no blobs, for a while | [`Quirks::incomplete_blobs`] |
//! | a raw transaction is wrapped in an RLP string | [`Quirks::wraps_raw`] |
//! | single raw answers are wrong, late, missing, or 8 MB | [`Fault::Answers`] |
//! | an unknown transaction is answered with `"0x"`, or with an error | [`NodeConfig::unknown_is_empty`], [`Quirks::unknown_error`] |
//! | a method is missing or refused: no raw transactions, no client version, no list | [`Quirks::methods`] |
//! | answers are late, in reverse order, doubled, or have other ids | [`Quirks::delay`], [`Quirks::reverse_window`], [`Quirks::answers_twice`], [`Quirks::ids`] |
//! | errors are texts | [`Quirks::text_errors`] |
//! | HTML comes in place of the first answer, or of a WebSocket's handshake | [`Quirks::html_first`], [`WebSocketQuirks::is_html`] |
//! | WebSocket frames are binary | [`WebSocketQuirks::is_binary`] |
//! | lines come that answer nothing | [`Fault::SendLine`] |
//! | connections are turned away with a text | [`Fault::TableFull`] |
//! | the node restarts, with another pool; with another genesis | [`Fault::Restart`], [`Fault::Reset`] |
//! | blocks are replaced | [`Fault::Reorg`] |
//! | it says that it is syncing; its clock is wrong | [`Quirks::is_syncing`], [`Quirks::clock_offset_s`] |
//! | it can process only so much, its list takes long | [`NodeConfig::capacity`], [`NodeConfig::list_time`] |
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
