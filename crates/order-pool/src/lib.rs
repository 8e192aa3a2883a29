#![doc = include_str!("../README.md")]
#![cfg_attr(not(test), deny(clippy::future_not_send, clippy::panic, clippy::unwrap_used))]

mod arrival;
mod clock;
mod config;
mod core;
mod error;
mod event;
mod feed;
mod holder;
mod metrics;
mod order;
mod pool;
mod read;
mod sink;
mod upkeep;

#[cfg(all(test, not(loom)))]
extern crate self as order_pool;
#[cfg(all(test, not(loom)))]
mod tests;

pub use crate::core::{MAX_UNKNOWN_CANCELLATIONS, MAX_UNKNOWN_CANCELLATIONS_OF_SIGNER};
pub use arrival::{arrival, arrival_at, arrival_instant};
pub use chain_view::{Block, Head, NonceUpdate, PooledTransaction, Relation, next_base_fee_wei};
pub use clock::Clock;
pub use config::*;
pub use error::{BundleError, ConfigError, Lagged, RejectReason, SidecarError, StartError};
pub use event::{
    CancelOutcome, CancelPrivateOutcome, Event, InsertOutcome, OrderStatus, RemoveReason,
};
pub use feed::Feed;
pub use holder::Holder;
pub use metrics::{METRICS, PoolStats};
pub use order::*;
pub use pool::OrderPool;
pub use read::{CloseHandle, Subscription};
pub use sink::{OrderSink, SinkEnd, SinkEndReason, SinkGuard};
pub use upkeep::{Upkeep, UpkeepConfig, UpkeepEnd, UpkeepEndReason};
/// The versions whose types stand in this crate's signatures.
pub use {alloy_consensus, alloy_primitives};
