//! Real nodes, anvil and geth, on development chains of their own, and a load of signed transactions for them.
//!
//! `scripts/real-nodes.sh` installs the pinned versions under `target/nodes/`. Everything else a node needs, its
//! chain, its socket, its log, is in a directory that the caller gives. The tests that run on them are this crate's, with
//! the feature `real-nodes`; the load is also the command `examples/load.rs`.

mod genesis;
pub mod load;
mod node;

pub use node::{NODES_VARIABLE, RealNode, RealNodeConfig, RealNodeError, RealNodeKind, find};
