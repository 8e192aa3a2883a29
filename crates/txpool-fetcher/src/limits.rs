//! Sizes and times that no operator needs to change, each with its arithmetic. Tests change some.

use std::time::Duration;

use load_control::Backoff;

/// Capacity, in hashes, of alloy-pubsub's broadcast buffer, in which the announced hashes of a
/// source wait while no fetch slot is free. alloy's own default is 16.
///
/// It holds the announcements of 8 s at 2,000 transactions/s. Worst case in memory: 16,384 × 120
/// bytes = 1.9 MiB for each source; with full announcements, 1,024 objects more. Hashes that
/// overrun the buffer are counted as [`lagged`](crate::Counts::lagged), and fetched by the
/// comparison that follows.
pub const ANNOUNCEMENT_BUFFER: usize = 16_384;

/// The number of fetch slots that deferrable work (backfill, audits, deferred retries) may always
/// hold at once, and at most a quarter of all slots. With three or more sources it is the number of
/// sources, and each source has an equal share, so that a slow one does not hold back the others.
///
/// It is small because live requests wait in the node behind the responses to deferrable ones. Two
/// slots fetch 10,000 transactions in about a second from a node that responds in 0.1 ms. Work for
/// a node that needs long for each response gets more slots, up to half of all, while live fetches
/// leave them idle: see `fetch/slots.rs`.
pub(crate) const DEFERRABLE_SLOTS: usize = 2;

/// The number of retries of a fetch after a time-out or a retryable error response.
pub(crate) const FETCH_RETRIES: u32 = 3;

/// The number of hashes that are remembered, so that a hash that was seen is not fetched again.
///
/// It is at least twice the size of a node's pool: reth's pending limit is 10,000 by default,
/// geth's 5,120 + 1,024, and load tests raise them to 300,000. Worst case in memory: 48 MB, which
/// is 524,288 × 40 bytes × 8/7 (the load factor of the table) × 2 (a table that has just grown).
pub(crate) const SEEN_CAPACITY: usize = 524_288;

/// The number of recent blocks that are remembered: 13 minutes. A hash can be announced after its
/// block: on geth up to 11 ms later, and after a stall some blocks later.
pub(crate) const RECENT_BLOCKS: usize = 64;

/// The age, by the wall clock, above which the head of a node can make the node count as syncing.
/// Five blocks of 12 s: some slots in a row may have no block, and clocks differ by some seconds. A
/// node that is late by less may still list transactions of blocks before the first head.
pub(crate) const MAX_HEAD_AGE: Duration = Duration::from_secs(60);

/// Sizes and times that no operator needs to change.
///
/// The type is public only with the feature `test-limits`: the tests of this workspace start
/// fetchers with small buffers and short times through `Fetcher::start_with`.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "test-limits"), expect(unreachable_pub, reason = "it is for tests"))]
pub struct Limits {
    /// Capacity of the announcement buffer in hashes, by default [`ANNOUNCEMENT_BUFFER`].
    pub announcement_buffer: usize,
    /// The number of slots that deferrable work may hold, in place of `DEFERRABLE_SLOTS`.
    pub deferrable_slots: Option<usize>,
    /// The number of request connections that carry deferrable fetches too, by default 1. The
    /// others carry live fetches alone.
    pub deferrable_connections: usize,
    /// Longest WebSocket message, and the longest full block that is read over any transport; by
    /// default 32 MiB. A longer message closes its connection, and a transaction whose response is
    /// longer is not requested again for a while (`mempool_fetcher_harmful_total`).
    ///
    /// The largest regular response is a full block: one of 2,000 transactions is about 2 MB, and a
    /// six-blob transaction 1.6 MB, while reth permits responses of 160 MB. The limit does not
    /// apply to the list of the pool: over IPC that is read in pieces, and over WebSocket its
    /// connection has a limit of its own, 256 MiB or this one, whichever is larger. alloy's IPC
    /// transport has no limit.
    pub max_frame_bytes: usize,
    /// Time-out of one request for a transaction, by default 2 s: more than 100 times the slowest
    /// response of a healthy node (17 ms, for a six-blob transaction behind others on geth).
    pub fetch_timeout: Duration,
    /// Delay between two attempts of a fetch. After a busy response (-32005, -32009), the first
    /// three steps of the backoff are skipped: the delays are then at most 160, 320 and 500 ms, and
    /// at least half of that.
    pub retry_backoff: Backoff,
    /// Time-out of any other call, such as for a block or for the status of the pool; by default 10
    /// s.
    pub call_timeout: Duration,
    /// Time in which the node has to list its pool, by default 60 s. anvil needs 12 s for 60,000
    /// transactions.
    pub snapshot_timeout: Duration,
    /// Time-out of a comparison that a caller requested, by default 120 s: 60 s for the list, and
    /// as long for the fetches of missing transactions.
    pub audit_timeout: Duration,
    /// Delay between two attempts to connect.
    pub reconnect: Backoff,
    /// How long a connection may be silent before it is pinged with `eth_blockNumber`, by default 2
    /// s. It is also the interval at which a node is asked for its block number and `eth_syncing`.
    pub ping_interval: Duration,
    /// How long after a ping a connection is closed if no message comes, by default 10 s. geth can
    /// freeze for 3 to 8 s when another subscriber stalls, and then recovers; after a write to a
    /// connection has blocked for 10 s, geth never writes to that connection again. While the node
    /// lists its pool it has extra time: four times as long as its latest list took, at least this
    /// value, at most `snapshot_timeout`, and `snapshot_timeout` before its first list.
    pub ping_timeout: Duration,
    /// The number of requests without a response after which a connection is opened again, by
    /// default 4,096. alloy keeps each as long as the connection lives, in about 450 bytes: 2 MB.
    pub max_unanswered: usize,
    /// With full announcements: how long after its hash an object may come before the transaction
    /// is requested, by default 25 ms. A fifth of that, once the object of a later hash has come.
    pub object_wait: Duration,
    /// How long an audit waits for announcements that are under way before a hash counts as
    /// missing, by default 200 ms.
    pub audit_settle: Duration,
    /// How long another source's branch must have been higher than the leader's before the chain
    /// changes to it, by default 15 s. It is longer than a block of 12 s, so that a node that
    /// announces each head keeps the lead.
    pub lead_timeout: Duration,
    /// The longest time for which backfill, audit and retry fetches wait for the load to fall, by
    /// default 5 s: less than half of the 12 s between two blocks, so that a missed transaction can
    /// still enter the next block.
    pub deferral_max_age: Duration,
}

impl Limits {
    /// How long a fetch waits for a response after its request timed out, and the longest time-out
    /// of a request to a node that is always late: 12 s by default, the time of a block.
    pub(crate) fn late_answer_timeout(&self) -> Duration {
        self.fetch_timeout * 6
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            announcement_buffer: ANNOUNCEMENT_BUFFER,
            deferrable_slots: None,
            deferrable_connections: 1,
            max_frame_bytes: 32 * 1024 * 1024,
            fetch_timeout: Duration::from_secs(2),
            retry_backoff: Backoff {
                base: Duration::from_millis(20),
                cap: Duration::from_millis(500),
            },
            call_timeout: Duration::from_secs(10),
            snapshot_timeout: Duration::from_secs(60),
            audit_timeout: Duration::from_secs(120),
            reconnect: Backoff { base: Duration::from_millis(50), cap: Duration::from_secs(1) },
            ping_interval: Duration::from_secs(2),
            ping_timeout: Duration::from_secs(10),
            max_unanswered: 4_096,
            object_wait: Duration::from_millis(25),
            audit_settle: Duration::from_millis(200),
            lead_timeout: Duration::from_secs(15),
            deferral_max_age: Duration::from_secs(5),
        }
    }
}
