#![cfg_attr(feature = "tokio", doc = include_str!("../README.md"))]
#![cfg_attr(
    not(feature = "tokio"),
    doc = "Load control: load monitor, backoff, and the declaration of metrics."
)]
#![cfg_attr(not(test), deny(clippy::future_not_send))]

// In reading order: `state` and `config`, then `monitor`; `refusal`, then `gate` with `work`
// (permits), `budget` (requests in flight) and `shedding` (log lines); `backoff`; `deadline`;
// `threads`; `metric_set`.
mod backoff;
#[cfg(feature = "tokio")]
mod budget;
mod config;
#[cfg(feature = "tokio")]
mod deadline;
mod error;
#[cfg(feature = "tokio")]
mod gate;
pub mod metric_set;
#[cfg_attr(not(feature = "tokio"), allow(dead_code))]
mod metrics;
mod monitor;
mod refusal;
#[cfg(feature = "tokio")]
mod shedding;
mod state;
mod sync;
#[cfg(feature = "tokio")]
mod threads;
#[cfg(feature = "tokio")]
mod work;

pub use backoff::Backoff;
#[cfg(feature = "tokio")]
pub use budget::{Budget, Share};
pub use config::*;
#[cfg(feature = "tokio")]
pub use deadline::within;
pub use error::ConfigError;
#[cfg(feature = "tokio")]
pub use gate::{Gate, GateStats};
pub use metrics::METRICS;
pub use monitor::{LoadMonitor, MAX_QUEUES, QueueLoad};
pub use refusal::{GateName, Refusal, RefusalReason, WorkError};
pub use state::LoadState;
#[cfg(feature = "tokio")]
pub use threads::build_runtime;
#[cfg(feature = "tokio")]
pub use work::{Priority, WorkPermit};
