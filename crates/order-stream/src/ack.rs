//! The answers of a stream to a message.

use async_nats::jetstream::{ErrorCode, publish::PublishAck, response::Response};

use crate::{
    metrics::RefuseReason,
    outbox::{Answer, Trouble},
};

/// What the bytes of an acknowledgement say, and where the message is stored.
pub(crate) fn answer_of(payload: &[u8]) -> (Answer, Option<(String, u64)>) {
    match serde_json::from_slice::<Response<PublishAck>>(payload) {
        Ok(Response::Ok(ack)) => {
            let answer = if ack.duplicate { Answer::Duplicate } else { Answer::Stored };
            (answer, Some((ack.stream, ack.sequence)))
        }
        Ok(Response::Err { error }) => (answer_to(error.error_code(), error.code()), None),
        Err(error) => {
            tracing::warn!(%error, "an acknowledgement that does not parse");
            (Answer::Refused(RefuseReason::Rejected), None)
        }
    }
}

/// By the codes of nats-server 2.12 (`server/errors.json`).
fn answer_to(error: ErrorCode, http: usize) -> Answer {
    match error {
        ErrorCode::STREAM_DUPLICATE_MESSAGE_CONFLICT => Answer::InProcess,
        ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM => Answer::Refused(RefuseReason::TooLarge),
        // The stream's own limits, with discarding of new messages, are reported as a failed store.
        ErrorCode::STREAM_STORE_FAILED
        | ErrorCode::INSUFFICIENT_RESOURCES
        | ErrorCode::STORAGE_RESOURCES_EXCEEDED
        | ErrorCode::MEMORY_RESOURCES_EXCEEDED
        | ErrorCode::ACCOUNT_RESOURCES_EXCEEDED => Answer::Later(Trouble::Full),
        // 429: more messages wait to be stored than the server holds; it has dropped this one.
        _ if matches!(http, 429 | 503) => Answer::Later(Trouble::Unavailable),
        other => {
            tracing::warn!(code = other.0, "the stream refuses a message");
            Answer::Refused(RefuseReason::Rejected)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_as_the_server_writes_them() {
        let answer = |text: &str| answer_of(text.as_bytes());
        let stored = Some(("M".to_owned(), 7));
        assert_eq!(answer(r#"{"stream":"M","seq":7}"#), (Answer::Stored, stored.clone()));
        let duplicate = r#"{"stream":"M","seq":7,"duplicate":true}"#;
        assert_eq!(answer(duplicate), (Answer::Duplicate, stored));
        let error = |code: u32, http: u32| {
            let error = format!(r#"{{"code":{http},"err_code":{code},"description":"x"}}"#);
            answer(&format!(r#"{{"error":{error},"stream":"M","seq":0}}"#)).0
        };
        assert_eq!(error(10158, 409), Answer::InProcess);
        assert_eq!(error(10054, 400), Answer::Refused(RefuseReason::TooLarge));
        assert_eq!(error(10077, 503), Answer::Later(Trouble::Full));
        assert_eq!(error(10047, 500), Answer::Later(Trouble::Full));
        assert_eq!(error(10008, 503), Answer::Later(Trouble::Unavailable));
        assert_eq!(error(10167, 429), Answer::Later(Trouble::Unavailable));
        assert_eq!(error(10060, 400), Answer::Refused(RefuseReason::Rejected));
        assert_eq!(answer("+OK").0, Answer::Refused(RefuseReason::Rejected));
    }
}
