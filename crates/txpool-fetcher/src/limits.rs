//! What nobody has a reason to turn: each value with its arithmetic. Tests turn some of them.

use std::time::Duration;

use load_control::Backoff;

/// Places of alloy-pubsub's broadcast buffer in which the announced hashes of a source wait while no fetch slot
/// is free. alloy's own default is 16.
///
/// They hold the announcements of 8 s at 2000 transactions/s. Worst case in memory: 16,384 × 120 bytes =
/// 1.9 MiB for each source; with full announcements, 1,024 objects more. Hashes that overrun the buffer are counted as
/// [`lagged`](crate::Counts::lagged), and fetched by the comparison that follows.
pub const ANNOUNCEMENT_BUFFER: usize = 16_384;

/// How many of the fetch slots deferrable work (backfill, audits, deferred retries) may hold at
/// once in any case, if that is at most a quarter of them. With three sources or more they are as many
/// as the sources, each of which has an equal share, so that one that responds slowly holds back no
/// other. They are few because live requests wait in the node behind the responses to deferrable ones.
/// Two still fetch 10,000 transactions in about a second from a node that responds in 0.1 ms. A node
/// that takes long for each response gets more, up to half of the slots, while live fetches leave them
/// idle: `fetch/slots.rs`.
pub(crate) const DEFERRABLE_SLOTS: usize = 2;

/// How often a fetch is retried after a time-out or a retryable error response.
pub(crate) const FETCH_RETRIES: u32 = 3;

/// How many hashes are remembered, so that a hash that was seen is not fetched again.
///
/// At least twice a node's pool: reth's pending limit is 10,000 by default, geth's 5,120 + 1,024,
/// and load tests raise them to 300,000. Worst case in memory: 40 bytes × 8/7 × 2 = 48 MB.
pub(crate) const SEEN_CAPACITY: usize = 524_288;

/// Blocks that are remembered. On geth, announcements came up to 11 ms after their block, and after
/// a stall up to some blocks later; 64 blocks are 13 minutes.
pub(crate) const RECENT_BLOCKS: usize = 64;

/// How old the head of a node may be, by the wall clock, before the node can count as syncing. Five
/// blocks of 12 s: some in a row may have no proposer, and clocks differ by some seconds. What blocks of so long
/// before the first head contain, a node may still list.
pub(crate) const MAX_HEAD_AGE: Duration = Duration::from_secs(60);

/// Sizes and times that no operator turns.
///
/// It is public only with the feature `test-limits`: tests of this workspace start a fetcher with
/// small buffers and short times by `Fetcher::start_with`.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "test-limits"), expect(unreachable_pub, reason = "it is for tests"))]
pub struct Limits {
    /// [`ANNOUNCEMENT_BUFFER`].
    pub announcement_buffer: usize,
    /// How many of the slots deferrable work may hold, if not as many as by `DEFERRABLE_SLOTS`.
    pub deferrable_slots: Option<usize>,
    /// How many of the request connections carry deferrable fetches too. The others stay free.
    pub deferrable_connections: usize,
    /// Longest WebSocket message. With a longer one the connection is closed; a transaction whose response is
    /// longer is given up for a while (`mempool_fetcher_harmful_total`). Also the longest full block that is
    /// read, over each transport.
    ///
    /// The largest regular value is a full block: reth caps responses at 160 MB, but a block of
    /// 2,000 transactions is about 2 MB and a six-blob transaction 1.6 MB. This does not bound the
    /// pool's content: over IPC it is not read as one value, and over WebSocket its connection has a
    /// separate limit, 256 MiB or this one, whichever is larger. alloy's IPC transport has no limit.
    pub max_frame_bytes: usize,
    /// Time for the response to one request for a transaction: more than 100 times the slowest one
    /// measured on a healthy node (17 ms, for a six-blob transaction behind others on geth).
    pub fetch_timeout: Duration,
    /// Delay between two attempts of a fetch. After a time-out or a busy response (-32005, -32009),
    /// the first three steps are skipped: at most 160, 320 and 500 ms, and at least half of that.
    pub retry_backoff: Backoff,
    /// Time for any other call (a block, the status of the pool).
    pub call_timeout: Duration,
    /// Time for the node to list its pool; anvil needs 12 s for 60,000 transactions.
    pub snapshot_timeout: Duration,
    /// Time for a comparison that a caller requested: for a list, and as long for what is missing.
    pub audit_timeout: Duration,
    /// Delay between two attempts to connect.
    pub reconnect: Backoff,
    /// How long a connection may be silent before it is pinged, by a request for the block number. Also
    /// how often a node is asked how far it is.
    pub ping_interval: Duration,
    /// A connection is closed after this long without a response to a ping or any other message.
    /// geth can freeze for 3 to 8 s when another subscriber stalls, and then recovers. After a
    /// write to a connection has blocked for 10 s, it never writes to it again. While the node
    /// lists its pool, it may be silent for the same time again, for four times as long as the list
    /// before took, and for `snapshot_timeout` if there was none.
    pub ping_timeout: Duration,
    /// With full objects: how long after its hash an object may come before the transaction is
    /// requested. A fifth of it, while the objects of later hashes come.
    pub object_wait: Duration,
    /// How long an audit waits for announcements under way before a hash counts as missing.
    pub audit_settle: Duration,
    /// How long another source's branch must have been higher than what the leader told before the
    /// chain changes to it. Longer than 12 s, a block: a node that tells each head keeps the lead.
    pub lead_timeout: Duration,
    /// The longest that backfill, audit and retry fetches wait for the load to fall: less than half
    /// of the 12 s between two blocks, so that a missed transaction can still enter the next one.
    pub deferral_max_age: Duration,
}

impl Limits {
    /// How long an answer that is late is waited for, and the longest time-out of a request to a node
    /// that is always late: 12 s, the time of a block.
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
            object_wait: Duration::from_millis(25),
            audit_settle: Duration::from_millis(200),
            lead_timeout: Duration::from_secs(15),
            deferral_max_age: Duration::from_secs(5),
        }
    }
}
