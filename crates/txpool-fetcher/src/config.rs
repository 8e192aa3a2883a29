//! The configuration of a fetcher, with the arithmetic behind each default, and its validation.

use std::{fmt, path::PathBuf, str::FromStr, sync::Arc, time::Duration};

use load_control::{Gate, LoadMonitor};

use crate::{
    error::ConfigError,
    in_process_pool::{InProcess, InProcessPool},
    limits::{DEFERRABLE_SLOTS, Limits},
};

/// Default of [`FetcherConfig::fetch_slots`].
///
/// By Little's law, 64 slots sustain 2,000 transactions/s up to a response time of 32 ms.
pub const DEFAULT_FETCH_SLOTS: usize = 64;

/// Default of [`FetcherConfig::max_bytes_in_flight`]: 64 MiB.
///
/// 64 slots of six-blob responses (1.6 MB of JSON each) would be 100 MB; this permits 40 of them.
/// The size of a response is not known before it arrives, so a fetch reserves the running mean of
/// recent responses. The overshoot is bounded by the number of slots and by what the node sends: 15
/// MB for a response on reth and geth. A WebSocket message has at most 32 MiB; alloy's IPC
/// transport has no such bound.
pub const DEFAULT_MAX_BYTES_IN_FLIGHT: usize = 64 * 1024 * 1024;

/// Default of [`FetcherConfig::request_connections`].
///
/// While one connection carries a transaction with six blobs, which takes a node 2.5 to 17 ms,
/// small transactions use the other one. Of equally busy connections the first one is chosen, so
/// under a light load it carries everything.
pub const DEFAULT_REQUEST_CONNECTIONS: usize = 2;

/// Default of [`FetcherConfig::audit_interval`]: 60 s, with a jitter of ±10 %.
pub const DEFAULT_AUDIT_INTERVAL: Duration = Duration::from_secs(60);

/// Upper bound of [`FetcherConfig::fetch_slots`].
pub const MAX_FETCH_SLOTS: usize = 4096;

/// Upper bound of the buffer of a [`TransactionStream`](crate::TransactionStream), in transactions:
/// 30 s at 2,000/s, and about 100 MB of transactions without blobs.
pub const MAX_STREAM_BUFFER: usize = 1 << 16;

/// The address of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(try_from = "String"))]
pub enum Endpoint {
    /// The path of a Unix socket.
    Ipc(PathBuf),
    /// A WebSocket URL: `ws://host:port/…`, or `wss://host/…` for TLS.
    Ws(String),
    /// A pool in this process, which always announces hashes.
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

    /// Parses `ws://…` and `wss://…` as a WebSocket URL, and a text without a scheme as the path of
    /// an IPC socket.
    ///
    /// # Errors
    /// [`ConfigError::EmptyEndpoint`] for an empty text; [`ConfigError::UnknownScheme`] for a URL
    /// with any other scheme.
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
    /// [`Fetcher::start`](crate::Fetcher::start) returns the error of the first source.
    #[default]
    RequireNode,
    /// [`Fetcher::start`](crate::Fetcher::start) returns at once, and the sources keep connecting.
    WaitForNode,
}

/// What a node announces for a pending transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Announcements {
    /// The hash. The fetcher requests the transaction.
    #[default]
    Hashes,
    /// The whole transaction as a JSON object, which the fetcher encodes and hashes again. This
    /// saves the request and, with a trusted sender, the recovery of the sender. Only blob
    /// transactions (for their sidecars), unknown types, and objects above 16 KiB are requested.
    ///
    /// An object is about five times as long as a hash. geth's socket holds about 280 announcements
    /// of hashes, so with objects it fills five times sooner when it is not read, and geth then
    /// blocks all its subscribers. On a machine whose cores are all busy with other work, use
    /// hashes.
    ///
    /// A node may drop objects: reth does from a few hundred a second on. Therefore a second
    /// connection subscribes to the hashes. A hash whose object does not come within 25 ms (5 ms
    /// once the object of a later hash has come) is requested, and counts as
    /// [`Counts::objects_missed`](crate::Counts::objects_missed). If one of the two connections is
    /// lost, both are opened again.
    ///
    /// A node that refuses the subscription to objects is not used. If a node announces hashes on
    /// that subscription, the fetcher requests their transactions.
    Full,
    /// [`Full`](Self::Full) if the node supports it, otherwise [`Hashes`](Self::Hashes): that is,
    /// if the node refuses the subscription to objects, or if its first announced object is a hash.
    /// [`SourceStatus::announcements`](crate::SourceStatus::announcements) says which; each new
    /// connection tries again.
    Auto,
}

/// The part of a node's pool that is fetched at start-up and after a gap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Backfill {
    /// No part. Transactions that were pending before the subscription stay unknown.
    Off,
    /// The pending transactions.
    #[default]
    Pending,
    /// The pending and the queued transactions. Queued ones wait for a lower nonce.
    PendingAndQueued,
}

/// The longest valid interval, a year: its sum with an `Instant` must not overflow.
const MAX_INTERVAL_MS: usize = 365 * 24 * 3_600_000;

/// The configuration of a [`Fetcher`](crate::Fetcher). All fields but the sources have defaults.
///
/// Make one with [`ipc`](Self::ipc), [`in_process`](Self::in_process) or [`new`](Self::new), and
/// then set its fields: the struct gets more fields in later versions.
///
/// ```
/// use txpool_fetcher::{Announcements, FetcherConfig};
///
/// let mut config = FetcherConfig::ipc("/data/reth.ipc");
/// config.announcements = Announcements::Auto;
/// assert!(config.validate().is_ok());
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(default = "FetcherConfig::without_sources", deny_unknown_fields)
)]
pub struct FetcherConfig {
    /// The nodes, and the pools in this process: 1 to 16, without duplicates.
    pub sources: Vec<Endpoint>,
    /// What the nodes announce: hashes (the default), or whole transactions.
    /// [`Auto`](Announcements::Auto) has the lowest latency, and needs a machine with idle cores.
    pub announcements: Announcements,
    /// Whether the field `from` of an announced transaction is used as its sender when
    /// [`announcements`](Self::announcements) are whole transactions. The hash does not cover that
    /// field, and with trust the signature is not verified. A node that lies, or anyone who can
    /// write to the connection, then chooses the sender, and with it the nonce, balance and
    /// replacement rules that apply to the transaction.
    ///
    /// `None` (default): IPC sources are trusted, since only local processes with access to the
    /// socket's file can write to it, and WebSocket sources are not. Without trust the sender is
    /// recovered (34 us for each transaction). The sender of a transaction that was requested by
    /// hash is always recovered.
    pub trust_node_sender: Option<bool>,
    /// Whether the KZG proofs of blob transactions are verified, which costs some milliseconds of
    /// CPU for each blob; `false` by default. For a node that is not trusted: a node verifies the
    /// proofs before it announces a transaction. The commitments are compared with the versioned
    /// hashes in any case.
    pub verify_blob_proofs: bool,
    /// The number of fetches in flight at once, 1 to 4,096, by default [`DEFAULT_FETCH_SLOTS`]. A
    /// node that responds slowly needs more: the highest rate is slots ÷ response time.
    ///
    /// With `n` ≥ 2 sources, at most `1/n` of the slots are in flight at one node, and the hashes
    /// that one source announced hold at most `(2n - 1) / (2n (n - 1))` of the slots: 3/4 with two
    /// sources, 5/12 with three. So even if all sources but one do not respond, `1/2n` of the slots
    /// are left for the one that does. A node that is overloaded gets fewer requests:
    /// [`SourceStatus::fetch_limit`](crate::SourceStatus::fetch_limit).
    pub fetch_slots: usize,
    /// The number of bytes of responses in flight above which further fetches wait, 1 MiB to 4 GiB,
    /// by default [`DEFAULT_MAX_BYTES_IN_FLIGHT`]. It bounds the host's memory.
    pub max_bytes_in_flight: usize,
    /// The number of request connections to each source, 1 to 16, by default
    /// [`DEFAULT_REQUEST_CONNECTIONS`]. For a pool in this process it is the number of threads that
    /// call the pool and the sink.
    ///
    /// A request uses the connection with the fewest requests in flight, so with more than one
    /// connection small transactions do not wait behind blobs. The last connection also carries
    /// backfill, audits and all other calls. A node with many blob transactions needs more.
    pub request_connections: usize,
    /// The chain that every source must be on (EIP-155). `None` (default) takes the chain of the
    /// first listed source that can be reached; later sources wait for the first attempt of those
    /// before them. Connecting to a source on another chain fails with
    /// [`ConnectError::OtherChain`](crate::ConnectError::OtherChain).
    pub chain_id: Option<u64>,
    /// What happens when no source can be reached at start-up; by default the start fails.
    pub start: StartPolicy,
    /// The number of failed attempts to connect in a row after which a source ends; `None`
    /// (default) for no limit. For a host that restarts itself, or fails over, when its node is
    /// gone.
    pub reconnect_limit: Option<u32>,
    /// Time between two audits, which compare a node's pool with the hashes that the fetcher has
    /// seen: 1 ms to a year, by default [`DEFAULT_AUDIT_INTERVAL`]; `None` for no audits. A longer
    /// interval costs the node less, and finds missing transactions later. Without audits, a
    /// transaction whose fetch failed stays missing, and the gap in [`SourceStatus::gaps`] open,
    /// until the pools are compared for another reason, for instance after a reconnect.
    ///
    /// [`SourceStatus::gaps`]: crate::SourceStatus::gaps
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub audit_interval: Option<Duration>,
    /// The part of the node's pool that is fetched at start-up and after gaps; by default the
    /// pending transactions. [`Off`](Backfill::Off) is for hosts that measure or need live
    /// announcements alone.
    pub backfill: Backfill,
    /// Watches how full the announcement buffers and the slots for live announcements are. While it
    /// reports a high load, backfill, audit and retry fetches wait for up to 5 s (counted by
    /// `mempool_fetcher_deferred_total`); live announcements and heads never wait. `None`
    /// (default): nothing waits. A host shares one monitor among all its parts.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub monitor: Option<LoadMonitor>,
    /// The gate from which decoding and sender recovery acquire internal work permits. Such work
    /// waits for a permit and is never refused, and external callers never get the last permit,
    /// unless the gate is [`Limit::Unlimited`](load_control::Limit::Unlimited). `None` (default):
    /// no work waits for a permit.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub gate: Option<Gate>,
}

impl FetcherConfig {
    /// Makes a configuration with these sources and the default of every other field. Nothing is
    /// checked: see [`Self::validate`].
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
    fn without_sources() -> Self {
        Self::new([])
    }

    /// Makes a configuration with the IPC socket of one node as the source.
    #[must_use]
    pub fn ipc(path: impl Into<PathBuf>) -> Self {
        Self::new([Endpoint::Ipc(path.into())])
    }

    /// Makes a configuration with a pool in this process as the source. `name` identifies it in
    /// logs, errors and metrics.
    #[must_use]
    pub fn in_process(name: impl Into<Arc<str>>, pool: Arc<dyn InProcessPool>) -> Self {
        Self::new([Endpoint::InProcess(InProcess::new(name, pool))])
    }

    /// Checks every bound.
    ///
    /// # Errors
    /// A [`ConfigError`] that names the first field with an invalid value, the value and the
    /// limits.
    pub fn validate(&self) -> Result<(), ConfigError> {
        check_range("sources", self.sources.len(), 1, 16)?;
        for (index, source) in self.sources.iter().enumerate() {
            if self.sources[..index].contains(source) {
                return Err(ConfigError::DuplicateSource { endpoint: source.to_string() });
            }
        }
        check_range("fetch_slots", self.fetch_slots, 1, MAX_FETCH_SLOTS)?;
        check_range("max_bytes_in_flight", self.max_bytes_in_flight, 1 << 20, u32::MAX as usize)?;
        check_range("request_connections", self.request_connections, 1, 16)?;
        let Some(interval) = self.audit_interval else { return Ok(()) };
        let millis = usize::try_from(interval.as_millis()).unwrap_or(usize::MAX);
        check_range("audit_interval in ms", millis, 1, MAX_INTERVAL_MS)
    }
}

/// Returns an error unless `min <= value <= max`.
pub(crate) fn check_range(
    field: &'static str,
    value: usize,
    min: usize,
    max: usize,
) -> Result<(), ConfigError> {
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(ConfigError::OutOfRange { field, value, min, max })
    }
}

/// The validated configuration and the values that are derived from it. It never changes.
pub(crate) struct Settings {
    pub(crate) config: FetcherConfig,
    pub(crate) limits: Limits,
}

impl Settings {
    /// Returns the pool of a source that is in this process.
    pub(crate) fn in_process_pool(&self, source: usize) -> Option<&InProcess> {
        if let Endpoint::InProcess(pool) = &self.config.sources[source] { Some(pool) } else { None }
    }

    /// Returns whether a source is asked to announce objects.
    pub(crate) fn wants_objects(&self, source: usize) -> bool {
        self.config.announcements != Announcements::Hashes && self.in_process_pool(source).is_none()
    }

    /// Returns whether the senders that a source announces are used without recovery.
    pub(crate) fn trusts_sender(&self, source: usize) -> bool {
        let is_ipc = matches!(self.config.sources[source], Endpoint::Ipc(_));
        self.config.trust_node_sender.unwrap_or(is_ipc)
    }

    /// Returns the number of slots that deferrable work may always hold: at least one for each
    /// source, and at most a quarter of all.
    pub(crate) fn deferrable_slots(&self) -> usize {
        let slots = self.config.fetch_slots;
        let default = DEFERRABLE_SLOTS.max(self.config.sources.len()).min((slots / 4).max(1));
        self.limits.deferrable_slots.unwrap_or(default).min(slots)
    }

    /// Returns the highest number of slots that deferrable work may hold, while nodes respond
    /// slowly and live fetches leave the slots idle: half of all.
    pub(crate) fn max_deferrable_slots(&self) -> usize {
        let half = self.config.fetch_slots / 2;
        self.limits.deferrable_slots.unwrap_or(half).max(self.deferrable_slots())
    }

    /// Returns the number of a source's request connections that carry deferrable fetches too.
    pub(crate) fn deferrable_connections(&self) -> usize {
        self.limits.deferrable_connections.min(self.config.request_connections)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_field_its_value_and_the_limits() {
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
    fn announced_senders_are_trusted_over_ipc_alone_by_default() {
        let sources = [Endpoint::Ipc("/a".into()), Endpoint::Ws("ws://h:1".into())];
        for (trust, expected) in
            [(None, [true, false]), (Some(false), [false; 2]), (Some(true), [true; 2])]
        {
            let config =
                FetcherConfig { trust_node_sender: trust, ..FetcherConfig::new(sources.clone()) };
            let settings = settings(config);
            assert_eq!([0, 1].map(|source| settings.trusts_sender(source)), expected);
        }
    }

    #[test]
    fn deferrable_work_holds_a_slot_per_source_and_a_quarter_at_most() {
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
