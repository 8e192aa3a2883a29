//! A small host: it fills a block from the order pool at every head of a node, checks the blocklist
//! on the state after each transaction, and prints what each step costs. It submits nothing. The
//! command is `examples/block_builder.rs`.
//!
//! ```text
//!  mempool --Ingest, or a fleet's streams--> order pool
//!                                                | subscription for the block after the head
//!                                                v
//!                                           candidates --new ones--> prefetch: execute each alone
//!                                                | when due                   |
//!                                                v                            v
//!      fill: by tip, nonces in order, blocklist, bundles --reads--> cached state --reads--> node
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
