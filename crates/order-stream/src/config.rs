//! What is configured.

use std::{fmt, path::PathBuf, time::Duration};

use async_nats::ServerAddr;

use crate::{backoff::Backoff, error::StreamError};

/// Default of [`PublisherConfig::window`]: at a round trip of 100 ms, enough for 40,000 messages/s.
pub const DEFAULT_WINDOW: usize = 4_096;

/// Default of [`PublisherConfig::window_bytes`]: 40 transactions with six blobs.
pub const DEFAULT_WINDOW_BYTES: usize = 32 << 20;

/// Default of [`PublisherConfig::ack_timeout`]. An acknowledgement takes a few milliseconds within a region; a cluster
/// elects another leader within some seconds.
pub const DEFAULT_ACK_TIMEOUT: Duration = Duration::from_secs(5);

/// Default of [`PublisherConfig::backoff`] and [`SourceConfig::backoff`].
pub const DEFAULT_BACKOFF: Backoff =
    Backoff { base: Duration::from_millis(250), cap: Duration::from_secs(10) };

/// Default of [`SourceConfig::queue_bytes`], and as much again may wait in the client: two pull requests of each
/// stream, which share it.
pub const DEFAULT_QUEUE_BYTES: usize = 32 << 20;

/// Default of [`SourceConfig::lag_messages`]: five seconds at 2,000 transactions/s.
pub const DEFAULT_LAG_MESSAGES: u64 = 10_000;

/// Most shards: each is a stream with a leader of its own.
pub const MAX_SHARDS: u16 = 64;

/// Which orders a stream carries. Each flow has its own streams, and should have its own credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flow {
    /// Transactions that a node has announced, and heads.
    Public,
    /// Bundles, cancellations, and transactions that no node has announced.
    Private,
}

impl Flow {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::Private => "private",
        }
    }
}

/// How a client proves who it is.
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Auth {
    /// Not at all, or as the URL says.
    #[default]
    None,
    /// By name and password.
    User {
        /// The name.
        name: String,
        /// The password.
        password: String,
    },
    /// By a token.
    Token(String),
    /// By the seed of an nkey.
    NKey(String),
    /// By a file with a JWT and a seed. It is read for each connection.
    CredentialsFile(PathBuf),
}

/// Without the secrets.
impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::User { name, .. } => {
                f.debug_struct("User").field("name", name).finish_non_exhaustive()
            }
            Self::Token(_) => f.write_str("Token"),
            Self::NKey(_) => f.write_str("NKey"),
            Self::CredentialsFile(path) => f.debug_tuple("CredentialsFile").field(path).finish(),
        }
    }
}

/// The servers of a cluster, and how to reach them.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerConfig {
    /// URLs such as `nats://host:4222`, or `tls://` to require TLS: one server or several of one cluster.
    pub servers: Vec<String>,
    /// Default: none.
    pub auth: Auth,
    /// A file with the certificates that may sign the server's, beside those of the system.
    pub root_certificates: Option<PathBuf>,
    /// The client's certificate and its key, for servers that require one.
    pub client_certificate: Option<(PathBuf, PathBuf)>,
    /// The subjects below which answers are received. A user must be allowed to subscribe to
    /// `<prefix>.>`; with a prefix for each user, none can read the answers to another. Default
    /// `_INBOX`.
    pub inbox_prefix: String,
    /// For a connection with its handshake, and for each request; requests about a stream have at most 2 s.
    /// Default 5 s.
    pub timeout: Duration,
    /// A connection is lost when a ping is not answered within two of these. Default 5 s.
    pub ping_interval: Duration,
}

/// Without the secrets.
impl fmt::Debug for ServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = |url: &String| match url.rsplit_once('@') {
            Some((_, host)) => format!("…@{host}"),
            None => url.clone(),
        };
        f.debug_struct("ServerConfig")
            .field("servers", &self.servers.iter().map(host).collect::<Vec<_>>())
            .field("auth", &self.auth)
            .field("inbox_prefix", &self.inbox_prefix)
            .finish_non_exhaustive()
    }
}

impl ServerConfig {
    /// One server, without credentials.
    pub fn new(url: impl Into<String>) -> Self {
        Self::cluster([url])
    }

    /// The servers of a cluster, without credentials.
    pub fn cluster<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> Self {
        Self {
            servers: urls.into_iter().map(Into::into).collect(),
            auth: Auth::None,
            root_certificates: None,
            client_certificate: None,
            inbox_prefix: "_INBOX".into(),
            timeout: Duration::from_secs(5),
            ping_interval: Duration::from_secs(5),
        }
    }

    /// Sets [`Self::auth`].
    #[must_use]
    pub fn with_auth(mut self, auth: Auth) -> Self {
        self.auth = auth;
        self
    }

    /// Sets [`Self::auth`] to a name and a password.
    #[must_use]
    pub fn with_user(self, name: impl Into<String>, password: impl Into<String>) -> Self {
        self.with_auth(Auth::User { name: name.into(), password: password.into() })
    }

    /// Sets [`Self::inbox_prefix`].
    #[must_use]
    pub fn with_inbox_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.inbox_prefix = prefix.into();
        self
    }

    /// Sets [`Self::root_certificates`].
    #[must_use]
    pub fn with_root_certificates(mut self, path: impl Into<PathBuf>) -> Self {
        self.root_certificates = Some(path.into());
        self
    }

    /// Sets [`Self::client_certificate`].
    #[must_use]
    pub fn with_client_certificate(
        mut self,
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        self.client_certificate = Some((certificate.into(), key.into()));
        self
    }

    /// Sets [`Self::timeout`] and [`Self::ping_interval`].
    #[must_use]
    pub const fn with_times(mut self, timeout: Duration, ping_interval: Duration) -> Self {
        self.timeout = timeout;
        self.ping_interval = ping_interval;
        self
    }

    pub(crate) fn addresses(&self) -> Result<Vec<ServerAddr>, StreamError> {
        if self.servers.is_empty() {
            return Err(StreamError::NoServer);
        }
        let parse = |(index, url): (usize, &String)| {
            url.parse().map_err(|source| StreamError::Url { index, source })
        };
        self.servers.iter().enumerate().map(parse).collect()
    }

    fn validate(&self) -> Result<(), StreamError> {
        self.addresses()?;
        millis("timeout", self.timeout, 10, 60_000)?;
        millis("ping_interval", self.ping_interval, 10, 600_000)?;
        self.inbox_prefix.split('.').try_for_each(|token| name("inbox_prefix", token))
    }
}

/// The configuration of a [`Publisher`](crate::Publisher).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PublisherConfig {
    /// The servers.
    pub server: ServerConfig,
    /// Which orders are published. Default: public.
    pub flow: Flow,
    /// Part of every subject. Publishers of one chain must have the same.
    pub chain_id: u64,
    /// The name of this machine, the last token of its subjects: a user's rights should name it, so
    /// that no machine can publish as another.
    pub machine: String,
    /// The public streams, among which transactions are distributed by their hash. Publishers and
    /// sources must have the same. 1 to [`MAX_SHARDS`], default 1.
    pub shards: u16,
    /// Most messages that are not acknowledged, 1 to 65,536. Shards have equal parts of it, and as much as
    /// one of them have heads or cancellations. Default [`DEFAULT_WINDOW`].
    pub window: usize,
    /// Most bytes of them, at least 1 MiB; one message more may exceed it. Default
    /// [`DEFAULT_WINDOW_BYTES`].
    pub window_bytes: usize,
    /// After which a message is published again, 100 ms to 60 s. Default [`DEFAULT_ACK_TIMEOUT`].
    pub ack_timeout: Duration,
    /// Before the next connection, and before the next message to a stream that takes none. Default
    /// [`DEFAULT_BACKOFF`].
    pub backoff: Backoff,
    /// Whether the public flow includes heads. Default true.
    pub heads: bool,
    /// Whether this machine reports when it saw the transactions of which another machine was the
    /// first publisher, as a message that is not stored, at most one for 256 transactions or each
    /// 200 ms. Default true.
    pub reports: bool,
}

impl PublisherConfig {
    /// The public flow of this machine, with the defaults.
    pub fn new(server: ServerConfig, chain_id: u64, machine: impl Into<String>) -> Self {
        Self {
            server,
            flow: Flow::Public,
            chain_id,
            machine: machine.into(),
            shards: 1,
            window: DEFAULT_WINDOW,
            window_bytes: DEFAULT_WINDOW_BYTES,
            ack_timeout: DEFAULT_ACK_TIMEOUT,
            backoff: DEFAULT_BACKOFF,
            heads: true,
            reports: true,
        }
    }

    /// Sets [`Self::flow`].
    #[must_use]
    pub const fn with_flow(mut self, flow: Flow) -> Self {
        self.flow = flow;
        self
    }

    /// Sets [`Self::shards`].
    #[must_use]
    pub const fn with_shards(mut self, shards: u16) -> Self {
        self.shards = shards;
        self
    }

    /// Sets [`Self::window`] and [`Self::window_bytes`].
    #[must_use]
    pub const fn with_window(mut self, messages: usize, bytes: usize) -> Self {
        self.window = messages;
        self.window_bytes = bytes;
        self
    }

    /// Sets [`Self::ack_timeout`].
    #[must_use]
    pub const fn with_ack_timeout(mut self, timeout: Duration) -> Self {
        self.ack_timeout = timeout;
        self
    }

    /// Sets [`Self::backoff`].
    #[must_use]
    pub const fn with_backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Sets [`Self::heads`].
    #[must_use]
    pub const fn with_heads(mut self, heads: bool) -> Self {
        self.heads = heads;
        self
    }

    /// Sets [`Self::reports`].
    #[must_use]
    pub const fn with_reports(mut self, reports: bool) -> Self {
        self.reports = reports;
        self
    }

    /// Checks the bounds.
    ///
    /// # Errors
    /// Names the field.
    pub fn validate(&self) -> Result<(), StreamError> {
        self.server.validate()?;
        name("machine", &self.machine)?;
        bounds("shards", self.shards.into(), 1, MAX_SHARDS.into())?;
        bounds("window", self.window as u64, 1, 1 << 16)?;
        bounds("window_bytes", self.window_bytes as u64, 1 << 20, u64::MAX)?;
        millis("ack_timeout", self.ack_timeout, 100, 60_000)?;
        backoff(self.backoff)
    }
}

/// The configuration of a [`Source`](crate::Source).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SourceConfig {
    /// The servers.
    pub server: ServerConfig,
    /// Which orders are received. Default: public.
    pub flow: Flow,
    /// As of the publishers.
    pub chain_id: u64,
    /// The name of this process, under which the server keeps its position: no two sources of a flow
    /// may have the same, or each would take messages from the other. They would notice, and ask again.
    pub name: String,
    /// As of the publishers. Default 1.
    pub shards: u16,
    /// Whether published heads are applied to the pool. Without a node they are its only ones; with
    /// one, its own are better. Default false.
    pub heads: bool,
    /// Most bytes that wait for the pool, at least 8 MiB. While they do, nothing more is read from the
    /// server. Default [`DEFAULT_QUEUE_BYTES`].
    pub queue_bytes: usize,
    /// Above it the source is [`State::Lagging`](crate::State::Lagging). Default
    /// [`DEFAULT_LAG_MESSAGES`].
    pub lag_messages: u64,
    /// Before the next connection or the next attempt to read. Default [`DEFAULT_BACKOFF`].
    pub backoff: Backoff,
}

impl SourceConfig {
    /// The public flow, with the defaults.
    pub fn new(server: ServerConfig, chain_id: u64, name: impl Into<String>) -> Self {
        Self {
            server,
            flow: Flow::Public,
            chain_id,
            name: name.into(),
            shards: 1,
            heads: false,
            queue_bytes: DEFAULT_QUEUE_BYTES,
            lag_messages: DEFAULT_LAG_MESSAGES,
            backoff: DEFAULT_BACKOFF,
        }
    }

    /// Sets [`Self::flow`].
    #[must_use]
    pub const fn with_flow(mut self, flow: Flow) -> Self {
        self.flow = flow;
        self
    }

    /// Sets [`Self::shards`].
    #[must_use]
    pub const fn with_shards(mut self, shards: u16) -> Self {
        self.shards = shards;
        self
    }

    /// Sets [`Self::heads`].
    #[must_use]
    pub const fn with_heads(mut self, heads: bool) -> Self {
        self.heads = heads;
        self
    }

    /// Sets [`Self::queue_bytes`].
    #[must_use]
    pub const fn with_queue_bytes(mut self, bytes: usize) -> Self {
        self.queue_bytes = bytes;
        self
    }

    /// Sets [`Self::lag_messages`].
    #[must_use]
    pub const fn with_lag_messages(mut self, messages: u64) -> Self {
        self.lag_messages = messages;
        self
    }

    /// Sets [`Self::backoff`].
    #[must_use]
    pub const fn with_backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Checks the bounds.
    ///
    /// # Errors
    /// Names the field.
    pub fn validate(&self) -> Result<(), StreamError> {
        self.server.validate()?;
        name("name", &self.name)?;
        bounds("shards", self.shards.into(), 1, MAX_SHARDS.into())?;
        bounds("queue_bytes", self.queue_bytes as u64, 8 << 20, u32::MAX.into())?;
        backoff(self.backoff)
    }

    /// How many streams the flow has.
    pub(crate) const fn streams(&self) -> u16 {
        match self.flow {
            Flow::Public => self.shards,
            Flow::Private => 1,
        }
    }
}

pub(crate) fn bounds(
    field: &'static str,
    value: u64,
    min: u64,
    max: u64,
) -> Result<(), StreamError> {
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(StreamError::OutOfBounds { field, value, min, max })
    }
}

pub(crate) fn millis(
    field: &'static str,
    value: Duration,
    min: u64,
    max: u64,
) -> Result<(), StreamError> {
    bounds(field, u64::try_from(value.as_millis()).unwrap_or(u64::MAX), min, max)
}

fn backoff(backoff: Backoff) -> Result<(), StreamError> {
    millis("backoff.base", backoff.base, 1, 60_000)?;
    millis("backoff.cap", backoff.cap, 1, 600_000)
}

fn name(field: &'static str, value: &str) -> Result<(), StreamError> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if (1..=32).contains(&value.len()) && value.chars().all(is_part) {
        Ok(())
    } else {
        Err(StreamError::Name { field, value: value.chars().take(64).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_out_of_bounds_is_named() {
        let server = || ServerConfig::new("nats://localhost:4222");
        let publisher = || PublisherConfig::new(server(), 1, "a");
        let source = || SourceConfig::new(server(), 1, "a");
        assert!(publisher().validate().is_ok() && source().validate().is_ok());
        let field = |result: Result<(), StreamError>| match result {
            Err(StreamError::OutOfBounds { field, .. } | StreamError::Name { field, .. }) => field,
            other => panic!("{other:?}"),
        };
        assert_eq!(field(publisher().with_shards(0).validate()), "shards");
        assert_eq!(field(publisher().with_shards(MAX_SHARDS + 1).validate()), "shards");
        assert_eq!(field(publisher().with_window(0, 1 << 20).validate()), "window");
        assert_eq!(field(publisher().with_window(1, 1 << 19).validate()), "window_bytes");
        assert_eq!(field(publisher().with_ack_timeout(Duration::ZERO).validate()), "ack_timeout");
        assert_eq!(field(source().with_queue_bytes(1 << 20).validate()), "queue_bytes");
        let zero = Backoff { base: Duration::ZERO, cap: Duration::ZERO };
        assert_eq!(field(source().with_backoff(zero).validate()), "backoff.base");
        for wrong in ["", "a.b", "a b", "*", ">", &"a".repeat(33)] {
            assert_eq!(field(SourceConfig::new(server(), 1, wrong).validate()), "name");
            assert_eq!(field(PublisherConfig::new(server(), 1, wrong).validate()), "machine");
        }
        let prefix = PublisherConfig::new(server().with_inbox_prefix("_INBOX.>"), 1, "a");
        assert_eq!(field(prefix.validate()), "inbox_prefix");
        let none = PublisherConfig::new(ServerConfig::cluster::<String>([]), 1, "a");
        assert!(matches!(none.validate(), Err(StreamError::NoServer)));
        let wrong = PublisherConfig::new(ServerConfig::new("nats://:x"), 1, "a");
        assert!(matches!(wrong.validate(), Err(StreamError::Url { index: 0, .. })));
    }

    #[test]
    fn secrets_are_not_shown() {
        let server = ServerConfig::new("nats://me:hidden@host:4222").with_user("me", "hidden");
        let shown = format!("{server:?}");
        assert!(shown.contains("host:4222") && shown.contains("me") && !shown.contains("hidden"));
        for auth in [Auth::Token("hidden".into()), Auth::NKey("hidden".into())] {
            assert!(!format!("{auth:?}").contains("hidden"));
        }
    }
}
