//! Decides every bound of the pool: its options, and the numbers that follow from them.

use std::time::Duration;

use super::usage::Size;
use crate::{
    config::{CANCELLATION_RETENTION, MAX_BLOCKS_AHEAD, MIN_TX_BYTES, PoolConfig},
    holder::{Holder, Network},
    read::{MAX_GARBAGE_BYTES, SEGMENT_EVENTS, SLOT_BYTES},
};

/// The least number of accepted orders that are remembered. The largest pool seen on a node under
/// load held 300,000 transactions (geth with raised limits); twice that is 600,000, rounded up to a
/// power of two. Each order takes 24 bytes (16 in the table at half load, 8 in the queue), 24 MiB
/// in all, and 16 more if it was forgotten early.
const MIN_DEDUPE_WINDOW: usize = 1 << 20;

/// The number of blocks that are remembered for late transactions and reorgs: 64 blocks of 12 s are
/// two epochs, after which a block is final (consensus specs, phase 0). A block of 60 M gas holds
/// at most 2,857 transactions of 21,000 gas, so the memory is at most 64 x 2,857 x about 150 bytes
/// = 27 MB, and a tenth of that on mainnet. Fewer blocks are remembered if together they have more
/// than 524,288 transactions.
const RECENT_BLOCKS: usize = 64;

/// The most bytes of orders that blocks removed and that are kept so that a reorg can put them
/// back. The oldest are dropped first. The transactions of a block of 21 blobs (the most that a
/// blob-parameter-only fork has set so far) take 2.8 MB and its plain ones about 0.5 MB, so the
/// part for mined orders covers a reorg of 12 blocks. None deeper than 7 has happened since the
/// merge.
pub(super) const MAX_REORG_BYTES: usize = 64 << 20;

/// The part of [`MAX_REORG_BYTES`] for orders that blocks invalidated (bundles, and transactions
/// with used nonces): as much for callers as for the node and known holders.
pub(super) const MAX_INVALIDATED_BYTES: usize = 12 << 20;

/// A caller of whom only the address is known may hold a sixteenth of the callers' half: 625 of
/// 10,000 bundles, 17/s three blocks ahead. Fifteen addresses cannot fill the half.
const CALLERS: usize = 16;

/// A signer that the host knows may hold a fifth of the known signers' half: 2,000 of 10,000
/// bundles, 50/s three blocks ahead at 12 s each.
const KNOWN_SIGNERS: usize = 5;

/// The most private transactions of one sender that one holder may have pooled: as many as geth
/// keeps of an account before it drops some (`txpool.accountslots`).
const PRIVATE_PER_SENDER: usize = 16;

/// The most cancellations of private transactions that are remembered, at about 300 bytes each: 5
/// MB. A caller of whom only the address is known may have 512 of them a minute, 8/s.
const MAX_PRIVATE_CANCELLATIONS: usize = 1 << 14;

/// An IPv6 /48 has the shares of four callers. A provider may give a /56 to one customer and a /48
/// to the next, so a /48 is a few subscribers at most, or a single one with 256 callers' addresses.
const CALLERS_PER_SITE: usize = 4;

/// A front has the shares of eight callers for all signers that the host does not know. That is
/// half of the callers' half: keys cost nothing, and direct callers keep the rest.
const CALLERS_PER_FRONT: usize = 8;

/// Returns the number of callers' shares that all holders of a network have together.
pub(super) const fn callers_per_network(network: Network) -> usize {
    match network {
        Network::Site(_) => CALLERS_PER_SITE,
        Network::Front(_) => CALLERS_PER_FRONT,
    }
}

/// The most claims on the orders of one half, as a multiple of its orders. Most orders have one
/// sender, and each further claim costs about 300 bytes. Above it the holder with the most loses a
/// claim.
const CLAIMS_PER_ORDER: usize = 4;

/// The shares of a cap, by holder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShareCaps {
    /// The share of the host and the signers that it knows. Callers have as much.
    pub(crate) half: Size,
    pub(crate) per_signer: Size,
    pub(crate) per_caller: Size,
    /// The share of all callers of one IPv6 /48.
    pub(crate) per_site: Size,
    /// The share of all signers behind one front that the host does not know.
    pub(crate) per_front: Size,
    /// The most claims in a half.
    pub(crate) claims: usize,
}

impl ShareCaps {
    /// Divides a cap. Each share has room for one order of six blobs.
    pub(crate) fn new(count: usize, bytes: usize) -> Self {
        let part = |parts: usize| Size {
            count: (count / parts).max(1),
            bytes: (bytes / parts).max(MIN_TX_BYTES),
        };
        let (half, per_caller) = (part(2), part(2 * CALLERS));
        let callers = |callers: usize| Size {
            count: per_caller.count.saturating_mul(callers).min(half.count),
            bytes: per_caller.bytes.saturating_mul(callers).min(half.bytes),
        };
        Self {
            half,
            per_signer: part(2 * KNOWN_SIGNERS),
            per_caller,
            per_site: callers(CALLERS_PER_SITE),
            per_front: callers(CALLERS_PER_FRONT),
            claims: half.count.saturating_mul(CLAIMS_PER_ORDER),
        }
    }

    /// Returns the share of one holder.
    pub(crate) const fn for_holder(&self, holder: &Holder) -> Size {
        match holder {
            Holder::Host => self.half,
            Holder::Signer(_) => self.per_signer,
            Holder::Caller(_) | Holder::Forwarded { .. } => self.per_caller,
        }
    }

    /// Returns the share of all holders of a network. Holders without a network have no such limit.
    pub(crate) const fn for_network(&self, network: Option<Network>) -> Size {
        match network {
            None => Size::UNLIMITED,
            Some(Network::Site(_)) => self.per_site,
            Some(Network::Front(_)) => self.per_front,
        }
    }
}

/// All limits of a pool. A host sets the options, tests may set each limit.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) options: PoolConfig,
    /// The number of accepted orders that are remembered, so that none is accepted a second time
    /// while it is pooled, or after a block or a message of its key removed it.
    pub(crate) dedupe_window: usize,
    pub(crate) recent_blocks: usize,
    pub(crate) bundles: ShareCaps,
    /// The caps on raw transactions, and the same again for private ones.
    pub(crate) external_txs: ShareCaps,
    pub(crate) max_private_per_sender: usize,
    /// The caps on replacement keys without a bundle. Their bytes are not counted.
    pub(crate) keys: ShareCaps,
    pub(crate) private_cancellations: ShareCaps,
    pub(crate) max_blocks_ahead: u64,
    pub(crate) cancellation_retention: Duration,
}

impl From<PoolConfig> for Limits {
    fn from(options: PoolConfig) -> Self {
        let external = ShareCaps::new(options.max_external_txs, options.max_external_tx_bytes);
        Self {
            dedupe_window: options.max_txs.saturating_mul(2).max(MIN_DEDUPE_WINDOW),
            recent_blocks: RECENT_BLOCKS,
            bundles: ShareCaps::new(options.max_bundles, options.max_bundle_bytes),
            external_txs: external,
            max_private_per_sender: PRIVATE_PER_SENDER,
            keys: ShareCaps::new(options.max_cancellations, 0),
            private_cancellations: ShareCaps::new(MAX_PRIVATE_CANCELLATIONS, 0),
            max_blocks_ahead: MAX_BLOCKS_AHEAD,
            cancellation_retention: CANCELLATION_RETENTION,
            options,
        }
    }
}

impl Limits {
    /// Returns how far ahead of the head the block of a pooled order may be. A reorg may lower the
    /// head by all recent blocks.
    pub(crate) const fn max_blocks_kept(&self) -> u64 {
        self.max_blocks_ahead.saturating_add(self.recent_blocks as u64)
    }
}

/// The memory for each transaction of a remembered block: its hash in the block's list and in the
/// set of mined hashes, its sender in two lists of nonces.
const MINED_TX_BYTES: usize = 256;

/// The most transactions of a block in this calculation: 60 M gas at 21,000 each.
const TXS_PER_BLOCK: usize = 60_000_000 / 21_000;

/// The memory of a replacement key: its state, and its entry in the queue of keys to forget.
const KEY_BYTES: usize = 384;

/// The memory of a claim: its entries by holder, network, signer and cost.
const CLAIM_BYTES: usize = 320;

/// The memory of constant size: the pool itself, and the pages, segments and shards that are being
/// filled.
const FIXED_BYTES: usize = 16 << 20;

impl PoolConfig {
    /// Returns the most memory that a pool with this configuration holds, in bytes. The allocator's
    /// overhead and orders that a reader keeps are not included.
    ///
    /// It is the sum of
    /// - `max_tx_bytes`, twice `max_external_tx_bytes`, `max_bundle_bytes` and `log_bytes`: live
    ///   orders, and removed ones that readers may still need, each with
    ///   [`ORDER_OVERHEAD_BYTES`](crate::ORDER_OVERHEAD_BYTES) for its index entries;
    /// - a third of this sum: at most a quarter of a page is entries that nobody needs any more;
    /// - orders that wait to be freed: 32 MiB;
    /// - the log's slots: `log_events` and two segments;
    /// - the dedupe window: a table of at most four words and two queues of at most two words for
    ///   each of the accepted orders that are remembered, which are twice `max_txs` and at least
    ///   1,048,576;
    /// - 64 MiB of orders that blocks removed, and 64 recent blocks of 2,857 transactions (60 M
    ///   gas) at 256 bytes each;
    /// - replacement keys: `max_cancellations` and one for each bundle, and 16,384 cancellations of
    ///   private transactions, 384 bytes each;
    /// - claims: four for each bundle and each external transaction, 320 bytes each;
    /// - 16 MiB for everything of constant size.
    ///
    /// It is 1.7 GB by default. A pool of plain transactions reaches its cap on their number long
    /// before: 1,000,000 inserts at the default caps, all but the first 200,000 of which evicted
    /// another transaction, took 0.44 GB of resident memory.
    pub fn memory_bound_bytes(&self) -> usize {
        let Limits { dedupe_window, recent_blocks, .. } = Limits::from(self.clone());
        let sum = |terms: &[usize]| terms.iter().fold(0_usize, |sum, n| sum.saturating_add(*n));
        let orders = sum(&[
            self.max_tx_bytes,
            // Raw and private transactions.
            self.max_external_tx_bytes.saturating_mul(2),
            self.max_bundle_bytes,
            self.log_bytes,
        ]);
        let window_slots = dedupe_window.saturating_mul(2).checked_next_power_of_two();
        let keys = [self.max_cancellations, self.max_bundles, MAX_PRIVATE_CANCELLATIONS];
        sum(&[
            orders,
            orders / 3,
            MAX_GARBAGE_BYTES,
            self.log_events.saturating_add(2 * SEGMENT_EVENTS).saturating_mul(SLOT_BYTES),
            window_slots.map_or(usize::MAX, |slots| slots.saturating_mul(8)),
            dedupe_window.saturating_mul((2 + 4) * 8),
            MAX_REORG_BYTES,
            recent_blocks.saturating_mul(TXS_PER_BLOCK * MINED_TX_BYTES),
            sum(&keys).saturating_mul(KEY_BYTES),
            // Raw transactions, private transactions and bundles, in two halves each.
            sum(&[self.max_external_txs, self.max_external_txs, self.max_bundles])
                .saturating_mul(CLAIMS_PER_ORDER * CLAIM_BYTES),
            FIXED_BYTES,
        ])
    }
}
