#![cfg_attr(feature = "revm", doc = include_str!("../README.md"))]
#![cfg_attr(
    not(feature = "revm"),
    doc = "The list, its reload and the checks over plain addresses."
)]
#![cfg_attr(not(feature = "revm"), doc = "The README describes the crate with its feature `revm`.")]
#![cfg_attr(not(test), deny(clippy::panic, clippy::unwrap_used))]

// In reading order: `list` (the set and its two checks), `guard` (the checks of one block),
// `shared` (the list in force), `execute` and `strict` (the checks on revm's types), then `parse`,
// `file` and `url` (where the text comes from).
mod config;
mod error;
#[cfg(feature = "revm")]
mod execute;
mod file;
mod guard;
mod list;
mod metrics;
mod parse;
mod shared;
#[cfg(feature = "revm")]
mod strict;
#[cfg(feature = "url")]
mod url;

/// The version whose types stand in this crate's signatures.
pub use alloy_primitives;
pub use config::{BlocklistConfig, DEFAULT_MAX_AGE, DEFAULT_MIN_ADDRESSES, MAX_BYTES, Policy};
pub use error::{Blocked, Duplicates, Error, How, Place};
#[cfg(feature = "revm")]
pub use error::{ExecuteError, VerifyError};
#[cfg(feature = "revm")]
pub use execute::{Checked, Inspected, TransactionEvm};
pub use guard::{BlockGuard, Finished, Submittable, Unverified};
pub use list::Blocklist;
pub use metrics::METRICS;
/// The version whose types stand in this crate's signatures.
#[cfg(feature = "revm")]
pub use revm;
pub use shared::{CLOCK_TOLERANCE, Reloaded, SharedBlocklist};
#[cfg(feature = "revm")]
pub use strict::AttemptInspector;
#[cfg(feature = "url")]
pub use url::{DEFAULT_REQUEST_TIMEOUT, ListUrl};
