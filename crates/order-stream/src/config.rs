//! What is configured.

use std::{fmt, path::PathBuf};

use async_nats::ServerAddr;

use crate::error::StreamError;

/// Which orders a stream carries. Each flow has its own stream, and should have its own credentials.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Flow {
    /// Transactions that a node has announced, and heads.
    #[default]
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
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Auth {
    /// As the URLs say, `nats://user:password@host` or `nats://token@host`, or not at all.
    #[default]
    Url,
    /// By the seed of an nkey.
    NKey(String),
    /// By a file with a JWT and a seed. It is read for each connection.
    CredentialsFile(PathBuf),
}

/// Without the secrets.
impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url => f.write_str("Url"),
            Self::NKey(_) => f.write_str("NKey"),
            Self::CredentialsFile(path) => f.debug_tuple("CredentialsFile").field(path).finish(),
        }
    }
}

/// The servers of a cluster, and how to reach them.
#[derive(Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct ServerConfig {
    /// URLs such as `nats://host:4222`, or `tls://` to require TLS: one server or several of one cluster.
    pub servers: Vec<String>,
    /// Who this is, if the server asks. Default: as the URLs say.
    pub auth: Auth,
    /// Extra CA certificates (PEM), added to the system roots.
    pub root_certificates: Option<PathBuf>,
}

/// Without the secrets.
impl fmt::Debug for ServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts = self.servers.iter().filter_map(|url| url.rsplit('@').next());
        f.debug_struct("ServerConfig")
            .field("servers", &hosts.collect::<Vec<_>>())
            .field("auth", &self.auth)
            .finish_non_exhaustive()
    }
}

impl ServerConfig {
    /// One server.
    pub fn new(url: impl Into<String>) -> Self {
        Self::cluster([url])
    }

    /// The servers of a cluster.
    pub fn cluster<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> Self {
        Self { servers: urls.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// The addresses, of which all have the same credentials; none has any beside `auth`.
    pub(crate) fn addresses(&self) -> Result<Vec<ServerAddr>, StreamError> {
        let parse = |(index, url): (usize, &String)| {
            url.parse().map_err(|source| StreamError::Url { index, source })
        };
        let addresses: Vec<ServerAddr> =
            self.servers.iter().enumerate().map(parse).collect::<Result<_, _>>()?;
        let first = addresses.first().ok_or(StreamError::NoServer)?;
        let of = |address: &ServerAddr| {
            [address.username(), address.password()].map(|text| text.map(str::to_owned))
        };
        let (other, expected) = match self.auth {
            Auth::Url => ("servers[0]", of(first)),
            _ => ("auth", [None, None]),
        };
        match addresses.iter().position(|address| of(address) != expected) {
            Some(index) => Err(StreamError::TwoCredentials { index, other }),
            None => Ok(addresses),
        }
    }
}

/// The configuration of a [`Publisher`](crate::Publisher).
#[derive(Clone, Debug)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(default = "PublisherConfig::of_no_server", deny_unknown_fields)
)]
pub struct PublisherConfig {
    /// The servers.
    pub server: ServerConfig,
    /// Which orders are published. Default: public. Start another publisher for private ones.
    pub flow: Flow,
    /// Part of every subject. Publishers and sources of one chain must have the same.
    pub chain_id: u64,
    /// The name of this machine, the last token of its subjects: a user's rights should name it, so
    /// that no machine can publish as another.
    pub machine: String,
    /// Whether the public flow includes heads. Default true; turn it off beside a node that often lags, since sources that
    /// take heads take those of all machines.
    pub heads: bool,
}

impl PublisherConfig {
    /// The public flow of this machine.
    pub fn new(server: ServerConfig, chain_id: u64, machine: impl Into<String>) -> Self {
        Self { server, flow: Flow::Public, chain_id, machine: machine.into(), heads: true }
    }

    #[cfg(feature = "serde")]
    fn of_no_server() -> Self {
        Self::new(ServerConfig::default(), 0, "")
    }

    /// # Errors
    /// Names the field that is wrong.
    pub fn validate(&self) -> Result<(), StreamError> {
        check(&self.server, "machine", &self.machine)
    }
}

/// The configuration of a [`Source`](crate::Source).
#[derive(Clone, Debug)]
pub struct SourceConfig {
    /// The servers.
    pub server: ServerConfig,
    /// Which orders are received. Default: public. Start another source for private ones.
    pub flow: Flow,
    /// As of the publishers.
    pub chain_id: u64,
    /// The name of this process, under which the server keeps its position: no two sources of a flow
    /// may have the same, or each would take messages from the other. They would notice, and read them again.
    pub name: String,
    /// Whether published heads are applied to the pool. Turn it on for a pool without a node: with one, its own heads are
    /// better. Default false.
    pub heads: bool,
}

impl SourceConfig {
    /// The public flow.
    pub fn new(server: ServerConfig, chain_id: u64, name: impl Into<String>) -> Self {
        Self { server, flow: Flow::Public, chain_id, name: name.into(), heads: false }
    }
}

/// Checks what a publisher and a source have in common: its name is part of subjects.
pub(crate) fn check(
    server: &ServerConfig,
    field: &'static str,
    value: &str,
) -> Result<(), StreamError> {
    server.addresses()?;
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
        let server = ServerConfig::new("nats://localhost:4222");
        assert!(check(&server, "machine", "a").is_ok());
        for wrong in ["", "a.b", "a b", "*", ">", &"a".repeat(33)] {
            let found = check(&server, "machine", wrong);
            assert!(matches!(found, Err(StreamError::Name { field: "machine", .. })), "{wrong}");
        }
        let none = check(&ServerConfig::default(), "machine", "a");
        assert!(matches!(none, Err(StreamError::NoServer)));
        let wrong = check(&ServerConfig::new("nats://:x"), "machine", "a");
        assert!(matches!(wrong, Err(StreamError::Url { index: 0, .. })));
    }

    #[test]
    fn credentials_that_contradict_each_other_are_refused() {
        let of = |urls: &[&str]| ServerConfig::cluster(urls.iter().copied());
        let both = of(&["tls://me:s@a:4222", "tls://me:s@b:4222"]);
        assert!(both.addresses().is_ok() && of(&["nats://a", "nats://b"]).addresses().is_ok());
        let other = |config: ServerConfig| match config.addresses() {
            Err(StreamError::TwoCredentials { index, other }) => (index, other),
            other => panic!("{other:?}"),
        };
        assert_eq!(other(of(&["nats://me:s@a", "nats://b"])), (1, "servers[0]"));
        assert_eq!(other(ServerConfig { auth: Auth::NKey("x".into()), ..both }), (0, "auth"));
    }

    #[test]
    fn secrets_are_not_shown() {
        let auth = Auth::NKey("hidden".into());
        let server = ServerConfig { auth, ..ServerConfig::new("nats://me:hidden@host:4222") };
        let shown = format!("{server:?}");
        assert!(shown.contains("host:4222") && !shown.contains("hidden"), "{shown}");
    }
}
