//! Fills a block from the mempool at every head of a node, and shows the transactions of each
//! block. It submits none. The command is `examples/block_builder.rs`.
//!
//! ```text
//!  mempool --Ingest, or a fleet's streams--> order pool --subscription for head + 1--> candidates --new ones--> read ahead: execute alone,
//!                                                                    |                    every unknown an error,
//!                                                       when due     v                    request all in one batch
//!  node <--------- batches of state reads at the head's hash --- fill: by tip, nonces in order, blocklist, bundles
//! ```

mod args;
mod builder;
mod bundle;
mod candidates;
mod command;
mod env;
mod feed;
mod fill;
mod heads;
mod machine;
mod node;
mod report;
mod rpc;
mod state;
#[cfg(test)]
mod tests;
mod warm;

pub use command::{main, run_with};
