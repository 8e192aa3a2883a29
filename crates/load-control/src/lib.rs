//! Load control: keeps a flood of work from delaying what matters. No I/O; time is an argument.
//!
//! Four parts, each usable alone:
//!
//! - [`LoadMonitor`] says how full the queues are, with hysteresis, for one relaxed load.
//! - [`DeferralQueue`] defers deferrable work while the load is high, and loses none.
//! - [`Gate`] is the admission control: external callers beyond its limits are refused at once;
//!   internal work waits and is never refused.
//! - [`Throttle`] gives the pauses between the steps of background work.
//!
//! ```text
//!  queue depths ──> LoadMonitor ── is_pressed() ──> DeferralQueue ── run, wait or hand back
//!
//!  external caller ──> Gate: requests in flight ──> work permit? ── no ──> Refusal, at once
//!  internal work   ──────────────────────────────> waits for a work permit, first come first served
//! ```
//!
//! # What can be lost
//! Nothing. A caller that the gate refuses gets a [`Refusal`] (`load_control_gate_refused_total`); a
//! deferral queue hands back what it has no room for (`load_control_deferred_handed_back_total`).
//!
//! # Shutdown
//! [`Gate::close`] refuses external callers from then on; permits that are held stay valid until they
//! are dropped. [`DeferralQueue::drain`] returns what waits to its owner.
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
//! let _permit = gate.try_acquire_external(now).expect("no other caller holds one");
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
mod sync;
mod throttle;
mod work;

pub use config::*;
pub use deferral::{DeferralQueue, DeferralStats, Offered};
pub use error::{ConfigError, ParseLimitError};
pub use gate::{Gate, GateStats};
pub use in_flight::InFlightPermit;
pub use metrics::METRICS;
pub use monitor::{LoadMonitor, LoadState, MAX_QUEUES, QueueLoad};
pub use refusal::{GateName, Refusal, RefusalReason};
pub use throttle::{DEFAULT_PAUSE, DEFAULT_PAUSE_JITTER, MAX_PAUSE, Throttle};
pub use work::WorkPermit;
