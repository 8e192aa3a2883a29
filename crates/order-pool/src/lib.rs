//! The orders a block builder knows: indexed, bounded, exact for every reader.
//!
//! The pool takes in pending transactions and searchers' bundles, tells subscribers of them, and
//! lets go of what a block took, of what was kept long enough, and of what pays the least when it
//! is full. It asks no node and executes nothing: heads and nonces are told to it.
//!
//! ```text
//! insert, cancel, head, nonces          readers: subscriptions, get, of_sender, was_seen
//!        |                                   |                no lock
//!        v                                   v
//!  one short lock: core (op, now) -> effects -> event log, live pages, index -> head -> wake-ups
//! ```
//!
//! # What a subscriber is promised
//! At [`OrderPool::subscribe`] every live order that may go into its block, once; then every later
//! event that concerns the block, in the order of acceptance. A reader that falls behind by more
//! than [`PoolConfig::log_events`], or while more than [`PoolConfig::log_bytes`] of orders leave,
//! is told exactly how many events it [`Lagged`] behind and can [`Subscription::resync`]. A slow
//! reader holds a number, no order and no lock.
//!
//! Heads are events of the same stream ([`Event::Head`]), after every removal that the hashes of
//! their block caused. The replay at the start begins with the head of that moment.
//!
//! # What can be lost, and which counter says so
//! Refused: `order_pool_rejected_total`. For space: `order_pool_evicted_total`. By age:
//! `order_pool_expired_total`. To a slow reader: `order_pool_missed_events_total`. Cancellations
//! beyond their cap: `order_pool_keys_forgotten_total`. A restart loses everything.
//!
//! # Locks
//! | what | who takes it | for how long |
//! | --- | --- | --- |
//! | the writer's mutex | insert, cancel, head, nonces, an upkeep step | one change, no foreign code, no freeing of orders |
//! | a sink's end mutex | its thread once, its guard when asked | to set or read a word |
//!
//! The two are never held together. Everything readers see is published with atomics and
//! `ArcSwap`: index, log, live pages, then the head. Wake-ups and freeing come after the lock.
//!
//! # Memory
//! [`PoolConfig::memory_bound_bytes`] is the most that a pool holds on to, and says of what: live
//! orders and their places in the indexes, removed ones that readers may still want, spent entries
//! and garbage that wait for upkeep, the log, the dedupe window, recent blocks, replacement keys and
//! tombstones. Two tests hold it against the resident memory of a process, beside a subscriber that
//! never reads. A reader that blocks inside [`Subscription::visit`] keeps the tables of that moment;
//! one that blocks anywhere else, and a sink, keeps the one order it was given.
//!
//! ```
//! use alloy_primitives::B256;
//! use order_pool::{Block, Event, Head, OrderPool, PoolConfig};
//!
//! let pool = OrderPool::new(PoolConfig::default().with_max_txs(10_000))?;
//! let mut subscription = pool.subscribe(2);
//! let head = Head::new(1, B256::repeat_byte(1), B256::ZERO).with_next_base_fee_wei(Some(7));
//! pool.on_head(Block::new(head, []));
//! assert!(matches!(subscription.try_next(), Some(Ok(Event::Head(told))) if *told == head));
//! # Ok::<(), order_pool::ConfigError>(())
//! ```

mod bundle;
mod chain;
mod clock;
mod config;
mod core;
mod event;
mod heads;
mod index;
mod keys;
mod live;
mod log;
mod metrics;
mod order;
mod pool;
mod seen;
mod sidecar;
mod sink;
mod subscription;
mod upkeep;
mod wake;
mod wire;
mod worth;

pub use bundle::*;
pub use chain_view::{Block, Head, NonceUpdate, PooledTransaction, Relation};
pub use clock::Clock;
pub use config::*;
pub use event::{
    CancelOutcome, Event, EventRef, InsertOutcome, Lagged, RejectReason, RemoveReason,
};
pub use metrics::PoolStats;
pub use order::{ORDER_OVERHEAD_BYTES, Order, OrderId, Origin, Transaction};
pub use pool::OrderPool;
pub use sink::{OrderSink, SinkEnd, SinkGuard};
pub use subscription::{Blocking, Ender, Subscription};
pub use upkeep::{
    DEFAULT_UPKEEP_INTERVAL, DEFAULT_UPKEEP_JITTER_PERCENT, PRESSED_PAUSE, Upkeep, UpkeepConfig,
};
pub use wire::{RawBundle, RawCancelBundle};
