//! The pool's counters, for `stats()` and for the `metrics` facade.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram,
    gauge, histogram,
};

use crate::{
    config::PoolConfig,
    error::RejectReason,
    event::{CancelOutcome, InsertOutcome, RemoveReason},
};

macro_rules! counters {
    ($($field:ident = $name:literal, $text:literal;)*) => {
        /// The pool's present sizes, and its counts since it was made.
        ///
        /// The figures are read one by one while the pool runs: each is right, but their sums may
        /// be off by concurrent changes.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct PoolStats {
            /// Transactions in the pool.
            pub txs: u64,
            /// Those of `txs` that external callers sent and the node has not announced.
            pub external_txs: u64,
            /// Bundles in the pool.
            pub bundles: u64,
            /// Memory of transactions and bundles, in bytes.
            pub bytes: u64,
            /// Replacement keys remembered, each for its cancellations and for each of its blocks.
            pub keys: u64,
            /// Memory of removed orders that readers may still need, in bytes.
            pub log_bytes: u64,
            /// Subscriptions.
            pub subscribers: u64,
            /// Orders refused: `order_pool_rejected_total`, by the `reason` of
            /// [`RejectReason::as_str`](crate::RejectReason::as_str).
            pub rejected: u64,
            $(#[doc = concat!($text, ": `", $name, "`.")] pub $field: u64,)*
        }

        #[derive(Debug)]
        pub(crate) struct Counters {
            $(pub(crate) $field: Both,)*
            rejected: Rejected,
        }

        /// The name, the unit and the meaning of every metric of this crate. Counters end in `_total`;
        /// `order_pool_upkeep_step_seconds` is a histogram; the others are gauges.
        pub const METRICS: &[(&str, Unit, &str)] = &[
            $(($name, Unit::Count, $text),)*
            ("order_pool_rejected_total", Unit::Count, "Orders refused at entry, by `reason`"),
            ("order_pool_txs", Unit::Count, "Transactions in the pool"),
            ("order_pool_bundles", Unit::Count, "Bundles in the pool"),
            ("order_pool_tx_bytes", Unit::Bytes, "Bytes of the transactions in the pool"),
            (
                "order_pool_external_txs",
                Unit::Count,
                "Transactions that external callers sent and the node has not announced",
            ),
            ("order_pool_external_tx_bytes", Unit::Bytes, "Bytes of the transactions that only external callers sent"),
            ("order_pool_bundle_bytes", Unit::Bytes, "Bytes of the bundles in the pool"),
            (
                "order_pool_keys",
                Unit::Count,
                "Replacement keys remembered, each for its cancellations and for each of its blocks",
            ),
            ("order_pool_log_bytes", Unit::Bytes, "Bytes of removed orders that readers may still need"),
            (
                "order_pool_max_txs",
                Unit::Count,
                "Cap on the transactions that the node announced: `PoolConfig::max_txs`",
            ),
            ("order_pool_max_tx_bytes", Unit::Bytes, "Cap on the bytes of transactions that the node announced: `PoolConfig::max_tx_bytes`"),
            (
                "order_pool_max_external_txs",
                Unit::Count,
                "Cap on the transactions of external callers: `PoolConfig::max_external_txs`",
            ),
            (
                "order_pool_max_external_tx_bytes",
                Unit::Bytes,
                "Cap on the bytes of transactions of external callers: `PoolConfig::max_external_tx_bytes`",
            ),
            ("order_pool_max_bundles", Unit::Count, "Cap on the bundles: `PoolConfig::max_bundles`"),
            (
                "order_pool_max_bundle_bytes",
                Unit::Bytes,
                "Cap on the bytes of bundles: `PoolConfig::max_bundle_bytes`",
            ),
            (
                "order_pool_upkeep_step_seconds",
                Unit::Seconds,
                "How long a step of upkeep took",
            ),
        ];

        impl Counters {
            pub(crate) fn new() -> Self {
                describe();
                Self { $($field: Both::new(counter!($name)),)* rejected: Rejected::new() }
            }

            pub(crate) fn read(&self, stats: &mut PoolStats) {
                $(stats.$field = self.$field.value.load(Relaxed);)*
                stats.rejected = self.rejected.value.load(Relaxed);
            }
        }
    };
}

counters! {
    inserted = "order_pool_inserted_total", "Orders accepted";
    replacing = "order_pool_replacing_total", "Bundles that replaced another";
    cancellations = "order_pool_cancellations_total", "Cancellations that took effect";
    superseded = "order_pool_superseded_total",
        "Bundles and cancellations that came after a message of the same or a higher nonce";
    known = "order_pool_known_total", "Orders that were already in the pool";
    already_removed = "order_pool_already_removed_total",
        "Orders that came again after they had left for good";
    late_mined = "order_pool_late_mined_total", "Transactions that came after their block";
    late_stale = "order_pool_late_stale_total",
        "Transactions that came after another of the same nonce was mined";
    mined = "order_pool_mined_total", "Orders that a block contains";
    stale = "order_pool_stale_total", "Orders whose sender's nonce a block passed";
    expired = "order_pool_expired_total", "Orders removed at the end of their retention";
    evicted = "order_pool_evicted_total", "Orders evicted when a share was full";
    block_passed = "order_pool_block_passed_total",
        "Bundles, and private transactions, whose last block has been built";
    block_too_far = "order_pool_block_too_far_total", "Bundles, and private transactions, whose block turned out to be too far ahead";
    replaced = "order_pool_replaced_total", "Bundles replaced by another of their key";
    cancelled = "order_pool_cancelled_total", "Orders removed by a cancellation";
    keys_forgotten = "order_pool_keys_forgotten_total", "Cancellations that are no longer remembered";
    upkeep_steps = "order_pool_upkeep_steps_total", "Steps of upkeep";
    put_back = "order_pool_put_back_total", "Orders that a reorg put back";
    heads = "order_pool_heads_total", "Heads applied";
    reorgs = "order_pool_reorgs_total", "Heads that replaced others";
    head_gaps = "order_pool_head_gaps_total", "Heads whose parent is not known";
    stale_nonces = "order_pool_stale_nonces_total", "Nonces for a block that is not on the chain any more";
    lagged = "order_pool_lagged_total", "Times a reader lagged";
    missed_events = "order_pool_missed_events_total", "Events that lagging readers missed";
}

fn describe() {
    for (name, unit, text) in METRICS {
        if name.ends_with("_total") {
            describe_counter!(*name, *unit, *text);
        } else if name.ends_with("_seconds") {
            describe_histogram!(*name, *unit, *text);
        } else {
            describe_gauge!(*name, *unit, *text);
        }
    }
}

/// One count, kept for `stats()` and for the metrics exporter.
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
        Self { value: AtomicU64::new(0), exported }
    }

    pub(crate) fn add(&self, n: u64) {
        // Relaxed: no other memory is published through it.
        self.value.fetch_add(n, Relaxed);
        self.exported.increment(n);
    }
}

/// Refused orders: one count for `stats()`, one per reason for the metrics exporter.
pub(crate) struct Rejected {
    value: AtomicU64,
    exported: [Counter; RejectReason::ALL.len()],
}

impl std::fmt::Debug for Rejected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.value.fmt(f)
    }
}

impl Rejected {
    fn new() -> Self {
        let exported = RejectReason::ALL
            .map(|reason| counter!("order_pool_rejected_total", "reason" => reason));
        Self { value: AtomicU64::new(0), exported }
    }

    fn count(&self, reason: &RejectReason) {
        self.value.fetch_add(1, Relaxed);
        self.exported[reason.index()].increment(1);
    }
}

impl Counters {
    pub(crate) fn outcome(&self, outcome: &InsertOutcome) {
        match outcome {
            InsertOutcome::Added => self.inserted.add(1),
            InsertOutcome::Replaced { .. } => {
                self.inserted.add(1);
                self.replacing.add(1);
            }
            InsertOutcome::Cancelled => self.cancellations.add(1),
            InsertOutcome::Superseded { .. } | InsertOutcome::CancelledPermanently => {
                self.superseded.add(1);
            }
            InsertOutcome::Known => self.known.add(1),
            InsertOutcome::AlreadyRemoved => self.already_removed.add(1),
            InsertOutcome::Mined => self.late_mined.add(1),
            InsertOutcome::StaleNonce { .. } => self.late_stale.add(1),
            InsertOutcome::Rejected(reason) => self.rejected.count(reason),
        }
    }

    pub(crate) fn cancellation(&self, outcome: &CancelOutcome) {
        match outcome {
            CancelOutcome::Cancelled { .. } => self.cancellations.add(1),
            CancelOutcome::Superseded { .. } | CancelOutcome::CancelledPermanently => {
                self.superseded.add(1);
            }
        }
    }

    pub(crate) fn removed(&self, reason: RemoveReason) {
        match reason {
            RemoveReason::Mined => self.mined.add(1),
            RemoveReason::StaleNonce => self.stale.add(1),
            RemoveReason::Expired => self.expired.add(1),
            RemoveReason::Evicted => self.evicted.add(1),
            RemoveReason::BlockPassed => self.block_passed.add(1),
            RemoveReason::BlockTooFar => self.block_too_far.add(1),
            RemoveReason::Replaced => self.replaced.add(1),
            RemoveReason::Cancelled => self.cancelled.add(1),
        }
    }
}

/// The present sizes. Written under the writer's lock, read without it.
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
        Self { value: AtomicU64::new(0), exported }
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
    pub(crate) bundles: Level,
    pub(crate) tx_bytes: Level,
    pub(crate) external_txs: Level,
    pub(crate) external_tx_bytes: Level,
    pub(crate) bundle_bytes: Level,
    pub(crate) keys: Level,
    pub(crate) log_bytes: Level,
    /// How long a step of upkeep holds the lock at most.
    pub(crate) upkeep_step_seconds: UpkeepSteps,
}

/// `order_pool_upkeep_step_seconds`.
pub(crate) struct UpkeepSteps(pub(crate) Histogram);

impl std::fmt::Debug for UpkeepSteps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UpkeepSteps")
    }
}

impl Levels {
    pub(crate) fn new(config: &PoolConfig) -> Self {
        // The constant caps, for comparison with the levels.
        gauge!("order_pool_max_txs").set(config.max_txs as f64);
        gauge!("order_pool_max_tx_bytes").set(config.max_tx_bytes as f64);
        gauge!("order_pool_max_external_txs").set(config.max_external_txs as f64);
        gauge!("order_pool_max_external_tx_bytes").set(config.max_external_tx_bytes as f64);
        gauge!("order_pool_max_bundles").set(config.max_bundles as f64);
        gauge!("order_pool_max_bundle_bytes").set(config.max_bundle_bytes as f64);
        Self {
            txs: Level::new(gauge!("order_pool_txs")),
            bundles: Level::new(gauge!("order_pool_bundles")),
            tx_bytes: Level::new(gauge!("order_pool_tx_bytes")),
            external_txs: Level::new(gauge!("order_pool_external_txs")),
            external_tx_bytes: Level::new(gauge!("order_pool_external_tx_bytes")),
            bundle_bytes: Level::new(gauge!("order_pool_bundle_bytes")),
            keys: Level::new(gauge!("order_pool_keys")),
            log_bytes: Level::new(gauge!("order_pool_log_bytes")),
            upkeep_step_seconds: UpkeepSteps(histogram!("order_pool_upkeep_step_seconds")),
        }
    }
}
