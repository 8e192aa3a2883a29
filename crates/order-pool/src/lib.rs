//! The orders a block builder knows: indexed, bounded, exact for every reader.

mod chain;
mod config;
mod core;
mod event;
mod live;
mod log;
mod metrics;
mod order;
mod pool;
mod seen;
mod subscription;
mod wake;
mod worth;

pub use config::*;
pub use event::{Event, EventRef, Head, InsertOutcome, Lagged, RejectReason, RemoveReason};
pub use metrics::PoolStats;
pub use order::{ORDER_OVERHEAD_BYTES, Order, OrderId, Origin, PooledTransaction, Transaction};
pub use pool::OrderPool;
pub use subscription::{Blocking, Subscription};
