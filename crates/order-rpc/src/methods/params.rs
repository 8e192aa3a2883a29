//! Parses the parameters of a method, and names the field that is invalid.

use std::{borrow::Cow, fmt, marker::PhantomData};

use alloy_primitives::{B256, Bytes};
use alloy_serde::quantity;
use order_pool::MAX_TXS_PER_BUNDLE;
use serde::{
    Deserialize, Deserializer as _,
    de::{
        DeserializeOwned, DeserializeSeed, Error as _, IgnoredAny, IntoDeserializer, MapAccess,
        Visitor, value::MapAccessDeserializer,
    },
};
use serde_json::value::RawValue;

use crate::reply::{ErrorResponse, Reason, cut};

/// The field of what is not part of an object.
pub(crate) const FIRST: &str = "params[0]";

/// The single object of `params`, or an error that names the invalid field. `required` is the field
/// that an object must have, or empty.
pub(crate) fn one<T: DeserializeOwned>(
    params: &[u8],
    required: &'static str,
) -> Result<T, ErrorResponse> {
    let mut field = FIRST.to_owned();
    let read = serde_json::from_slice(params).and_then(|[object]: [&RawValue; 1]| {
        let mut text = serde_json::Deserializer::from_str(object.get());
        // Not `deserialize_struct`, which reads an array of the fields' values too.
        text.deserialize_map(Object { required, field: &mut field, of: PhantomData })
    });
    read.map_err(|error| invalid(&field, &error))
}

fn invalid(field: &str, error: &serde_json::Error) -> ErrorResponse {
    let message = format!("{field}: {}", cut(&error.to_string()));
    ErrorResponse::field(Reason::Params, field, message)
}

/// The parameters of `eth_sendPrivateTransaction`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RawPrivate {
    pub(crate) tx: Bytes,
    #[serde(default, with = "quantity::opt")]
    pub(crate) max_block_number: Option<u64>,
    /// How Flashbots shares it with others; here it is shared with no one.
    #[serde(default, rename = "preferences")]
    _preferences: IgnoredAny,
}

/// The parameters of `eth_cancelPrivateTransaction`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RawCancelPrivate {
    pub(crate) tx_hash: B256,
}

/// The parameters of `eth_sendRawTransaction`.
pub(crate) type Raw = [Bytes; 1];

/// The parameters of `eth_sendPrivateRawTransaction`: the transaction, and maybe its preferences.
#[derive(Debug, Deserialize)]
pub(crate) struct PrivateRaw(pub(crate) Bytes, #[serde(default)] pub(crate) IgnoredAny);

/// Parameters that are no object.
pub(crate) fn list<T: DeserializeOwned>(params: &[u8]) -> Result<T, ErrorResponse> {
    serde_json::from_slice(params).map_err(|error| invalid(FIRST, &error))
}

/// Reads an object, and notes the field that it is at.
struct Object<'a, T> {
    required: &'static str,
    field: &'a mut String,
    of: PhantomData<T>,
}

impl<'de, T: DeserializeOwned> Visitor<'de> for Object<'_, T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of one object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        let Self { required, field, .. } = self;
        T::deserialize(MapAccessDeserializer::new(Fields { map, required, field }))
    }
}

struct Fields<'a, A> {
    map: A,
    required: &'static str,
    field: &'a mut String,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Fields<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        let Some(name) = self.map.next_key::<String>()? else {
            // What is wrong now is that it is missing.
            if !self.required.is_empty() {
                self.required.clone_into(self.field);
            }
            return Ok(None);
        };
        // An error that names nothing would read as one without a field.
        *self.field = if name.is_empty() { "\"\"".to_owned() } else { cut(&name).into_owned() };
        seed.deserialize(name.into_deserializer()).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        let value: &RawValue = self.map.next_value()?;
        check(self.field, value.get()).map_err(A::Error::custom)?;
        seed.deserialize(&mut serde_json::Deserializer::from_str(value.get()))
            .map_err(A::Error::custom)
    }
}

/// Checks what types do not: that a list is short, before it is read, and a number has digits.
fn check(field: &str, value: &str) -> Result<(), String> {
    let limit = match field {
        "txs" | "revertingTxHashes" | "droppingTxHashes" => MAX_TXS_PER_BUNDLE,
        "refundTxHashes" => 1,
        "blockNumber" | "maxBlockNumber" | "minTimestamp" | "maxTimestamp" | "replacementNonce"
        | "refundPercent" => {
            let text = serde_json::from_str::<Cow<'_, str>>(value);
            return match text {
                Ok(text) if !is_number(&text) => Err(format!("{} is no number", cut(&text))),
                _ => Ok(()),
            };
        }
        _ => return Ok(()),
    };
    // Without a size, so that to count them takes no memory.
    let length = serde_json::from_str::<Vec<IgnoredAny>>(value).map(|list| list.len());
    match length {
        Ok(length) if length > limit => Err(format!("{length} entries, the most is {limit}")),
        // No list: its type says so.
        _ => Ok(()),
    }
}

/// Whether a text has the digits of a number, without which its type reads 0.
fn is_number(text: &str) -> bool {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
        None => !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use order_pool::{RawBundle, RawCancelBundle};

    fn error(params: &str) -> ErrorResponse {
        one::<RawBundle>(params.as_bytes(), "").unwrap_err()
    }

    #[test]
    fn the_field_that_does_not_read_is_named_wherever_it_stands() {
        let uuid = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";
        let bundles = [
            (r#"[{"txs":5,"blockNumber":"0x1"}]"#, "txs"),
            (r#"[{"txs":[],"blockNumber":"five"}]"#, "blockNumber"),
            (r#"[{"revertingTxHashes":["0x1"],"txs":[]}]"#, "revertingTxHashes"),
            (r#"[{"txs":[],"surprise":{"txs":5},"uuid":5}]"#, "surprise"),
            (r#"[{"txs":[],"s\u0075rprise":1}]"#, "surprise"),
            (r#"[{"txs":[],"txs":[]}]"#, "txs"),
            (r#"[{"txs":[],"":1}]"#, "\"\""),
            // The values of its fields, by position, are no bundle.
            (r#"[[null,["0x02"]]]"#, FIRST),
        ];
        let no_objects = ["null", "[]", "[5]", "{}", "[{},{}]"].map(|params| (params, FIRST));
        for (params, field) in bundles.into_iter().chain(no_objects) {
            assert_eq!(error(params).field_name(), field, "{params}");
        }
        for (cancel, field) in [
            ("{}".to_owned(), "replacementUuid"),
            (r#"{"replacementNonce":"0x1"}"#.to_owned(), "replacementUuid"),
            (r#"{"replacementUuid":5}"#.to_owned(), "replacementUuid"),
            (format!(r#"["{uuid}"]"#), FIRST),
            (format!(r#"{{"uuid":"{uuid}","replacementNonce":"x"}}"#), "replacementNonce"),
            (format!(r#"{{"uuid":"{uuid}","more":1}}"#), "more"),
        ] {
            let params = format!("[{cancel}]");
            let error = one::<RawCancelBundle>(params.as_bytes(), "replacementUuid").unwrap_err();
            assert_eq!(error.field_name(), field, "{params}");
        }
    }

    /// They were read as 0, which is the next block.
    #[test]
    fn a_text_without_digits_is_no_number() {
        for text in ["", "0x", "0X", "_", "0x_", "0b", "0o", r"0\u0078"] {
            for field in ["blockNumber", "maxTimestamp", "replacementNonce"] {
                let params = format!(r#"[{{"txs":[],"{field}":"{text}"}}]"#);
                assert_eq!(error(&params).field_name(), field, "{params}");
            }
            let params = format!(r#"[{{"tx":"0x02","maxBlockNumber":"{text}"}}]"#);
            assert!(one::<RawPrivate>(params.as_bytes(), "tx").is_err(), "{params}");
        }
        for (number, value) in [("5", 5), ("\"5\"", 5), ("\"0x0A\"", 10), ("\"0X0a\"", 10)] {
            let params = format!(r#"[{{"blockNumber":{number}}}]"#);
            let bundle = one::<RawBundle>(params.as_bytes(), "").unwrap();
            assert_eq!(bundle.block_number, Some(value), "{number}");
        }
    }

    /// Nothing of it is kept, so what is nested as deep as a body is long takes neither stack nor memory.
    #[test]
    fn what_is_not_read_may_be_as_deep_as_a_body() {
        let deep = "[".repeat(1_000_000) + &"]".repeat(1_000_000);
        let private = format!(r#"[{{"tx":"0x02","preferences":{deep}}}]"#);
        assert!(one::<RawPrivate>(private.as_bytes(), "tx").is_ok());
        let raw = format!(r#"["0x02",{deep}]"#);
        assert!(list::<PrivateRaw>(raw.as_bytes()).is_ok());
        let bundle = format!(r#"[{{"txs":["0x02"],"builders":{deep}}}]"#);
        assert!(one::<RawBundle>(bundle.as_bytes(), "").is_ok());
    }

    /// Eight bodies of 8 MB with nothing but `""` took 825 MB, before their length was checked.
    #[test]
    fn of_a_list_that_is_too_long_no_element_is_kept() {
        for (field, limit) in [
            ("txs", 100),
            ("revertingTxHashes", 100),
            ("droppingTxHashes", 100),
            ("refundTxHashes", 1),
        ] {
            // None of the elements reads: one that had been read would be the error.
            let list = vec!["5"; limit + 1].join(",");
            let error = error(&format!(r#"[{{"{field}":[{list}]}}]"#)).json("1");
            let entries = format!("{field}: {} entries, the most is {limit}", limit + 1);
            assert!(error.contains(&entries), "{error}");
        }
    }
}
