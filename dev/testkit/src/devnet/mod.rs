//! Real nodes, anvil and geth, on development chains of their own, a load of signed transactions for them, and real NATS
//! servers.
//!
//! `scripts/real-nodes.sh` installs the pinned versions under `target/nodes/`. Everything else a node or server needs,
//! its chain or store, its socket, its log, is in a directory that the caller gives. The tests that run on them are
//! this crate's, with the feature `real-nodes`; the load is the command `devnet load`.
//!
//! A binary that is not installed, a process that does not start or ends, and an answer that does not come within a minute
//! are errors, with the end of the log.

mod genesis;
pub mod load;
mod nats;
mod node;
mod ports;
mod process;

pub use nats::{NatsCluster, NatsConfig, NatsServer, find_nats};
pub use node::{RealNode, RealNodeKind};
pub use process::Process;
