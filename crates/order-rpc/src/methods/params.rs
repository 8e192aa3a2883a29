//! Parses the parameters of a method, and names the field that is invalid.

// Bytes from outside are read here: none of them may cause a panic.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::string_slice,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

use std::{borrow::Cow, fmt};

use alloy_primitives::{B256, Bytes};
use alloy_serde::quantity;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;

use crate::reply::{ErrorResponse, Reason, cut};

/// The single value of `params`.
///
/// # Errors
/// Names the invalid field of the object, which costs one more pass over the text before it.
pub(crate) fn one<T: DeserializeOwned>(
    params: &[u8],
    required: &'static str,
) -> Result<T, ErrorResponse> {
    let error = match serde_json::from_slice::<[T; 1]>(params) {
        Ok([value]) => return Ok(value),
        Err(error) => error,
    };
    let mut found = None;
    let end = (params.as_ptr() as usize).saturating_add(offset(params, &error));
    let search = Search { end, required, found: &mut found };
    let mut text = serde_json::Deserializer::from_slice(params);
    // The search ends with an error once it has found the field. If the text cannot be searched, it
    // is not an array with an object.
    let missing = text.deserialize_seq(search).unwrap_or_default();
    let field = found.or(missing).unwrap_or_else(|| "params[0]".to_owned());
    let message = format!("{field}: {}", cut(&error.to_string()));
    Err(ErrorResponse::field(Reason::Params, &field, message))
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

/// The parameters of `eth_sendPrivateRawTransaction`: the transaction, and optionally its
/// preferences.
pub(crate) fn private_raw(params: &[u8]) -> Result<Bytes, ErrorResponse> {
    #[derive(Deserialize)]
    struct Params(Bytes, #[serde(default)] IgnoredAny);
    let read = serde_json::from_slice::<Params>(params).map(|Params(raw, _)| raw);
    read.map_err(|error| {
        let message = format!("params[0]: {}", cut(&error.to_string()));
        ErrorResponse::field(Reason::Params, "params[0]", message)
    })
}

/// The position of the parser at the error.
fn offset(text: &[u8], error: &serde_json::Error) -> usize {
    let lines = text.split_inclusive(|byte| *byte == b'\n');
    let before: usize = lines.take(error.line().saturating_sub(1)).map(<[u8]>::len).sum();
    before.saturating_add(error.column())
}

/// Searches the name of the field at which the parser failed: the first whose value ends at or
/// after the error. For an unknown field the error is right behind its name.
struct Search<'a> {
    /// The address of the byte behind the error, in the searched text.
    end: usize,
    /// A required field; empty if there is none.
    required: &'static str,
    found: &'a mut Option<String>,
}

/// The value is the name of a required field that is missing.
impl<'de> Visitor<'de> for Search<'_> {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of one object")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let found = seq.next_element_seed(self)?.ok_or_else(|| A::Error::custom("no element"))?;
        // An additional element is not an error of a field of the first one.
        let more = seq.next_element::<IgnoredAny>()?.is_some();
        Ok(found.filter(|_| !more))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut complete = self.required.is_empty();
        while let Some(name) = map.next_key::<Cow<'_, str>>()? {
            // `uuid` is an alias of the required field.
            complete |= name == self.required || name == "uuid";
            let value: &RawValue = map.next_value()?;
            let end = (value.get().as_ptr() as usize).saturating_add(value.get().len());
            if end >= self.end {
                // An error that names nothing would read as one without a field.
                let name = if name.is_empty() { "\"\"".into() } else { cut(&name) };
                *self.found = Some(name.into_owned());
                // The object may have hundreds of thousands of further fields.
                return Err(A::Error::custom("found"));
            }
        }
        // A missing field is an error at the end of the object.
        Ok((!complete).then(|| self.required.to_owned()))
    }
}

impl<'de> serde::de::DeserializeSeed<'de> for Search<'_> {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use order_pool::{RawBundle, RawCancelBundle};

    fn bundle(params: &str) -> String {
        one::<RawBundle>(params.as_bytes(), "").unwrap_err().field_name()
    }

    fn cancel(params: &str) -> String {
        one::<RawCancelBundle>(params.as_bytes(), "replacementUuid").unwrap_err().field_name()
    }

    #[test]
    fn the_field_that_does_not_read_is_named_wherever_it_stands() {
        let uuid = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";
        assert_eq!(bundle(r#"[{"txs":5,"blockNumber":"0x1"}]"#), "txs");
        assert_eq!(bundle(r#"[{"txs":[],"blockNumber":"five"}]"#), "blockNumber");
        assert_eq!(bundle("[\n{\"txs\":\n[],\n\"blockNumber\"\n:\n\"five\"}]"), "blockNumber");
        assert_eq!(bundle(r#"[{"revertingTxHashes":["0x1"],"txs":[]}]"#), "revertingTxHashes");
        assert_eq!(bundle(r#"[{"txs":[],"surprise":{"txs":5},"uuid":5}]"#), "surprise");
        assert_eq!(bundle(r#"[{"txs":[],"s\u0075rprise":1}]"#), "surprise");
        assert_eq!(bundle(r#"[{"txs":[],"txs":[]}]"#), "txs");
        assert_eq!(bundle(r#"[{"txs":[],"":1}]"#), "\"\"");
        assert_eq!(bundle(r#"[{"txs":5},{}]"#), "txs", "it comes before the element too many");
        for params in ["null", "[]", "[5]", "{}", "[{},{}]"] {
            assert_eq!(bundle(params), "params[0]", "{params}");
        }
        assert_eq!(cancel("[{}]"), "replacementUuid");
        assert_eq!(cancel(r#"[{"replacementNonce":"0x1"}]"#), "replacementUuid");
        assert_eq!(cancel(r#"[{"replacementUuid":5}]"#), "replacementUuid");
        assert_eq!(
            cancel(&format!(r#"[{{"uuid":"{uuid}","replacementNonce":"x"}}]"#)),
            "replacementNonce"
        );
        assert_eq!(cancel(&format!(r#"[{{"uuid":"{uuid}","more":1}}]"#)), "more");
    }

    /// An object of 8 MB has 700,000 fields: to look at each for one name took a tenth of a second.
    #[test]
    fn nothing_is_read_behind_the_field_that_is_named() {
        assert_eq!(bundle(r#"[{"txs":[],"surprise":1,"txs":[],"txs":what is no JSON"#), "surprise");
    }

    #[test]
    fn a_name_of_any_length_is_cut() {
        let long = "x".repeat(1 << 20);
        assert!(bundle(&format!(r#"[{{"{long}":1}}]"#)).len() < 300);
        let error = one::<RawBundle>(format!(r#"[{{"txs":"{long}"}}]"#).as_bytes(), "");
        assert!(error.unwrap_err().json("1").len() < 1_000);
    }

    proptest::proptest! {
        #[test]
        fn any_text_reads_or_has_a_field(params: Vec<u8>) {
            let _ = one::<RawBundle>(&params, "");
        }
    }
}
