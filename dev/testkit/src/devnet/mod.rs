//! Real nodes (anvil and geth) on development chains, a load of signed transactions for them, and
//! real NATS servers.
//!
//! `scripts/real-nodes.sh` installs the pinned versions under `target/nodes/`. Everything else that
//! a node or server needs, such as its chain or store, its socket and its log, is in a directory
//! that the caller gives. The tests in `tests/real_nodes/` run on them; the command `devnet load`
//! sends the load.
//!
//! A missing binary, a process that does not start or that ends, and a missing answer within a
//! minute are errors, which contain the end of the log.

mod disk;
mod genesis;
pub mod load;
mod nats;
mod node;
mod ports;
mod process;

pub use disk::Disk;
pub use nats::{NatsCluster, NatsConfig, NatsServer, find_nats};
pub use node::{RealNode, RealNodeKind};
pub use process::Process;
