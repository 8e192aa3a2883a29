//! Parses the parameters of a method. An error names the invalid field, and says what was expected.

use std::{borrow::Cow, fmt, marker::PhantomData};

use alloy_primitives::{B256, Bytes};
use alloy_serde::quantity;
use order_pool::{MAX_TARGET_ADDRESSES, MAX_TARGET_SLOTS, MAX_TXS_PER_BUNDLE};
use serde::{
    Deserialize, Deserializer,
    de::{
        DeserializeOwned, DeserializeSeed, Error as _, IgnoredAny, IntoDeserializer, MapAccess,
        Visitor,
    },
};
use serde_json::value::RawValue;

use super::ignored_fields::{IgnoredFields, nearest_name};
use crate::reply::{ErrorResponse, Reason, truncate};

/// The name of the first parameter, for errors that concern no field of an object.
pub(crate) const FIRST_PARAM: &str = "params[0]";

/// The parameters of `eth_sendPrivateTransaction`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RawPrivate {
    pub(crate) tx: Bytes,
    #[serde(default, with = "quantity::opt")]
    pub(crate) max_block_number: Option<u64>,
    /// With whom Flashbots shares the transaction. Here it is shared with nobody.
    #[serde(default, rename = "preferences")]
    _preferences: IgnoredAny,
}

/// The parameters of `eth_cancelPrivateTransaction`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RawCancelPrivate {
    pub(crate) tx_hash: B256,
}

/// Parses `params` that must be one object. `required` is the field that the object must have, or
/// empty. Fields that `T` does not have are added to `ignored`, if they may be ignored.
///
/// # Errors
/// Names the invalid field.
pub(crate) fn parse_object<T: DeserializeOwned>(
    params: &[u8],
    required: &'static str,
    ignored: &mut IgnoredFields,
) -> Result<T, ErrorResponse> {
    let object = single_param(params, "one object")?;
    let mut field = FIRST_PARAM.to_owned();
    let mut deserializer = serde_json::Deserializer::from_str(object.get());
    let visitor = ObjectVisitor { required, field: &mut field, ignored, target: PhantomData };
    // Not `deserialize_struct`, which also accepts an array of the values of the fields.
    deserializer.deserialize_map(visitor).map_err(|error| {
        let message = format!("{field}: {}", truncate(&error.to_string()));
        ErrorResponse::field(Reason::Params, &field, message)
    })
}

/// Parses `params` that must be one signed transaction.
pub(crate) fn parse_raw_transaction(params: &[u8]) -> Result<Bytes, ErrorResponse> {
    raw_bytes(single_param(params, "one signed transaction as a 0x-prefixed string")?)
}

/// Parses `params` that must be a signed transaction, and optionally its preferences, which have no
/// effect.
pub(crate) fn parse_private_raw_transaction(params: &[u8]) -> Result<Bytes, ErrorResponse> {
    let expected = "a signed transaction as a 0x-prefixed string, and optionally its preferences";
    let elements = elements(params, expected)?;
    match elements.as_slice() {
        [raw] | [raw, _] => raw_bytes(raw),
        [] => Err(wrong_count(0, expected, FIRST_PARAM)),
        elements => Err(wrong_count(elements.len(), expected, "params[2]")),
    }
}

/// Checks that `params` is absent or empty.
pub(crate) fn check_no_params(params: &[u8]) -> Result<(), ErrorResponse> {
    if params == b"null" {
        return Ok(());
    }
    match elements(params, "nothing")?.len() {
        0 => Ok(()),
        count => Err(wrong_count(count, "none", FIRST_PARAM)),
    }
}

/// Returns the only element of `params`, which must be an array of `expected`.
fn single_param<'a>(params: &'a [u8], expected: &str) -> Result<&'a RawValue, ErrorResponse> {
    let elements = elements(params, expected)?;
    match elements.as_slice() {
        [element] => Ok(element),
        [] => Err(wrong_count(0, expected, FIRST_PARAM)),
        elements => Err(wrong_count(elements.len(), expected, "params[1]")),
    }
}

/// Returns the elements of `params`, not more than the commas that a body may have.
fn elements<'a>(params: &'a [u8], expected: &str) -> Result<Vec<&'a RawValue>, ErrorResponse> {
    serde_json::from_slice(params).map_err(|_| {
        let kind = JsonKind::from_json(params);
        let message = format!("params is {kind}, must be an array of {expected}");
        ErrorResponse::field(Reason::Params, FIRST_PARAM, message)
    })
}

/// `field`: the first parameter that is missing or too many.
fn wrong_count(count: usize, expected: &str, field: &str) -> ErrorResponse {
    let message = format!("params has {count} elements, must have {expected}");
    ErrorResponse::field(Reason::Params, field, message)
}

fn raw_bytes(value: &RawValue) -> Result<Bytes, ErrorResponse> {
    serde_json::from_str(value.get()).map_err(|error| {
        let kind = JsonKind::from_json(value.get().as_bytes());
        let message = if kind == JsonKind::String {
            format!("{FIRST_PARAM}: {}", truncate(&error.to_string()))
        } else {
            format!("{FIRST_PARAM} is {kind}, must be a signed transaction as a 0x-prefixed string")
        };
        ErrorResponse::field(Reason::Params, FIRST_PARAM, message)
    })
}

/// The kind of a JSON value, by its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JsonKind {
    Object,
    Array,
    String,
    Number,
    Boolean,
    Absent,
}

impl JsonKind {
    fn from_json(value: &[u8]) -> Self {
        match value.iter().find(|byte| !byte.is_ascii_whitespace()) {
            Some(b'{') => Self::Object,
            Some(b'[') => Self::Array,
            Some(b'"') => Self::String,
            Some(b't' | b'f') => Self::Boolean,
            Some(b'n') | None => Self::Absent,
            Some(_) => Self::Number,
        }
    }
}

/// As in an error message: "is a number".
impl fmt::Display for JsonKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Object => "an object",
            Self::Array => "an array",
            Self::String => "a string",
            Self::Number => "a number",
            Self::Boolean => "a boolean",
            Self::Absent => "absent",
        })
    }
}

/// Deserializes an object, and tracks the field that is being read. The fields of the struct are
/// those of [`Fields`].
struct ObjectVisitor<'a, T> {
    required: &'static str,
    field: &'a mut String,
    ignored: &'a mut IgnoredFields,
    target: PhantomData<T>,
}

impl<'de, T: DeserializeOwned> Visitor<'de> for ObjectVisitor<'_, T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        let Self { required, field, ignored, .. } = self;
        T::deserialize(Fields { map, known: &[], required, field, ignored })
    }
}

/// The fields of an object. A field that the target type does not have is ignored or refused.
struct Fields<'a, A> {
    map: A,
    /// The names of the target type's fields. Empty until the target type passes them to
    /// `deserialize_struct`.
    known: &'static [&'static str],
    /// The field that the object must have, or empty.
    required: &'static str,
    /// The field that an error is about: the one that is being read.
    field: &'a mut String,
    ignored: &'a mut IgnoredFields,
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
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
        option unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier
        ignored_any
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
                // From here on, the only error can be that the required field is missing.
                if !self.required.is_empty() {
                    self.required.clone_into(self.field);
                }
                return Ok(None);
            };
            // An empty name is shown in quotes: otherwise the error would begin with a colon.
            *self.field =
                if name.is_empty() { "\"\"".to_owned() } else { truncate(&name).into_owned() };
            // The target type receives only names that it knows.
            if self.known.contains(&name.as_str()) {
                return seed.deserialize(name.into_deserializer()).map(Some);
            }
            if !self.ignored.try_ignore(&name) {
                return Err(match nearest_name(&name, self.known) {
                    Some(nearest) => {
                        A::Error::custom(format_args!("unknown field, did you mean {nearest}?"))
                    }
                    None => A::Error::custom("unknown field"),
                });
            }
            self.map.next_value::<IgnoredAny>()?;
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        let value: &RawValue = self.map.next_value()?;
        check_value(self.field, value.get()).map_err(A::Error::custom)?;
        seed.deserialize(&mut serde_json::Deserializer::from_str(value.get()))
            .map_err(A::Error::custom)
    }
}

/// Checks what the deserialization of the field's type does not check: the length of a list, before
/// the list is read, and that a number has digits.
fn check_value(field: &str, value: &str) -> Result<(), String> {
    match field {
        "txs" | "revertingTxHashes" | "droppingTxHashes" => check_list(value, MAX_TXS_PER_BUNDLE),
        "refundTxHashes" => check_list(value, 1),
        "targetAddresses" => check_list(value, MAX_TARGET_ADDRESSES),
        "targetSlots" => check_target_slots(value),
        "blockNumber" => check_number(value, true),
        "maxBlockNumber"
        | "minTimestamp"
        | "maxTimestamp"
        | "replacementNonce"
        | "replacementSeqNumber"
        | "refundPercent"
        | "refundIndex" => check_number(value, false),
        "version" if value == "\"\"" => {
            Err("the version is empty, must be v1, v2 or absent".to_owned())
        }
        _ => Ok(()),
    }
}

fn check_list(value: &str, max_length: usize) -> Result<(), String> {
    if JsonKind::from_json(value.as_bytes()) == JsonKind::Object {
        return Err("it is an object, must be an array".to_owned());
    }
    // `IgnoredAny` has no size, so counting the elements allocates nothing.
    match serde_json::from_str::<Vec<IgnoredAny>>(value).map(|list| list.len()) {
        Ok(length) if length > max_length => {
            Err(format!("{length} entries, the most is {max_length}"))
        }
        // If it is not a list, the error of its deserialization is clearer.
        _ => Ok(()),
    }
}

/// Checks the number of lists of storage slots (one for each target address), and the number of all
/// slots in them, before the slots are read.
fn check_target_slots(value: &str) -> Result<(), String> {
    // This comes first: below, each list takes memory, even an empty one.
    check_list(value, MAX_TARGET_ADDRESSES)?;
    match serde_json::from_str::<Vec<Vec<IgnoredAny>>>(value) {
        Ok(lists) => {
            let slots: usize = lists.iter().map(Vec::len).sum();
            if slots > MAX_TARGET_SLOTS {
                return Err(format!("{slots} slots, the most is {MAX_TARGET_SLOTS}"));
            }
            Ok(())
        }
        // If it is not a list of lists, the error of its deserialization is clearer.
        Err(_) => Ok(()),
    }
}

/// Checks that a value is an integer: a JSON number, or a decimal or hex string. With `permits_0x`
/// it may also be `"0x"`, which the reference of BuilderNet defines as the next block.
fn check_number(value: &str, permits_0x: bool) -> Result<(), String> {
    const EXPECTED: &str = "must be a whole number, or one as a string, decimal or with 0x";
    match JsonKind::from_json(value.as_bytes()) {
        JsonKind::String => {
            let text = serde_json::from_str::<Cow<'_, str>>(value).unwrap_or_default();
            if is_number(&text) || permits_0x && text == "0x" {
                return Ok(());
            }
            Err(format!("{} is no number, {EXPECTED}", truncate(value)))
        }
        JsonKind::Number if value.bytes().all(|byte| byte.is_ascii_digit()) => Ok(()),
        JsonKind::Absent => Ok(()),
        _ => Err(format!("{} is no whole number, {EXPECTED}", truncate(value))),
    }
}

/// Whether a text has the digits of a number. Its type would parse a text without digits as 0.
fn is_number(text: &str) -> bool {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
        None => !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods::{IGNORED_FIELDS, Method};
    use order_pool::{RawBundle, RawCancelBundle};

    fn parse<T: DeserializeOwned>(
        params: &[u8],
        required: &'static str,
    ) -> Result<T, ErrorResponse> {
        parse_object(params, required, &mut IgnoredFields::new(false))
    }

    fn bundle_error(params: &str) -> ErrorResponse {
        parse::<RawBundle>(params.as_bytes(), "").unwrap_err()
    }

    #[test]
    fn an_error_names_the_invalid_field() {
        let uuid = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";
        let bundles = [
            (r#"[{"txs":5,"blockNumber":"0x1"}]"#, "txs"),
            (r#"[{"txs":[],"blockNumber":"five"}]"#, "blockNumber"),
            (r#"[{"revertingTxHashes":["0x1"],"txs":[]}]"#, "revertingTxHashes"),
            (r#"[{"txs":[],"surprise":{"txs":5},"uuid":5}]"#, "surprise"),
            (r#"[{"txs":[],"s\u0075rprise":1}]"#, "surprise"),
            (r#"[{"txs":[],"txs":[]}]"#, "txs"),
            (r#"[{"txs":[],"":1}]"#, "\"\""),
            // A list of the fields' values is no bundle.
            (r#"[[null,["0x02"]]]"#, FIRST_PARAM),
        ];
        let no_objects = ["null", "[]", "[5]", "{}"].map(|params| (params, FIRST_PARAM));
        let two = [("[{},{}]", "params[1]")];
        for (params, field) in bundles.into_iter().chain(no_objects).chain(two) {
            assert_eq!(bundle_error(params).field_name(), field, "{params}");
        }
        for (cancel, field) in [
            ("{}".to_owned(), "replacementUuid"),
            (r#"{"replacementNonce":"0x1"}"#.to_owned(), "replacementUuid"),
            (r#"{"replacementUuid":5}"#.to_owned(), "replacementUuid"),
            (format!(r#"["{uuid}"]"#), FIRST_PARAM),
            (format!(r#"{{"uuid":"{uuid}","replacementNonce":"x"}}"#), "replacementNonce"),
            (format!(r#"{{"uuid":"{uuid}","more":1}}"#), "more"),
        ] {
            let params = format!("[{cancel}]");
            let error = parse::<RawCancelBundle>(params.as_bytes(), "replacementUuid").unwrap_err();
            assert_eq!(error.field_name(), field, "{params}");
        }
    }

    /// Such texts were parsed as 0, which is the next block.
    #[test]
    fn a_text_without_digits_is_no_number() {
        for text in ["", "0x", "0X", "_", "0x_", "0b", "0o", r"0\u0078"] {
            for field in ["blockNumber", "maxTimestamp", "replacementNonce"] {
                let is_0x = text == "0x" || text == r"0\u0078";
                if field == "blockNumber" && is_0x {
                    continue;
                }
                let params = format!(r#"[{{"txs":[],"{field}":"{text}"}}]"#);
                assert_eq!(bundle_error(&params).field_name(), field, "{params}");
            }
            let params = format!(r#"[{{"tx":"0x02","maxBlockNumber":"{text}"}}]"#);
            assert!(parse::<RawPrivate>(params.as_bytes(), "tx").is_err(), "{params}");
        }
        for (number, value) in
            [("5", 5), ("\"5\"", 5), ("\"0x0A\"", 10), ("\"0X0a\"", 10), ("\"0x\"", 0)]
        {
            let params = format!(r#"[{{"blockNumber":{number}}}]"#);
            let bundle = parse::<RawBundle>(params.as_bytes(), "").unwrap();
            assert_eq!(bundle.block_number, Some(value), "{number}");
        }
    }

    #[test]
    fn a_message_names_the_path_and_what_was_expected() {
        let bundle = |params: &str| bundle_error(params).json("1");
        for (error, expected) in [
            (bundle(r#"[{"txs":[]},5]"#), "params has 2 elements, must have one object"),
            (bundle(r#"{"txs":[]}"#), "params is an object, must be an array of one object"),
            (bundle(r#"[{"txs":{}}]"#), "txs: it is an object, must be an array"),
            (bundle(r#"[{"blockNumber":5.0}]"#), "blockNumber: 5.0 is no whole number, must be"),
            (bundle(r#"[{"maxTimestamp":-1}]"#), "maxTimestamp: -1 is no whole number, must be"),
            (bundle(r#"[{"version":""}]"#), "version: the version is empty, must be v1, v2"),
            (bundle(r#"[{"blocknumber":5}]"#), "unknown field, did you mean blockNumber?"),
            (
                parse_raw_transaction(b"[{}]").unwrap_err().json("1"),
                "params[0] is an object, must be a signed",
            ),
            (
                parse_raw_transaction(br#"["0x02","0x02"]"#).unwrap_err().json("1"),
                "params has 2 elements, must",
            ),
            (
                parse_private_raw_transaction(b"[1,2,3]").unwrap_err().json("1"),
                "params has 3 elements, must",
            ),
            (
                check_no_params(b"[1]").unwrap_err().json("1"),
                "params has 1 elements, must have none",
            ),
        ] {
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn listed_fields_are_ignored_and_from_a_front_any_field() {
        let params = br#"[{"txs":[],"privacy":[{"a":[1]}],"surprise":1}]"#;
        let parse = |is_lenient| {
            let mut ignored = IgnoredFields::new(is_lenient);
            let parsed = parse_object::<RawBundle>(params, "", &mut ignored);
            (parsed.map_err(|error| error.field_name()), ignored.counts)
        };
        assert_eq!(parse(false).0, Err("surprise".to_owned()));
        assert_eq!(parse(true), (Ok(RawBundle::default()), [0, 1, 1]));
    }

    /// A deserializer whose error is the names of the fields that a type has.
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

    /// Returns the first two cells of each row of the README's table that begins with `heading`.
    fn readme_rows(heading: &str) -> Vec<(&'static str, &'static str)> {
        let readme = include_str!("../../README.md");
        let (_, table) = readme.split_once(&format!("\n| {heading} |")).unwrap();
        let rows = table.lines().skip(2).map_while(|line| line.strip_prefix("| "));
        let cells = rows.map(|row| {
            let mut cells = row.split(" | ");
            (cells.next().unwrap().trim_matches('`'), cells.next().unwrap())
        });
        cells.collect()
    }

    #[test]
    fn the_readme_says_yes_to_exactly_the_methods_that_are_served() {
        let mut served = Vec::new();
        for (name, here) in readme_rows("method") {
            assert!(["yes", "no"].contains(&here), "{name}: {here}");
            assert_eq!(here == "yes", Method::from_name(name).is_some(), "{name}");
            served.extend(Method::from_name(name).map(Method::as_str));
        }
        served.sort();
        let mut expected = Method::ALL.map(Method::as_str);
        expected.sort();
        assert_eq!(served, expected);
    }

    /// A field that is read is refused with a value of the wrong type. One that is ignored takes
    /// any value, and is either not read by the bundle or counted by its name.
    #[test]
    fn the_readme_says_which_fields_are_read_and_which_ignored() {
        let known = RawBundle::deserialize(FieldNames).unwrap_err().to_string();
        let known: Vec<_> = known.split(' ').collect();
        let listed = IGNORED_FIELDS.iter().copied().filter(|name| *name != "other");
        let mut expected: Vec<_> = known.iter().copied().chain(listed).collect();
        expected.push("any other");
        expected.sort();
        let rows = readme_rows("field of `eth_sendBundle`");
        let mut names: Vec<_> = rows.iter().map(|(name, _)| *name).collect();
        names.sort();
        assert_eq!(names, expected);
        for (name, here) in rows {
            let params = format!(r#"[{{"txs":[],"{name}":{{"wrong":[1]}}}}]"#);
            let params =
                if name == "txs" { r#"[{"txs":{"wrong":[1]}}]"#.to_owned() } else { params };
            let mut ignored = IgnoredFields::new(false);
            let parsed = parse_object::<RawBundle>(params.as_bytes(), "", &mut ignored);
            if here == "ignored" {
                assert!(parsed.is_ok(), "{name}: {parsed:?}");
                let counted: u64 = ignored.counts.iter().sum();
                assert_eq!(counted, u64::from(!known.contains(&name)), "{name}");
            } else {
                assert_eq!(parsed.unwrap_err().field_name(), name, "{name}: {here}");
            }
        }
        let (_, other) = readme_rows("field of `eth_sendBundle`").pop().unwrap();
        assert_eq!(other, "refused; ignored from a front");
    }

    #[test]
    fn the_readme_states_the_lengths_of_lists() {
        for (name, here) in readme_rows("field of `eth_sendBundle`") {
            let Some(limit) = here.strip_prefix("at most ") else { continue };
            let limit: usize = if limit == "one" { 1 } else { limit.parse().unwrap() };
            let has_length_error = |length: usize| {
                let list = vec!["5"; length].join(",");
                let error = bundle_error(&format!(r#"[{{"{name}":[{list}]}}]"#)).json("1");
                error.contains(&format!("entries, the most is {limit}"))
            };
            assert!(has_length_error(limit + 1) && !has_length_error(limit), "{name}");
        }
    }

    /// An ignored value is not kept, so a deeply nested one takes neither stack nor memory.
    #[test]
    fn an_ignored_value_may_be_nested_as_deep_as_a_body() {
        let deep = "[".repeat(1_000_000) + &"]".repeat(1_000_000);
        let private = format!(r#"[{{"tx":"0x02","preferences":{deep}}}]"#);
        assert!(parse::<RawPrivate>(private.as_bytes(), "tx").is_ok());
        assert!(parse_private_raw_transaction(format!(r#"["0x02",{deep}]"#).as_bytes()).is_ok());
        let bundle = format!(r#"[{{"txs":["0x02"],"builders":{deep}}}]"#);
        assert!(parse::<RawBundle>(bundle.as_bytes(), "").is_ok());
    }

    /// Eight bodies of 8 MB with nothing but `""` took 825 MB before the length was checked.
    #[test]
    fn the_elements_of_a_list_that_is_too_long_are_not_parsed() {
        for (field, limit) in [
            ("txs", 100),
            ("revertingTxHashes", 100),
            ("droppingTxHashes", 100),
            ("refundTxHashes", 1),
            ("targetAddresses", 100),
            ("targetSlots", 100),
        ] {
            // Each element is invalid: if one had been parsed, the error would be about it.
            let list = vec!["5"; limit + 1].join(",");
            let error = bundle_error(&format!(r#"[{{"{field}":[{list}]}}]"#)).json("1");
            let entries = format!("{field}: {} entries, the most is {limit}", limit + 1);
            assert!(error.contains(&entries), "{error}");
        }
        let list = vec!["5"; 501].join(",");
        let error = bundle_error(&format!(r#"[{{"targetSlots":[[{list}],[{list}]]}}]"#)).json("1");
        assert!(error.contains("targetSlots: 1002 slots, the most is 1000"), "{error}");
    }
}
