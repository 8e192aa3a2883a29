//! What the stream responds to a message.

use std::error::Error as _;

use async_nats::jetstream::{
    self, ErrorCode,
    context::{PublishError, PublishErrorKind},
    publish::PublishAck,
};

use crate::{metrics::RefuseReason, state::State};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Response {
    /// The stream has it under this number.
    Stored {
        sequence: u64,
        is_duplicate: bool,
    },
    /// The same message is being stored for another publisher (JetStream error 10158); whether it will be is not known yet.
    InProcess,
    /// It is not stored now and may be later: the stream is [`State::Unavailable`] or [`State::Full`].
    Later(State),
    Refused(RefuseReason),
}

impl From<Result<PublishAck, PublishError>> for Response {
    fn from(result: Result<PublishAck, PublishError>) -> Self {
        let error = match result {
            Ok(ack) => return Self::Stored { sequence: ack.sequence, is_duplicate: ack.duplicate },
            Err(error) => error,
        };
        let source = error.source().and_then(|source| source.downcast_ref::<jetstream::Error>());
        match (source, error.kind()) {
            (Some(error), _) => from_error(error.error_code(), error.code()),
            (None, PublishErrorKind::MaxPayloadExceeded) => Self::Refused(RefuseReason::TooLarge),
            (None, PublishErrorKind::Other) => {
                tracing::warn!(%error, "an acknowledgement that does not parse");
                Self::Refused(RefuseReason::Rejected)
            }
            // No response, or nobody there to respond.
            _ => Self::Later(State::Unavailable),
        }
    }
}

/// By the codes of nats-server 2.12 (`server/errors.json`).
fn from_error(error: ErrorCode, http: usize) -> Response {
    match error {
        ErrorCode::STREAM_DUPLICATE_MESSAGE_CONFLICT => Response::InProcess,
        ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM => Response::Refused(RefuseReason::TooLarge),
        // The stream's own limits, with discarding of new messages, are reported as a failed store.
        ErrorCode::STREAM_STORE_FAILED
        | ErrorCode::INSUFFICIENT_RESOURCES
        | ErrorCode::STORAGE_RESOURCES_EXCEEDED
        | ErrorCode::MEMORY_RESOURCES_EXCEEDED
        | ErrorCode::ACCOUNT_RESOURCES_EXCEEDED => Response::Later(State::Full),
        // 429: more messages wait to be stored than the server holds; it has dropped this one.
        _ if matches!(http, 429 | 503) => Response::Later(State::Unavailable),
        other => {
            tracing::warn!(code = other.0, "the stream refuses a message");
            Response::Refused(RefuseReason::Rejected)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_told_apart_by_the_codes_of_the_server() {
        let of = |code: u32, http: u32| {
            let text = format!(r#"{{"code":{http},"err_code":{code},"description":"x"}}"#);
            let error: jetstream::Error = serde_json::from_str(&text).expect("an error");
            Response::from(Err(PublishError::with_source(PublishErrorKind::Other, error)))
        };
        assert_eq!(of(10158, 409), Response::InProcess);
        assert_eq!(of(10054, 400), Response::Refused(RefuseReason::TooLarge));
        assert_eq!(of(10077, 503), Response::Later(State::Full));
        assert_eq!(of(10047, 500), Response::Later(State::Full));
        assert_eq!(of(10008, 503), Response::Later(State::Unavailable));
        assert_eq!(of(10167, 429), Response::Later(State::Unavailable));
        assert_eq!(of(10060, 400), Response::Refused(RefuseReason::Rejected));
        let other = |kind| Response::from(Err(PublishError::new(kind)));
        assert_eq!(other(PublishErrorKind::TimedOut), Response::Later(State::Unavailable));
        assert_eq!(other(PublishErrorKind::StreamNotFound), Response::Later(State::Unavailable));
    }
}
