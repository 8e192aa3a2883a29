//! Code that the tests, benches and examples of this workspace share. None of it is published. Its
//! errors say what the operating system refused, or that the other process has ended.
//!
//! | module | feature | content |
//! |---|---|---|
//! | [`process`] | | runs the current program as a child process in another role |
//! | [`command`] | | runs a command under test in its own process, which a signal may end |
//! | [`threads`] | | a test on a machine where no further thread can be started |
//! | [`usage`] | | CPU time, memory, and a clock that is the same in all processes |
//! | [`figures`] | | medians, spreads, tables and goals of benches |
//! | [`mod@bench`] | | the arguments of benches, and their pace |
//! | `corpus` | `corpus` | stored inputs for the decoders of outside bytes |
//! | `state` | `state` | the EVM that executes the blocks of a mock node |
//! | `devnet` | `devnet` | real nodes, a load for them, and NATS servers |
//! | `node` | `ingest` | a mock node in a child process |
//! | `ingest` | `ingest` | a mock node, and a fetcher into a pool |
//! | `sign` | `ingest` | transactions that a test makes |
//! | `http` | `ingest` | a client of the RPC server |
//! | `member` | `fleet` | a machine or a builder of a fleet in a child process |
//!
//! [`configured`] changes the fields of a configuration.
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
pub mod threads;
pub mod usage;

/// Changes fields of a configuration, which is `#[non_exhaustive]` and therefore cannot be made by
/// a literal outside of its crate.
pub fn configured<Config>(mut config: Config, change: impl FnOnce(&mut Config)) -> Config {
    change(&mut config);
    config
}
