//! What the tests, benches and examples of this workspace share, and nothing that is shipped. An error says what the
//! operating system refused, or that the other process has ended.
//!
//! - [`process`]: the running program again as a child process in another role;
//! - [`command`]: a command under test in a process of its own, which a signal may end;
//! - [`usage`]: CPU time, memory, and a clock that is the same in all processes;
//! - [`figures`]: medians, spreads, tables and goals of benches; [`mod@bench`], their arguments and their pace;
//! - with the feature `corpus`: the module `corpus`, kept inputs of the readers of outside bytes;
//! - with the feature `state`: the module `state`, the EVM that executes the blocks of a mock node;
//! - with the feature `devnet`: the module `devnet`, real nodes and NATS servers;
//! - with the feature `ingest`: [`node`], a mock node in a child process; [`ingest`], a fetcher
//!   from a mock node into a pool; [`sign`], transactions of a test's own making; [`http`], a
//!   client of the RPC server;
//! - with the feature `fleet`: the module `member`, a machine or a builder of a fleet in a child
//!   process.
#![allow(missing_docs, reason = "not published: what a name and its type say stands nowhere else")]

pub mod bench;
pub mod command;
#[cfg(feature = "corpus")]
pub mod corpus;
#[cfg(feature = "devnet")]
pub mod devnet;
pub mod figures;
#[cfg(feature = "ingest")]
pub mod http;
#[cfg(feature = "ingest")]
pub mod ingest;
#[cfg(feature = "fleet")]
pub mod member;
#[cfg(feature = "ingest")]
pub mod node;
pub mod process;
#[cfg(feature = "ingest")]
pub mod sign;
#[cfg(feature = "state")]
pub mod state;
pub mod usage;
