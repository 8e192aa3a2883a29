//! The pool's options. Each default stands here once, with its arithmetic.

use std::time::Duration;

use crate::error::ConfigError;

/// Default of [`PoolConfig::max_txs`]: 2,000 transactions/s x 60 s of retention = 120,000, and two
/// thirds on top for bursts.
pub const DEFAULT_MAX_TXS: usize = 200_000;

/// Default of [`PoolConfig::max_tx_bytes`]: 200,000 transactions of 1.6 kB (contents and overhead)
/// are 320 MB; the rest is room for about 260 transactions of six blobs (0.8 MB each).
pub const DEFAULT_MAX_TX_BYTES: usize = 512 << 20;

/// Default of [`PoolConfig::max_external_txs`]: 300 raw transactions/s x 60 s of retention. Half of
/// this is for callers. One caller may hold a sixteenth of that half, 9/s. Public RPC endpoints for
/// private transactions receive a few a second.
pub const DEFAULT_MAX_EXTERNAL_TXS: usize = 18_000;

/// Default of [`PoolConfig::max_external_tx_bytes`]: 18,000 transactions of 1.6 kB are 29 MB; the
/// rest is room for about 40 transactions of six blobs.
pub const DEFAULT_MAX_EXTERNAL_TX_BYTES: usize = 64 << 20;

/// Default of [`PoolConfig::tx_retention`]: five slots of 12 s. A transaction that no node lists
/// and that no builder included for five blocks is unlikely to be wanted.
pub const DEFAULT_TX_RETENTION: Duration = Duration::from_secs(60);

/// Default of [`PoolConfig::log_events`]: 2,000 arrivals/s and as many removals are 4,000 events/s,
/// so 2^18 events are 65 s, five slots.
pub const DEFAULT_LOG_EVENTS: usize = 1 << 18;

/// Default of [`PoolConfig::log_bytes`]: 20 s of removed plain transactions at 1.6 kB and 2,000/s,
/// more than a slot. Memory is used only for removals that the slowest subscription has not read.
pub const DEFAULT_LOG_BYTES: usize = 64 << 20;

/// Default of [`PoolConfig::max_bundles`]: 500 bundles/s, three blocks of 12 s ahead, are 18,000.
pub const DEFAULT_MAX_BUNDLES: usize = 20_000;

/// Default of [`PoolConfig::max_bundle_bytes`]: 20,000 bundles of three plain transactions take
/// about 5 kB each, 100 MB; the rest is room for about 190 transactions of six blobs in bundles.
pub const DEFAULT_MAX_BUNDLE_BYTES: usize = 256 << 20;

/// Default of [`PoolConfig::max_cancellations`]: 500/s for 60 s are 30,000, doubled and rounded up
/// to a power of two. At about 300 bytes each, they take 20 MB.
pub const DEFAULT_MAX_CANCELLATIONS: usize = 1 << 16;

/// The most transactions in a bundle, and the most entries of each of its lists of hashes. Bundles
/// seen on mainnet have a handful. A block of 60 M gas has room for 2,857 of the smallest
/// transactions, and no searcher fills a thirtieth of that.
pub const MAX_TXS_PER_BUNDLE: usize = 100;

/// The most blocks by which a bundle's block, or the last block of a private transaction, may be
/// ahead of the head: two epochs, 12.8 minutes.
pub const MAX_BLOCKS_AHEAD: u64 = 64;

/// How long a replacement key without a pooled bundle is remembered (its nonce, whether it was
/// cancelled, and whether permanently): five slots of 12 s, longer than any message is delayed.
pub const CANCELLATION_RETENTION: Duration = Duration::from_secs(60);

/// The caps of an [`OrderPool`](crate::OrderPool).
///
/// Its operator raises them for more traffic on a larger machine, and lowers them for less memory:
/// [`Self::memory_bound_bytes`] says what they cost. The share of one holder is a fixed part of
/// each cap.
///
/// Make one with [`Self::default`] and then set its fields: the struct gets more fields in
/// later versions.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct PoolConfig {
    /// Maximum number of pooled transactions that the node has announced. Default
    /// [`DEFAULT_MAX_TXS`]; at least 1. At the cap, the worst-paying one is evicted (counted by
    /// `order_pool_evicted_total`).
    ///
    /// The pool remembers twice this number of accepted orders, and at least 1,048,576, so that
    /// none is accepted a second time. Raise `max_txs` to the size of the node's pool if that is
    /// larger than 500,000.
    pub max_txs: usize,
    /// Maximum bytes of these transactions, by [`Order::size_bytes`](crate::Order::size_bytes).
    /// Default [`DEFAULT_MAX_TX_BYTES`]; at least 1 MiB (one transaction of six blobs).
    pub max_tx_bytes: usize,
    /// Maximum number of pooled raw transactions that external callers sent and the node has not
    /// announced. Private transactions have a separate cap of the same size. Default
    /// [`DEFAULT_MAX_EXTERNAL_TXS`]; at least 1.
    ///
    /// These caps are separate from [`max_txs`](Self::max_txs), so that a transaction that promises
    /// a high fee evicts nothing that the node announced. They are divided among the holders like
    /// that of bundles. At a cap, the holder that has the most transactions loses one: the
    /// worst-paying one of the sender of which it has the most (`order_pool_evicted_total`). One
    /// holder may have 16 private transactions of a sender.
    pub max_external_txs: usize,
    /// Maximum bytes of these raw transactions, and separately of the private ones. Default
    /// [`DEFAULT_MAX_EXTERNAL_TX_BYTES`]; at least 1 MiB. As with bundles, sixteen callers need 32
    /// MiB.
    pub max_external_tx_bytes: usize,
    /// How long a transaction that no node lists
    /// ([`Transaction::listed`](crate::Transaction::listed)) is kept. A private transaction is kept
    /// until its last block instead. Default [`DEFAULT_TX_RETENTION`]; above zero. Removals are
    /// counted by `order_pool_expired_total`.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub tx_retention: Duration,
    /// The number of events that the log holds, rounded up to a whole segment of 256: how far a
    /// reader may fall behind. Default [`DEFAULT_LOG_EVENTS`]; at least 1.
    pub log_events: usize,
    /// Maximum bytes of removed orders that the log holds for slow readers. Default
    /// [`DEFAULT_LOG_BYTES`]. Above it, the oldest events are dropped from the log; readers that
    /// miss them count `order_pool_missed_events_total`.
    pub log_bytes: usize,
    /// Maximum number of pooled bundles. Default [`DEFAULT_MAX_BUNDLES`]; at least 1.
    ///
    /// One half is for the host and the signers that it knows; each signer may hold a tenth of the
    /// cap. The other half is for callers; each may hold a thirty-second of the cap
    /// ([`Holder`](crate::Holder)). At a cap, the holder that has the most bundles loses one: of
    /// the signer of which it has the most, the one for the latest block
    /// (`order_pool_evicted_total`). A bundle is never evicted for one of a later block: then the
    /// new one is refused (`order_pool_rejected_total`).
    pub max_bundles: usize,
    /// Maximum bytes of bundles. Default [`DEFAULT_MAX_BUNDLE_BYTES`]; at least 1 MiB. They are
    /// divided in the same way, but each holder may always have 1 MiB. So with less than 32 MiB,
    /// fewer than sixteen callers can fill their half, and then the bundles of others are refused.
    pub max_bundle_bytes: usize,
    /// Maximum number of replacement keys without a pooled bundle that are remembered, for
    /// [`CANCELLATION_RETENTION`]. Default [`DEFAULT_MAX_CANCELLATIONS`]; at least 1. They are
    /// divided in the same way. At a cap, the key that has been remembered for the longest time is
    /// forgotten (`order_pool_keys_forgotten_total`).
    pub max_cancellations: usize,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            max_txs: DEFAULT_MAX_TXS,
            max_tx_bytes: DEFAULT_MAX_TX_BYTES,
            max_external_txs: DEFAULT_MAX_EXTERNAL_TXS,
            max_external_tx_bytes: DEFAULT_MAX_EXTERNAL_TX_BYTES,
            tx_retention: DEFAULT_TX_RETENTION,
            log_events: DEFAULT_LOG_EVENTS,
            log_bytes: DEFAULT_LOG_BYTES,
            max_bundles: DEFAULT_MAX_BUNDLES,
            max_bundle_bytes: DEFAULT_MAX_BUNDLE_BYTES,
            max_cancellations: DEFAULT_MAX_CANCELLATIONS,
        }
    }
}

/// Lower bound of each cap in bytes: one transaction of six blobs and its overhead.
pub const MIN_TX_BYTES: usize = 1 << 20;

/// Upper bound of every count in the configuration: 2^32 is far above what fits in memory, and no
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
            ("log_events", self.log_events, 1),
            ("max_bundles", self.max_bundles, 1),
            ("max_bundle_bytes", self.max_bundle_bytes, MIN_TX_BYTES),
            ("max_cancellations", self.max_cancellations, 1),
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
