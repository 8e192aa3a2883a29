//! Reading without a consumer, one message for each request, as JSON. The client parses the headers of what a
//! consumer brings: malformed ones end its connection, and a status in them makes it hide the message.

use std::ops::ControlFlow;

use async_nats::{
    HeaderMap, HeaderValue, Message,
    header::NATS_MESSAGE_ID,
    jetstream::{ErrorCode, response::Response, stream::RawMessage},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use super::reader::Reader;
use crate::{
    state::State,
    tracker::{Place, Tracker},
};

/// A consumer is used again after as many messages in a row that the client can read. More of them make the
/// next one that it cannot read cheaper, and take a round trip each.
const READABLE: u32 = 64;

impl Reader<'_> {
    /// Reads one stream from where the tracker stands, until it has nothing more or nothing remarkable.
    /// Returns as [`Self::read`].
    pub(super) async fn read_singly(
        &self,
        shard: u16,
        stream: &str,
        tracker: &mut Tracker,
        mut pending: u64,
    ) -> Option<State> {
        tracing::warn!(stream, start = tracker.start(), "messages are read one by one");
        let mut readable = 0;
        while readable < READABLE {
            self.note(shard, State::CatchingUp, pending);
            let raw = match self.get(stream, tracker.start().unwrap_or(1)).await {
                Ok(Some(raw)) => raw,
                Ok(None) => {
                    self.run.counters.missed.add(tracker.at_end());
                    return None;
                }
                Err(state) => return Some(state),
            };
            let stored = raw.time.unix_timestamp_nanos();
            let place = Place { sequence: raw.sequence, stored, is_certain: true };
            let Some((message, is_readable)) = decode(raw) else {
                return Some(State::Unavailable);
            };
            if let ControlFlow::Break(failed) = self.pass(stream, tracker, place, message).await {
                return failed;
            }
            readable = if is_readable { readable + 1 } else { 0 };
            pending = pending.saturating_sub(1);
        }
        None
    }

    /// The first message from a sequence number on.
    async fn get(&self, stream: &str, sequence: u64) -> Result<Option<RawMessage>, State> {
        let method = format!("STREAM.MSG.GET.{stream}");
        let request = json!({ "seq": sequence, "next_by_subj": ">" });
        match self.link.context.request(method.clone(), &request).await {
            Ok(Response::<Value>::Ok(mut answer)) => {
                let raw = answer.get_mut("message").map(Value::take).unwrap_or_default();
                serde_json::from_value(raw).map(Some).map_err(|error| {
                    tracing::warn!(%error, stream, sequence, "a message that is none");
                    State::Unavailable
                })
            }
            Ok(Response::Err { error }) => match error.error_code() {
                ErrorCode::NO_MESSAGE_FOUND => Ok(None),
                ErrorCode::STREAM_NOT_FOUND => Err(State::StreamMissing),
                _ => Err(State::Unavailable),
            },
            Err(error) => {
                tracing::warn!(%error, stream, sequence, "no message");
                let is_denied = self.link.is_denied(&format!("$JS.API.{method}"));
                Err(if is_denied { State::Denied } else { State::Unavailable })
            }
        }
    }
}

/// The message with the one header that is used, if it can be found, and whether the client could read all of
/// them. `None` if the server sent no base64.
fn decode(raw: RawMessage) -> Option<(Message, bool)> {
    let payload = BASE64_STANDARD.decode(raw.payload).ok()?;
    let text = BASE64_STANDARD.decode(raw.headers.unwrap_or_default()).ok()?;
    let length = raw.subject.len() + text.len() + payload.len();
    let is_readable = text.is_empty() || is_readable(&text);
    let id = String::from_utf8_lossy(&text)
        .lines()
        .find_map(|line| line.strip_prefix("Nats-Msg-Id:")?.trim().parse::<HeaderValue>().ok());
    let headers = id.map(|id| HeaderMap::from_iter([(NATS_MESSAGE_ID, id)]));
    let message = Message {
        subject: raw.subject.into(),
        reply: None,
        payload: payload.into(),
        headers,
        status: None,
        description: None,
        length,
    };
    Some((message, is_readable))
}

/// Whether the client surely reads these headers, and sees no status in them. It ends the connection at a line
/// without a colon, a name that is not of visible ASCII, a status that is no number, and text that is not UTF-8,
/// and panics at a carriage return in a value (`try_read_op` of async-nats 0.51); it hides messages with some
/// statuses.
fn is_readable(headers: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(headers) else { return false };
    let mut lines = text.split("\r\n");
    let is_header = |line: &str| {
        line.split_once(':').is_some_and(|(name, value)| {
            name.bytes().all(|byte| byte.is_ascii_graphic()) && !value.contains(['\r', '\n'])
        })
    };
    lines.next() == Some("NATS/1.0") && lines.all(|line| line.is_empty() || is_header(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(headers: &str) -> RawMessage {
        let message = json!({
            "subject": "mempool.1.tx.0.a", "seq": 7, "time": "2026-01-02T03:04:05.123456789Z",
            "hdrs": BASE64_STANDARD.encode(headers), "data": BASE64_STANDARD.encode("order"),
        });
        serde_json::from_value(message).expect("what a server sends")
    }

    #[test]
    fn a_message_is_passed_on_with_its_id_whatever_its_other_headers_are() {
        let id = |headers: &str| {
            let (message, is_readable) = decode(raw(headers)).expect("base64");
            assert_eq!((&*message.payload, &*message.subject), (&b"order"[..], "mempool.1.tx.0.a"));
            let id = message.headers.map(|headers| headers.get(NATS_MESSAGE_ID).cloned());
            (id.flatten().map(|id| id.to_string()), is_readable)
        };
        let seven = Some("7".to_owned());
        assert_eq!(id("NATS/1.0\r\nNats-Msg-Id: 7\r\n\r\n"), (seven.clone(), true));
        for malformed in [
            "NATS/1.0\r\nno colon\r\nNats-Msg-Id:7\r\n\r\n",
            "NATS/1.0\r\nA: a\rb\r\nNats-Msg-Id: 7\r\n\r\n",
            "NATS/1.0\r\nA b: c\r\nNats-Msg-Id: 7\r\n\r\n",
            "NATS/1.0 503 No Responders\r\nNats-Msg-Id: 7\r\n\r\n",
            "NATS/1.0 x\r\nNats-Msg-Id: 7\r\n\r\n",
            "HTTP/1.1\r\nNats-Msg-Id: 7\r\n\r\n",
        ] {
            assert_eq!(id(malformed), (seven.clone(), false), "{malformed}");
        }
        assert_eq!(id("NATS/1.0\r\nno colon\r\n\r\n"), (None, false));
        assert_eq!(id("NATS/1.0\r\nNats-Msg-Id: 7\r7\r\n\r\n"), (None, false));
        assert_eq!(id(""), (None, true), "without headers");
    }

    #[test]
    fn its_time_is_the_servers_to_the_nanosecond() {
        assert_eq!(raw("").time.unix_timestamp_nanos() % 1_000_000_000, 123_456_789);
    }
}
