//! Parses a body into JSON-RPC calls. The parameters stay text until their method parses them.

// Bytes from outside are read here: none of them may cause a panic.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::expect_used))]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::string_slice, clippy::unreachable))]

use std::borrow::Cow;

use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use crate::{
    methods::{Method, Verified},
    reply::{ErrorResponse, METHOD_NOT_FOUND, PARSE, Reason, truncate},
};

/// Maximum bytes of an id, which the response repeats. Counters and random ids are shorter.
const MAX_ID_BYTES: usize = 128;
/// Maximum elements of a batch.
const MAX_BATCH: usize = 100;
/// Maximum commas of a body, which bounds its JSON values: 100 bundles with three lists of 100
/// entries have half of it. To parse 8 MB of `"",` takes 50 ms under a work permit; to count its
/// commas takes one.
const MAX_COMMAS: usize = 65_536;

/// The id of a call as it was sent, a number or a string; null for a call without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Id(Cow<'static, str>);

impl Id {
    pub(crate) const NULL: Self = Self(Cow::Borrowed("null"));

    pub(crate) fn as_json(&self) -> &str {
        &self.0
    }

    fn parse(raw: &RawValue) -> Result<Self, ErrorResponse> {
        let text = raw.get();
        if text.len() > MAX_ID_BYTES {
            let length = text.len();
            return Err(invalid(format!("id has {length} bytes, the most is {MAX_ID_BYTES}")));
        }
        // The response repeats it as it was sent, so the client must be able to parse it.
        match serde_json::from_str(text) {
            Ok(Value::Number(_) | Value::String(_)) => Ok(Self(Cow::Owned(text.to_owned()))),
            _ => Err(invalid("id must be a number or a string")),
        }
    }
}

/// One JSON-RPC call of a body.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) id: Id,
    pub(crate) state: CallState,
}

/// How far a call has come.
#[derive(Debug)]
pub(crate) enum CallState {
    /// Not run yet: the method, and its parameters as text.
    Pending(Method, Bytes),
    /// Verified; it waits for the proofs of its blobs, for the host's decision and for the insert.
    Verified(Method, Verified),
    Done(Result<Value, ErrorResponse>),
}

impl CallState {
    pub(crate) const fn refused(error: ErrorResponse) -> Self {
        Self::Done(Err(error))
    }
}

/// The calls of one body: a single one, or the elements of a batch.
#[derive(Debug)]
pub(crate) struct Calls {
    pub(crate) calls: Vec<Call>,
    pub(crate) is_batch: bool,
    /// The id of an error that refuses the whole body: null for a batch.
    pub(crate) id: Id,
}

impl Calls {
    /// Parses a body. An error of a single call is stored in its state.
    ///
    /// # Errors
    /// The body is no JSON object or array, has too many values, or is a batch of a wrong length.
    pub(crate) fn parse(body: &Bytes) -> Result<Self, ErrorResponse> {
        let commas = count_commas(body);
        if commas > MAX_COMMAS {
            let message = format!("the body has {commas} commas, the most is {MAX_COMMAS}");
            return Err(invalid(message));
        }
        match body.iter().find(|byte| !byte.is_ascii_whitespace()) {
            Some(b'[') => Self::parse_batch(body),
            Some(b'{') => Self::parse_single(body),
            _ => Err(not_json()),
        }
    }

    fn parse_batch(body: &Bytes) -> Result<Self, ErrorResponse> {
        // The count of commas bounds this list: 2 MB of references.
        let elements: Vec<&RawValue> = serde_json::from_slice(body).map_err(|_| not_json())?;
        let message = match elements.len() {
            0 => "the batch is empty".to_owned(),
            1..=MAX_BATCH => {
                let calls = elements.into_iter();
                let calls = calls.map(|element| Envelope::from_element(element).into_call(body));
                return Ok(Self { calls: calls.collect(), is_batch: true, id: Id::NULL });
            }
            count => {
                format!("the batch has {count} elements, the most is max_batch: {MAX_BATCH}")
            }
        };
        Err(ErrorResponse::http(StatusCode::BAD_REQUEST, Reason::BatchLength, message))
    }

    fn parse_single(body: &Bytes) -> Result<Self, ErrorResponse> {
        let envelope = match serde_json::from_slice::<Envelope<'_>>(body) {
            Ok(envelope) => envelope,
            // A repeated name is valid JSON, but no request.
            Err(error) if error.is_data() => Envelope::default(),
            Err(_) => return Err(not_json()),
        };
        let call = envelope.into_call(body);
        Ok(Self { id: call.id.clone(), calls: vec![call], is_batch: false })
    }
}

/// Counts commas in groups whose count fits a byte, which the compiler turns into vector
/// instructions.
fn count_commas(body: &[u8]) -> usize {
    let groups = body.chunks(usize::from(u8::MAX));
    let counts = groups.map(|group| group.iter().map(|byte| u8::from(*byte == b',')).sum::<u8>());
    counts.map(usize::from).sum()
}

fn not_json() -> ErrorResponse {
    let message = "the body is not a JSON object or array".to_owned();
    ErrorResponse::request(StatusCode::BAD_REQUEST, PARSE, Reason::NotJson, message)
}

fn invalid(message: impl Into<String>) -> ErrorResponse {
    ErrorResponse::http(StatusCode::BAD_REQUEST, Reason::Envelope, message)
}

/// The raw values of a request's fields, of any type.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Envelope<'a> {
    #[serde(borrow)]
    jsonrpc: Option<&'a RawValue>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<&'a RawValue>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

impl<'a> Envelope<'a> {
    /// Parses an element of a batch. An invalid element is an error of its call, not of the batch.
    fn from_element(element: &'a RawValue) -> Self {
        let text = element.get();
        // serde would accept an array of the fields' values too.
        if !text.starts_with('{') {
            return Self::default();
        }
        serde_json::from_str(text).unwrap_or_default()
    }

    fn into_call(self, body: &Bytes) -> Call {
        // Notifications are refused: their sender could not be told that an order was refused.
        let id = match self.id {
            Some(id) => Id::parse(id),
            None => Err(invalid("id is absent, must be a number or a string")),
        };
        match id {
            Ok(id) => Call { id, state: self.parse_call(body).unwrap_or_else(CallState::refused) },
            Err(error) => Call { id: Id::NULL, state: CallState::refused(error) },
        }
    }

    fn parse_call(self, body: &Bytes) -> Result<CallState, ErrorResponse> {
        if self.jsonrpc.map(RawValue::get) != Some("\"2.0\"") {
            return Err(invalid("jsonrpc must be \"2.0\""));
        }
        let name = self.method.and_then(|raw| serde_json::from_str::<Cow<'a, str>>(raw.get()).ok());
        let Some(name) = name else {
            return Err(invalid("method must be a string"));
        };
        let Some(method) = Method::from_name(&name) else {
            let message = format!("the method {} does not exist", truncate(&name));
            let status = StatusCode::OK;
            return Err(ErrorResponse::request(status, METHOD_NOT_FOUND, Reason::Method, message));
        };
        let params = match self.params {
            Some(params) => body.slice_ref(params.get().as_bytes()),
            None => Bytes::from_static(b"null"),
        };
        Ok(CallState::Pending(method, params))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods::{
        IgnoredFields,
        params::{self, RawCancelPrivate, RawPrivate},
    };
    use order_pool::{RawBundle, RawCancelBundle};
    use serde::de::IgnoredAny;
    use testkit::corpus::{damaged_seeds, seeds};

    fn parse(body: &str) -> Result<Calls, Reason> {
        Calls::parse(&Bytes::copy_from_slice(body.as_bytes())).map_err(|error| error.reason)
    }

    /// Returns the id of each call, and the reason if it is refused.
    fn outcomes(body: &str) -> Vec<(String, Option<Reason>)> {
        let outcome = |call: Call| {
            let reason = match call.state {
                CallState::Pending(..) | CallState::Verified(..) => None,
                CallState::Done(done) => Some(done.unwrap_err().reason),
            };
            (call.id.as_json().to_owned(), reason)
        };
        parse(body).unwrap().calls.into_iter().map(outcome).collect()
    }

    const GOOD: &str = r#"{"jsonrpc":"2.0","id":7,"method":"eth_sendBundle","params":[{"a":[1]}]}"#;

    /// Values that are not used are skipped without recursion.
    #[test]
    fn a_body_may_be_nested_as_deep_as_it_is_long() {
        let deep = "[".repeat(1_000_000);
        assert_eq!(parse(&deep).unwrap_err(), Reason::NotJson);
        let deep = deep + &"]".repeat(1_000_000);
        assert_eq!(outcomes(&deep), [("null".to_owned(), Some(Reason::Envelope))]);
    }

    /// Lists and objects of millions of values held the work permit for 50 ms each.
    #[test]
    fn a_body_with_too_many_commas_is_not_parsed() {
        for value in ["\"\"", "\"f\":1"] {
            // A parser that read it to its end would report invalid JSON.
            let body = Bytes::from(vec![value; MAX_COMMAS + 2].join(","));
            let error = Calls::parse(&body).unwrap_err().json("1");
            assert!(error.contains("commas, the most is 65536"), "{error}");
        }
    }

    #[test]
    fn an_error_of_a_call_has_the_id_of_the_call() {
        let long = "x".repeat(MAX_ID_BYTES);
        let cases = [
            (GOOD.to_owned(), "7", None),
            (GOOD.replace("2.0", "1.0"), "7", Some(Reason::Envelope)),
            (GOOD.replace("7", "[7]"), "null", Some(Reason::Envelope)),
            // serde could parse neither of these in a response.
            (GOOD.replace("7", "1e999"), "null", Some(Reason::Envelope)),
            (GOOD.replace("7", r#""\ud800""#), "null", Some(Reason::Envelope)),
            (GOOD.replace("7", &format!("\"{long}\"")), "null", Some(Reason::Envelope)),
            (GOOD.replace("\"id\":7,", ""), "null", Some(Reason::Envelope)),
            (GOOD.replace("eth_sendBundle", "eth_no"), "7", Some(Reason::Method)),
            (GOOD.replace("\"eth_sendBundle\"", "1"), "7", Some(Reason::Envelope)),
            (GOOD.replace("eth_sendBundle", r"eth_send\u0042undle"), "7", None),
            (GOOD.replace("7", "\"7\""), "\"7\"", None),
        ];
        for (body, id, reason) in cases {
            assert_eq!(outcomes(&body), [(id.to_owned(), reason)], "{body}");
        }
        let batch = format!("[{GOOD},5]");
        let expected = [("7".to_owned(), None), ("null".to_owned(), Some(Reason::Envelope))];
        assert_eq!(outcomes(&batch), expected);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_parse_to_calls_or_an_error(body: Vec<u8>) {
            let _ = Calls::parse(&Bytes::from(body));
        }

        #[test]
        fn damaged_parameters_parse_or_their_error_names_a_field(body in damaged_seeds("bodies")) {
            let calls = Calls::parse(&Bytes::from(body)).map_or(Vec::new(), |calls| calls.calls);
            for call in calls {
                let CallState::Pending(_, params) = call.state else { continue };
                proptest::prop_assert!(serde_json::from_slice::<IgnoredAny>(&params).is_ok());
                let mut ignored = IgnoredFields::new(false);
                // The parameters are parsed as those of every method.
                let ignored = &mut ignored;
                let uuid = "replacementUuid";
                let errors = [
                    params::parse_object::<RawBundle>(&params, "", ignored).err(),
                    params::parse_object::<RawCancelBundle>(&params, uuid, ignored).err(),
                    params::parse_object::<RawPrivate>(&params, "tx", ignored).err(),
                    params::parse_object::<RawCancelPrivate>(&params, "txHash", ignored).err(),
                    params::parse_raw_transaction(&params).err(),
                    params::parse_private_raw_transaction(&params).err(),
                    params::check_no_params(&params).err(),
                ];
                for error in errors.into_iter().flatten() {
                    proptest::prop_assert!(!error.field_name().is_empty());
                }
            }
        }
    }

    #[test]
    fn the_bodies_of_the_corpus_parse_or_are_refused() {
        for seed in seeds("bodies") {
            let calls = Calls::parse(&Bytes::from(seed.bytes.clone()));
            let is_call = |call: &Call| matches!(call.state, CallState::Pending(..));
            let are_calls = calls.as_ref().is_ok_and(|calls| calls.calls.iter().all(is_call));
            assert_eq!(are_calls, seed.is_good(), "{}: {calls:?}", seed.name);
        }
    }
}
