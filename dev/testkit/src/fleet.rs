//! How the examples and benches name the servers of a fleet.

use std::path::Path;

use order_stream::ServerConfig;

/// The servers of one cluster, by URLs such as `nats://user:password@host:4222`. Answers to a user come below
/// `_INBOX_<user>`, as the sample configuration in `etc/nats/` allows.
pub fn server(urls: &[String], ca: Option<&Path>) -> ServerConfig {
    let mut server = ServerConfig::cluster(urls);
    if let Some(user) = urls.first().and_then(|url| user(url)) {
        server = server.with_inbox_prefix(format!("_INBOX_{user}"));
    }
    if let Some(ca) = ca {
        server = server.with_root_certificates(ca);
    }
    server
}

fn user(url: &str) -> Option<&str> {
    let (credentials, _) = url.split_once("://")?.1.rsplit_once('@')?;
    credentials.split(':').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_an_inbox_of_its_own() {
        let of = |url: &str| server(&[url.to_owned()], None).inbox_prefix;
        assert_eq!(of("nats://ingest-1:secret@host:4222"), "_INBOX_ingest-1");
        assert_eq!(of("nats://host:4222"), "_INBOX");
    }
}
