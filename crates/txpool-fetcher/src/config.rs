//! The configuration, with the arithmetic behind each default.

use std::{fmt, path::PathBuf, str::FromStr, sync::Arc, time::Duration};

use load_control::{Gate, LoadMonitor};

use crate::{
    error::ConfigError,
    in_process_pool::{InProcess, InProcessPool},
    limits::{DEFERRABLE_SLOTS, Limits},
};

/// Fetches in flight at once, over all sources.
///
/// By Little's law 64 slots sustain 2000 transactions/s up to a response time of 32 ms.
pub const DEFAULT_FETCH_SLOTS: usize = 64;

/// Bytes of responses that may be in flight before further fetches wait.
///
/// 64 slots of six-blob responses (1.6 MB of JSON each) would be 100 MB; this allows 40 of them. The size of
/// a response is not known before it arrives, so a fetch reserves the running mean of recent responses. The
/// overshoot is bounded by the slots and by what the node sends: 15 MB for a response on reth and geth. Over
/// WebSocket a message has at most 32 MiB; alloy's IPC transport has no such bound.
pub const DEFAULT_MAX_BYTES_IN_FLIGHT: usize = 64 * 1024 * 1024;

/// Request connections of each source.
///
/// While the response of one is a blob transaction of six blobs, which takes a node 2.5 to 17 ms, small ones go over
/// the other. Under a light load one of them has all the work, since of equally busy ones the first is taken.
pub const DEFAULT_REQUEST_CONNECTIONS: usize = 2;

/// Time between two audits, which compare the node's pool with ours; ± 10 % of jitter.
pub const DEFAULT_AUDIT_INTERVAL: Duration = Duration::from_secs(60);

/// Upper bound of [`FetcherConfig::fetch_slots`].
pub const MAX_FETCH_SLOTS: usize = 4096;

/// The most transactions that a [`TransactionStream`](crate::TransactionStream) may hold: 30 s at
/// 2,000/s, and about 100 MB of plain ones.
pub const MAX_STREAM_BUFFER: usize = 1 << 16;

/// How a source is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(try_from = "String"))]
pub enum Endpoint {
    /// The path of a Unix socket.
    Ipc(PathBuf),
    /// A WebSocket URL, `ws://host:port/…`, or `wss://host/…` for TLS.
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

    /// Parses `ws://…` and `wss://…` as a WebSocket URL, and a text without a scheme as a path.
    ///
    /// # Errors
    /// [`ConfigError::EmptyEndpoint`]; [`ConfigError::UnknownScheme`] for any other URL.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once("://") {
            None if text.is_empty() => Err(ConfigError::EmptyEndpoint),
            None => Ok(Self::Ipc(PathBuf::from(text))),
            Some(("ws" | "wss", _)) => Ok(Self::Ws(text.to_owned())),
            Some((scheme, _)) => Err(ConfigError::UnknownScheme { scheme: scheme.to_owned() }),
        }
    }
}

impl TryFrom<String> for Endpoint {
    type Error = ConfigError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

/// What happens when no source can be reached at start-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum StartPolicy {
    /// [`Fetcher::start`](crate::Fetcher::start) fails with the reason.
    #[default]
    RequireNode,
    /// It returns at once, and the sources keep connecting.
    WaitForNode,
}

/// What a node announces for a pending transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Announcements {
    /// Its hash, with which the transaction is then requested.
    #[default]
    Hashes,
    /// The transaction itself, as an object that is encoded again and must have the announced hash.
    /// Only blob transactions (for their sidecars), unknown types, and objects above 16 KiB are
    /// requested. It saves a request and, with a trusted sender, the recovery of the sender.
    ///
    /// An object is about five times as long as a hash. geth's socket holds about 280 announcements
    /// of hashes, so it fills five times sooner when it is not read, and geth then blocks all its
    /// subscribers. On a machine whose cores are all busy with other work, use hashes.
    ///
    /// A node may drop objects that it announces as hashes: reth does from a few hundred a second
    /// on. So a second connection announces the hashes. One whose object has not come within 25 ms
    /// (5 ms, while those of later hashes come) is requested, and counts among
    /// [`Counts::objects_missed`](crate::Counts). If either is lost, both are opened again.
    ///
    /// A node that refuses objects is not used; of one that announces hashes, these are requested.
    Full,
    /// As [`Full`](Self::Full) where the node takes it, else as [`Hashes`](Self::Hashes): if it
    /// refuses the subscription to objects, or if the first object that it announces is a hash.
    /// [`SourceStatus::announcements`](crate::SourceStatus) says which; each connection tries anew.
    Auto,
}

/// Which part of the node's pool is fetched at start-up and after a gap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Backfill {
    /// Nothing. Transactions that were pending before the subscription stay unknown.
    Off,
    /// The pending transactions.
    #[default]
    Pending,
    /// The pending and the queued transactions; the queued ones wait for an earlier nonce.
    PendingAndQueued,
}

/// The longest interval that is accepted, a year: adding it to an `Instant` must not overflow.
const MAX_INTERVAL_MS: usize = 365 * 24 * 3_600_000;

/// The configuration of a [`Fetcher`](crate::Fetcher). All fields but the sources have defaults.
#[derive(Clone, Debug)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(default = "FetcherConfig::of_no_source", deny_unknown_fields)
)]
pub struct FetcherConfig {
    /// The nodes, and the pools in this process: 1 to 16, without duplicates.
    pub sources: Vec<Endpoint>,
    /// What the nodes announce: hashes, or whole transactions. [`Auto`](Announcements::Auto) is for a
    /// machine with cores to spare: it has the lowest latency.
    pub announcements: Announcements,
    /// Whether the field `from` of an announced transaction is used as its sender when
    /// [`announcements`](Self::announcements) are whole transactions. The hash does not cover that
    /// field, and a trusted sender's signature is not verified: a node that lies, or anyone who can write to
    /// the connection, then chooses the sender, and with it the nonce, balance and replacement rules that
    /// apply to the transaction. `None` (default): IPC sources are trusted, since only local processes with
    /// access to the socket's file can write to it, and WebSocket sources are not. Without trust the sender
    /// is recovered (34 us for each transaction). The sender of a transaction that was requested by hash is
    /// always recovered.
    pub trust_node_sender: Option<bool>,
    /// Whether the KZG proofs of blob transactions are verified, which costs some milliseconds of CPU for
    /// each blob. The commitments are compared with the versioned hashes in any case. For a node that is not
    /// trusted; a node verifies the proofs before it announces a transaction.
    pub verify_blob_proofs: bool,
    /// Fetches in flight at once, 1 to 4096. Of `n` sources, two or more, one has at most an `n`-th of them in flight, and
    /// what one announced holds at most `(2n - 1) / (2n (n - 1))`, so that those that do not respond leave some to one
    /// that does. At one node they are fewer while it is overloaded ([`SourceStatus::fetch_limit`](crate::SourceStatus)).
    /// More are for a node that responds slowly: slots ÷ response time is the most transactions/s.
    pub fetch_slots: usize,
    /// Bytes of responses in flight before others wait, at least 1 MiB. To bound a host's memory.
    pub max_bytes_in_flight: usize,
    /// Request connections for each source, 1 to 16, [`DEFAULT_REQUEST_CONNECTIONS`] by default. For a pool in
    /// this process: the number of threads that call it and the sink. A request goes to the connection with
    /// the fewest in flight, so with more than one, small transactions do not wait behind blobs. The last one
    /// carries backfill, audits and all other calls too. More are for a node with many blob transactions.
    pub request_connections: usize,
    /// The chain that every source must be on; `None` (the default) takes the chain of the first listed source
    /// that can be reached: the others wait for its first attempt to connect. A source on another chain is a
    /// failed attempt to connect: [`ConnectError::OtherChain`](crate::ConnectError::OtherChain).
    pub chain_id: Option<u64>,
    /// What happens when no source can be reached at start-up.
    pub start: StartPolicy,
    /// Failed attempts to connect in a row before a source ends; no limit by default. For a host that
    /// restarts itself, or that fails over, when its node is gone.
    pub reconnect_limit: Option<u32>,
    /// Time between two audits, which compare a node's pool with ours, at least 1 ms; `None` for none. A
    /// longer one costs the node less, and finds what is missing later; without audits what could not be
    /// fetched stays missing, and its gap open, until another gap.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub audit_interval: Option<Duration>,
    /// Which part of the node's pool is fetched at start-up and after gaps. [`Off`](Backfill::Off) is for
    /// those who measure or need live announcements alone.
    pub backfill: Backfill,
    /// Watches how full the announcement buffers and the slots for live announcements are. While it reports a
    /// high load, backfill, audit and retry fetches wait for up to 5 s (counted by
    /// `mempool_fetcher_deferred_total`); live announcements and heads never do. `None`: nothing waits. A
    /// host shares one monitor among all its parts.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub monitor: Option<LoadMonitor>,
    /// The gate from which decoding and sender recovery acquire internal work permits. Such work waits for a
    /// permit and is never refused, and external callers never get the last permit, unless the gate is
    /// [`Limit::Unlimited`](load_control::Limit::Unlimited). `None`: the threads of all request connections
    /// work at the same time.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub gate: Option<Gate>,
}

impl FetcherConfig {
    /// A configuration with the defaults for these sources.
    #[must_use]
    pub fn new(sources: impl IntoIterator<Item = Endpoint>) -> Self {
        Self {
            sources: sources.into_iter().collect(),
            announcements: Announcements::default(),
            trust_node_sender: None,
            verify_blob_proofs: false,
            fetch_slots: DEFAULT_FETCH_SLOTS,
            max_bytes_in_flight: DEFAULT_MAX_BYTES_IN_FLIGHT,
            request_connections: DEFAULT_REQUEST_CONNECTIONS,
            chain_id: None,
            start: StartPolicy::default(),
            reconnect_limit: None,
            audit_interval: Some(DEFAULT_AUDIT_INTERVAL),
            backfill: Backfill::default(),
            monitor: None,
            gate: None,
        }
    }

    #[cfg(feature = "serde")]
    fn of_no_source() -> Self {
        Self::new([])
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

    /// Checks every bound.
    ///
    /// # Errors
    /// The first field out of its bounds, with its value and the limits.
    pub fn validate(&self) -> Result<(), ConfigError> {
        within("sources", self.sources.len(), 1, 16)?;
        for (index, source) in self.sources.iter().enumerate() {
            if self.sources[..index].contains(source) {
                return Err(ConfigError::DuplicateSource { endpoint: source.to_string() });
            }
        }
        within("fetch_slots", self.fetch_slots, 1, MAX_FETCH_SLOTS)?;
        within("max_bytes_in_flight", self.max_bytes_in_flight, 1 << 20, u32::MAX as usize)?;
        within("request_connections", self.request_connections, 1, 16)?;
        let Some(interval) = self.audit_interval else { return Ok(()) };
        let millis = usize::try_from(interval.as_millis()).unwrap_or(usize::MAX);
        within("audit_interval in ms", millis, 1, MAX_INTERVAL_MS)
    }
}

pub(crate) fn within(
    field: &'static str,
    value: usize,
    min: usize,
    max: usize,
) -> Result<(), ConfigError> {
    let is_within = (min..=max).contains(&value);
    is_within.then_some(()).ok_or(ConfigError::OutOfRange { field, value, min, max })
}

/// What was configured, with what is derived from it. It never changes.
pub(crate) struct Settings {
    pub(crate) config: FetcherConfig,
    pub(crate) limits: Limits,
}

impl Settings {
    /// The pool of a source, if it is in this process.
    pub(crate) fn in_process_pool(&self, source: usize) -> Option<&InProcess> {
        if let Endpoint::InProcess(pool) = &self.config.sources[source] { Some(pool) } else { None }
    }

    /// Whether a source may announce objects.
    pub(crate) fn has_objects(&self, source: usize) -> bool {
        self.config.announcements != Announcements::Hashes && self.in_process_pool(source).is_none()
    }

    /// Whether this source's announced senders are used without recovery.
    pub(crate) fn trusts_sender_of(&self, source: usize) -> bool {
        let is_ipc = matches!(self.config.sources[source], Endpoint::Ipc(_));
        self.config.trust_node_sender.unwrap_or(is_ipc)
    }

    /// How many of the slots deferrable work may hold in any case: one for each source at least, if
    /// that is at most a quarter of them.
    pub(crate) fn deferrable_slots(&self) -> usize {
        let FetcherConfig { fetch_slots: slots, sources, .. } = &self.config;
        let few = || DEFERRABLE_SLOTS.max(sources.len()).min((slots / 4).max(1));
        self.limits.deferrable_slots.unwrap_or_else(few).min(*slots)
    }

    /// The most that it may hold, when nodes answer slowly and live fetches leave the slots idle: half.
    pub(crate) fn max_deferrable_slots(&self) -> usize {
        let half = self.config.fetch_slots / 2;
        self.limits.deferrable_slots.unwrap_or(half).max(self.deferrable_slots())
    }

    /// How many of a source's request connections carry deferrable fetches too.
    pub(crate) fn deferrable_connections(&self) -> usize {
        self.limits.deferrable_connections.min(self.config.request_connections)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_field_is_named_with_its_value_and_limits() {
        let config = || FetcherConfig::ipc("/tmp/node.ipc");
        let error = |config: FetcherConfig| config.validate().unwrap_err().to_string();
        for interval in [Duration::MAX, Duration::ZERO] {
            let error = error(FetcherConfig { audit_interval: Some(interval), ..config() });
            assert!(error.starts_with("`audit_interval in ms` is "), "{error}");
            assert!(error.ends_with("between 1 and 31536000000"), "{error}");
        }
        let none = error(FetcherConfig { fetch_slots: 0, ..config() });
        assert_eq!(none, "`fetch_slots` is 0, it must be between 1 and 4096");
        let no_source = error(FetcherConfig::new([]));
        assert_eq!(no_source, "`sources` is 0, it must be between 1 and 16");
        let twice = FetcherConfig::new(["/a".parse().unwrap(), "/a".parse().unwrap()]);
        assert!(matches!(twice.validate(), Err(ConfigError::DuplicateSource { .. })));
    }

    #[test]
    fn an_endpoint_is_a_path_or_a_websocket_url() {
        assert_eq!("/x/y.ipc".parse::<Endpoint>().unwrap(), Endpoint::Ipc("/x/y.ipc".into()));
        assert_eq!("ws://h:1".parse::<Endpoint>().unwrap(), Endpoint::Ws("ws://h:1".into()));
        assert_eq!("wss://h".parse::<Endpoint>().unwrap(), Endpoint::Ws("wss://h".into()));
        assert!("http://h:1".parse::<Endpoint>().unwrap_err().to_string().contains("http"));
        assert!("".parse::<Endpoint>().is_err());
    }

    fn settings(config: FetcherConfig) -> Settings {
        Settings { config, limits: Limits::default() }
    }

    #[test]
    fn an_announced_sender_is_trusted_over_ipc_alone_unless_it_is_said_otherwise() {
        let sources = [Endpoint::Ipc("/a".into()), Endpoint::Ws("ws://h:1".into())];
        for (trust, expected) in
            [(None, [true, false]), (Some(false), [false; 2]), (Some(true), [true; 2])]
        {
            let config =
                FetcherConfig { trust_node_sender: trust, ..FetcherConfig::new(sources.clone()) };
            let settings = settings(config);
            assert_eq!([0, 1].map(|source| settings.trusts_sender_of(source)), expected);
        }
    }

    #[test]
    fn deferrable_work_holds_two_slots_or_one_for_each_source_and_at_most_a_quarter() {
        for (fetch_slots, sources, deferrable) in [
            (1, 1, 1),
            (4, 1, 1),
            (7, 1, 1),
            (8, 1, 2),
            (64, 1, 2),
            (64, 2, 2),
            (64, 16, 16),
            (16, 5, 4),
        ] {
            let sources = (0..sources).map(|source| Endpoint::Ipc(source.to_string().into()));
            let config = FetcherConfig { fetch_slots, ..FetcherConfig::new(sources) };
            assert_eq!(settings(config).deferrable_slots(), deferrable);
        }
    }
}
