//! The parts of rbuilder's `telemetry` that the adapters use.

#![allow(missing_docs, reason = "rbuilder documents the originals")]

use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use time::OffsetDateTime;

use crate::live_builder::order_input::ReplaceableOrderPoolCommand;

/// The number of calls of [`add_txfetcher_time_to_query`].
pub static TXFETCHER_TRANSACTION_COUNTER: AtomicUsize = AtomicUsize::new(0);

/// The number of calls of [`mark_command_received`].
pub static ORDERS_RECEIVED: AtomicUsize = AtomicUsize::new(0);

/// Records the time from the announcement of a transaction. The original also has a histogram.
pub fn add_txfetcher_time_to_query(_duration: Duration) {
    TXFETCHER_TRANSACTION_COUNTER.fetch_add(1, Relaxed);
}

/// Records when an order arrived. The original keeps the time by the order's id.
pub fn mark_command_received(_command: &ReplaceableOrderPoolCommand, _received_at: OffsetDateTime) {
    ORDERS_RECEIVED.fetch_add(1, Relaxed);
}
