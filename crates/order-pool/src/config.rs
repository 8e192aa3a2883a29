//! The pool's limits. Each default exists once, with its arithmetic.

use std::time::Duration;

use crate::{
    error::ConfigError,
    read::{MAX_GARBAGE_BYTES, SEGMENT_EVENTS, SLOT_BYTES},
};

/// Default of [`PoolConfig::max_txs`]: 2,000 transactions/s x 60 s of retention = 120,000, and two
/// thirds on top for bursts.
pub const DEFAULT_MAX_TXS: usize = 200_000;

/// Default of [`PoolConfig::max_tx_bytes`]: 200,000 transactions of 1.6 kB (contents and overhead)
/// are 320 MB; the rest is room for about 260 transactions of six blobs (0.8 MB each).
pub const DEFAULT_MAX_TX_BYTES: usize = 512 << 20;

/// Default of [`PoolConfig::max_external_txs`]: 300 raw transactions/s x 60 s of retention. Public RPC
/// endpoints for private transactions bring a few a second.
pub const DEFAULT_MAX_EXTERNAL_TXS: usize = 18_000;

/// Default of [`PoolConfig::max_external_tx_bytes`]: 18,000 transactions of 1.6 kB are 29 MB; the rest is
/// room for about 40 transactions of six blobs.
pub const DEFAULT_MAX_EXTERNAL_TX_BYTES: usize = 64 << 20;

/// Default of [`PoolConfig::tx_retention`]: five slots of 12 s. A transaction that no builder
/// included for five blocks is unlikely to be wanted; the node still keeps it.
pub const DEFAULT_TX_RETENTION: Duration = Duration::from_secs(60);

/// Default of [`PoolConfig::expired_pause`]: ten times the default retention. With a node that
/// holds 300,000 transactions that no block includes, each of them is then requested once in 11
/// minutes, 455 per second as deferrable work, and is in the pool for one of these 11 minutes.
pub const DEFAULT_EXPIRED_PAUSE: Duration = Duration::from_secs(600);

/// Default of [`PoolConfig::dedupe_window`]: the largest pool seen on a node under load held
/// 300,000 transactions (geth with raised limits); twice that is 600,000, rounded up to a power of
/// two. Costs 24 bytes each (16 in the table at half load, 8 in the queue) = 24 MiB, and 16 for
/// each that expired within [`PoolConfig::expired_pause`].
pub const DEFAULT_DEDUPE_WINDOW: usize = 1 << 20;

/// Default of [`PoolConfig::recent_blocks`]: 64 blocks of 12 s are two epochs, after which a block
/// is final (consensus specs, phase 0). A block of 60 M gas holds at most 2,857 transactions of
/// 21,000 gas, so the memory is at most 64 x 2,857 x about 150 bytes = 27 MB, and a tenth of that
/// on mainnet.
pub const DEFAULT_RECENT_BLOCKS: usize = 64;

/// Default of [`PoolConfig::max_unmine_bytes`]: a block of 21 blobs (the most a blob-parameter-only
/// fork has set so far) takes 2.8 MB and its plain transactions about 0.5 MB, so this covers a
/// reorg of more than 16 blocks; none deeper than 7 has happened since the merge.
pub const DEFAULT_MAX_UNMINE_BYTES: usize = 64 << 20;

/// Default of [`PoolConfig::log_events`]: 2,000 arrivals/s and as many removals are 4,000 events/s,
/// so 2^18 events are 65 s, five slots.
pub const DEFAULT_LOG_EVENTS: usize = 1 << 18;

/// Default of [`PoolConfig::log_bytes`]: 20 s of removed plain transactions at 1.6 kB and 2,000/s,
/// more than a block's time. Memory is used only for removals that the slowest subscription has not
/// read.
pub const DEFAULT_LOG_BYTES: usize = 64 << 20;

/// Default of [`PoolConfig::max_bundles`]: 500 bundles/s, three blocks ahead at 12 s each, are
/// 18,000.
pub const DEFAULT_MAX_BUNDLES: usize = 20_000;

/// Default of [`PoolConfig::max_bundle_bytes`]: 20,000 bundles of three plain transactions take
/// about 5 kB each, 100 MB; the rest is room for about 190 transactions of six blobs in bundles.
pub const DEFAULT_MAX_BUNDLE_BYTES: usize = 256 << 20;

/// Default of [`PoolConfig::max_bundles_per_signer`]: a tenth of all. 50 bundles/s, three blocks ahead at
/// 12 s each, are 1,800.
pub const DEFAULT_MAX_BUNDLES_PER_SIGNER: usize = 2_000;

/// Default of [`PoolConfig::max_bundle_bytes_per_signer`]: an eighth of all; 2,000 bundles of three plain
/// transactions take 10 MB.
pub const DEFAULT_MAX_BUNDLE_BYTES_PER_SIGNER: usize = 32 << 20;

/// Default of [`PoolConfig::max_unsigned_bundles`]: a twentieth of all. Searchers sign.
pub const DEFAULT_MAX_UNSIGNED_BUNDLES: usize = 1_000;

/// Default of [`PoolConfig::max_txs_per_bundle`]: bundles seen on mainnet have a handful; a block
/// of 60 M gas has room for 2,857 of the smallest, and no searcher fills a thirtieth of that.
pub const DEFAULT_MAX_TXS_PER_BUNDLE: usize = 100;

/// Default of [`PoolConfig::max_blocks_ahead`]: two epochs, 12.8 minutes.
pub const DEFAULT_MAX_BLOCKS_AHEAD: u64 = 64;

/// Default of [`PoolConfig::cancellation_retention`]: five slots of 12 s, longer than any message
/// is delayed.
pub const DEFAULT_CANCELLATION_RETENTION: Duration = Duration::from_secs(60);

/// Default of [`PoolConfig::max_cancellations`]: 500/s for 60 s are 30,000, doubled and rounded up
/// to a power of two. At about 300 bytes each 20 MB.
pub const DEFAULT_MAX_CANCELLATIONS: usize = 1 << 16;

/// Default of [`PoolConfig::max_cancellations_per_signer`]: a sixteenth of all, twice the bundles that one
/// signer may hold.
pub const DEFAULT_MAX_CANCELLATIONS_PER_SIGNER: usize = 1 << 12;

/// The limits of an [`OrderPool`](crate::OrderPool).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolConfig {
    /// Most transactions that the node has announced. Default [`DEFAULT_MAX_TXS`]; at least 1. At
    /// the cap the worst-paying is evicted: `order_pool_evicted_total`.
    pub max_txs: usize,
    /// Most bytes of these, by [`Order::size_bytes`](crate::Order::size_bytes).
    /// Default [`DEFAULT_MAX_TX_BYTES`]; at least 1 MiB (one transaction of six blobs).
    pub max_tx_bytes: usize,
    /// Most transactions that external callers sent and the node has not announced. They have a
    /// separate share, so that the fees they claim evict nothing that the node announced. Default
    /// [`DEFAULT_MAX_EXTERNAL_TXS`]; at least 1. At the cap the worst-paying of them is evicted:
    /// `order_pool_evicted_total`.
    pub max_external_txs: usize,
    /// Most bytes of these. Default [`DEFAULT_MAX_EXTERNAL_TX_BYTES`]; at least 1 MiB.
    pub max_external_tx_bytes: usize,
    /// How long a transaction is kept; a private one is kept until its last block instead. Default
    /// [`DEFAULT_TX_RETENTION`]; above zero. Removals are counted by `order_pool_expired_total`.
    pub tx_retention: Duration,
    /// How long after its expiry a comparison of pools does not offer a transaction again
    /// ([`OrderPool::standing`](crate::OrderPool::standing)). If it is inserted again, it is
    /// accepted at any time. Default [`DEFAULT_EXPIRED_PAUSE`]; with zero it is offered at once.
    pub expired_pause: Duration,
    /// How many accepted orders are remembered, so that none is accepted a second time while it is
    /// pooled, or after a block or a message of its key ended it. Evicted and expired ones may be
    /// added again. Default [`DEFAULT_DEDUPE_WINDOW`]; at least 1. Set it to twice the node's pool
    /// or more.
    pub dedupe_window: usize,
    /// How many recent blocks are remembered, for late transactions and reorgs; fewer if together
    /// they have more than 524,288 transactions, almost three times as many as 64 blocks of mainnet
    /// can hold. Default [`DEFAULT_RECENT_BLOCKS`]; at least 1.
    pub recent_blocks: usize,
    /// Most bytes of mined orders, held so that a reorg can put them back; those of the oldest
    /// block are dropped first. Default [`DEFAULT_MAX_UNMINE_BYTES`]; zero keeps none.
    pub max_unmine_bytes: usize,
    /// How many events the log holds, rounded up to a whole segment of 256: how far a reader may
    /// fall behind. Default [`DEFAULT_LOG_EVENTS`]; at least 1.
    pub log_events: usize,
    /// Most bytes of removed orders that the log holds for slow readers. Default
    /// [`DEFAULT_LOG_BYTES`]; above it the oldest events are dropped from the log.
    pub log_bytes: usize,
    /// Most bundles. Default [`DEFAULT_MAX_BUNDLES`]; at least 1. At the cap the signer with the
    /// most loses its bundle for the latest block (`order_pool_evicted_total`); if that is the new
    /// one, it is refused (`order_pool_rejected_total`).
    pub max_bundles: usize,
    /// Most bytes of bundles. Default [`DEFAULT_MAX_BUNDLE_BYTES`]; at least 1 MiB.
    pub max_bundle_bytes: usize,
    /// Most bundles of one signer. Default [`DEFAULT_MAX_BUNDLES_PER_SIGNER`]; at least 1. At the
    /// cap the signer's bundle for the latest block is evicted, or the new one refused.
    pub max_bundles_per_signer: usize,
    /// Most bytes of bundles of one signer, and of all unsigned ones together. Default
    /// [`DEFAULT_MAX_BUNDLE_BYTES_PER_SIGNER`]; at least 1 MiB.
    pub max_bundle_bytes_per_signer: usize,
    /// Most bundles without a signature, all together. Default [`DEFAULT_MAX_UNSIGNED_BUNDLES`]; at
    /// least 1.
    pub max_unsigned_bundles: usize,
    /// Most transactions in a bundle, and most entries of its lists of hashes. Default
    /// [`DEFAULT_MAX_TXS_PER_BUNDLE`]; at least 1.
    pub max_txs_per_bundle: usize,
    /// How far ahead of the head a bundle's block, or the last block of a private transaction, may
    /// be. Default [`DEFAULT_MAX_BLOCKS_AHEAD`]; at least 1.
    pub max_blocks_ahead: u64,
    /// How long a replacement key without a pooled bundle is remembered: its nonce, whether it was
    /// cancelled, and whether permanently. Default [`DEFAULT_CANCELLATION_RETENTION`].
    pub cancellation_retention: Duration,
    /// Most keys remembered without a pooled bundle. Default [`DEFAULT_MAX_CANCELLATIONS`]; at
    /// least 1. Above it the signer with the most loses the one that has waited the longest:
    /// `order_pool_keys_forgotten_total`.
    pub max_cancellations: usize,
    /// Most of these of one signer. Default [`DEFAULT_MAX_CANCELLATIONS_PER_SIGNER`]; at least 1.
    /// Above it the signer's key that has waited the longest is forgotten.
    pub max_cancellations_per_signer: usize,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            max_txs: DEFAULT_MAX_TXS,
            max_tx_bytes: DEFAULT_MAX_TX_BYTES,
            max_external_txs: DEFAULT_MAX_EXTERNAL_TXS,
            max_external_tx_bytes: DEFAULT_MAX_EXTERNAL_TX_BYTES,
            tx_retention: DEFAULT_TX_RETENTION,
            expired_pause: DEFAULT_EXPIRED_PAUSE,
            dedupe_window: DEFAULT_DEDUPE_WINDOW,
            recent_blocks: DEFAULT_RECENT_BLOCKS,
            max_unmine_bytes: DEFAULT_MAX_UNMINE_BYTES,
            log_events: DEFAULT_LOG_EVENTS,
            log_bytes: DEFAULT_LOG_BYTES,
            max_bundles: DEFAULT_MAX_BUNDLES,
            max_bundle_bytes: DEFAULT_MAX_BUNDLE_BYTES,
            max_bundles_per_signer: DEFAULT_MAX_BUNDLES_PER_SIGNER,
            max_bundle_bytes_per_signer: DEFAULT_MAX_BUNDLE_BYTES_PER_SIGNER,
            max_unsigned_bundles: DEFAULT_MAX_UNSIGNED_BUNDLES,
            max_txs_per_bundle: DEFAULT_MAX_TXS_PER_BUNDLE,
            max_blocks_ahead: DEFAULT_MAX_BLOCKS_AHEAD,
            cancellation_retention: DEFAULT_CANCELLATION_RETENTION,
            max_cancellations: DEFAULT_MAX_CANCELLATIONS,
            max_cancellations_per_signer: DEFAULT_MAX_CANCELLATIONS_PER_SIGNER,
        }
    }
}

macro_rules! setters {
    ($($with:ident, $field:ident: $ty:ty;)*) => {
        impl PoolConfig {$(
            #[doc = concat!("Sets [`Self::", stringify!($field), "`].")]
            #[must_use]
            pub const fn $with(mut self, $field: $ty) -> Self {
                self.$field = $field;
                self
            }
        )*}
    };
}

setters! {
    with_max_txs, max_txs: usize;
    with_max_tx_bytes, max_tx_bytes: usize;
    with_max_external_txs, max_external_txs: usize;
    with_max_external_tx_bytes, max_external_tx_bytes: usize;
    with_tx_retention, tx_retention: Duration;
    with_expired_pause, expired_pause: Duration;
    with_dedupe_window, dedupe_window: usize;
    with_recent_blocks, recent_blocks: usize;
    with_max_unmine_bytes, max_unmine_bytes: usize;
    with_log_events, log_events: usize;
    with_log_bytes, log_bytes: usize;
    with_max_bundles, max_bundles: usize;
    with_max_bundle_bytes, max_bundle_bytes: usize;
    with_max_bundles_per_signer, max_bundles_per_signer: usize;
    with_max_bundle_bytes_per_signer, max_bundle_bytes_per_signer: usize;
    with_max_unsigned_bundles, max_unsigned_bundles: usize;
    with_max_txs_per_bundle, max_txs_per_bundle: usize;
    with_max_blocks_ahead, max_blocks_ahead: u64;
    with_cancellation_retention, cancellation_retention: Duration;
    with_max_cancellations, max_cancellations: usize;
    with_max_cancellations_per_signer, max_cancellations_per_signer: usize;
}

/// Lower bound of each cap in bytes: one transaction of six blobs and its overhead.
pub const MIN_TX_BYTES: usize = 1 << 20;

/// Upper bound of every count in the configuration: 2^32, far above what fits in memory, so that no
/// arithmetic on it overflows.
pub const MAX_COUNT: usize = 1 << 32;

impl PoolConfig {
    /// Checks every field.
    ///
    /// # Errors
    /// Names the first field that is out of bounds, its value and the bound.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let counts = [
            ("max_txs", self.max_txs, 1),
            ("max_tx_bytes", self.max_tx_bytes, MIN_TX_BYTES),
            ("max_external_txs", self.max_external_txs, 1),
            ("max_external_tx_bytes", self.max_external_tx_bytes, MIN_TX_BYTES),
            ("dedupe_window", self.dedupe_window, 1),
            ("recent_blocks", self.recent_blocks, 1),
            ("log_events", self.log_events, 1),
            ("max_bundles", self.max_bundles, 1),
            ("max_bundle_bytes", self.max_bundle_bytes, MIN_TX_BYTES),
            ("max_bundles_per_signer", self.max_bundles_per_signer, 1),
            ("max_bundle_bytes_per_signer", self.max_bundle_bytes_per_signer, MIN_TX_BYTES),
            ("max_unsigned_bundles", self.max_unsigned_bundles, 1),
            ("max_txs_per_bundle", self.max_txs_per_bundle, 1),
            ("max_blocks_ahead", usize::try_from(self.max_blocks_ahead).unwrap_or(usize::MAX), 1),
            ("max_cancellations", self.max_cancellations, 1),
            ("max_cancellations_per_signer", self.max_cancellations_per_signer, 1),
        ];
        for (field, value, least) in counts {
            if value < least {
                return Err(ConfigError::TooSmall { field, value, least });
            }
            if value > MAX_COUNT {
                return Err(ConfigError::TooLarge { field, value, most: MAX_COUNT });
            }
        }
        if self.tx_retention.is_zero() {
            return Err(ConfigError::ZeroDuration { field: "tx_retention" });
        }
        Ok(())
    }
}

/// Memory for each transaction of a remembered block: its hash in the block's list and in the set
/// of mined hashes, its sender in two lists of nonces.
const MINED_TX_BYTES: usize = 256;

/// Most transactions of a block in this calculation: 60 M gas at 21,000 each.
const TXS_PER_BLOCK: usize = 60_000_000 / 21_000;

/// Memory of a replacement key: its state, and its entry in the queue of keys to forget.
const KEY_BYTES: usize = 320;

/// Memory of constant size: the pool itself, and the pages, segments and shards that are being
/// filled.
const FIXED_BYTES: usize = 16 << 20;

impl PoolConfig {
    /// The most memory that a pool with this configuration holds, in bytes. Not included are the
    /// allocator's overhead and orders that a reader keeps.
    ///
    /// It is the sum of
    /// - `max_tx_bytes`, `max_external_tx_bytes`, `max_bundle_bytes` and `log_bytes`: live orders, and
    ///   removed ones that readers may still need, each with
    ///   [`ORDER_OVERHEAD_BYTES`](crate::ORDER_OVERHEAD_BYTES) for its index entries;
    /// - a third of these again: at most a quarter of a page is spent entries;
    /// - orders that wait to be freed: 32 MiB;
    /// - the log's slots: `log_events` and two segments;
    /// - the dedupe window: a table of at most four words and two queues of at most two per order;
    /// - `max_unmine_bytes`, and `recent_blocks` of 2,857 transactions (60 M gas) at 256 bytes;
    /// - replacement keys: `max_cancellations` and one per bundle, 320 bytes each;
    /// - 16 MiB for everything of constant size.
    ///
    /// 1.53 GB by default. A pool of plain transactions reaches its cap on their number long
    /// before: 1,000,000 inserts at the default caps, all but the first 200,000 evicting another,
    /// took 0.44 GB of resident memory.
    pub fn memory_bound_bytes(&self) -> usize {
        let sum = |terms: &[usize]| terms.iter().fold(0_usize, |sum, n| sum.saturating_add(*n));
        let orders = sum(&[
            self.max_tx_bytes,
            self.max_external_tx_bytes,
            self.max_bundle_bytes,
            self.log_bytes,
        ]);
        let window_slots = self.dedupe_window.saturating_mul(2).checked_next_power_of_two();
        let keys = self.max_cancellations.saturating_add(self.max_bundles);
        sum(&[
            orders,
            orders / 3,
            MAX_GARBAGE_BYTES,
            self.log_events.saturating_add(2 * SEGMENT_EVENTS).saturating_mul(SLOT_BYTES),
            window_slots.map_or(usize::MAX, |slots| slots.saturating_mul(8)),
            self.dedupe_window.saturating_mul((2 + 4) * 8),
            self.max_unmine_bytes,
            self.recent_blocks.saturating_mul(TXS_PER_BLOCK * MINED_TX_BYTES),
            keys.saturating_mul(KEY_BYTES),
            FIXED_BYTES,
        ])
    }
}
