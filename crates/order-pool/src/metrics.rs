//! The pool's metrics, for `stats()` and for the `metrics` facade.

use load_control::metric_set;

use crate::{
    config::PoolConfig,
    error::RejectReason,
    event::{InsertOutcome, RemoveReason},
};

/// Declares each level and each count once, for [`PoolStats`] and for the metrics recorder.
macro_rules! figures {
    (
        levels { $($level:ident = $level_name:literal, $unit:ident, $level_text:literal;)* }
        counts { $($count:ident = $count_name:literal, $count_text:literal;)* }
    ) => {
        metric_set! {
            /// The name, the unit and the meaning of every metric of this crate. Counters end in
            /// `_total`; `order_pool_upkeep_step_seconds` is a histogram; the others are gauges.
            pub const METRICS;

            /// The counts since the pool was made.
            #[derive(Debug)]
            pub(crate) struct Counters {
                $(count $count = $count_name, Count, $count_text;)*
                count rejected[RejectReason::ALL.len()] = "order_pool_rejected_total", Count,
                    "Orders refused, at entry or when a reorg freed them, by `reason`", "reason": RejectReason::ALL;
            }

            /// The present sizes, and the constant caps to compare them with. They are written
            /// under the writer's lock, and read without it.
            #[derive(Debug)]
            pub(crate) struct Levels {
                $(level $level = $level_name, $unit, $level_text;)*
                level tx_bytes = "order_pool_tx_bytes", Bytes, "Bytes of the transactions in the pool";
                gauge external_tx_bytes = "order_pool_external_tx_bytes", Bytes,
                    "Bytes of the transactions that only external callers sent";
                level bundle_bytes = "order_pool_bundle_bytes", Bytes, "Bytes of the bundles in the pool";
                gauge max_txs = "order_pool_max_txs", Count,
                    "Cap on the transactions that the node announced: `PoolConfig::max_txs`";
                gauge max_tx_bytes = "order_pool_max_tx_bytes", Bytes,
                    "Cap on the bytes of transactions that the node announced: `PoolConfig::max_tx_bytes`";
                gauge max_external_txs = "order_pool_max_external_txs", Count,
                    "Cap on the transactions of external callers: `PoolConfig::max_external_txs`";
                gauge max_external_tx_bytes = "order_pool_max_external_tx_bytes", Bytes,
                    "Cap on the bytes of transactions of external callers: `PoolConfig::max_external_tx_bytes`";
                gauge max_bundles = "order_pool_max_bundles", Count,
                    "Cap on the bundles: `PoolConfig::max_bundles`";
                gauge max_bundle_bytes = "order_pool_max_bundle_bytes", Bytes,
                    "Cap on the bytes of bundles: `PoolConfig::max_bundle_bytes`";
                histogram upkeep_step_seconds = "order_pool_upkeep_step_seconds", Seconds,
                    "How long a step of upkeep took";
            }
        }

        /// The pool's present sizes, and its counts since it was made.
        ///
        /// The figures are read one by one while the pool runs. Each is right, but sums of several
        /// may be off by concurrent changes.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct PoolStats {
            $(#[doc = concat!($level_text, ".")] pub $level: u64,)*
            /// The memory of transactions and bundles, in bytes.
            pub bytes: u64,
            /// Subscriptions.
            pub subscribers: u64,
            /// Orders refused.
            pub rejected: u64,
            $(#[doc = concat!($count_text, ".")] pub $count: u64,)*
        }

        impl PoolStats {
            pub(crate) fn read(levels: &Levels, counters: &Counters, subscribers: usize) -> Self {
                Self {
                    $($level: levels.$level.get(),)*
                    bytes: levels.bytes(),
                    subscribers: subscribers as u64,
                    rejected: counters.rejected.iter().map(metric_set::Count::get).sum(),
                    $($count: counters.$count.get(),)*
                }
            }
        }
    };
}

figures! {
    levels {
        txs = "order_pool_txs", Count, "Transactions in the pool";
        bundles = "order_pool_bundles", Count, "Bundles in the pool";
        external_txs = "order_pool_external_txs", Count,
            "Transactions that external callers sent and the node has not announced";
        keys = "order_pool_keys", Count,
            "Replacement keys remembered, each for its cancellations and for each of its blocks";
        log_bytes = "order_pool_log_bytes", Bytes,
            "Bytes of removed orders that readers may still need";
    }
    counts {
        inserted = "order_pool_inserted_total", "Orders accepted";
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
        block_too_far = "order_pool_block_too_far_total",
            "Bundles, and private transactions, whose block turned out to be too far ahead";
        replaced = "order_pool_replaced_total", "Bundles replaced by another of their key";
        cancelled = "order_pool_cancelled_total", "Orders removed by a cancellation";
        keys_forgotten = "order_pool_keys_forgotten_total",
            "Cancellations that are no longer remembered";
        upkeep_steps = "order_pool_upkeep_steps_total", "Steps of upkeep";
        put_back = "order_pool_put_back_total", "Orders that a reorg put back";
        heads = "order_pool_heads_total", "Heads applied";
        reorgs = "order_pool_reorgs_total", "Heads that replaced others";
        head_gaps = "order_pool_head_gaps_total", "Heads whose parent is not known";
        stale_nonces = "order_pool_stale_nonces_total",
            "Nonces for a block that is not on the chain any more";
        lagged = "order_pool_lagged_total", "Times a reader lagged";
        missed_events = "order_pool_missed_events_total", "Events that lagging readers missed";
    }
}

impl Counters {
    pub(crate) fn outcome(&self, outcome: &InsertOutcome) {
        match outcome {
            InsertOutcome::Added | InsertOutcome::Replaced { .. } => self.inserted.add(1),
            InsertOutcome::Cancelled => self.cancellations.add(1),
            InsertOutcome::Superseded { .. } | InsertOutcome::CancelledPermanently => {
                self.superseded.add(1);
            }
            InsertOutcome::Known => self.known.add(1),
            InsertOutcome::AlreadyRemoved => self.already_removed.add(1),
            InsertOutcome::Mined => self.late_mined.add(1),
            InsertOutcome::StaleNonce { .. } => self.late_stale.add(1),
            InsertOutcome::Rejected(reason) => self.rejected[reason.index()].add(1),
        }
    }

    /// Counts orders that an undone block had removed, and that were not kept to be put back.
    /// `count` is an upper bound.
    pub(crate) fn reorg_dropped(&self, count: u64) {
        const FULL: RejectReason =
            RejectReason::Full { count: 0, limit: 0, bytes: 0, limit_bytes: 0 };
        self.rejected[FULL.index()].add(count);
    }

    pub(crate) fn removed(&self, reason: RemoveReason) {
        let count = match reason {
            RemoveReason::Mined => &self.mined,
            RemoveReason::StaleNonce => &self.stale,
            RemoveReason::Expired => &self.expired,
            RemoveReason::Evicted => &self.evicted,
            RemoveReason::BlockPassed => &self.block_passed,
            RemoveReason::BlockTooFar => &self.block_too_far,
            RemoveReason::Replaced => &self.replaced,
            RemoveReason::Cancelled => &self.cancelled,
        };
        count.add(1);
    }
}

impl Levels {
    /// Returns the bytes of the orders in the pool.
    pub(crate) fn bytes(&self) -> u64 {
        self.tx_bytes.get() + self.bundle_bytes.get()
    }

    pub(crate) fn set_caps(&self, config: &PoolConfig) {
        self.max_txs.set(config.max_txs as f64);
        self.max_tx_bytes.set(config.max_tx_bytes as f64);
        self.max_external_txs.set(config.max_external_txs as f64);
        self.max_external_tx_bytes.set(config.max_external_tx_bytes as f64);
        self.max_bundles.set(config.max_bundles as f64);
        self.max_bundle_bytes.set(config.max_bundle_bytes as f64);
    }
}
