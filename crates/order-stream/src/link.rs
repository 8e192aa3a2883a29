//! One connection to a server, from its opening to its loss. It is never reopened: who uses it opens
//! another, so that every loss and its reason are seen.

use std::{
    collections::BTreeSet,
    error::Error,
    io,
    time::{Duration, Instant},
};

use async_nats::{
    Client, ConnectErrorKind, ConnectOptions, Event, ServerAddr, ServerError,
    jetstream::{Context, ErrorCode, context::ContextBuilder, response::Response, stream},
};
use humantime::parse_rfc3339;
use percent_encoding::percent_decode_str;
use serde_json::Value;
use tokio::sync::watch;

use crate::{
    clock::{ClockOffset, WallClock},
    config::{Auth, ServerConfig},
    error::StreamError,
    state::{DisconnectReason, State},
};

/// Commands that wait for the connection's task. Each is one message.
const COMMANDS: usize = 256;

/// For a connection with its handshake: four round trips and a look-up, and some milliseconds of work. Then the next server
/// is tried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// For each request that makes or changes a stream.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);

/// A connection is lost when a ping is not answered within two of these.
const PING_INTERVAL: Duration = Duration::from_secs(2);

/// Messages that wait in one subscription: more than those of two pull requests.
const SUBSCRIPTION: usize = 1 << 14;

/// Most time for a request about a stream: one without a leader may not be answered at all, and is asked again.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// How often the stream is compared with the one that it was, and how soon again without a response.
pub(crate) const CHECK_EVERY: Duration = Duration::from_secs(3);
pub(crate) const CHECK_AGAIN: Duration = Duration::from_millis(250);

/// A connection over which the stream has not responded for this long is given up, and the next server is tried: this one
/// may be cut off from its cluster. With the time for the connection it is less than half a slot of mainnet.
pub(crate) const SILENCE: Duration = Duration::from_secs(4);

/// Messages whose acknowledgements the client waits for at once. Above that it would wait before it sends, while nobody
/// takes those that have come: so more than a publisher can have. It publishes a window of 4,096 again after a pause of an
/// eighth of a second at least, and waits for five seconds: 164,000.
const MAX_UNACKNOWLEDGED: usize = 1 << 20;

/// What the server has said about the connection.
#[derive(Clone, Debug, Default)]
struct LinkStatus {
    lost: Option<DisconnectReason>,
    /// The subjects on which the user may not publish, or to which it may not subscribe: some of the few that are used over
    /// a connection.
    denied: BTreeSet<String>,
}

impl LinkStatus {
    fn is_denied(&self, part: &str) -> bool {
        self.denied.iter().any(|subject| subject.contains(part))
    }
}

/// What a server says of a stream.
#[derive(Debug)]
pub(crate) struct StreamInfo {
    pub(crate) info: stream::Info,
    pub(crate) clock_offset: ClockOffset,
}

#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) client: Client,
    pub(crate) context: Context,
    status: watch::Receiver<LinkStatus>,
}

impl Link {
    /// Connects to the first of the servers that can be reached.
    pub(crate) async fn open_any(config: &ServerConfig, name: &str) -> Result<Self, StreamError> {
        let mut result = Err(StreamError::NoServer);
        for address in config.addresses()? {
            result = Self::open(config, address, name).await;
            if result.is_ok() {
                break;
            }
        }
        result
    }

    /// Connects to a server. Responses come below `_INBOX_<name>`, so that the rights of one user need not include those
    /// to another.
    pub(crate) async fn open(
        config: &ServerConfig,
        address: ServerAddr,
        name: &str,
    ) -> Result<Self, StreamError> {
        let (sender, status) = watch::channel(LinkStatus::default());
        let mut options = with_auth(&config.auth, &address)
            .await?
            .name(name)
            .custom_inbox_prefix(format!("_INBOX_{name}"))
            .connection_timeout(CONNECT_TIMEOUT)
            .request_timeout(Some(TIMEOUT))
            .ping_interval(PING_INTERVAL)
            .client_capacity(COMMANDS)
            .subscription_capacity(SUBSCRIPTION)
            // Once; the client's own attempts to reconnect end as soon.
            .max_reconnects(1)
            .reconnect_delay_callback(|_| Duration::ZERO)
            .ignore_discovered_servers()
            .event_callback(move |event| {
                note(&sender, event);
                std::future::ready(())
            });
        if let Some(path) = &config.root_certificates {
            options = options.add_root_certificates(path.clone());
        }
        let refused = |error| StreamError::Connect { source: Box::new(error) };
        let client = options.connect(vec![address]).await.map_err(refused)?;
        let context = ContextBuilder::new()
            .timeout(REQUEST_TIMEOUT)
            .max_ack_inflight(MAX_UNACKNOWLEDGED)
            .build(client.clone());
        Ok(Self { client, context, status })
    }

    /// Waits until the connection is lost, or the server denies a subject that contains one of
    /// these.
    pub(crate) async fn ended(&self, denied: &[&str]) -> State {
        let mut status = self.status.clone();
        let is_denied = |status: &LinkStatus| denied.iter().any(|part| status.is_denied(part));
        let is_ended = |status: &LinkStatus| status.lost.is_some() || is_denied(status);
        match status.wait_for(is_ended).await.map(|status| status.lost) {
            Ok(None) => State::Denied,
            Ok(Some(reason)) => State::Disconnected { reason },
            // The client's task has ended.
            Err(_) => State::Disconnected { reason: DisconnectReason::Lost },
        }
    }

    /// Waits for something over this connection.
    pub(crate) async fn unless_lost<T>(&self, done: impl Future<Output = T>) -> Result<T, State> {
        tokio::select! {
            biased;
            done = done => Ok(done),
            state = self.ended(&[]) => Err(state),
        }
    }

    /// What the server knows of a stream, and by how much `clock` is ahead of it.
    pub(crate) async fn stream(&self, name: &str, clock: WallClock) -> Result<StreamInfo, State> {
        let (began, began_at) = (clock.now(), Instant::now());
        let response = self.context.request(format!("STREAM.INFO.{name}"), &()).await;
        let midway = began + began_at.elapsed() / 2;
        let value: Value = match response {
            Ok(Response::Ok(value)) => value,
            Ok(Response::Err { error }) => {
                return Err(self.state_after(Some(error.error_code()), "STREAM.INFO."));
            }
            Err(_) => return Err(self.state_after(None, "STREAM.INFO.")),
        };
        let server_time = value["ts"].as_str().and_then(|text| parse_rfc3339(text).ok());
        let info: stream::Info = serde_json::from_value(value).map_err(|error| {
            tracing::warn!(%error, name, "a description of the stream that does not parse");
            State::Unavailable
        })?;
        if !has_leader(&info) {
            return Err(State::Unavailable);
        }
        let clock_offset = server_time.map_or_else(ClockOffset::default, |server_time| {
            ClockOffset::between(midway, server_time)
        });
        Ok(StreamInfo { info, clock_offset })
    }

    /// The state after a request on such a subject failed, with the server's error if it has sent one.
    pub(crate) fn state_after(&self, error: Option<ErrorCode>, subject: &str) -> State {
        match error {
            Some(ErrorCode::STREAM_NOT_FOUND) => State::StreamMissing,
            None if self.is_denied(subject) || self.is_denied("_INBOX_") => State::Denied,
            _ => State::Unavailable,
        }
    }

    /// Whether the server has denied a subject that contains this. It names the subject to which it has mapped a request.
    pub(crate) fn is_denied(&self, part: &str) -> bool {
        self.status.borrow().is_denied(part)
    }
}

/// Without a leader any server answers, from what it has itself: its stream may be shorter.
fn has_leader(info: &stream::Info) -> bool {
    info.cluster
        .as_ref()
        .is_none_or(|cluster| cluster.leader.as_ref().is_some_and(|leader| !leader.is_empty()))
}

/// What the client reports is kept until it is read.
fn note(sender: &watch::Sender<LinkStatus>, event: Event) {
    let lose = |reason| sender.send_modify(|status| status.lost = status.lost.or(Some(reason)));
    match event {
        Event::Disconnected | Event::Closed => lose(DisconnectReason::Lost),
        Event::LameDuckMode => lose(DisconnectReason::ServerStopping),
        Event::ServerError(ServerError::Other(text)) => {
            let Some(subject) = denied_subject(&text) else {
                return tracing::warn!(text, "an error of the server");
            };
            sender.send_if_modified(|LinkStatus { denied, .. }| {
                let is_new = denied.insert(subject.to_owned());
                if is_new {
                    tracing::warn!(text, "the server denies a subject");
                }
                is_new
            });
        }
        other => tracing::debug!(event = %other, "the connection"),
    }
}

/// The subject of `Permissions Violation for Publish to "subject"`, or `for Subscription`: the form of nats-server 2.12.
fn denied_subject(text: &str) -> Option<&str> {
    text.to_ascii_lowercase().starts_with("permissions violation for ").then_some(())?;
    text.split('"').nth(1)
}

async fn with_auth(auth: &Auth, first: &ServerAddr) -> Result<ConnectOptions, StreamError> {
    let options = ConnectOptions::new();
    // The client sends nothing that stands in a URL by itself, and does not decode its `%40`.
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    Ok(match (auth, first.username(), first.password()) {
        (Auth::NKey(seed), ..) => options.nkey(seed.clone()),
        (Auth::CredentialsFile(path), ..) => {
            let read = options.credentials_file(path).await;
            read.map_err(|source| StreamError::Io { action: "read the credentials", source })?
        }
        (Auth::Url, Some(name), Some(password)) => {
            options.user_and_password(decoded(name), decoded(password))
        }
        (Auth::Url, Some(token), None) => options.token(decoded(token)),
        (Auth::Url, None, _) => options,
    })
}

pub(crate) fn state_of(error: &StreamError) -> State {
    use ConnectErrorKind as Kind;
    let StreamError::Connect { source } = error else {
        // Credentials that cannot be read: the server would refuse the user without them.
        return State::Denied;
    };
    let error: &(dyn Error + 'static) = &**source;
    let kind = error.downcast_ref::<async_nats::ConnectError>().map(|error| error.kind());
    let reason = match kind {
        Some(Kind::Authentication | Kind::AuthorizationViolation) => return State::Denied,
        Some(Kind::Tls) => DisconnectReason::Tls,
        // What rustls says of a certificate.
        Some(Kind::Io) if is_invalid_data(error) => DisconnectReason::Tls,
        Some(Kind::Dns | Kind::TimedOut | Kind::Io | Kind::MaxReconnects) => {
            DisconnectReason::Unreachable
        }
        Some(Kind::ServerParse) | None => DisconnectReason::Refused,
    };
    State::Disconnected { reason }
}

fn is_invalid_data(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let io_error = error.downcast_ref::<io::Error>();
        if io_error.is_some_and(|error| error.kind() == io::ErrorKind::InvalidData) {
            return true;
        }
        next = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::info;

    #[test]
    fn the_servers_texts_name_the_denied_subject() {
        let publish = "Permissions Violation for Publish to \"mempool.1.tx.a\"";
        assert_eq!(denied_subject(publish), Some("mempool.1.tx.a"));
        let subscribe = "Permissions Violation for Subscription to \"_INBOX.x.*\"";
        assert_eq!(denied_subject(subscribe), Some("_INBOX.x.*"));
        assert_eq!(denied_subject("Maximum Connections Exceeded"), None);
    }

    #[test]
    fn a_server_without_a_leader_is_not_believed_about_a_streams_extent() {
        let has_leader = |cluster| has_leader(&info(cluster, 0, 0, -1));
        assert!(has_leader(""), "a server of its own");
        assert!(has_leader(r#""cluster": { "name": "c", "leader": "nats-1" },"#));
        assert!(!has_leader(r#""cluster": { "name": "c" },"#));
        assert!(!has_leader(r#""cluster": { "name": "c", "leader": "" },"#));
    }

    #[test]
    fn a_certificate_that_rustls_refuses_is_told_from_a_server_that_cannot_be_reached() {
        let state = |kind| {
            let source = io::Error::new(kind, "from rustls or from the system");
            let error = async_nats::ConnectError::with_source(ConnectErrorKind::Io, source);
            state_of(&StreamError::Connect { source: Box::new(error) })
        };
        let disconnected = |reason| State::Disconnected { reason };
        assert_eq!(state(io::ErrorKind::InvalidData), disconnected(DisconnectReason::Tls));
        let unreachable = disconnected(DisconnectReason::Unreachable);
        assert_eq!(state(io::ErrorKind::ConnectionRefused), unreachable);
    }

    #[test]
    fn the_first_reason_of_a_loss_is_kept() {
        let (sender, status) = watch::channel(LinkStatus::default());
        note(&sender, Event::LameDuckMode);
        note(&sender, Event::Disconnected);
        assert_eq!(status.borrow().lost, Some(DisconnectReason::ServerStopping));
    }
}
