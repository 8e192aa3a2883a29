//! Reads one JSON-RPC response.
//!
//! A healthy node's answer to `eth_getRawTransactionByHash` has three fields and no escapes. Only that form
//! is split by hand, and its result borrowed from the buffer. Any deviation goes to `serde_json`, which
//! alone decides what is valid JSON.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::decode::{Members, Value};

/// A response with an id that is a number.
#[derive(Debug, PartialEq)]
pub(crate) struct Response<'a> {
    pub(crate) id: u64,
    pub(crate) payload: Payload<'a>,
}

/// The content of a response.
#[derive(Debug, PartialEq)]
pub(crate) enum Payload<'a> {
    /// `null`.
    Null,
    /// A string, without its quotes and escapes.
    Text(Cow<'a, str>),
    /// An error object.
    Error(RpcError),
    /// Neither a result nor an error that can be read.
    Other,
    /// A response above the limit for one value. It was read and dropped.
    Oversized,
}

/// The error object of a response.
#[derive(Debug, PartialEq)]
pub(crate) struct RpcError {
    pub(crate) code: i64,
    pub(crate) message: String,
}

/// The code for a limit that was exceeded, by EIP-1474.
const LIMIT_EXCEEDED: i64 = -32005;

/// Why a value is not a response to one of our requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotAResponse {
    /// It is not JSON: nothing that follows on this connection can be trusted.
    NotJson,
    /// Valid JSON without an id that is a number: a notification, a batch, an error about a request
    /// that the node could not read.
    NoId,
}

impl<'a> Response<'a> {
    /// Reads a complete value. Never panics, whatever the bytes.
    pub(crate) fn read(value: &'a [u8]) -> Result<Self, NotAResponse> {
        read_common(value).map_or_else(|| read_any(value), Ok)
    }
}

/// Reads `{"jsonrpc":"2.0","id":17,"result":"0x…"}` with its fields in any order and any white space. `None`
/// when the value has any other form, valid or not.
fn read_common(value: &[u8]) -> Option<Response<'_>> {
    let (mut version, mut id, mut payload) = (false, None, None);
    let mut members = Members::new(value).ok()?;
    while let Some((name, value)) = members.next().ok()? {
        // A repeated name is not of the common form.
        match (&*name, value) {
            (b"jsonrpc", Value::Text(text)) if !version => {
                version = (*text == *b"2.0").then_some(true)?
            }
            (b"id", Value::Number(digits)) if id.is_none() => id = Some(number(digits)?),
            (b"result", Value::Null) if payload.is_none() => payload = Some(Payload::Null),
            (b"result", Value::Text(Cow::Borrowed(text))) if payload.is_none() => {
                payload = Some(Payload::Text(Cow::Borrowed(printable(text)?)));
            }
            _ => return None,
        }
    }
    Some(Response { id: id?, payload: payload? })
}

/// A number without sign, fraction and exponent that is below 10^18: then it fits.
#[expect(clippy::arithmetic_side_effects, reason = "18 decimal digits are below 10^18")]
fn number(digits: &[u8]) -> Option<u64> {
    let is_plain = digits.iter().all(u8::is_ascii_digit)
        && (digits.len() == 1 || digits.first() != Some(&b'0'));
    let fits = is_plain && digits.len() <= 18;
    fits.then(|| digits.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')))
}

/// The text, if each of its characters may stand in a JSON string as it is: hex has no control characters and no
/// byte above 127.
fn printable(text: &[u8]) -> Option<&str> {
    // No early exit within a piece, so that the compiler vectorizes the test: a blob has 260 KB.
    let is_odd =
        |bytes: &[u8]| bytes.iter().fold(false, |odd, byte| odd | !(0x20..0x80).contains(byte));
    (!text.chunks(1024).any(is_odd)).then(|| std::str::from_utf8(text).ok()).flatten()
}

/// A message of any form: a response, or a notification.
#[derive(Deserialize)]
pub(super) struct Incoming<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    // `null` is a result; an absent field is not.
    #[serde(borrow, default, deserialize_with = "present")]
    pub(super) result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) params: Option<Notification<'a>>,
}

/// The content of a notification.
#[derive(Deserialize)]
pub(super) struct Notification<'a> {
    /// The id of the subscription, as it is written.
    #[serde(borrow)]
    pub(super) subscription: &'a RawValue,
    #[serde(borrow)]
    pub(super) result: &'a RawValue,
}

impl<'a> Incoming<'a> {
    /// Reads a complete value. Of [`NotAResponse::NoId`] it says only that the shape is another one.
    pub(super) fn read(value: &'a [u8]) -> Result<Self, NotAResponse> {
        // `serde_json` does not validate the characters that it skips.
        let value = std::str::from_utf8(value).map_err(|_| NotAResponse::NotJson)?;
        match serde_json::from_str(value) {
            // serde takes an array for a struct too.
            Ok(incoming) if value.trim_ascii_start().starts_with('{') => Ok(incoming),
            Ok(_) => Err(NotAResponse::NoId),
            // The connection stays for valid JSON of another shape (an array, a repeated field); for
            // text that is not JSON it is closed.
            Err(_) if serde_json::from_str::<serde::de::IgnoredAny>(value).is_ok() => {
                Err(NotAResponse::NoId)
            }
            Err(_) => Err(NotAResponse::NotJson),
        }
    }

    pub(super) fn id(&self) -> Option<u64> {
        self.id.and_then(|id| id.get().parse().ok())
    }

    pub(super) fn error(&self) -> Option<RpcError> {
        self.error.map(|error| read_error(error.get()))
    }
}

#[derive(Deserialize)]
struct AnyError<'a> {
    code: i64,
    #[serde(borrow, default)]
    message: Cow<'a, str>,
}

/// Reads what stands in the field `error`. In a form that no node uses (a text alone, a code that is
/// missing or a text) it comes from a gateway before the node, which says that it is at its limit.
fn read_error(error: &str) -> RpcError {
    let read = || serde_json::from_str::<AnyError<'_>>(error).ok();
    let (code, message) = match error.starts_with('{').then(read).flatten() {
        Some(AnyError { code, message }) => (code, message),
        None => (LIMIT_EXCEEDED, Cow::Borrowed(error)),
    };
    RpcError { code, message: message.chars().take(200).collect() }
}

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

fn read_any(value: &[u8]) -> Result<Response<'_>, NotAResponse> {
    let any = Incoming::read(value)?;
    let id = any.id().ok_or(NotAResponse::NoId)?;
    let payload = match (any.error(), any.result) {
        (Some(error), _) => Payload::Error(error),
        (None, Some(result)) if result.get() == "null" => Payload::Null,
        (None, Some(result)) => match serde_json::from_str::<String>(result.get()) {
            Ok(text) => Payload::Text(Cow::Owned(text)),
            Err(_) => Payload::Other,
        },
        (None, None) => Payload::Other,
    };
    Ok(Response { id, payload })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{prelude::*, sample::select};
    use serde_json::Value as Json;
    use testkit::corpus::{damaged_seeds, seeds};

    /// What `serde_json` makes of a value, for the fields that matter.
    fn oracle(value: &[u8]) -> Result<(u64, String), NotAResponse> {
        let value: Json = serde_json::from_slice(value).map_err(|_| NotAResponse::NotJson)?;
        let id = value.get("id").and_then(Json::as_u64).ok_or(NotAResponse::NoId)?;
        let error = value.get("error").filter(|error| !error.is_null());
        let says = match (error, value.get("result")) {
            (Some(error), _) => match error.get("code").and_then(Json::as_i64) {
                Some(code) => format!("error {code} {}", error["message"].as_str().unwrap_or("")),
                None => format!("error -32005 {error}"),
            },
            (None, Some(Json::Null)) => "null".to_owned(),
            (None, Some(Json::String(text))) => format!("text {text}"),
            _ => "other".to_owned(),
        };
        Ok((id, says))
    }

    fn ours(value: &[u8]) -> Result<(u64, String), NotAResponse> {
        let response = Response::read(value)?;
        let says = match response.payload {
            Payload::Null => "null".to_owned(),
            Payload::Text(text) => format!("text {text}"),
            Payload::Error(error) => format!("error {} {}", error.code, error.message),
            Payload::Other => "other".to_owned(),
            Payload::Oversized => unreachable!("it was read"),
        };
        Ok((response.id, says))
    }

    /// A JSON string of `text` with some characters escaped in one of the ways that JSON knows.
    fn escaped(text: &str, every: usize) -> String {
        let mut json = String::from("\"");
        for (at, character) in text.chars().enumerate() {
            if every > 0 && at % every == 0 && (character as u32) < 0x1_0000 {
                json.push_str(&format!("\\u{:04x}", character as u32));
            } else {
                json.push_str(serde_json::to_string(&character).unwrap().trim_matches('"'));
            }
        }
        json.push('"');
        json
    }

    fn field() -> impl Strategy<Value = (String, String)> {
        let result = prop_oneof![
            3 => "0x([0-9a-f]{2}){0,80}".prop_map(|text| format!("\"{text}\"")),
            1 => ("[^\"\\\\]{0,20}", 0usize..4).prop_map(|(text, every)| escaped(&text, every)),
            1 => select(vec!["null", "true", "[\"0x\"]", "{\"a\":null}", "1.5"]).prop_map(str::to_owned),
        ];
        let id = prop_oneof![
            4 => any::<u64>().prop_map(|id| id.to_string()),
            1 => select(vec!["0", "-1", "1.0", "1e2", "null", "\"7\"", "18446744073709551616"])
                .prop_map(str::to_owned),
        ];
        let error = prop_oneof![
            (any::<i32>(), "[a-z \"{]{0,20}").prop_map(|(code, message)| {
                serde_json::json!({ "code": code, "message": message, "data": [1] }).to_string()
            }),
            select(vec!["null", "\"busy\"", "{}"]).prop_map(str::to_owned),
        ];
        let unknown = select(vec!["null", "[[[{}]]]", "\"\\\"}\"", "-0.1e5", "{\"id\":1}"]);
        prop_oneof![
            4 => result.prop_map(|value| ("result".to_owned(), value)),
            4 => id.prop_map(|value| ("id".to_owned(), value)),
            2 => Just(("jsonrpc".to_owned(), "\"2.0\"".to_owned())),
            1 => error.prop_map(|value| ("error".to_owned(), value)),
            1 => ("[a-z]{1,4}x", unknown).prop_map(|(name, value)| (name, value.to_owned())),
        ]
    }

    fn written(fields: &[(String, String)], spaces: &[String], every: usize) -> String {
        let mut spaces = spaces.iter().cycle();
        let mut space = || spaces.next().map_or("", String::as_str);
        let fields: Vec<_> = fields
            .iter()
            .map(|(name, value)| {
                let name = escaped(name, every);
                format!("{}{name}{}:{}{value}{}", space(), space(), space(), space())
            })
            .collect();
        format!("{{{}{}}}", fields.join(","), space())
    }

    proptest! {
        #[test]
        fn it_reads_what_serde_json_reads(
            fields in proptest::collection::vec(field(), 0..6),
            spaces in proptest::collection::vec("[ \t\r\n]{0,2}", 1..5),
            escape_names in any::<bool>(),
        ) {
            let mut named: Vec<(String, String)> = Vec::new();
            for field in fields {
                // Two fields of one name are tested apart: serde_json's value takes the last.
                if !named.iter().any(|(name, _)| *name == field.0) {
                    named.push(field);
                }
            }
            let text = written(&named, &spaces, usize::from(escape_names));
            prop_assert_eq!(ours(text.as_bytes()), oracle(text.as_bytes()), "{}", text);
        }

        #[test]
        fn it_survives_any_bytes(
            bytes in proptest::collection::vec(
                prop_oneof![any::<u8>(), select(&b"{}[]\"\\:,0123456789 idresultnull"[..])], 0..120,
            ),
        ) {
            if let Ok(found) = ours(&bytes) {
                prop_assert_eq!(Ok(found), oracle(&bytes));
            }
        }

        #[test]
        fn a_damaged_response_never_gives_what_serde_json_does_not_read(
            bytes in damaged_seeds("responses"),
        ) {
            // Of an error serde_json's value takes the last of two fields of one name.
            if let Ok(found) = ours(&bytes) && (found.1 == "null" || found.1.starts_with("text ")) {
                prop_assert_eq!(Ok(found), oracle(&bytes));
            }
        }
    }

    #[test]
    fn the_kept_responses_are_read_as_serde_json_reads_them_or_refused() {
        for seed in seeds("responses") {
            let found = ours(&seed.bytes);
            assert_eq!(found.is_ok(), seed.is_good(), "{}: {found:?}", seed.name);
            assert_eq!(found, oracle(&seed.bytes), "{}", seed.name);
        }
    }

    #[test]
    fn the_common_form_is_read_without_a_copy() {
        let text = br#"{"jsonrpc":"2.0","id":281474976710656,"result":"0xab"}"#;
        let Ok(Response { id, payload: Payload::Text(Cow::Borrowed(hex)) }) = Response::read(text)
        else {
            panic!("not borrowed")
        };
        assert_eq!((id, hex), (1 << 48, "0xab"));
    }

    #[test]
    fn a_field_that_comes_twice_answers_nothing() {
        for text in [
            r#"{"id":1,"id":2,"result":null}"#,
            r#"{"id":1,"result":"0x01","result":"0x02"}"#,
            r#"{"id":1,"result":"0x01","resul\u0074":"0x02"}"#,
        ] {
            assert_eq!(ours(text.as_bytes()), Err(NotAResponse::NoId), "{text}");
        }
    }

    /// serde takes an array for a struct, field by field: `[7]` was the answer to request 7.
    #[test]
    fn an_array_is_no_response_and_no_error_object() {
        for text in ["[7]", r#"[7,"0x01",null]"#, r#" [7,null,{"code":1}]"#, "[]"] {
            assert_eq!(ours(text.as_bytes()), Err(NotAResponse::NoId), "{text}");
        }
        let error = br#"{"id":7,"error":[-32000,"busy"]}"#;
        assert_eq!(ours(error), Ok((7, r#"error -32005 [-32000,"busy"]"#.to_owned())));
    }

    #[test]
    fn hostile_json_neither_overflows_the_stack_nor_costs_the_connection() {
        let deep = format!(
            r#"{{"x":{}{},"id":5,"result":"0x"}}"#,
            "[".repeat(200_000),
            "]".repeat(200_000)
        );
        // serde_json's limit of depth makes it no JSON, or it is skipped: never a wrong answer.
        if let Ok(found) = ours(deep.as_bytes()) {
            assert_eq!(found, (5, "text 0x".to_owned()));
        }
        let wide = format!(r#"{{"{}":1,"id":6,"result":null}}"#, "k".repeat(8 << 20));
        assert_eq!(ours(wide.as_bytes()), Ok((6, "null".to_owned())));
        let notification = br#"{"jsonrpc":"2.0","method":"eth_subscription","params":{"id":3}}"#;
        assert_eq!(ours(notification), Err(NotAResponse::NoId));
        assert_eq!(ours(b"{]"), Err(NotAResponse::NotJson));
    }
}
