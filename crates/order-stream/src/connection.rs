//! One connection to a NATS server, from its opening to its loss. A connection never reconnects by
//! itself: its user opens another one, so that every loss and its reason are visible.

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
    clock::{ClockOffset, ServerClockReading, WallClock},
    config::{Auth, ServerConfig},
    error::StreamError,
    state::{DisconnectReason, State},
};

/// The capacity of the client's command channel. A command is one message.
const COMMAND_CAPACITY: usize = 256;

/// The timeout of a connection and its handshake, which take a DNS lookup, four round trips and
/// some milliseconds of work. After it the next server is tried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The timeout of each request that creates or updates a stream.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);

/// The client considers a connection lost when two pings in a row are not answered.
const PING_INTERVAL: Duration = Duration::from_secs(2);

/// The capacity of one subscription, in messages: more than two pull requests bring.
const SUBSCRIPTION_CAPACITY: usize = 1 << 14;

/// The timeout of a request about a stream. The server may not answer at all while the stream has
/// no leader, so the request is repeated.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// How often the stream is checked.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(3);
/// How soon the check is repeated after it got no response.
pub(crate) const CHECK_RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// How long the stream may be silent before the connection is given up and the next server is
/// tried, because this server may be cut off from its cluster. Together with the time to connect it
/// is less than half a slot of mainnet.
pub(crate) const SILENCE_LIMIT: Duration = Duration::from_secs(4);

/// How many acknowledgements the client waits for at once. At the limit the client would wait
/// before it sends, while nobody reads the acknowledgements that have arrived. So the limit exceeds
/// what a publisher can have: two copies of each of the 4,096 messages of its window, and again
/// after the stream has failed.
const MAX_UNACKNOWLEDGED: usize = 1 << 16;

/// What the server has reported about the connection.
#[derive(Clone, Debug, Default)]
struct ConnectionStatus {
    lost: Option<DisconnectReason>,
    /// Subjects that the user may not publish or subscribe to. A connection uses few subjects, so
    /// the set stays small.
    denied_subjects: BTreeSet<String>,
}

impl ConnectionStatus {
    fn is_denied(&self, part: &str) -> bool {
        self.denied_subjects.iter().any(|subject| subject.contains(part))
    }
}

/// What a server reports about a stream.
#[derive(Debug)]
pub(crate) struct StreamInfo {
    pub(crate) info: stream::Info,
    pub(crate) clock_offset: ClockOffset,
    /// `None` if the server sends no time.
    pub(crate) server_clock: Option<ServerClockReading>,
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) client: Client,
    pub(crate) context: Context,
    status: watch::Receiver<ConnectionStatus>,
}

impl Connection {
    /// Connects to the first server that can be reached.
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

    /// Connects to a server. Its responses arrive below `_INBOX_<name>`, so that the rights of one
    /// user need not include the inbox of another.
    pub(crate) async fn open(
        config: &ServerConfig,
        address: ServerAddr,
        name: &str,
    ) -> Result<Self, StreamError> {
        let (sender, status) = watch::channel(ConnectionStatus::default());
        let mut options = with_auth(&config.auth, &address)
            .await?
            .name(name)
            .custom_inbox_prefix(format!("_INBOX_{name}"))
            .connection_timeout(CONNECT_TIMEOUT)
            .request_timeout(Some(TIMEOUT))
            .ping_interval(PING_INTERVAL)
            .client_capacity(COMMAND_CAPACITY)
            .subscription_capacity(SUBSCRIPTION_CAPACITY)
            // The client tries to connect once and gives up its own reconnect as soon.
            .max_reconnects(1)
            .reconnect_delay_callback(|_| Duration::ZERO)
            .ignore_discovered_servers()
            .event_callback(move |event| {
                record_event(&sender, event);
                std::future::ready(())
            });
        if let Some(path) = &config.root_certificates {
            options = options.add_root_certificates(path.clone());
        }
        let client = match options.connect(vec![address]).await {
            Ok(client) => client,
            Err(error) => return Err(StreamError::Connect { source: Box::new(error) }),
        };
        let context = ContextBuilder::new()
            .timeout(REQUEST_TIMEOUT)
            .max_ack_inflight(MAX_UNACKNOWLEDGED)
            .build(client.clone());
        Ok(Self { client, context, status })
    }

    /// Waits until the connection is lost, or the server denies a subject that contains one of
    /// `required_subjects`.
    pub(crate) async fn lost_or_denied(&self, required_subjects: &[&str]) -> State {
        let mut status = self.status.clone();
        let is_ended = |status: &ConnectionStatus| {
            status.lost.is_some() || required_subjects.iter().any(|part| status.is_denied(part))
        };
        match status.wait_for(is_ended).await.map(|status| status.lost) {
            Ok(None) => State::Denied,
            Ok(Some(reason)) => State::Disconnected { reason },
            // The client's task has ended.
            Err(_) => State::Disconnected { reason: DisconnectReason::Lost },
        }
    }

    /// Waits for a future, or returns the state if the connection is lost first.
    pub(crate) async fn unless_lost<T>(&self, future: impl Future<Output = T>) -> Result<T, State> {
        tokio::select! {
            // A result that is there already counts, although the connection was lost meanwhile.
            biased;
            output = future => Ok(output),
            state = self.lost_or_denied(&[]) => Err(state),
        }
    }

    /// Asks the server about a stream, and measures the offset of `clock` from the server's clock.
    pub(crate) async fn stream_info(
        &self,
        name: &str,
        clock: WallClock,
    ) -> Result<StreamInfo, State> {
        let sent_at = clock.now();
        let timer = Instant::now();
        let response = self.context.request(format!("STREAM.INFO.{name}"), &()).await;
        // The server wrote its time about halfway between request and response.
        let midway = sent_at + timer.elapsed() / 2;
        let value: Value = match response {
            Ok(Response::Ok(value)) => value,
            Ok(Response::Err { error }) => {
                return Err(self.state_for_error(Some(error.error_code()), "STREAM.INFO."));
            }
            Err(_) => return Err(self.state_for_error(None, "STREAM.INFO.")),
        };
        let server_time = value["ts"].as_str().and_then(|text| parse_rfc3339(text).ok());
        let info: stream::Info = serde_json::from_value(value).map_err(|error| {
            tracing::warn!(%error, stream = name, "the stream info cannot be parsed");
            State::Unavailable
        })?;
        if !has_leader(&info) {
            return Err(State::Unavailable);
        }
        let clock_offset = server_time.map_or_else(ClockOffset::default, |server_time| {
            ClockOffset::between(midway, server_time)
        });
        let server_clock =
            server_time.map(|server_time| ServerClockReading { requested_at: timer, server_time });
        Ok(StreamInfo { info, clock_offset, server_clock })
    }

    /// Returns the state after a request to a subject failed, with the server's error if it sent
    /// one.
    pub(crate) fn state_for_error(&self, error: Option<ErrorCode>, subject: &str) -> State {
        match error {
            Some(ErrorCode::STREAM_NOT_FOUND) => State::StreamMissing,
            None if self.is_denied(subject) || self.is_denied("_INBOX_") => State::Denied,
            _ => State::Unavailable,
        }
    }

    /// Whether the server has denied a subject that contains `part`. Where the account maps
    /// subjects, the server reports the mapped one.
    pub(crate) fn is_denied(&self, part: &str) -> bool {
        self.status.borrow().is_denied(part)
    }
}

/// Whether the stream has a leader. Without one any server answers from its own copy, which may be
/// shorter than the stream.
fn has_leader(info: &stream::Info) -> bool {
    info.cluster
        .as_ref()
        .is_none_or(|cluster| cluster.leader.as_ref().is_some_and(|leader| !leader.is_empty()))
}

/// Records what the client reports. The first reason of a loss is kept.
fn record_event(sender: &watch::Sender<ConnectionStatus>, event: Event) {
    let reason = match event {
        Event::Disconnected | Event::Closed => DisconnectReason::Lost,
        Event::LameDuckMode => DisconnectReason::ServerStopping,
        Event::ServerError(ServerError::Other(text)) => {
            record_server_error(sender, &text);
            return;
        }
        other => {
            tracing::debug!(event = %other, "the NATS client reports an event");
            return;
        }
    };
    sender.send_modify(|status| status.lost = status.lost.or(Some(reason)));
}

fn record_server_error(sender: &watch::Sender<ConnectionStatus>, text: &str) {
    let Some(subject) = denied_subject(text) else {
        tracing::warn!(text, "the server reports an error");
        return;
    };
    sender.send_if_modified(|status| {
        let is_new = status.denied_subjects.insert(subject.to_owned());
        if is_new {
            tracing::warn!(text, "the server denies a subject: see etc/nats/accounts.conf");
        }
        is_new
    });
}

/// Returns the subject of `Permissions Violation for Publish to "subject"`, or `for Subscription`,
/// in the form of nats-server 2.12.
fn denied_subject(text: &str) -> Option<&str> {
    text.to_ascii_lowercase().starts_with("permissions violation for ").then_some(())?;
    text.split('"').nth(1)
}

async fn with_auth(auth: &Auth, address: &ServerAddr) -> Result<ConnectOptions, StreamError> {
    let options = ConnectOptions::new();
    Ok(match (auth, address.username(), address.password()) {
        (Auth::NKey(seed), ..) => options.nkey(seed.clone()),
        (Auth::CredentialsFile(path), ..) => options
            .credentials_file(path)
            .await
            .map_err(|source| StreamError::Io { action: "read the credentials", source })?,
        // The client neither sends the credentials of a URL by itself nor decodes them.
        (Auth::Url, Some(name), Some(password)) => {
            options.user_and_password(percent_decode(name), percent_decode(password))
        }
        (Auth::Url, Some(token), None) => options.token(percent_decode(token)),
        (Auth::Url, None, _) => options,
    })
}

fn percent_decode(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// Returns the state after an attempt to connect failed.
pub(crate) fn state_for_connect_error(error: &StreamError) -> State {
    use ConnectErrorKind as Kind;
    let StreamError::Connect { source } = error else {
        // The credentials cannot be read, and the server would reject the user without them.
        return State::Denied;
    };
    let error: &(dyn Error + 'static) = &**source;
    let kind = error.downcast_ref::<async_nats::ConnectError>().map(|error| error.kind());
    let reason = match kind {
        Some(Kind::Authentication | Kind::AuthorizationViolation) => return State::Denied,
        Some(Kind::Tls) => DisconnectReason::Tls,
        // rustls reports a bad certificate like this.
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
    use crate::tests::stream_info;

    #[test]
    fn the_servers_error_texts_name_the_denied_subject() {
        let publish = "Permissions Violation for Publish to \"mempool.1.tx.a\"";
        assert_eq!(denied_subject(publish), Some("mempool.1.tx.a"));
        let subscribe = "Permissions Violation for Subscription to \"_INBOX.x.*\"";
        assert_eq!(denied_subject(subscribe), Some("_INBOX.x.*"));
        assert_eq!(denied_subject("Maximum Connections Exceeded"), None);
    }

    #[test]
    fn a_stream_info_without_a_leader_is_not_used() {
        let cluster_has_leader = |cluster| has_leader(&stream_info(cluster, 0, 0, -1));
        assert!(cluster_has_leader(""), "a single server has no cluster");
        assert!(cluster_has_leader(r#""cluster": { "name": "c", "leader": "nats-1" },"#));
        assert!(!cluster_has_leader(r#""cluster": { "name": "c" },"#));
        assert!(!cluster_has_leader(r#""cluster": { "name": "c", "leader": "" },"#));
    }

    #[test]
    fn a_bad_certificate_is_not_reported_as_an_unreachable_server() {
        let reason = |kind| {
            let source = io::Error::new(kind, "from rustls or from the system");
            let error = async_nats::ConnectError::with_source(ConnectErrorKind::Io, source);
            match state_for_connect_error(&StreamError::Connect { source: Box::new(error) }) {
                State::Disconnected { reason } => reason,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(reason(io::ErrorKind::InvalidData), DisconnectReason::Tls);
        assert_eq!(reason(io::ErrorKind::ConnectionRefused), DisconnectReason::Unreachable);
    }

    #[test]
    fn the_first_reason_of_a_loss_is_kept() {
        let (sender, status) = watch::channel(ConnectionStatus::default());
        record_event(&sender, Event::LameDuckMode);
        record_event(&sender, Event::Disconnected);
        assert_eq!(status.borrow().lost, Some(DisconnectReason::ServerStopping));
    }
}
