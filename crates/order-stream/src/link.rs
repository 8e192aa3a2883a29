//! One connection to a server, from its opening to its loss. It is never reopened: who uses it opens
//! another, so that every loss and its reason are seen.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use async_nats::{
    Client, ConnectErrorKind, ConnectOptions, Event, ServerError,
    jetstream::{self, Context, ErrorCode, context::GetStreamErrorKind, stream},
};
use tokio::sync::watch;

use crate::{
    config::{Auth, ServerConfig},
    error::StreamError,
    state::{DisconnectReason, State},
};

/// Commands that wait for the connection's task. Each is one message.
const COMMANDS: usize = 256;

/// A connection over which no stream has answered for as long is given up: its server may be cut off from its cluster.
const UNANSWERED: Duration = Duration::from_secs(10);

/// Since when no stream has answered. That one is missing or denied is an answer too.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Silence(Option<Instant>);

impl Silence {
    /// Returns whether it has lasted too long.
    pub(crate) fn note(&mut self, is_answered: bool, now: Instant) -> bool {
        if is_answered {
            self.0 = None;
            return false;
        }
        now.saturating_duration_since(*self.0.get_or_insert(now)) > UNANSWERED
    }
}

/// Messages that wait in one subscription: more than a window's acknowledgements, and than a pull
/// request's messages.
const SUBSCRIPTION: usize = 1 << 17;

/// Denied subjects that are remembered: more than one user publishes on.
const MAX_DENIED: usize = 256;

/// Most time for a request about a stream: one without a leader may not be answered at all, and is asked again.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// What the server has said about the connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinkStatus {
    pub(crate) lost: Option<DisconnectReason>,
    /// The subjects that the user may not publish on, each with the number of its latest denial.
    pub(crate) denied_publish: BTreeMap<String, u64>,
    /// The number of the latest denial of all.
    pub(crate) denials: u64,
    /// The subject that the user may not subscribe to.
    pub(crate) denied_subscribe: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) client: Client,
    pub(crate) context: Context,
    pub(crate) status: watch::Receiver<LinkStatus>,
    inbox_prefix: String,
}

impl Link {
    /// Connects to one of the servers, each tried once.
    pub(crate) async fn open(config: &ServerConfig, name: &str) -> Result<Self, StreamError> {
        let addresses = config.addresses()?;
        let (sender, status) = watch::channel(LinkStatus::default());
        let options = with_auth(ConnectOptions::new(), &config.auth).await?;
        let mut options = options
            .name(name)
            .custom_inbox_prefix(&config.inbox_prefix)
            .connection_timeout(config.timeout)
            .request_timeout(Some(config.timeout))
            .ping_interval(config.ping_interval)
            .client_capacity(COMMANDS)
            .subscription_capacity(SUBSCRIPTION)
            // Each server once; the client's own attempts to reconnect end as soon.
            .max_reconnects(addresses.len())
            .reconnect_delay_callback(|_| Duration::ZERO)
            .ignore_discovered_servers()
            .event_callback(move |event| {
                note(&sender, event);
                std::future::ready(())
            });
        if let Some(path) = &config.root_certificates {
            options = options.add_root_certificates(path.clone());
        }
        if let Some((certificate, key)) = &config.client_certificate {
            options = options.add_client_certificate(certificate.clone(), key.clone());
        }
        let client = options.connect(addresses).await.map_err(connect_error)?;
        let mut context = jetstream::new(client.clone());
        context.set_timeout(config.timeout.min(REQUEST_TIMEOUT));
        Ok(Self { client, context, status, inbox_prefix: config.inbox_prefix.clone() })
    }

    /// Waits for the loss of the connection.
    pub(crate) async fn lost(&self) -> DisconnectReason {
        let mut status = self.status.clone();
        loop {
            if let Some(reason) = status.borrow_and_update().lost {
                return reason;
            }
            // The client's task has ended.
            if status.changed().await.is_err() {
                return DisconnectReason::Lost;
            }
        }
    }

    /// What the server knows of a stream.
    pub(crate) async fn stream(&self, name: &str) -> Result<stream::Info, State> {
        match self.context.get_stream(name).await {
            Ok(stream) => {
                let info = stream.cached_info();
                if has_leader(info) { Ok(info.clone()) } else { Err(State::Unavailable) }
            }
            Err(error) => Err(match error.kind() {
                GetStreamErrorKind::JetStream(error) => match error.error_code() {
                    ErrorCode::STREAM_NOT_FOUND => State::StreamMissing,
                    _ => State::Unavailable,
                },
                _ => self.why_no_answer(name),
            }),
        }
    }

    /// The state after a request about a stream was not answered.
    pub(crate) fn why_no_answer(&self, name: &str) -> State {
        let is_denied = self.is_denied(&format!("$JS.API.STREAM.INFO.{name}"));
        if is_denied || self.has_no_answers() { State::Denied } else { State::Unavailable }
    }

    /// Whether the connection was lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.status.borrow().lost.is_some()
    }

    /// Whether the user may not subscribe to the answers to its requests.
    fn has_no_answers(&self) -> bool {
        let status = self.status.borrow();
        status
            .denied_subscribe
            .as_ref()
            .is_some_and(|subject| subject.starts_with(&self.inbox_prefix))
    }

    /// Whether the server has refused a message on this subject.
    pub(crate) fn is_denied(&self, subject: &str) -> bool {
        self.status.borrow().denied_publish.contains_key(subject)
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
    let lose = |reason| {
        sender.send_modify(|status| status.lost = status.lost.or(Some(reason)));
    };
    match event {
        Event::Disconnected | Event::Closed => lose(DisconnectReason::Lost),
        Event::LameDuckMode => lose(DisconnectReason::ServerStopping),
        Event::ServerError(ServerError::Other(text)) => {
            if let Some((is_publish, subject)) = denied_subject(&text) {
                // Once for each connection: the attempts go on each second.
                let is_known = sender.borrow().denied_publish.contains_key(subject);
                if !is_known {
                    tracing::warn!(subject, is_publish, "the server denies a subject");
                }
                sender.send_modify(|status| {
                    if is_publish {
                        status.denials += 1;
                        let denied = &mut status.denied_publish;
                        if denied.len() < MAX_DENIED || denied.contains_key(subject) {
                            denied.insert(subject.to_owned(), status.denials);
                        }
                    } else {
                        status.denied_subscribe = Some(subject.to_owned());
                    }
                });
            } else {
                tracing::warn!(text, "an error of the server");
            }
        }
        other => tracing::debug!(event = %other, "the connection"),
    }
}

/// The subject of `Permissions Violation for Publish to "subject"`, the form in which nats-server 2.12
/// reports it, and whether it is one to publish on.
fn denied_subject(text: &str) -> Option<(bool, &str)> {
    let lower = text.to_ascii_lowercase();
    let rest = lower.split_once("permissions violation for ")?.1;
    let is_publish = rest.starts_with("publish");
    let subject = text.split('"').nth(1)?;
    Some((is_publish, subject))
}

async fn with_auth(options: ConnectOptions, auth: &Auth) -> Result<ConnectOptions, StreamError> {
    Ok(match auth {
        Auth::None => options,
        Auth::User { name, password } => options.user_and_password(name.clone(), password.clone()),
        Auth::Token(token) => options.token(token.clone()),
        Auth::NKey(seed) => options.nkey(seed.clone()),
        Auth::CredentialsFile(path) => options
            .credentials_file(path)
            .await
            .map_err(|source| StreamError::Credentials { source })?,
    })
}

fn connect_error(error: async_nats::ConnectError) -> StreamError {
    StreamError::Connect { source: Box::new(error) }
}

/// The state after a connection could not be opened.
pub(crate) fn state_of(error: &StreamError) -> State {
    use ConnectErrorKind as Kind;
    let StreamError::Connect { source } = error else {
        // Credentials that cannot be read: the server would refuse the user without them.
        return State::Denied;
    };
    let kind = source.downcast_ref::<async_nats::ConnectError>().map(|error| error.kind());
    let reason = match kind {
        Some(Kind::Authentication | Kind::AuthorizationViolation) => return State::Denied,
        Some(Kind::Tls) => DisconnectReason::Tls,
        Some(Kind::Dns | Kind::TimedOut | Kind::Io | Kind::MaxReconnects) => {
            DisconnectReason::Unreachable
        }
        Some(Kind::ServerParse) | None => DisconnectReason::Refused,
    };
    State::Disconnected { reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_texts_name_the_denied_subject() {
        let publish = "Permissions Violation for Publish to \"mempool.1.tx.0.a\"";
        assert_eq!(denied_subject(publish), Some((true, "mempool.1.tx.0.a")));
        let subscribe = "Permissions Violation for Subscription to \"_INBOX.x.*\"";
        assert_eq!(denied_subject(subscribe), Some((false, "_INBOX.x.*")));
        assert_eq!(denied_subject("Maximum Connections Exceeded"), None);
    }

    #[test]
    fn a_server_without_a_leader_is_not_believed_about_a_streams_extent() {
        let info = |cluster: &str| {
            let text = format!(
                r#"{{ "created": "2026-01-02T03:04:05.678Z", {cluster}
                  "config": {{ "name": "MEMPOOL_1_TX_0", "subjects": ["mempool.1.tx.0.*"],
                    "retention": "limits", "max_consumers": -1, "max_msgs": -1, "max_bytes": -1,
                    "max_age": 0, "max_msgs_per_subject": -1, "max_msg_size": -1, "discard": "old",
                    "storage": "file", "num_replicas": 3, "duplicate_window": 120000000000 }},
                  "state": {{ "messages": 0, "bytes": 0, "first_seq": 0, "last_seq": 0,
                    "first_ts": "0001-01-01T00:00:00Z", "last_ts": "0001-01-01T00:00:00Z",
                    "consumer_count": 0 }} }}"#
            );
            serde_json::from_str::<stream::Info>(&text).expect("what a server sends")
        };
        assert!(has_leader(&info("")), "a server of its own");
        assert!(has_leader(&info(r#""cluster": { "name": "c", "leader": "nats-1" },"#)));
        assert!(!has_leader(&info(r#""cluster": { "name": "c" },"#)));
        assert!(!has_leader(&info(r#""cluster": { "name": "c", "leader": "" },"#)));
    }

    #[test]
    fn a_connection_is_given_up_when_nothing_has_answered_without_a_break() {
        let (mut silence, start) = (Silence::default(), Instant::now());
        let mut note =
            |is_answered, seconds| silence.note(is_answered, start + Duration::from_secs(seconds));
        assert!(!note(false, 0) && !note(false, 9) && !note(true, 11), "an answer");
        assert!(!note(false, 3_600), "the first since then");
        assert!(!note(false, 3_610) && note(false, 3_611));
    }

    #[test]
    fn the_first_reason_of_a_loss_is_kept() {
        let (sender, status) = watch::channel(LinkStatus::default());
        note(&sender, Event::LameDuckMode);
        note(&sender, Event::Disconnected);
        assert_eq!(status.borrow().lost, Some(DisconnectReason::ServerStopping));
    }

    #[test]
    fn each_denied_subject_is_kept_until_it_is_read() {
        let (sender, status) = watch::channel(LinkStatus::default());
        for subject in ["a", "b", "a"] {
            let text = format!("Permissions Violation for Publish to \"{subject}\"");
            note(&sender, Event::ServerError(ServerError::Other(text)));
        }
        let denied = status.borrow().denied_publish.clone();
        assert_eq!(denied, [("a".to_owned(), 3), ("b".to_owned(), 2)].into());
    }
}
