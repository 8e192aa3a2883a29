//! Reads one JSON-RPC message, and borrows from it.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::clip;
use crate::error::{CallError, LossReason};

/// The code for a limit that was exceeded, by EIP-1474.
const LIMIT_EXCEEDED: i64 = -32005;

/// A message of any form: a response, or a notification.
#[derive(Deserialize)]
pub(crate) struct Incoming<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    // `null` is a result; an absent field is not.
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) params: Option<Notification<'a>>,
}

/// The content of a notification.
#[derive(Deserialize)]
pub(crate) struct Notification<'a> {
    /// The id of the subscription, as it is written.
    #[serde(borrow)]
    pub(super) subscription: &'a RawValue,
    #[serde(borrow)]
    pub(super) result: &'a RawValue,
}

impl<'a> Incoming<'a> {
    /// Reads a complete value. `None`: its shape is another one. What is not JSON is the end of the
    /// connection: nothing that follows can be trusted.
    pub(super) fn read(value: &'a [u8]) -> Result<Option<Self>, LossReason> {
        let garbage = || LossReason::garbage(value);
        // `serde_json` does not validate the characters that it skips.
        let value = std::str::from_utf8(value).map_err(|_| garbage())?;
        match serde_json::from_str(value) {
            // serde takes an array for a struct too.
            Ok(incoming) if value.trim_ascii_start().starts_with('{') => Ok(Some(incoming)),
            Ok(_) => Ok(None),
            // An array, a repeated field.
            Err(_) if serde_json::from_str::<serde::de::IgnoredAny>(value).is_ok() => Ok(None),
            Err(_) => Err(garbage()),
        }
    }

    /// `None` without an id that is a number: a notification, an error about a request that the node could not read.
    pub(super) fn id(&self) -> Option<u64> {
        self.id.and_then(|id| id.get().parse().ok())
    }

    /// The content of a response to a request for a transaction: a string without its quotes and escapes, `0x` for
    /// `null`. `None`: neither that nor an error that can be read.
    pub(crate) fn text(&self) -> Result<Option<Cow<'a, str>>, CallError> {
        match (self.error(), self.result.map(RawValue::get)) {
            (Some(error), _) => Err(error),
            // geth's form of it.
            (None, Some("null")) => Ok(Some("0x".into())),
            (None, result) => {
                let text = result.and_then(|result| serde_json::from_str(result).ok());
                Ok(text.map(|Text(text)| text))
            }
        }
    }

    /// The content of any response.
    pub(super) fn value(&self) -> Result<Box<RawValue>, CallError> {
        match (self.error(), self.result) {
            (Some(error), _) => Err(error),
            (None, Some(result)) => Ok(result.to_owned()),
            (None, None) => {
                let message = "neither a result nor an error".to_owned();
                Err(CallError::Rpc { code: 0, message })
            }
        }
    }

    fn error(&self) -> Option<CallError> {
        let (code, message) = read_error(self.error?.get());
        Some(CallError::Rpc { code, message })
    }
}

/// Borrowed if it has no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Deserialize)]
struct AnyError<'a> {
    code: i64,
    #[serde(borrow, default)]
    message: Cow<'a, str>,
}

/// Reads what stands in the field `error`. In a form that no node uses (a text alone, a code that is
/// missing or a text) it comes from a gateway before the node, which says that it is at its limit.
pub(crate) fn read_error(error: &str) -> (i64, String) {
    let read = || serde_json::from_str::<AnyError<'_>>(error).ok();
    let (code, message) = match error.starts_with('{').then(read).flatten() {
        Some(AnyError { code, message }) => (code, message),
        None => (LIMIT_EXCEEDED, Cow::Borrowed(error)),
    };
    (code, clip(&message, 200))
}

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value as Json;
    use testkit::corpus::{damaged_seeds, seeds};

    /// What `serde_json` makes of a value, for the fields that matter.
    fn oracle(bytes: &[u8]) -> Result<Option<(u64, String)>, LossReason> {
        let value: Json = serde_json::from_slice(bytes).map_err(|_| LossReason::garbage(bytes))?;
        let Some(id) = value.get("id").and_then(Json::as_u64) else { return Ok(None) };
        let error = value.get("error").filter(|error| !error.is_null());
        let says = match (error, value.get("result")) {
            (Some(error), _) => match error.get("code").and_then(Json::as_i64) {
                Some(code) => format!("error {code} {}", error["message"].as_str().unwrap_or("")),
                None => format!("error -32005 {error}"),
            },
            (None, Some(Json::Null)) => "text 0x".to_owned(),
            (None, Some(Json::String(text))) => format!("text {text}"),
            _ => "other".to_owned(),
        };
        Ok(Some((id, says)))
    }

    fn ours(value: &[u8]) -> Result<Option<(u64, String)>, LossReason> {
        let Some(message) = Incoming::read(value)? else { return Ok(None) };
        let Some(id) = message.id() else { return Ok(None) };
        let says = match message.text() {
            Ok(Some(text)) => format!("text {text}"),
            Ok(None) => "other".to_owned(),
            Err(CallError::Rpc { code, message }) => format!("error {code} {message}"),
            Err(other) => other.to_string(),
        };
        Ok(Some((id, says)))
    }

    proptest! {
        #[test]
        fn a_damaged_response_never_gives_what_serde_json_does_not_read(
            bytes in damaged_seeds("responses"),
        ) {
            // Of an error serde_json's value takes the last of two fields of one name.
            if let Ok(Some(found)) = ours(&bytes) && found.1.starts_with("text ") {
                prop_assert_eq!(Ok(Some(found)), oracle(&bytes));
            }
        }
    }

    #[test]
    fn the_kept_responses_are_read_as_serde_json_reads_them_or_refused() {
        for seed in seeds("responses") {
            let found = ours(&seed.bytes);
            assert_eq!(matches!(found, Ok(Some(_))), seed.is_good(), "{}: {found:?}", seed.name);
            assert_eq!(found, oracle(&seed.bytes), "{}", seed.name);
        }
    }

    #[test]
    fn fields_of_every_form_in_any_order_are_read_as_serde_json_reads_them() {
        let ids = r#"0 17 281474976710656 18446744073709551615 -1 1.0 1e2 null "7""#;
        let results = ["\"0xab\"", "\"\"", "null", "true", "[\"0x\"]", "{\"a\":null}", "1.5"];
        let errors = r#"null "busy" {} {"code":"1"} {"data":[1],"message":"no","code":-32000}"#;
        for id in ids.split(' ') {
            let first = results.map(|it| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{it}}}"#));
            let last = results.map(|it| format!("{{ \"result\" :\t{it} ,\n\"id\": {id} }}"));
            let failed = |it| format!(r#"{{"error":{it},"x":[[{{}}]],"id":{id}}}"#);
            for text in first.into_iter().chain(last).chain(errors.split(' ').map(failed)) {
                assert_eq!(ours(text.as_bytes()), oracle(text.as_bytes()), "{text}");
            }
        }
    }

    /// serde takes an array for a struct, field by field: `[7]` was the answer to request 7.
    #[test]
    fn a_field_that_comes_twice_answers_nothing_and_an_array_is_no_response_and_no_error_object() {
        for text in [
            r#"{"id":1,"id":2,"result":null}"#,
            r#"{"id":1,"result":"0x01","result":"0x02"}"#,
            r#"{"id":1,"result":"0x01","resul\u0074":"0x02"}"#,
            "[7]",
            r#"[7,"0x01",null]"#,
            r#" [7,null,{"code":1}]"#,
            "[]",
        ] {
            assert_eq!(ours(text.as_bytes()), Ok(None), "{text}");
        }
        let error = br#"{"id":7,"error":[-32000,"busy"]}"#;
        assert_eq!(ours(error), Ok(Some((7, r#"error -32005 [-32000,"busy"]"#.to_owned()))));
    }

    #[test]
    fn hostile_json_neither_overflows_the_stack_nor_costs_the_connection() {
        let deep = format!(
            r#"{{"x":{}{},"id":5,"result":"0x"}}"#,
            "[".repeat(200_000),
            "]".repeat(200_000)
        );
        // serde_json's limit of depth makes it no JSON, or it is skipped: never a wrong answer.
        if let Ok(Some(found)) = ours(deep.as_bytes()) {
            assert_eq!(found, (5, "text 0x".to_owned()));
        }
        let wide = format!(r#"{{"{}":1,"id":6,"result":null}}"#, "k".repeat(8 << 20));
        assert_eq!(ours(wide.as_bytes()), Ok(Some((6, "text 0x".to_owned()))));
        let notification = br#"{"jsonrpc":"2.0","method":"eth_subscription","params":{"id":3}}"#;
        assert_eq!(ours(notification), Ok(None));
        assert_eq!(ours(b"{]"), Err(LossReason::garbage(b"{]")));
    }
}
