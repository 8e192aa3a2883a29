//! What is configured.

use std::{fmt, path::PathBuf};

use async_nats::ServerAddr;

use crate::error::StreamError;

/// Which orders a stream carries. Each flow has its own stream, and should have its own credentials.
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
    /// As the URLs say, `nats://user:password@host` or `nats://token@host`, or not at all.
    #[default]
    Url,
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
            Self::Url => f.write_str("Url"),
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
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ServerConfig {
    /// URLs such as `nats://host:4222`, or `tls://` to require TLS: one server or several of one cluster.
    pub servers: Vec<String>,
    /// Who this is, if the server asks. Default: as the URLs say.
    pub auth: Auth,
    /// A file with the certificates that may sign the server's, beside those of the system: for certificates of one's own.
    pub root_certificates: Option<PathBuf>,
    /// The client's certificate and its key, for servers that require one.
    pub client_certificate: Option<(PathBuf, PathBuf)>,
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

    pub(crate) fn addresses(&self) -> Result<Vec<ServerAddr>, StreamError> {
        if self.servers.is_empty() {
            return Err(StreamError::NoServer);
        }
        let parse = |(index, url): (usize, &String)| {
            url.parse().map_err(|source| StreamError::Url { index, source })
        };
        self.servers.iter().enumerate().map(parse).collect()
    }

    /// The credentials that are sent. The client sends none that stand in a URL by itself.
    pub(crate) fn credentials(&self) -> Result<Auth, StreamError> {
        let mut found = None;
        for (index, address) in self.addresses()?.iter().enumerate() {
            let of_url = of_url(address);
            if of_url != Auth::Url && self.auth != Auth::Url {
                return Err(StreamError::TwoCredentials { index, other: "auth" });
            }
            if *found.get_or_insert_with(|| of_url.clone()) != of_url {
                return Err(StreamError::TwoCredentials { index, other: "servers[0]" });
            }
        }
        Ok(match found {
            Some(found) if self.auth == Auth::Url => found,
            _ => self.auth.clone(),
        })
    }
}

/// The user of a URL, with its password or as a token.
fn of_url(address: &ServerAddr) -> Auth {
    match (address.username(), address.password()) {
        (None, _) => Auth::Url,
        (Some(token), None) => Auth::Token(decoded(token)),
        (Some(name), Some(password)) => {
            Auth::User { name: decoded(name), password: decoded(password) }
        }
    }
}

/// Without the escapes `%40` of a URL, in which a parser writes what a password may not have there.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let digits = behind.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        (rest, _) = match (first, escaped) {
            (b'%', Some(byte)) => (&behind[2..], bytes.push(byte)),
            _ => (behind, bytes.push(*first)),
        };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The configuration of a [`Publisher`](crate::Publisher).
#[derive(Clone, Debug)]
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

    /// Checks the bounds.
    ///
    /// # Errors
    /// Names the field.
    pub fn validate(&self) -> Result<(), StreamError> {
        self.server.credentials()?;
        name("machine", &self.machine)
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

    /// Checks the bounds.
    ///
    /// # Errors
    /// Names the field.
    pub fn validate(&self) -> Result<(), StreamError> {
        self.server.credentials()?;
        name("name", &self.name)
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
        let publisher = PublisherConfig::new(server(), 1, "a");
        let source = SourceConfig::new(server(), 1, "a");
        assert!(publisher.validate().is_ok() && source.validate().is_ok());
        for wrong in ["", "a.b", "a b", "*", ">", &"a".repeat(33)] {
            let field = |result| match result {
                Err(StreamError::Name { field, .. }) => field,
                other => panic!("{other:?}"),
            };
            assert_eq!(field(SourceConfig::new(server(), 1, wrong).validate()), "name");
            assert_eq!(field(PublisherConfig::new(server(), 1, wrong).validate()), "machine");
        }
        let none = PublisherConfig::new(ServerConfig::default(), 1, "a");
        assert!(matches!(none.validate(), Err(StreamError::NoServer)));
        let wrong = PublisherConfig::new(ServerConfig::new("nats://:x"), 1, "a");
        assert!(matches!(wrong.validate(), Err(StreamError::Url { index: 0, .. })));
    }

    #[test]
    fn credentials_of_a_url_are_used_and_may_not_contradict_others() {
        let of = |urls: &[&str]| ServerConfig::cluster(urls.iter().copied());
        let user = |password: &str| Auth::User { name: "me".into(), password: password.into() };
        let credentials = |config: ServerConfig| config.credentials().expect("credentials");
        assert_eq!(credentials(of(&["nats://a:4222", "nats://b:4222"])), Auth::Url);
        let both = of(&["tls://me:s@a:4222", "tls://me:s@b:4222"]);
        assert_eq!(credentials(both.clone()), user("s"));
        assert_eq!(credentials(of(&["tls://me:p%40%2f100%@a"])), user("p@/100%"));
        assert_eq!(credentials(of(&["nats://secret@a"])), Auth::Token("secret".into()));
        assert_eq!(credentials(ServerConfig { auth: user("x"), ..of(&["nats://a"]) }), user("x"));
        let other = |config: ServerConfig| match config.credentials() {
            Err(StreamError::TwoCredentials { index, other }) => (index, other),
            other => panic!("{other:?}"),
        };
        assert_eq!(other(of(&["nats://me:s@a", "nats://b"])), (1, "servers[0]"));
        assert_eq!(other(ServerConfig { auth: user("x"), ..both }), (0, "auth"));
    }

    #[test]
    fn secrets_are_not_shown() {
        let auth = Auth::User { name: "me".into(), password: "hidden".into() };
        let server = ServerConfig { auth, ..ServerConfig::new("nats://me:hidden@host:4222") };
        let shown = format!("{server:?}");
        assert!(shown.contains("host:4222") && shown.contains("me") && !shown.contains("hidden"));
        for auth in [Auth::Token("hidden".into()), Auth::NKey("hidden".into())] {
            assert!(!format!("{auth:?}").contains("hidden"));
        }
    }
}
