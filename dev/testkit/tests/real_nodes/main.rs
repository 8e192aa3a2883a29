//! The fetcher and the pool against real nodes, anvil and geth, and NATS servers, all installed by
//! `scripts/real-nodes.sh`. They fail, never skip, when one is missing.

mod load;
mod nats_rights;
mod nodes;
