//! The pool's counters: for `stats()`, and through the `metrics` facade.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use crate::event::{CancelOutcome, InsertOutcome, RejectReason, RemoveReason};

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
            /// Those of them that external callers sent and the node has not announced.
            pub external_txs: u64,
            /// Bundles in the pool.
            pub bundles: u64,
            /// What transactions and bundles take, in bytes.
            pub bytes: u64,
            /// Replacement keys remembered, each for its cancellations and for each of its blocks.
            pub keys: u64,
            /// What removed orders take that readers may still want, in bytes.
            pub log_bytes: u64,
            /// Subscriptions.
            pub subscribers: u64,
            /// Orders refused: `order_pool_rejected_total`, by the `reason` of
            /// [`RejectReason::as_str`](crate::RejectReason::as_str).
            pub rejected: u64,
            $($(#[doc = $doc])+ pub $field: u64,)*
        }

        #[derive(Debug)]
        pub(crate) struct Counters {
            $(pub(crate) $field: Both,)*
            rejected: Rejected,
        }

        /// Every metric of this crate. Counters end in `_total`, and [`PoolStats`] says what each counts;
        /// `order_pool_upkeep_step_seconds` is a histogram; the others are gauges.
        pub const METRICS: &[&str] = &[
            $($name,)*
            "order_pool_rejected_total",
            "order_pool_txs",
            "order_pool_bundles",
            "order_pool_tx_bytes",
            "order_pool_external_txs",
            "order_pool_external_tx_bytes",
            "order_pool_bundle_bytes",
            "order_pool_keys",
            "order_pool_log_bytes",
            "order_pool_upkeep_step_seconds",
        ];

        impl Counters {
            pub(crate) fn new() -> Self {
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
    /// Orders accepted: `order_pool_inserted_total`.
    inserted = "order_pool_inserted_total";
    /// Bundles that took another's place: `order_pool_replacing_total`.
    replacing = "order_pool_replacing_total";
    /// Cancellations that counted: `order_pool_cancellations_total`.
    cancellations = "order_pool_cancellations_total";
    /// Bundles and cancellations that came after a message of the same or a higher nonce:
    /// `order_pool_superseded_total`.
    superseded = "order_pool_superseded_total";
    /// Orders that were there already: `order_pool_known_total`.
    known = "order_pool_known_total";
    /// Orders that came again after they had left for good: `order_pool_already_removed_total`.
    already_removed = "order_pool_already_removed_total";
    /// Transactions that came after their block: `order_pool_late_mined_total`.
    late_mined = "order_pool_late_mined_total";
    /// Transactions that came after another of the same nonce was mined:
    /// `order_pool_late_stale_total`.
    late_stale = "order_pool_late_stale_total";
    /// Orders that a block took: `order_pool_mined_total`.
    mined = "order_pool_mined_total";
    /// Orders whose sender's nonce a block passed: `order_pool_stale_total`.
    stale = "order_pool_stale_total";
    /// Orders kept long enough: `order_pool_expired_total`.
    expired = "order_pool_expired_total";
    /// Orders that went for others when a share was full: `order_pool_evicted_total`.
    evicted = "order_pool_evicted_total";
    /// Bundles, and private transactions, whose last block has been built: `order_pool_block_passed_total`.
    block_passed = "order_pool_block_passed_total";
    /// The same whose block turned out to be too far ahead: `order_pool_block_too_far_total`.
    block_too_far = "order_pool_block_too_far_total";
    /// Bundles that left for another of their key: `order_pool_replaced_total`.
    replaced = "order_pool_replaced_total";
    /// Orders that left for a cancellation: `order_pool_cancelled_total`.
    cancelled = "order_pool_cancelled_total";
    /// Cancellations that are no longer remembered: `order_pool_keys_forgotten_total`.
    keys_forgotten = "order_pool_keys_forgotten_total";
    /// Steps of upkeep: `order_pool_upkeep_steps_total`.
    upkeep_steps = "order_pool_upkeep_steps_total";
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
        Self { value: AtomicU64::new(0), exported }
    }

    pub(crate) fn add(&self, n: u64) {
        // Nothing is ordered by it.
        self.value.fetch_add(n, Relaxed);
        self.exported.increment(n);
    }
}

/// Orders refused: one count for us, one for each reason for whoever exports metrics.
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
    /// How long a step of upkeep holds others up at most.
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
    pub(crate) fn new() -> Self {
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
