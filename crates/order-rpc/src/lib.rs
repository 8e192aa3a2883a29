#![doc = include_str!("../README.md")]
#![cfg_attr(not(test), deny(clippy::future_not_send, clippy::panic, clippy::unwrap_used))]

// Lets `src/tests/common.rs` name this crate as the tests in `tests/` do, which share it.
#[cfg(test)]
extern crate self as order_rpc;

mod config;
mod deferral;
mod error;
mod host;
mod http;
mod jsonrpc;
mod limits;
mod methods;
mod metrics;
mod reply;
mod server;
#[cfg(test)]
mod tests;

pub use config::*;
pub use deferral::DeferralStats;
pub use error::{ConfigError, StartError};
pub use host::{Admission, AdmissionFuture, Candidate, Host, Verdict};
pub use metrics::METRICS;
pub use reply::Reason;
pub use server::{OrderRpc, OrderRpcEnd};
