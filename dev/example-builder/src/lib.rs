//! A small host: fills a block from the order pool at every head of a node, checks the blocklist on the state after
//! each transaction, and prints what each step costs. It submits nothing. The command is `examples/block_builder.rs`.
//!
//! ```text
//!  mempool --Ingest, or a fleet's streams--> order pool --subscription for head + 1--> candidates --new ones--> prefetch:
//!                                                                    |                                     execute alone
//!                                                       when due     v                                           |
//!  node <-- reads at the head's hash -- cached state <-- fill: by tip, nonces in order, blocklist, bundles       |
//!                                            ^------------------------------------------------------------------+
//! ```

mod builder;
mod candidates;
mod command;
mod fill;
mod report;
mod state;
#[cfg(test)]
mod tests;

pub use command::{main, run_with};
