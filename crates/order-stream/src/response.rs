//! Classifies what the stream answers to a published message: stored, retry, or rejected.

use std::error::Error as _;

use async_nats::jetstream::{
    self, ErrorCode,
    context::{PublishError, PublishErrorKind},
    publish::PublishAck,
};

use crate::{metrics::RefuseReason, state::State};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Response {
    /// The stream has the message at this sequence number.
    Stored { sequence: u64, is_duplicate: bool },
    /// The server is storing the same message for another publisher (JetStream error 10158). It is
    /// not known yet whether that succeeds.
    InProcess,
    /// The stream has not stored the message and may store it later. The state says why:
    /// [`State::Unavailable`] or [`State::Full`].
    RetryLater(State),
    /// The stream will never store the message.
    Refused(RefuseReason),
}

impl Response {
    /// Whether publishing the message again would change nothing.
    pub(crate) const fn is_final(self) -> bool {
        match self {
            Self::Stored { .. } | Self::Refused(_) => true,
            Self::InProcess | Self::RetryLater(_) => false,
        }
    }
}

impl From<Result<PublishAck, PublishError>> for Response {
    fn from(result: Result<PublishAck, PublishError>) -> Self {
        let error = match result {
            Ok(ack) => return Self::Stored { sequence: ack.sequence, is_duplicate: ack.duplicate },
            Err(error) => error,
        };
        let source = error.source().and_then(|source| source.downcast_ref::<jetstream::Error>());
        match (source, error.kind()) {
            (Some(error), _) => classify(error.error_code(), error.code()),
            (None, PublishErrorKind::MaxPayloadExceeded) => Self::Refused(RefuseReason::TooLarge),
            (None, PublishErrorKind::Other) => {
                tracing::warn!(%error, "the acknowledgement of a message cannot be parsed");
                Self::Refused(RefuseReason::Rejected)
            }
            // There was no response, or there is no server that could respond.
            _ => Self::RetryLater(State::Unavailable),
        }
    }
}

/// Classifies an error by the codes of nats-server 2.12 (`server/errors.json`).
fn classify(error: ErrorCode, http_status: usize) -> Response {
    match error {
        ErrorCode::STREAM_DUPLICATE_MESSAGE_CONFLICT => Response::InProcess,
        ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM => Response::Refused(RefuseReason::TooLarge),
        // A stream at its limit that discards new messages reports STREAM_STORE_FAILED.
        ErrorCode::STREAM_STORE_FAILED
        | ErrorCode::INSUFFICIENT_RESOURCES
        | ErrorCode::STORAGE_RESOURCES_EXCEEDED
        | ErrorCode::MEMORY_RESOURCES_EXCEEDED
        | ErrorCode::ACCOUNT_RESOURCES_EXCEEDED => Response::RetryLater(State::Full),
        // 429: the server's queue of messages to store is full, and it has dropped this message.
        _ if matches!(http_status, 429 | 503) => Response::RetryLater(State::Unavailable),
        other => {
            tracing::warn!(code = other.0, "the stream rejected a message");
            Response::Refused(RefuseReason::Rejected)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response_to_error(code: u32, http_status: u32) -> Response {
        let text = format!(r#"{{"code":{http_status},"err_code":{code},"description":"x"}}"#);
        let error: jetstream::Error = serde_json::from_str(&text).expect("an error");
        Response::from(Err(PublishError::with_source(PublishErrorKind::Other, error)))
    }

    fn response_to_kind(kind: PublishErrorKind) -> Response {
        Response::from(Err(PublishError::new(kind)))
    }

    #[test]
    fn errors_are_classified_by_the_codes_of_the_server() {
        let unavailable = Response::RetryLater(State::Unavailable);
        assert_eq!(response_to_error(10158, 409), Response::InProcess);
        assert_eq!(response_to_error(10054, 400), Response::Refused(RefuseReason::TooLarge));
        assert_eq!(response_to_error(10077, 503), Response::RetryLater(State::Full));
        assert_eq!(response_to_error(10047, 500), Response::RetryLater(State::Full));
        assert_eq!(response_to_error(10008, 503), unavailable);
        assert_eq!(response_to_error(10167, 429), unavailable);
        assert_eq!(response_to_error(10060, 400), Response::Refused(RefuseReason::Rejected));
        assert_eq!(response_to_kind(PublishErrorKind::TimedOut), unavailable);
        assert_eq!(response_to_kind(PublishErrorKind::StreamNotFound), unavailable);
    }
}
