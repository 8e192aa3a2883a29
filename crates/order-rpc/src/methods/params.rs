//! Parses the parameters of a method, and names the field that is invalid.

use std::{borrow::Cow, fmt, marker::PhantomData};

use alloy_primitives::{B256, Bytes};
use alloy_serde::quantity;
use order_pool::MAX_TXS_PER_BUNDLE;
use serde::{
    Deserialize, Deserializer,
    de::{
        DeserializeOwned, DeserializeSeed, Error as _, IgnoredAny, IntoDeserializer, MapAccess,
        Visitor,
    },
};
use serde_json::value::RawValue;

use super::ignored::{Ignored, nearest};
use crate::reply::{ErrorResponse, Reason, cut};

/// The field of what is not part of an object.
pub(crate) const FIRST: &str = "params[0]";

/// The single object of `params`, or an error that names the invalid field. `required` is the field
/// that an object must have, or empty.
pub(crate) fn one<T: DeserializeOwned>(
    params: &[u8],
    required: &'static str,
    ignored: &mut Ignored,
) -> Result<T, ErrorResponse> {
    let mut field = FIRST.to_owned();
    let object = single(params, "one object")?;
    let mut text = serde_json::Deserializer::from_str(object.get());
    // Not `deserialize_struct`, which reads an array of the fields' values too.
    let visitor = Object { required, field: &mut field, ignored, target: PhantomData };
    text.deserialize_map(visitor).map_err(|error| invalid(&field, &error))
}

/// The only element of `params`, which must be an array of `expected`.
fn single<'a>(params: &'a [u8], expected: &str) -> Result<&'a RawValue, ErrorResponse> {
    // No more elements than a body may have commas.
    let elements = elements(params, expected)?;
    match elements.as_slice() {
        [object] => Ok(object),
        elements => {
            let count = elements.len();
            let message = format!("params has {count} elements, must have {expected}");
            Err(ErrorResponse::field(Reason::Params, params_field(count), message))
        }
    }
}

/// The field of the first parameter that is missing or too many.
const fn params_field(count: usize) -> &'static str {
    if count == 0 { FIRST } else { "params[1]" }
}

fn elements<'a>(params: &'a [u8], expected: &str) -> Result<Vec<&'a RawValue>, ErrorResponse> {
    serde_json::from_slice(params).map_err(|_| {
        let kind = kind_of(params);
        let message = format!("params is {kind}, must be an array of {expected}");
        ErrorResponse::field(Reason::Params, FIRST, message)
    })
}

/// What a JSON value is, for an error message.
fn kind_of(value: &[u8]) -> &'static str {
    match value.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'{') => "an object",
        Some(b'[') => "an array",
        Some(b'"') => "a string",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') | None => "absent",
        Some(_) => "a number",
    }
}

/// Checks that a method without parameters has none.
pub(crate) fn none(params: &[u8]) -> Result<(), ErrorResponse> {
    if params == b"null" {
        return Ok(());
    }
    match elements(params, "nothing")?.len() {
        0 => Ok(()),
        count => {
            let message = format!("params has {count} elements, must have none");
            Err(ErrorResponse::field(Reason::Params, FIRST, message))
        }
    }
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

/// A signed transaction as the only parameter.
pub(crate) fn raw(params: &[u8]) -> Result<Bytes, ErrorResponse> {
    read_raw(single(params, "one signed transaction as a 0x-prefixed string")?)
}

/// A signed transaction as the first parameter, and maybe its preferences, which change nothing.
pub(crate) fn private_raw(params: &[u8]) -> Result<Bytes, ErrorResponse> {
    let expected = "a signed transaction as a 0x-prefixed string, and maybe its preferences";
    let elements = elements(params, expected)?;
    match elements.as_slice() {
        [raw] | [raw, _] => read_raw(raw),
        elements => {
            let count = elements.len();
            let message = format!("params has {count} elements, must have {expected}");
            let field = if count == 0 { FIRST } else { "params[2]" };
            Err(ErrorResponse::field(Reason::Params, field, message))
        }
    }
}

fn read_raw(value: &RawValue) -> Result<Bytes, ErrorResponse> {
    serde_json::from_str(value.get()).map_err(|error| {
        let kind = kind_of(value.get().as_bytes());
        let message = if kind == "a string" {
            format!("{FIRST}: {}", cut(&error.to_string()))
        } else {
            format!("{FIRST} is {kind}, must be a signed transaction as a 0x-prefixed string")
        };
        ErrorResponse::field(Reason::Params, FIRST, message)
    })
}

/// Reads an object, and notes the field that it is at.
struct Object<'a, T> {
    required: &'static str,
    field: &'a mut String,
    ignored: &'a mut Ignored,
    target: PhantomData<T>,
}

impl<'de, T: DeserializeOwned> Visitor<'de> for Object<'_, T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        let Self { required, field, ignored, .. } = self;
        T::deserialize(Fields { map, known: &[], required, field, ignored })
    }
}

/// The fields of an object, of which those that the target does not have are passed over or refused.
struct Fields<'a, A> {
    map: A,
    /// The fields of the target, which says them when it begins to read.
    known: &'static [&'static str],
    required: &'static str,
    field: &'a mut String,
    ignored: &'a mut Ignored,
}

impl<'de, A: MapAccess<'de>> Deserializer<'de> for Fields<'_, A> {
    type Error = A::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, A::Error> {
        visitor.visit_map(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        visitor.visit_map(Fields { known, ..self })
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Fields<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        loop {
            let Some(name) = self.map.next_key::<String>()? else {
                // What is wrong now is that it is missing.
                if !self.required.is_empty() {
                    self.required.clone_into(self.field);
                }
                return Ok(None);
            };
            // An error that names nothing would read as one without a field.
            *self.field = if name.is_empty() { "\"\"".to_owned() } else { cut(&name).into_owned() };
            if self.known.contains(&name.as_str()) {
                return seed.deserialize(name.into_deserializer()).map(Some);
            }
            if !self.ignored.passes(&name) {
                let nearest = nearest(&name, self.known);
                let hint = nearest.map_or(String::new(), |name| format!(", is it {name}?"));
                return Err(A::Error::custom(format_args!("unknown field{hint}")));
            }
            self.map.next_value::<IgnoredAny>()?;
        }
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
        "blockNumber"
        | "maxBlockNumber"
        | "minTimestamp"
        | "maxTimestamp"
        | "replacementNonce"
        | "replacementSeqNumber"
        | "refundPercent"
        | "refundIndex" => {
            return check_number(field, value);
        }
        "version" if value == "\"\"" => {
            return Err("the version is empty, must be v1, v2 or absent".to_owned());
        }
        _ => return Ok(()),
    };
    if kind_of(value.as_bytes()) == "an object" {
        return Err("it is an object, must be an array".to_owned());
    }
    // Without a size, so that to count them takes no memory.
    let length = serde_json::from_str::<Vec<IgnoredAny>>(value).map(|list| list.len());
    match length {
        Ok(length) if length > limit => Err(format!("{length} entries, the most is {limit}")),
        // No list: its type says so.
        _ => Ok(()),
    }
}

/// Checks that a value is an integer, as a number, in decimal or in hex.
fn check_number(field: &str, value: &str) -> Result<(), String> {
    const EXPECTED: &str = "must be a whole number, or one as a string, decimal or with 0x";
    match kind_of(value.as_bytes()) {
        "a string" => {
            let text = serde_json::from_str::<Cow<'_, str>>(value).unwrap_or_default();
            // The next block, by the reference of BuilderNet.
            let is_next_block = field == "blockNumber" && text == "0x";
            if is_next_block || is_number(&text) {
                return Ok(());
            }
            Err(format!("{} is no number, {EXPECTED}", cut(value)))
        }
        "a number" if value.bytes().all(|byte| byte.is_ascii_digit()) => Ok(()),
        "absent" => Ok(()),
        _ => Err(format!("{} is no whole number, {EXPECTED}", cut(value))),
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
    use crate::methods::IGNORED_FIELDS;
    use order_pool::{RawBundle, RawCancelBundle};

    fn read<T: DeserializeOwned>(
        params: &[u8],
        required: &'static str,
    ) -> Result<T, ErrorResponse> {
        one(params, required, &mut Ignored::new(false))
    }

    fn error(params: &str) -> ErrorResponse {
        read::<RawBundle>(params.as_bytes(), "").unwrap_err()
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
        let no_objects = ["null", "[]", "[5]", "{}"].map(|params| (params, FIRST));
        let two = [("[{},{}]", "params[1]")];
        for (params, field) in bundles.into_iter().chain(no_objects).chain(two) {
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
            let error = read::<RawCancelBundle>(params.as_bytes(), "replacementUuid").unwrap_err();
            assert_eq!(error.field_name(), field, "{params}");
        }
    }

    /// They were read as 0, which is the next block.
    #[test]
    fn a_text_without_digits_is_no_number() {
        for text in ["", "0x", "0X", "_", "0x_", "0b", "0o", r"0\u0078"] {
            for field in ["blockNumber", "maxTimestamp", "replacementNonce"] {
                let is_0x = text == "0x" || text == r"0\u0078";
                if field == "blockNumber" && is_0x {
                    continue;
                }
                let params = format!(r#"[{{"txs":[],"{field}":"{text}"}}]"#);
                assert_eq!(error(&params).field_name(), field, "{params}");
            }
            let params = format!(r#"[{{"tx":"0x02","maxBlockNumber":"{text}"}}]"#);
            assert!(read::<RawPrivate>(params.as_bytes(), "tx").is_err(), "{params}");
        }
        for (number, value) in
            [("5", 5), ("\"5\"", 5), ("\"0x0A\"", 10), ("\"0X0a\"", 10), ("\"0x\"", 0)]
        {
            let params = format!(r#"[{{"blockNumber":{number}}}]"#);
            let bundle = read::<RawBundle>(params.as_bytes(), "").unwrap();
            assert_eq!(bundle.block_number, Some(value), "{number}");
        }
    }

    /// Each said less than what was expected, or nothing.
    #[test]
    fn a_message_names_the_path_and_says_what_was_expected() {
        let bundle = |params: &str| error(params).json("1");
        for (error, expected) in [
            (bundle(r#"[{"txs":[]},5]"#), "params has 2 elements, must have one object"),
            (bundle(r#"{"txs":[]}"#), "params is an object, must be an array of one object"),
            (bundle(r#"[{"txs":{}}]"#), "txs: it is an object, must be an array"),
            (bundle(r#"[{"blockNumber":5.0}]"#), "blockNumber: 5.0 is no whole number, must be"),
            (bundle(r#"[{"maxTimestamp":-1}]"#), "maxTimestamp: -1 is no whole number, must be"),
            (bundle(r#"[{"version":""}]"#), "version: the version is empty, must be v1, v2"),
            (bundle(r#"[{"blocknumber":5}]"#), "unknown field, is it blockNumber?"),
            (raw(b"[{}]").unwrap_err().json("1"), "params[0] is an object, must be a signed"),
            (raw(br#"["0x02","0x02"]"#).unwrap_err().json("1"), "params has 2 elements, must"),
            (private_raw(b"[1,2,3]").unwrap_err().json("1"), "params has 3 elements, must"),
            (none(b"[1]").unwrap_err().json("1"), "params has 1 elements, must have none"),
        ] {
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn what_has_no_effect_is_passed_over_by_name_and_anything_from_a_front() {
        let params = br#"[{"txs":[],"targetSlots":[{"a":[1]}],"desiredState":{},"surprise":1}]"#;
        let read = |is_lenient| {
            let mut ignored = Ignored::new(is_lenient);
            let read = one::<RawBundle>(params, "", &mut ignored);
            (read.map_err(|error| error.field_name()), ignored.counts)
        };
        assert_eq!(read(false).0, Err("surprise".to_owned()));
        assert_eq!(read(true), (Ok(RawBundle::default()), [0, 1, 0, 0, 1, 1]));
    }

    /// Takes the names of the fields that a type reads.
    struct FieldNames;

    impl<'de> Deserializer<'de> for FieldNames {
        type Error = serde::de::value::Error;

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
            unreachable!("it is a struct")
        }

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            _: V,
        ) -> Result<V::Value, Self::Error> {
            Err(Self::Error::custom(fields.join(" ")))
        }

        serde::forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
            option unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier
            ignored_any
        }
    }

    #[test]
    fn the_table_of_the_readme_has_the_methods_and_fields_of_the_code_and_no_others() {
        let readme = include_str!("../../README.md");
        let section = readme.split("\n# ").find(|part| part.starts_with("Compared with others"));
        let (methods, fields) = section.unwrap().split_once("| field of").unwrap();
        let names = |table: &str| {
            let rows = table.lines().filter_map(|line| line.strip_prefix("| `"));
            let mut names: Vec<_> =
                rows.map(|row| row.split_once('`').unwrap().0.to_owned()).collect();
            names.sort();
            names
        };
        let mut known: Vec<_> =
            crate::methods::Method::ALL.map(|method| method.as_str().to_owned()).into();
        known.sort();
        assert_eq!(names(methods), known);
        let read = RawBundle::deserialize(FieldNames).unwrap_err().to_string();
        let ignored = IGNORED_FIELDS.iter().filter(|name| **name != "other").copied();
        let mut known: Vec<_> = read.split(' ').chain(ignored).map(str::to_owned).collect();
        known.sort();
        assert_eq!(names(fields), known);
        // Those that have no effect say so.
        for name in IGNORED_FIELDS.iter().filter(|name| **name != "other") {
            assert!(fields.contains(&format!("| `{name}` | passed over |")), "{name}");
        }
    }

    /// Nothing of it is kept, so what is nested as deep as a body is long takes neither stack nor memory.
    #[test]
    fn what_is_not_read_may_be_as_deep_as_a_body() {
        let deep = "[".repeat(1_000_000) + &"]".repeat(1_000_000);
        let private = format!(r#"[{{"tx":"0x02","preferences":{deep}}}]"#);
        assert!(read::<RawPrivate>(private.as_bytes(), "tx").is_ok());
        assert!(private_raw(format!(r#"["0x02",{deep}]"#).as_bytes()).is_ok());
        let bundle = format!(r#"[{{"txs":["0x02"],"builders":{deep}}}]"#);
        assert!(read::<RawBundle>(bundle.as_bytes(), "").is_ok());
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
