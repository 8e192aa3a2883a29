//! Keeps load, from inside or outside, from starving what matters. No I/O; time is passed in.
//!
//! Four tools, each of use alone:
//!
//! - [`LoadMonitor`] says how full the queues are, with hysteresis, for one relaxed load.
//! - [`DeferralQueue`] holds deferrable work back while it says so, and loses none.
//! - [`Gate`] refuses outside callers at once when there are too many; the inside waits and is
//!   never refused.
//! - [`Throttle`] makes background work give way between its steps.
//!
//! ```text
//!  queue depths ──> LoadMonitor ── is_pressed() ──> DeferralQueue ── run, wait or hand back
//!
//!  outside caller ──> Gate: requests in flight ──> slot? ── no ──> Refusal, at once
//!  inside caller  ─────────────────────────────> waits for a slot, first come first served
//! ```
//!
//! # What can be lost
//! Nothing. What the gate refuses, its caller hears of (`load_control_gate_refused_total`); what a
//! deferral queue has no room for it hands back (`load_control_deferred_handed_back_total`).
//!
//! # Shutdown
//! [`Gate::close`] refuses outside callers from then on; permits that are out stay good until they
//! are dropped. [`DeferralQueue::drain`] gives what waits to its owner.
//!
//! ```
//! use load_control::{DeferralConfig, DeferralQueue, Gate, GateConfig, LoadMonitor, Offered};
//! use std::time::Instant;
//!
//! # fn main() -> Result<(), load_control::ConfigError> {
//! let monitor = LoadMonitor::new(Default::default())?;
//! let announcements = monitor.watch("announcements", 16_384)?;
//! let gate = Gate::new(GateConfig::default())?;
//! let mut later = DeferralQueue::new("raw_transactions", DeferralConfig::default())?;
//!
//! announcements.added(15_000);
//! assert!(monitor.is_pressed());
//!
//! let now = Instant::now();
//! let request = gate.enter(now).expect("the first request");
//! match later.offer(request, now, monitor.is_pressed()) {
//!     Offered::Run(_request) => unreachable!("the queue is 92 % full"),
//!     Offered::Deferred => {}
//!     Offered::HandedBack(_request) => unreachable!("there is room"),
//! }
//! announcements.removed(15_000);
//! let _request = later.pop(now, monitor.is_pressed()).expect("the load is normal again");
//! let _slot = gate.try_outside(now).expect("no other caller holds a slot");
//! # Ok(())
//! # }
//! ```
//!
//! # Testing
//! The atomics of the monitor and of the gate are tried in every interleaving by loom:
//! `RUSTFLAGS="--cfg loom" cargo test -p load-control --lib --release loom`, with a target directory
//! of its own.

mod config;
mod deferral;
mod error;
mod gate;
mod in_flight;
mod jitter;
mod metrics;
mod monitor;
mod refusal;
mod shedding;
mod slots;
mod sync;
mod throttle;

pub use config::*;
pub use deferral::{DeferralQueue, DeferralStats, Offered};
pub use error::{ConfigError, ParseLimitError};
pub use gate::{Gate, GateStats};
pub use in_flight::RequestPermit;
pub use metrics::METRICS;
pub use monitor::{LoadMonitor, LoadState, MAX_QUEUES, QueueLoad};
pub use refusal::{GateName, Refusal, RefusalReason};
pub use slots::SlotPermit;
pub use throttle::{DEFAULT_PAUSE, DEFAULT_PAUSE_JITTER, MAX_PAUSE, Throttle};
