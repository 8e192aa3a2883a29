//! The configuration, with the arithmetic behind each default.

use std::{fmt, path::PathBuf, str::FromStr, sync::Arc, time::Duration};

use load_control::{Gate, LoadMonitor};

use crate::{
    error::ConfigError,
    in_process_pool::{InProcess, InProcessPool},
    pinning,
};

/// Slots of the broadcast buffer between the subscription connection and the announcement reader.
///
/// They hold the announcements of 8 s at 2000 transactions/s. alloy's own default is 16, which a
/// burst of one block's worth of announcements overruns. Worst case in memory: 16,384 × (66
/// characters of hash + about 60 bytes of slot) = 2 MiB for each source.
pub const DEFAULT_ANNOUNCEMENT_BUFFER: usize = 16_384;

/// Fetches in flight at once, over all sources.
///
/// By Little's law 64 slots sustain 2000 transactions/s up to a response time of 32 ms.
pub const DEFAULT_FETCH_SLOTS: usize = 64;

/// How many of the slots deferrable work (backfill, audits, deferred retries) may hold at once.
/// They are few because live requests wait in the node behind the responses to deferrable ones. Two
/// still fetch 10,000 transactions in about a second from a node that responds in 0.1 ms. More
/// slots make this faster with a slower node (10 s at 2 ms) and live fetches slower.
pub const DEFAULT_DEFERRABLE_SLOTS: usize = 2;

/// Bytes of responses that may be in flight before further fetches wait.
///
/// 64 slots of six-blob responses (1.6 MB of JSON each) would be 100 MB; this allows 40 of them. The size of
/// a response is not known before it arrives, so a fetch reserves the running mean of recent responses. The
/// overshoot is bounded by slots × [`DEFAULT_MAX_FRAME_BYTES`].
pub const DEFAULT_MAX_BYTES_IN_FLIGHT: usize = 64 * 1024 * 1024;

/// Longest JSON value read from a connection.
///
/// The largest regular value is a full block: reth caps responses at 160 MB, but a block of 2,000
/// transactions is about 2 MB and a six-blob transaction 1.6 MB. This does not bound the pool's content: over
/// IPC it is not read as one value, and over WebSocket its connection has a separate limit, 256 MiB or this
/// one, whichever is larger.
pub const DEFAULT_MAX_FRAME_BYTES: usize = 32 * 1024 * 1024;

/// Time for the response to one request for a transaction: more than 100 times the slowest one
/// measured on a healthy node (17 ms, for a six-blob transaction behind others on geth).
pub const DEFAULT_FETCH_TIMEOUT: Duration = Duration::from_secs(2);

/// How often a fetch is retried after a time-out or a retryable error response.
pub const DEFAULT_FETCH_RETRIES: u32 = 3;

/// Time for any other call (a block, a ping on an idle connection).
pub const DEFAULT_CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for the node to list its pool; anvil needs 12 s for 60,000 transactions.
pub const DEFAULT_SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(60);

/// How many hashes are remembered, so that a hash that was seen is not fetched again.
///
/// At least twice a node's pool: reth's pending limit is 10,000 by default, geth's 5,120 + 1,024,
/// and load tests raise them to 300,000. Worst case in memory: 40 bytes × 8/7 × 2 = 48 MB.
pub const DEFAULT_SEEN_CAPACITY: usize = 524_288;

/// How often each connection is pinged, by a request for the block number.
pub const DEFAULT_PING_INTERVAL: Duration = Duration::from_secs(2);

/// A connection is closed after this long without a response to a ping or any other message.
/// geth can freeze for 3 to 8 s when another subscriber stalls, and then recovers. After a write to a
/// connection has blocked for 10 s, it never writes to that connection again. So 10 s distinguish the two.
/// write it never writes to that connection again. So 10 s distinguish the two.
pub const DEFAULT_PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Time between two audits, which compare the node's pool with ours; ± 10 % of jitter.
pub const DEFAULT_AUDIT_INTERVAL: Duration = Duration::from_secs(60);

/// How long an audit waits for announcements that are still on their way before a hash counts as missing.
pub const DEFAULT_AUDIT_SETTLE: Duration = Duration::from_millis(200);

/// The longest that backfill, audit and retry fetches wait for the load to fall. It is less than half of the
/// 12 s between two blocks, so that a missed transaction can still enter the next block.
pub const DEFAULT_DEFERRAL_MAX_AGE: Duration = Duration::from_secs(5);

/// Upper bound of [`FetcherConfig::fetch_slots`].
pub const MAX_FETCH_SLOTS: usize = 4096;

/// The most transactions that a [`TransactionStream`](crate::TransactionStream) may hold: 30 s at
/// 2,000/s, and about 100 MB of plain ones.
pub const MAX_STREAM_BUFFER: usize = 1 << 16;

/// Upper bound of [`FetcherConfig::announcement_buffer`]: 2^20 slots, about 128 MiB.
pub const MAX_ANNOUNCEMENT_BUFFER: usize = 1 << 20;

/// How a source is reached.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Endpoint {
    /// The path of a Unix socket.
    Ipc(PathBuf),
    /// A WebSocket URL, `ws://host:port/…`. TLS is not supported: a node that a builder trusts is
    /// on its own host or network.
    Ws(String),
    /// A pool in this process, which announces hashes.
    InProcess(InProcess),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ipc(path) => path.display().fmt(f),
            Self::Ws(url) => url.fmt(f),
            Self::InProcess(pool) => pool.fmt(f),
        }
    }
}

impl FromStr for Endpoint {
    type Err = ConfigError;

    /// Parses `ws://…` as a WebSocket URL, and a text without a scheme as a path.
    ///
    /// # Errors
    /// [`ConfigError::EmptyEndpoint`]; [`ConfigError::UnknownScheme`] for any other URL.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Err(ConfigError::EmptyEndpoint);
        }
        if text.starts_with("ws://") {
            return Ok(Self::Ws(text.to_owned()));
        }
        match text.split_once("://") {
            Some((scheme, _)) => Err(ConfigError::UnknownScheme { scheme: scheme.to_owned() }),
            None => Ok(Self::Ipc(PathBuf::from(text))),
        }
    }
}

/// What happens when no source can be reached at start-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StartPolicy {
    /// [`Fetcher::start`](crate::Fetcher::start) fails with the reason.
    #[default]
    RequireNode,
    /// It returns at once, and the sources keep connecting.
    WaitForNode,
}

/// What a node announces for a pending transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Announcements {
    /// Its hash, with which the transaction is then requested.
    #[default]
    Hashes,
    /// The transaction itself, as an object that is encoded again and must have the announced hash. Only blob
    /// transactions (for their sidecars), types that this crate does not know, and objects above 16 KiB are
    /// requested. It saves a request for each transaction and, with a trusted sender, the recovery of the
    /// sender.
    ///
    /// An object is about five times as long as a hash. geth's socket holds about 280 announcements of
    /// hashes, so it fills five times sooner when it is not read, and then geth blocks all its subscribers.
    /// The thread `mempool-io` does nothing but read it; on a machine whose cores are all busy with other
    /// work, use hashes.
    Full,
}

/// Which part of the node's pool is fetched at start-up and after a gap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backfill {
    /// Nothing. Transactions that were pending before the subscription stay unknown.
    Off,
    /// The pending transactions.
    #[default]
    Pending,
    /// The pending and the queued transactions; the queued ones wait for an earlier nonce.
    PendingAndQueued,
}

/// Capped exponential backoff with jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The longest first delay; the limit doubles with each attempt.
    pub base: Duration,
    /// The longest delay of any attempt.
    pub cap: Duration,
}

impl Backoff {
    /// The delay before attempt `attempt` (the first retry is 0), for a `jitter` in 0..1.
    ///
    /// Half of it is fixed and half random. With full jitter a retry could follow at once; without
    /// jitter all clients of a restarted node would reconnect in the same millisecond.
    #[must_use]
    pub fn delay(&self, attempt: u32, jitter: f64) -> Duration {
        let grown = self.base.saturating_mul(1u32.checked_shl(attempt).unwrap_or(u32::MAX));
        let capped = grown.min(self.cap);
        capped / 2 + (capped / 2).mul_f64(jitter.clamp(0.0, 1.0))
    }
}

/// The longest duration that is accepted, a year: adding some of them to an `Instant` must not overflow.
const MAX_DURATION: Duration = Duration::from_hours(365 * 24);

/// The configuration of a [`Fetcher`](crate::Fetcher). Every field has a default except the sources, which
/// [`FetcherConfig::new`] takes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FetcherConfig {
    /// The nodes, and the pools in this process: 1 to 16, without duplicates.
    pub sources: Vec<Endpoint>,
    /// Slots between the socket and the announcement reader for each source, a power of two, 16 to 2^20.
    /// Announcements that overrun them are counted as `lagged`, and fetched by the comparison that follows.
    pub announcement_buffer: usize,
    /// What the nodes announce: hashes, or whole transactions.
    pub announcements: Announcements,
    /// Whether the field `from` of an announced transaction is used as its sender when
    /// [`announcements`](Self::announcements) are [`Full`](Announcements::Full). The hash does not cover that
    /// field, and a trusted sender's signature is not verified: a node that lies, or anyone who can write to
    /// the connection, then chooses the sender, and with it the nonce, balance and replacement rules that
    /// apply to the transaction. `None` (default): IPC sources are trusted, since only local processes with
    /// access to the socket's file can answer there, and WebSocket sources are not. Without trust the sender
    /// is recovered (34 us for each transaction). The sender of a transaction that was requested by hash is
    /// always recovered.
    pub trust_node_sender: Option<bool>,
    /// Whether the KZG proofs of blob transactions are verified, which costs some milliseconds of CPU for
    /// each blob. The commitments are compared with the versioned hashes in any case.
    pub verify_blob_proofs: bool,
    /// Whether the nonces of a block's senders are read. They need the full block: some megabytes of JSON,
    /// over IPC on a connection of its own, over WebSocket on the one for calls. Without them, a transaction
    /// whose nonce was used by a private transaction counts as pending until the node drops it. They are not
    /// read either for a sink that does not [want](crate::TransactionSink::wants_nonces) them.
    pub block_nonces: bool,
    /// Fetches in flight at once, 1 to 4096.
    pub fetch_slots: usize,
    /// How many of the slots deferrable work may hold, 1 to `fetch_slots`.
    pub deferrable_slots: usize,
    /// Whether the limit of requests in flight at one node adapts. It is halved, down to
    /// [`ADAPTIVE_FLOOR`](crate::ADAPTIVE_FLOOR), on a sign of overload (-32005, -32009, a growing share of
    /// time-outs), and rises by one for each round of responses while at least half of it is in use. It is
    /// never above `fetch_slots`, and exported as `mempool_fetcher_fetch_limit`.
    pub adaptive_limit: bool,
    /// Bytes of responses in flight before further fetches wait, at least 1 MiB.
    pub max_bytes_in_flight: usize,
    /// Longest JSON value read from a connection, 1 MiB to 1 GiB. A longer transaction that comes over
    /// IPC is dropped and counts as malformed (`mempool_fetcher_oversized_answers_total`); with any
    /// other longer value the connection is closed (`mempool_fetcher_reconnects_total` with reason
    /// `oversized`).
    pub max_frame_bytes: usize,
    /// Time for the response to one request for a transaction, at least 1 ms.
    pub fetch_timeout: Duration,
    /// How often a fetch is retried after a time-out or a retryable error response, at most 16.
    pub fetch_retries: u32,
    /// Delay between two attempts of a fetch, `base` at least 1 ms. After a time-out, and when the node
    /// answers that it is busy (-32005, -32009), the first three steps are skipped: the delays are then by
    /// default at most 160, 320 and 500 ms, and at least half of that.
    pub retry_backoff: Backoff,
    /// Time for the response to any other call, at least 1 ms.
    pub call_timeout: Duration,
    /// Time for the node to list its pool, at least 1 ms.
    pub snapshot_timeout: Duration,
    /// Request connections for each source, 1 to 16, each with a thread that reads its responses, decodes,
    /// recovers senders and calls the sink. For a pool in this process: the number of threads that call it
    /// and the sink. A request goes to the connection with the fewest in flight, so with more than one, small
    /// transactions do not wait behind blobs.
    pub request_connections: usize,
    /// How many of them carry deferrable fetches too, 1 to `request_connections`. The others stay free for
    /// live transactions, however long the backfill.
    pub deferrable_connections: usize,
    /// Cores to which the threads of IPC request connections are pinned, to poll their sockets without ever
    /// sleeping, so that no response waits for a thread to wake up. The connections of each source are
    /// assigned to them in turn. Each of these cores is busy all the time, with or without load: name cores
    /// that nothing else uses (`isolcpus`), and fewer than the machine has. Empty (default): the threads
    /// sleep. At most 16, each one that this process may use. Linux only.
    pub busy_poll_cores: Vec<usize>,
    /// How many hashes are remembered, at least 1024.
    pub seen_capacity: usize,
    /// The chain that every source must be on; `None` (the default) takes the chain of the first source that
    /// connects. A source on another chain is a failed attempt to connect:
    /// [`ConnectError::OtherChain`](crate::ConnectError::OtherChain).
    pub chain_id: Option<u64>,
    /// What happens when no source can be reached at start-up.
    pub start: StartPolicy,
    /// Delay between two attempts to connect, `base` at least 1 ms.
    pub reconnect: Backoff,
    /// Failed attempts to connect in a row before a source ends; no limit by default.
    pub reconnect_limit: Option<u32>,
    /// Time between two pings of a connection, at least 1 ms.
    pub ping_interval: Duration,
    /// Silence after a ping before the connection is closed, at least 1 ms. While the node lists
    /// its pool, it may be silent for `snapshot_timeout` longer.
    pub ping_timeout: Duration,
    /// Time between two audits, at least 1 ms; `None` for none.
    pub audit_interval: Option<Duration>,
    /// How long an audit waits for announcements that are still on their way before a hash counts as missing.
    pub audit_settle: Duration,
    /// Which part of the node's pool is fetched at start-up and after gaps.
    pub backfill: Backfill,
    /// Watches how full the announcement buffers and the slots for live announcements are. While it reports a
    /// high load, backfill, audit and retry fetches wait (counted by `mempool_fetcher_deferred_total`); live
    /// announcements and heads never do. `None`: nothing waits.
    pub monitor: Option<LoadMonitor>,
    /// The longest that such a fetch waits, from when it could first have run; at least 1 ms. Fetches that
    /// have waited that long run one at a time while the load stays high.
    pub deferral_max_age: Duration,
    /// The gate from which decoding and sender recovery acquire internal work permits. Such work waits for a
    /// permit and is never refused, and external callers never get the last permit, unless the gate is
    /// [`Limit::Unlimited`](load_control::Limit::Unlimited). `None`: the threads of all request connections
    /// work at the same time.
    pub gate: Option<Gate>,
}

impl FetcherConfig {
    /// A configuration with the defaults for these sources.
    #[must_use]
    pub fn new(sources: impl IntoIterator<Item = Endpoint>) -> Self {
        Self {
            sources: sources.into_iter().collect(),
            announcement_buffer: DEFAULT_ANNOUNCEMENT_BUFFER,
            announcements: Announcements::default(),
            trust_node_sender: None,
            verify_blob_proofs: false,
            block_nonces: true,
            fetch_slots: DEFAULT_FETCH_SLOTS,
            deferrable_slots: DEFAULT_DEFERRABLE_SLOTS,
            adaptive_limit: true,
            max_bytes_in_flight: DEFAULT_MAX_BYTES_IN_FLIGHT,
            max_frame_bytes: DEFAULT_MAX_FRAME_BYTES,
            fetch_timeout: DEFAULT_FETCH_TIMEOUT,
            fetch_retries: DEFAULT_FETCH_RETRIES,
            retry_backoff: Backoff {
                base: Duration::from_millis(20),
                cap: Duration::from_millis(500),
            },
            call_timeout: DEFAULT_CALL_TIMEOUT,
            snapshot_timeout: DEFAULT_SNAPSHOT_TIMEOUT,
            request_connections: std::thread::available_parallelism()
                .map_or(2, |n| n.get().clamp(1, 4)),
            deferrable_connections: 1,
            busy_poll_cores: Vec::new(),
            seen_capacity: DEFAULT_SEEN_CAPACITY,
            chain_id: None,
            start: StartPolicy::default(),
            reconnect: Backoff { base: Duration::from_millis(50), cap: Duration::from_secs(1) },
            reconnect_limit: None,
            ping_interval: DEFAULT_PING_INTERVAL,
            ping_timeout: DEFAULT_PING_TIMEOUT,
            audit_interval: Some(DEFAULT_AUDIT_INTERVAL),
            audit_settle: DEFAULT_AUDIT_SETTLE,
            backfill: Backfill::default(),
            monitor: None,
            gate: None,
            deferral_max_age: DEFAULT_DEFERRAL_MAX_AGE,
        }
    }

    /// A configuration for one IPC socket.
    #[must_use]
    pub fn ipc(path: impl Into<PathBuf>) -> Self {
        Self::new([Endpoint::Ipc(path.into())])
    }

    /// A configuration for a pool in this process. `name` identifies it in logs and metrics.
    #[must_use]
    pub fn in_process(name: impl Into<Arc<str>>, pool: Arc<dyn InProcessPool>) -> Self {
        Self::new([Endpoint::InProcess(InProcess::new(name, pool))])
    }

    /// Sets [`Self::fetch_slots`], and lowers [`Self::deferrable_slots`] to a quarter of them if it
    /// is higher.
    #[must_use]
    pub fn with_fetch_slots(mut self, slots: usize) -> Self {
        self.fetch_slots = slots;
        self.deferrable_slots = self.deferrable_slots.min((slots / 4).max(1));
        self
    }

    /// Sets [`Self::request_connections`], and lowers [`Self::deferrable_connections`] to it if it
    /// is higher.
    #[must_use]
    pub fn with_request_connections(mut self, connections: usize) -> Self {
        self.request_connections = connections;
        self.deferrable_connections = self.deferrable_connections.min(connections.max(1));
        self
    }

    /// Sets [`Self::monitor`].
    #[must_use]
    pub fn with_monitor(mut self, monitor: LoadMonitor) -> Self {
        self.monitor = Some(monitor);
        self
    }

    /// Sets [`Self::announcements`].
    #[must_use]
    pub fn with_announcements(mut self, announcements: Announcements) -> Self {
        self.announcements = announcements;
        self
    }

    /// Sets [`Self::trust_node_sender`].
    #[must_use]
    pub fn with_trust_node_sender(mut self, trust: Option<bool>) -> Self {
        self.trust_node_sender = trust;
        self
    }

    /// Sets [`Self::verify_blob_proofs`].
    #[must_use]
    pub fn with_verify_blob_proofs(mut self, verify: bool) -> Self {
        self.verify_blob_proofs = verify;
        self
    }

    /// Sets [`Self::block_nonces`].
    #[must_use]
    pub fn with_block_nonces(mut self, read: bool) -> Self {
        self.block_nonces = read;
        self
    }

    /// The pool of a source, if it is in this process.
    pub(crate) fn in_process_pool(&self, source: usize) -> Option<&InProcess> {
        match &self.sources[source] {
            Endpoint::InProcess(pool) => Some(pool),
            Endpoint::Ipc(_) | Endpoint::Ws(_) => None,
        }
    }

    /// Whether this source's announced senders are used without recovery.
    pub(crate) fn trusts_sender_of(&self, endpoint: &Endpoint) -> bool {
        self.trust_node_sender.unwrap_or(matches!(endpoint, Endpoint::Ipc(_)))
    }

    /// Sets [`Self::gate`].
    #[must_use]
    pub fn with_gate(mut self, gate: Gate) -> Self {
        self.gate = Some(gate);
        self
    }

    /// Checks every bound.
    ///
    /// # Errors
    /// The first field out of its bounds, with its value and the limits.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.sources.is_empty() {
            return Err(ConfigError::NoSource);
        }
        for (index, source) in self.sources.iter().enumerate() {
            if self.sources[..index].contains(source) {
                return Err(ConfigError::DuplicateSource { endpoint: source.to_string() });
            }
        }
        within("sources", self.sources.len(), 1, 16)?;
        within("announcement_buffer", self.announcement_buffer, 16, MAX_ANNOUNCEMENT_BUFFER)?;
        if !self.announcement_buffer.is_power_of_two() {
            // tokio would round up silently, and the documented memory would be wrong.
            return Err(ConfigError::NotAPowerOfTwo {
                field: "announcement_buffer",
                value: self.announcement_buffer,
            });
        }
        within("fetch_slots", self.fetch_slots, 1, MAX_FETCH_SLOTS)?;
        within("deferrable_slots", self.deferrable_slots, 1, self.fetch_slots)?;
        within("max_bytes_in_flight", self.max_bytes_in_flight, 1 << 20, u32::MAX as usize)?;
        within("max_frame_bytes", self.max_frame_bytes, 1 << 20, 1 << 30)?;
        within("fetch_retries", self.fetch_retries as usize, 0, 16)?;
        within("request_connections", self.request_connections, 1, 16)?;
        within("deferrable_connections", self.deferrable_connections, 1, self.request_connections)?;
        within("busy_poll_cores", self.busy_poll_cores.len(), 0, 16)?;
        for &core in &self.busy_poll_cores {
            if !pinning::is_available(core) {
                return Err(ConfigError::CoreNotAvailable { field: "busy_poll_cores", core });
            }
        }
        within("seen_capacity", self.seen_capacity, 1024, 1 << 27)?;
        for (field, value) in [
            ("fetch_timeout", self.fetch_timeout),
            ("call_timeout", self.call_timeout),
            ("snapshot_timeout", self.snapshot_timeout),
            ("ping_interval", self.ping_interval),
            ("ping_timeout", self.ping_timeout),
            ("reconnect.base", self.reconnect.base),
            ("reconnect.cap", self.reconnect.cap),
            ("retry_backoff.cap", self.retry_backoff.cap),
            ("deferral_max_age", self.deferral_max_age),
            ("retry_backoff.base", self.retry_backoff.base),
            ("audit_interval", self.audit_interval.unwrap_or(DEFAULT_AUDIT_INTERVAL)),
        ] {
            if value < Duration::from_millis(1) {
                return Err(ConfigError::TooShort { field, value, min: Duration::from_millis(1) });
            }
            if value > MAX_DURATION {
                return Err(ConfigError::TooLong { field, value, max: MAX_DURATION });
            }
        }
        Ok(())
    }
}

macro_rules! setters {
    ($($field:ident, $with:ident: $ty:ty;)*) => {
        impl FetcherConfig {$(
            #[doc = concat!("Sets [`Self::", stringify!($field), "`].")]
            #[must_use]
            pub fn $with(mut self, $field: $ty) -> Self {
                self.$field = $field;
                self
            }
        )*}
    };
}

setters! {
    sources, with_sources: Vec<Endpoint>;
    announcement_buffer, with_announcement_buffer: usize;
    deferrable_slots, with_deferrable_slots: usize;
    adaptive_limit, with_adaptive_limit: bool;
    max_bytes_in_flight, with_max_bytes_in_flight: usize;
    max_frame_bytes, with_max_frame_bytes: usize;
    fetch_timeout, with_fetch_timeout: Duration;
    fetch_retries, with_fetch_retries: u32;
    retry_backoff, with_retry_backoff: Backoff;
    call_timeout, with_call_timeout: Duration;
    snapshot_timeout, with_snapshot_timeout: Duration;
    deferrable_connections, with_deferrable_connections: usize;
    busy_poll_cores, with_busy_poll_cores: Vec<usize>;
    seen_capacity, with_seen_capacity: usize;
    chain_id, with_chain_id: Option<u64>;
    start, with_start: StartPolicy;
    reconnect, with_reconnect: Backoff;
    reconnect_limit, with_reconnect_limit: Option<u32>;
    ping_interval, with_ping_interval: Duration;
    ping_timeout, with_ping_timeout: Duration;
    audit_interval, with_audit_interval: Option<Duration>;
    audit_settle, with_audit_settle: Duration;
    backfill, with_backfill: Backfill;
    deferral_max_age, with_deferral_max_age: Duration;
}

fn within(field: &'static str, value: usize, min: usize, max: usize) -> Result<(), ConfigError> {
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(ConfigError::OutOfRange { field, value, min, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_defaults_are_valid() {
        FetcherConfig::ipc("/tmp/node.ipc").validate().unwrap();
    }

    #[test]
    fn a_bad_field_is_named_with_its_value_and_limits() {
        let long = FetcherConfig::ipc("/tmp/node.ipc").with_call_timeout(Duration::MAX);
        let error = long.validate().unwrap_err().to_string();
        assert!(error.contains("`call_timeout`") && error.contains("at most"), "{error}");
        let mut config = FetcherConfig::ipc("/tmp/node.ipc");
        config.fetch_slots = 0;
        assert_eq!(
            config.validate().unwrap_err().to_string(),
            "`fetch_slots` is 0, it must be between 1 and 4096"
        );
        config = FetcherConfig::ipc("/tmp/node.ipc");
        config.announcement_buffer = 1000;
        assert!(config.validate().unwrap_err().to_string().contains("announcement_buffer"));
        config = FetcherConfig::ipc("/tmp/node.ipc").with_busy_poll_cores(vec![0, 100_000]);
        let error = config.validate().unwrap_err().to_string();
        assert!(error.contains("`busy_poll_cores`") && error.contains("100000"), "{error}");
        config = FetcherConfig::new([]);
        assert!(matches!(config.validate(), Err(ConfigError::NoSource)));
        config = FetcherConfig::new(["/a".parse().unwrap(), "/a".parse().unwrap()]);
        assert!(matches!(config.validate(), Err(ConfigError::DuplicateSource { .. })));
    }

    #[test]
    fn an_announced_sender_is_trusted_over_ipc_alone_unless_it_is_said_otherwise() {
        let (ipc, ws) = (Endpoint::Ipc("/a".into()), Endpoint::Ws("ws://h:1".into()));
        let config = FetcherConfig::new([ipc.clone(), ws.clone()]);
        assert!(config.trusts_sender_of(&ipc) && !config.trusts_sender_of(&ws));
        for trust in [false, true] {
            let config = config.clone().with_trust_node_sender(Some(trust));
            assert_eq!(config.trusts_sender_of(&ipc), trust);
            assert_eq!(config.trusts_sender_of(&ws), trust);
        }
    }

    #[test]
    fn an_endpoint_is_a_path_or_a_websocket_url() {
        assert_eq!("/x/y.ipc".parse::<Endpoint>().unwrap(), Endpoint::Ipc("/x/y.ipc".into()));
        assert_eq!("ws://h:1".parse::<Endpoint>().unwrap(), Endpoint::Ws("ws://h:1".into()));
        assert!("http://h:1".parse::<Endpoint>().unwrap_err().to_string().contains("http"));
        assert!("".parse::<Endpoint>().is_err());
    }

    proptest! {
        #[test]
        fn backoff_grows_to_its_cap_and_never_beyond(attempt in 0u32..200, jitter in 0.0f64..1.0) {
            let backoff = Backoff { base: Duration::from_millis(50), cap: Duration::from_secs(1) };
            let delay = backoff.delay(attempt, jitter);
            prop_assert!(delay <= backoff.cap);
            prop_assert!(delay >= backoff.base / 2);
            prop_assert!(backoff.delay(attempt + 1, jitter) >= delay);
        }
    }
}
