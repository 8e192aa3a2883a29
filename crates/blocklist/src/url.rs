//! Requests a list from an HTTPS server.

// Bytes from outside are read here: none of them may cause a panic.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::expect_used))]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice, clippy::unreachable))]

use std::{
    io::Read,
    net::IpAddr,
    num::{IntErrorKind, ParseIntError},
    time::{Duration, SystemTime},
};

use alloy_primitives::B256;
use ureq::{
    Agent, Proxy,
    http::{
        HeaderMap, HeaderValue, Uri,
        header::{AGE, CACHE_CONTROL, ETAG, IF_NONE_MATCH},
    },
};

use crate::{
    BlocklistConfig, Error, Reloaded, SharedBlocklist, config::READ_LIMIT, parse::check_length,
};

/// The time for a whole request, with redirects and body. The longest text, 16 MiB, arrives in ten
/// seconds at 13 Mbit/s. While a server does not respond, the list in force ages as usual.
pub const DEFAULT_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The URL of a published list: `https://`, or `http://` on this machine, where nobody can alter
/// the response. Redirects are followed from HTTPS to HTTPS only, and only HTTPS goes through the
/// proxy that the environment may name (`ALL_PROXY`, `HTTPS_PROXY`, `HTTP_PROXY`).
///
/// It remembers the `ETag` of the response, so that an unchanged list is not sent again. Because it
/// remembers that of one list, use a separate `ListUrl` for each [`SharedBlocklist`].
pub struct ListUrl {
    url: Uri,
    host: Box<str>,
    agent: Agent,
    /// The `ETag` of the latest text that became a list, and the content hash of that list.
    known: Option<(HeaderValue, B256)>,
}

/// The response to a conditional request.
enum Response {
    /// A text, with its `ETag`.
    Text(Vec<u8>, Option<HeaderValue>),
    /// The list with this content hash has not changed.
    Unchanged(B256),
}

impl ListUrl {
    /// Makes a URL with [`DEFAULT_REQUEST_TIMEOUT`].
    ///
    /// # Errors
    /// [`Error::Config`] if it is not a URL, or if it is neither `https` nor `http` to this
    /// machine: over plain HTTP to another machine, the list could be altered on the way.
    pub fn new(url: &str) -> Result<Self, Error> {
        let url: Uri = url.parse().map_err(|_| invalid_url("not a URL"))?;
        let host = url.host().ok_or(invalid_url("it names no host"))?;
        // A URL has an IPv6 address in brackets.
        let is_local = host == "localhost"
            || host.trim_matches(['[', ']']).parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
        match url.scheme_str() {
            Some("https") => {}
            Some("http") if is_local => {}
            _ => return Err(invalid_url("neither https, nor http on this machine")),
        }
        let host = host.into();
        let agent = agent(&url, DEFAULT_REQUEST_TIMEOUT);
        Ok(Self { url, host, agent, known: None })
    }

    /// Sets the time limit for a whole request. Default [`DEFAULT_REQUEST_TIMEOUT`].
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.agent = agent(&self.url, timeout);
        self
    }

    /// Requests the list. Returns the response, and when the server gave it: `now`, less the time
    /// that a cache has held it.
    fn request(&self, now: SystemTime) -> Result<(Response, SystemTime), Error> {
        let failed = |error| Error::Request { host: self.host.clone(), source: Box::new(error) };
        // `no-cache` tells a cache to revalidate its response with the server. If it does not, the
        // header `Age` of its response says how old that is.
        let mut request = self.agent.get(&self.url).header(CACHE_CONTROL, "no-cache");
        if let Some((etag, _)) = &self.known {
            request = request.header(IF_NONE_MATCH, etag);
        }
        let response = request.call().map_err(failed)?;
        let as_of = now.checked_sub(age(response.headers())).unwrap_or(SystemTime::UNIX_EPOCH);
        match (response.status().as_u16(), &self.known) {
            (200, _) => {}
            (304, Some((_, hash))) => return Ok((Response::Unchanged(*hash), as_of)),
            // Any other status is an error, also a redirect (beyond the limit, or of a URL whose
            // redirects are not followed), and a 304 without an `ETag` in the request.
            (status, _) => return Err(Error::Status { host: self.host.clone(), status }),
        }
        let etag = response.headers().get(ETAG).cloned();
        let mut bytes = Vec::new();
        // The limit is one byte more than a list may have, so that `check_length` notices a longer
        // text.
        let mut body = response.into_body().into_reader().take(READ_LIMIT);
        body.read_to_end(&mut bytes).map_err(|error| failed(error.into()))?;
        check_length(&bytes)?;
        Ok((Response::Text(bytes, etag), as_of))
    }
}

const fn invalid_url(reason: &'static str) -> Error {
    Error::Config { field: "url", reason }
}

fn agent(url: &Uri, timeout: Duration) -> Agent {
    let https = url.scheme_str() == Some("https");
    Agent::config_builder()
        .https_only(https)
        .max_redirects(if https { 3 } else { 0 })
        .max_redirects_will_error(false)
        .http_status_as_error(false)
        .timeout_global(Some(timeout))
        // A proxy resolves `localhost` to its own machine, and could alter a response over HTTP.
        .proxy(Proxy::try_from_env().filter(|_| https))
        .build()
        .into()
}

/// Returns how long a cache has held the response.
fn age(headers: &HeaderMap) -> Duration {
    let seconds = headers.get(AGE).and_then(|age| age.to_str().ok()).map_or(0, |age| {
        let is_too_large = |error: &ParseIntError| *error.kind() == IntErrorKind::PosOverflow;
        age.parse().unwrap_or_else(|error| if is_too_large(&error) { u64::MAX } else { 0 })
    });
    Duration::from_secs(seconds)
}

impl SharedBlocklist {
    /// Requests the first list from a server. Its date is the time of the response: `now`, less the
    /// time that a cache has held it.
    ///
    /// Blocks until the response has arrived or the time-out of `url` has passed.
    ///
    /// # Errors
    /// [`Error::Request`], [`Error::Status`], [`Error::TooLarge`], and those of [`Self::new`].
    pub fn open_url(
        url: &mut ListUrl,
        config: BlocklistConfig,
        now: SystemTime,
    ) -> Result<Self, Error> {
        config.validate()?;
        url.known = None;
        let (response, as_of) = url.request(now)?;
        let Response::Text(text, etag) = response else {
            return Err(Error::Status { host: url.host.clone(), status: 304 });
        };
        let shared = Self::new(&text, as_of, config, now)?;
        let hash = shared.current(now)?.hash();
        url.known = etag.map(|etag| (etag, hash));
        Ok(shared)
    }

    /// Replaces the list in force by that of a server, dated as in [`Self::open_url`]. If the
    /// server says that the list in force has not changed, its date is renewed.
    ///
    /// # Errors
    /// As [`Self::open_url`], and [`Error::Older`] from a cache that holds an older list than the
    /// one in force. The list in force then stays until its maximum age;
    /// `blocklist_as_of_timestamp_seconds` allows an alert before. Counted in
    /// `blocklist_reloads_total{outcome="failed"}`.
    pub fn reload_url(&self, url: &mut ListUrl, now: SystemTime) -> Result<Reloaded, Error> {
        loop {
            let (response, as_of) = url.request(now).map_err(|error| self.failed(error))?;
            match response {
                Response::Text(text, etag) => {
                    let reloaded = self.reload(&text, as_of, now)?;
                    // The `ETag` is kept only now, so that a text that was refused is never
                    // confirmed.
                    url.known = etag.map(|etag| (etag, reloaded.hash()));
                    return Ok(reloaded);
                }
                Response::Unchanged(hash) => {
                    if let Some(reloaded) = self.confirm(hash, as_of, now)? {
                        return Ok(reloaded);
                    }
                    // Another list is in force, for instance one from a file. The next request has
                    // no `ETag`, so that the server sends the text.
                    url.known = None;
                }
            }
        }
    }
}

impl std::fmt::Debug for ListUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Path and query may hold a secret.
        f.debug_struct("ListUrl").field("host", &self.host).finish_non_exhaustive()
    }
}
