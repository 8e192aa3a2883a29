#![doc = include_str!("../README.md")]

mod bundle;
mod chain;
mod clock;
mod config;
mod core;
mod event;
mod extension;
mod heads;
mod index;
mod keys;
mod live;
mod log;
mod metrics;
mod order;
mod pool;

mod seen;
mod senders;
mod shares;
mod sidecar;
mod sink;
mod subscription;
mod upkeep;
mod wake;
mod wire;
mod worth;

pub use crate::core::{Relations, SignerStats};
pub use bundle::*;
pub use chain_view::{Block, Head, NonceUpdate, PooledTransaction, Relation, next_base_fee_wei};
pub use clock::Clock;
pub use config::*;
pub use event::{
    CancelOutcome, CancelPrivateOutcome, Event, EventRef, InsertOutcome, Lagged, RejectReason,
    RemoveReason, Standing,
};
pub use extension::Extension;
pub use keys::MAX_TOLD_UNSEEN;
pub use metrics::{METRICS, PoolStats};
pub use order::{ORDER_OVERHEAD_BYTES, Order, OrderId, Origin, PrivateTerms, Transaction};
pub use pool::OrderPool;
pub use sidecar::load_trusted_setup;
pub use sink::{OrderSink, SinkEnd, SinkGuard};
pub use subscription::{Blocking, Ender, Subscription};
pub use upkeep::{
    DEFAULT_UPKEEP_INTERVAL, DEFAULT_UPKEEP_JITTER_PERCENT, PRESSED_PAUSE, Upkeep, UpkeepConfig,
};
pub use wire::{Ignored, RawBundle, RawCancelBundle};
