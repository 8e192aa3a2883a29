#![doc = include_str!("../README.md")]

mod clock;
mod config;
mod core;
mod error;
mod event;
mod metrics;
mod order;
mod pool;
mod read;
mod sink;
mod upkeep;

pub use crate::core::{MAX_TOLD_UNSEEN, SignerStats};
pub use chain_view::{Block, Head, NonceUpdate, PooledTransaction, Relation, next_base_fee_wei};
pub use clock::Clock;
pub use config::*;
pub use error::{BundleError, ConfigError, Lagged, RejectReason, SidecarError};
pub use event::{
    CancelOutcome, CancelPrivateOutcome, Event, EventRef, InsertOutcome, RemoveReason, Standing,
};
pub use metrics::{METRICS, PoolStats};
pub use order::*;
pub use pool::OrderPool;
pub use read::{Blocking, Ender, Subscription};
pub use sink::{OrderSink, SinkEnd, SinkGuard};
pub use upkeep::{
    DEFAULT_UPKEEP_INTERVAL, DEFAULT_UPKEEP_JITTER_PERCENT, PRESSED_PAUSE, Upkeep, UpkeepConfig,
};
