//! The fetcher and the pool against real nodes: anvil and geth, installed by `scripts/real-nodes.sh`. They fail, never
//! skip, when a node is missing.
#![cfg(feature = "real-nodes")]

mod client;
mod load;
mod nodes;
