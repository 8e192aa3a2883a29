#![doc = include_str!("../README.md")]

mod blocked;
mod config;
mod error;
mod evm;
mod file;
mod guard;
mod list;
mod metrics;
mod parse;
mod shared;
mod strict;

pub use blocked::{Blocked, How};
pub use config::{
    BlocklistConfig, DEFAULT_MAX_AGE, DEFAULT_MAX_BYTES, DEFAULT_MIN_ADDRESSES, Policy,
};
pub use error::{Error, ExecuteError, Place, VerifyError};
pub use evm::{Inspected, TransactionEvm};
pub use guard::{BlockGuard, Checked};
pub use list::Blocklist;
pub use metrics::METRICS;
pub use shared::{CLOCK_TOLERANCE, Reloaded, SharedBlocklist};
pub use strict::AttemptInspector;
