//! The pool's counters: for `stats()`, and through the `metrics` facade.

use crate::event::{InsertOutcome, RemoveReason};
use metrics::{Counter, Gauge, counter, gauge};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $field:ident = $name:literal;)*) => {
        /// What happened since the pool was made.
        ///
        /// The figures are read one by one while the pool goes on: each is right, their sums may be
        /// off by what happened in between.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct PoolStats {
            /// Transactions in the pool.
            pub txs: u64,
            /// What they take, in bytes.
            pub bytes: u64,
            /// What removed orders take that readers may still want, in bytes.
            pub log_bytes: u64,
            /// Subscriptions.
            pub subscribers: u64,
            $($(#[doc = $doc])+ pub $field: u64,)*
        }

        #[derive(Debug)]
        pub(crate) struct Counters {
            $(pub(crate) $field: Both,)*
        }

        impl Counters {
            pub(crate) fn new() -> Self {
                Self { $($field: Both::new(counter!($name)),)* }
            }

            pub(crate) fn read(&self, stats: &mut PoolStats) {
                $(stats.$field = self.$field.value.load(Relaxed);)*
            }
        }
    };
}

counters! {
    /// Orders accepted: `order_pool_inserted_total`.
    inserted = "order_pool_inserted_total";
    /// Orders that were known already: `order_pool_known_total`.
    known = "order_pool_known_total";
    /// Transactions that came after their block: `order_pool_late_mined_total`.
    late_mined = "order_pool_late_mined_total";
    /// Transactions that came after another of the same nonce was mined:
    /// `order_pool_late_stale_total`.
    late_stale = "order_pool_late_stale_total";
    /// Orders refused: `order_pool_rejected_total`.
    rejected = "order_pool_rejected_total";
    /// Orders that a block took: `order_pool_mined_total`.
    mined = "order_pool_mined_total";
    /// Orders whose sender's nonce a block passed: `order_pool_stale_total`.
    stale = "order_pool_stale_total";
    /// Orders kept long enough: `order_pool_expired_total`.
    expired = "order_pool_expired_total";
    /// Orders that went for better-paying ones: `order_pool_evicted_total`.
    evicted = "order_pool_evicted_total";
    /// Orders that a reorg brought back: `order_pool_put_back_total`.
    put_back = "order_pool_put_back_total";
    /// Heads applied: `order_pool_heads_total`.
    heads = "order_pool_heads_total";
    /// Heads that replaced others: `order_pool_reorgs_total`.
    reorgs = "order_pool_reorgs_total";
    /// Heads whose parent was never told: `order_pool_head_gaps_total`.
    head_gaps = "order_pool_head_gaps_total";
    /// Nonces for a block that is not on the chain any more: `order_pool_stale_nonces_total`.
    stale_nonces = "order_pool_stale_nonces_total";
    /// Times a reader lagged: `order_pool_lagged_total`.
    lagged = "order_pool_lagged_total";
    /// Events that lagging readers missed: `order_pool_missed_events_total`.
    missed_events = "order_pool_missed_events_total";
}

/// One count, kept for us and for whoever exports metrics.
pub(crate) struct Both {
    value: AtomicU64,
    exported: Counter,
}

impl std::fmt::Debug for Both {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.value.fmt(f)
    }
}

impl Both {
    const fn new(exported: Counter) -> Self {
        Self {
            value: AtomicU64::new(0),
            exported,
        }
    }

    pub(crate) fn add(&self, n: u64) {
        // Nothing is ordered by it.
        self.value.fetch_add(n, Relaxed);
        self.exported.increment(n);
    }
}

impl Counters {
    pub(crate) fn outcome(&self, outcome: &InsertOutcome) {
        match outcome {
            InsertOutcome::Added => self.inserted.add(1),
            InsertOutcome::Known => self.known.add(1),
            InsertOutcome::Mined => self.late_mined.add(1),
            InsertOutcome::StaleNonce { .. } => self.late_stale.add(1),
            InsertOutcome::Rejected(_) => self.rejected.add(1),
        }
    }

    pub(crate) fn removed(&self, reason: RemoveReason) {
        match reason {
            RemoveReason::Mined => self.mined.add(1),
            RemoveReason::StaleNonce => self.stale.add(1),
            RemoveReason::Expired => self.expired.add(1),
            RemoveReason::Evicted => self.evicted.add(1),
        }
    }
}

/// What is there now. Written under the writer's lock, read without.
pub(crate) struct Level {
    value: AtomicU64,
    exported: Gauge,
}

impl std::fmt::Debug for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.value.fmt(f)
    }
}

impl Level {
    const fn new(exported: Gauge) -> Self {
        Self {
            value: AtomicU64::new(0),
            exported,
        }
    }

    pub(crate) fn set(&self, value: usize) {
        self.value.store(value as u64, Relaxed);
        self.exported.set(value as f64);
    }

    pub(crate) fn get(&self) -> u64 {
        self.value.load(Relaxed)
    }
}

/// The gauges.
#[derive(Debug)]
pub(crate) struct Levels {
    pub(crate) txs: Level,
    pub(crate) tx_bytes: Level,
    pub(crate) log_bytes: Level,
}

impl Levels {
    pub(crate) fn new() -> Self {
        Self {
            txs: Level::new(gauge!("order_pool_txs")),
            tx_bytes: Level::new(gauge!("order_pool_tx_bytes")),
            log_bytes: Level::new(gauge!("order_pool_log_bytes")),
        }
    }
}
