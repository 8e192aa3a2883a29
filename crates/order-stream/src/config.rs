//! The options of publishers and sources, and their validation.

use std::{fmt, path::PathBuf};

use async_nats::ServerAddr;

use crate::error::StreamError;

/// Which orders a stream carries. Each flow has its own stream and should have its own credentials.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Flow {
    /// Transactions that a node has announced, and heads of the chain.
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

/// How a client authenticates.
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Auth {
    /// By the credentials in the URLs, `nats://user:password@host` or `nats://token@host`, or not
    /// at all if they have none.
    #[default]
    Url,
    /// By the seed of an nkey.
    NKey(String),
    /// By a file with a JWT and a seed, which is read again for each connection.
    CredentialsFile(PathBuf),
}

/// Omits the secrets.
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
///
/// Make one with [`Self::new`] or [`Self::cluster`] and then set its fields: the struct gets more
/// fields in later versions.
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct ServerConfig {
    /// URLs such as `nats://host:4222`, or `tls://` to require TLS, of one server or of several
    /// servers of one cluster.
    pub servers: Vec<String>,
    /// How to authenticate. Default: by the URLs.
    pub auth: Auth,
    /// Extra CA certificates (PEM), added to the system roots.
    pub root_certificates: Option<PathBuf>,
}

/// Omits the secrets.
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
    /// Returns the configuration for one server.
    pub fn new(url: impl Into<String>) -> Self {
        Self::cluster([url])
    }

    /// Returns the configuration for the servers of a cluster.
    pub fn cluster<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> Self {
        Self { servers: urls.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// Parses the URLs. All must have the same credentials, and none may have credentials if `auth`
    /// has some.
    pub(crate) fn addresses(&self) -> Result<Vec<ServerAddr>, StreamError> {
        let mut addresses = Vec::with_capacity(self.servers.len());
        for (index, url) in self.servers.iter().enumerate() {
            let address: ServerAddr =
                url.parse().map_err(|source| StreamError::Url { index, source })?;
            addresses.push(address);
        }
        let first = addresses.first().ok_or(StreamError::NoServer)?;
        let (other, expected) = match self.auth {
            Auth::Url => ("servers[0]", credentials(first)),
            _ => ("auth", (None, None)),
        };
        match addresses.iter().position(|address| credentials(address) != expected) {
            Some(index) => Err(StreamError::ConflictingCredentials { index, other }),
            None => Ok(addresses),
        }
    }
}

/// Returns user name and password of a URL.
fn credentials(address: &ServerAddr) -> (Option<&str>, Option<&str>) {
    (address.username(), address.password())
}

/// The configuration of a [`Publisher`](crate::Publisher).
///
/// Make one with [`Self::new`] and then set its fields: the struct gets more fields in
/// later versions.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(default = "PublisherConfig::without_server", deny_unknown_fields)
)]
pub struct PublisherConfig {
    /// The servers.
    pub server: ServerConfig,
    /// Which orders are published. Default: public. Start another publisher for private orders.
    pub flow: Flow,
    /// Part of every subject. Publishers and sources of one chain must have the same.
    pub chain_id: u64,
    /// The name of this machine, which is the last token of its subjects. The rights of its user
    /// should name it, so that no machine can publish as another.
    pub machine: String,
    /// Whether the public flow includes heads. Default true. Turn it off for a node that often
    /// lags, since sources that apply heads apply those of all machines.
    pub heads: bool,
}

impl PublisherConfig {
    /// Returns the configuration that publishes the public flow of this machine.
    pub fn new(server: ServerConfig, chain_id: u64, machine: impl Into<String>) -> Self {
        Self { server, flow: Flow::Public, chain_id, machine: machine.into(), heads: true }
    }

    #[cfg(feature = "serde")]
    fn without_server() -> Self {
        Self::new(ServerConfig::default(), 0, "")
    }

    /// Checks the servers and the name.
    ///
    /// # Errors
    /// Names the field that is wrong.
    pub fn validate(&self) -> Result<(), StreamError> {
        validate(&self.server, "machine", &self.machine)
    }
}

/// The configuration of a [`Source`](crate::Source).
///
/// Make one with [`Self::new`] and then set its fields: the struct gets more fields in
/// later versions.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SourceConfig {
    /// The servers.
    pub server: ServerConfig,
    /// Which orders are received. Default: public. Start another source for private orders.
    pub flow: Flow,
    /// The chain id that the publishers have.
    pub chain_id: u64,
    /// The name of this process, which is the name of its consumer on the server. No two sources of
    /// a flow may have the same name: each would take messages from the other, notice it, and read
    /// them again.
    pub name: String,
    /// Whether published heads are applied to the pool. Turn it on for a pool without a node; a
    /// node's own heads are better. Default false.
    pub heads: bool,
}

impl SourceConfig {
    /// Returns the configuration that receives the public flow.
    pub fn new(server: ServerConfig, chain_id: u64, name: impl Into<String>) -> Self {
        Self { server, flow: Flow::Public, chain_id, name: name.into(), heads: false }
    }
}

/// Checks the servers, and a name that becomes part of subjects.
pub(crate) fn validate(
    server: &ServerConfig,
    field: &'static str,
    value: &str,
) -> Result<(), StreamError> {
    server.addresses()?;
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if (1..=32).contains(&value.len()) && value.chars().all(is_allowed) {
        Ok(())
    } else {
        Err(StreamError::Name { field, value: value.chars().take(64).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_wrong_option() {
        let server = ServerConfig::new("nats://localhost:4222");
        assert!(validate(&server, "machine", "a").is_ok());
        for wrong in ["", "a.b", "a b", "*", ">", &"a".repeat(33)] {
            let result = validate(&server, "machine", wrong);
            assert!(matches!(result, Err(StreamError::Name { field: "machine", .. })), "{wrong}");
        }
        let no_server = validate(&ServerConfig::default(), "machine", "a");
        assert!(matches!(no_server, Err(StreamError::NoServer)));
        let bad_url = validate(&ServerConfig::new("nats://:x"), "machine", "a");
        assert!(matches!(bad_url, Err(StreamError::Url { index: 0, .. })));
    }

    fn conflict(config: &ServerConfig) -> (usize, &'static str) {
        match config.addresses() {
            Err(StreamError::ConflictingCredentials { index, other }) => (index, other),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn conflicting_credentials_are_rejected() {
        assert!(ServerConfig::cluster(["nats://a", "nats://b"]).addresses().is_ok());
        let same = ServerConfig::cluster(["tls://me:s@a:4222", "tls://me:s@b:4222"]);
        assert!(same.addresses().is_ok());
        let one_without = ServerConfig::cluster(["nats://me:s@a", "nats://b"]);
        assert_eq!(conflict(&one_without), (1, "servers[0]"));
        let also_nkey = ServerConfig { auth: Auth::NKey("x".into()), ..same };
        assert_eq!(conflict(&also_nkey), (0, "auth"));
    }

    #[test]
    fn secrets_are_not_printed() {
        let auth = Auth::NKey("hidden".into());
        let server = ServerConfig { auth, ..ServerConfig::new("nats://me:hidden@host:4222") };
        let printed = format!("{server:?}");
        assert!(printed.contains("host:4222") && !printed.contains("hidden"), "{printed}");
    }
}
