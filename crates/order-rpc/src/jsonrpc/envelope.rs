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
    reply::{ErrorResponse, METHOD_NOT_FOUND, PARSE, Reason, cut},
};

/// Most bytes of an id, which the response repeats. Counters and random ids are shorter.
const MAX_ID_BYTES: usize = 128;
/// Elements of a batch.
const MAX_BATCH: usize = 100;
/// Most commas of a body, and so most values: 100 bundles with three lists of 100 have half of it.
/// To read 8 MB of `"",` takes 50 ms under a work permit; to count the commas takes one.
const MAX_COMMAS: usize = 65_536;

/// The id of a call as it was sent, a number or a string; null for a call without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Id(Cow<'static, str>);

impl Id {
    pub(crate) const NULL: Self = Self(Cow::Borrowed("null"));

    pub(crate) fn as_json(&self) -> &str {
        &self.0
    }

    fn read(raw: &RawValue) -> Result<Self, ErrorResponse> {
        let text = raw.get();
        if text.len() > MAX_ID_BYTES {
            let length = text.len();
            return Err(invalid(format!("id has {length} bytes, the most is {MAX_ID_BYTES}")));
        }
        // It is repeated as it was sent, so the client must be able to read it.
        match serde_json::from_str(text) {
            Ok(Value::Number(_) | Value::String(_)) => Ok(Self(Cow::Owned(text.to_owned()))),
            _ => Err(invalid("id must be a number or a string")),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) id: Id,
    pub(crate) state: State,
}

#[derive(Debug)]
pub(crate) enum State {
    /// The method, and its parameters as text.
    Sent(Method, Bytes),
    /// Verified; waits for the host's decision and the insert.
    Verified(Method, Verified),
    Done(Result<Value, ErrorResponse>),
}

impl State {
    pub(crate) const fn refused(error: ErrorResponse) -> Self {
        Self::Done(Err(error))
    }
}

#[derive(Debug)]
pub(crate) struct Calls {
    pub(crate) calls: Vec<Call>,
    pub(crate) is_batch: bool,
    /// Of what refuses all of them: null for a batch.
    pub(crate) id: Id,
}

impl Calls {
    /// Parses a body. An error of a single call is stored in its state.
    pub(crate) fn parse(body: &Bytes) -> Result<Self, ErrorResponse> {
        let no_json = |_| {
            let message = "the body is not a JSON object or array".to_owned();
            ErrorResponse::request(StatusCode::BAD_REQUEST, PARSE, Reason::NotJson, message)
        };
        let commas = commas(body);
        if commas > MAX_COMMAS {
            let message = format!("the body has {commas} commas, the most is {MAX_COMMAS}");
            return Err(invalid(message));
        }
        match body.iter().find(|byte| !byte.is_ascii_whitespace()) {
            Some(b'[') => {
                // No more than there are commas: 2 MB of references.
                let elements: Vec<&RawValue> = serde_json::from_slice(body).map_err(no_json)?;
                let wrong = match elements.len() {
                    0 => "the batch is empty".to_owned(),
                    1..=MAX_BATCH => {
                        let calls = elements.into_iter().map(|raw| Envelope::of(raw).call(body));
                        return Ok(Self { calls: calls.collect(), is_batch: true, id: Id::NULL });
                    }
                    count => format!(
                        "the batch has {count} elements, the most is max_batch: {MAX_BATCH}"
                    ),
                };
                Err(ErrorResponse::http(StatusCode::BAD_REQUEST, Reason::BatchLength, wrong))
            }
            Some(b'{') => {
                let envelope = match serde_json::from_slice::<Envelope<'_>>(body) {
                    Ok(envelope) => envelope,
                    // A repeated name: valid JSON, but not a request.
                    Err(error) if error.is_data() => Envelope::default(),
                    Err(error) => return Err(no_json(error)),
                };
                let call = envelope.call(body);
                Ok(Self { id: call.id.clone(), calls: vec![call], is_batch: false })
            }
            _ => Err(no_json(serde::de::Error::custom("no object or array"))),
        }
    }
}

/// In groups whose count fits a byte, which the compiler turns into vector instructions.
fn commas(body: &[u8]) -> usize {
    let of = |group: &[u8]| group.iter().map(|byte| u8::from(*byte == b',')).sum::<u8>();
    body.chunks(usize::from(u8::MAX)).map(|group| usize::from(of(group))).sum()
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
    fn of(raw: &'a RawValue) -> Self {
        let text = raw.get();
        // serde would accept an array of values too.
        if !text.starts_with('{') {
            return Self::default();
        }
        serde_json::from_str(text).unwrap_or_default()
    }

    fn call(self, body: &Bytes) -> Call {
        // Notifications are refused too: their sender could not be told that an order was refused.
        let absent = || Err(invalid("id is absent, must be a number or a string"));
        match self.id.map_or_else(absent, Id::read) {
            Ok(id) => Call { id, state: self.read(body).unwrap_or_else(State::refused) },
            Err(error) => Call { id: Id::NULL, state: State::refused(error) },
        }
    }

    fn read(self, body: &Bytes) -> Result<State, ErrorResponse> {
        if self.jsonrpc.map(RawValue::get) != Some("\"2.0\"") {
            return Err(invalid("jsonrpc must be \"2.0\""));
        }
        let method =
            self.method.and_then(|raw| serde_json::from_str::<Cow<'a, str>>(raw.get()).ok());
        let Some(name) = method else {
            return Err(invalid("method must be a string"));
        };
        let Some(method) = Method::named(&name) else {
            let message = format!("the method {} does not exist", cut(&name));
            let status = StatusCode::OK;
            return Err(ErrorResponse::request(status, METHOD_NOT_FOUND, Reason::Method, message));
        };
        let params = match self.params {
            Some(params) => body.slice_ref(params.get().as_bytes()),
            None => Bytes::from_static(b"null"),
        };
        Ok(State::Sent(method, params))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods::{Ignored, params};
    use order_pool::{RawBundle, RawCancelBundle};
    use serde::de::IgnoredAny;
    use testkit::corpus::{damaged_seeds, seeds};

    fn parse(body: &str) -> Result<Calls, Reason> {
        Calls::parse(&Bytes::copy_from_slice(body.as_bytes())).map_err(|error| error.reason)
    }

    /// The id and the reason of each call; `None` for one that may run.
    fn outcomes(body: &str) -> Vec<(String, Option<Reason>)> {
        let outcome = |call: Call| {
            let reason = match call.state {
                State::Sent(..) | State::Verified(..) => None,
                State::Done(done) => Some(done.unwrap_err().reason),
            };
            (call.id.as_json().to_owned(), reason)
        };
        parse(body).unwrap().calls.into_iter().map(outcome).collect()
    }

    const GOOD: &str = r#"{"jsonrpc":"2.0","id":7,"method":"eth_sendBundle","params":[{"a":[1]}]}"#;

    /// Skipped without recursion.
    #[test]
    fn a_body_may_be_nested_as_deep_as_it_is_long() {
        let deep = "[".repeat(1_000_000);
        assert_eq!(parse(&deep).unwrap_err(), Reason::NotJson);
        let deep = deep + &"]".repeat(1_000_000);
        assert_eq!(outcomes(&deep), [("null".to_owned(), Some(Reason::Envelope))]);
    }

    /// Lists and objects of millions of values held the work permit for 50 ms each.
    #[test]
    fn a_body_with_more_values_than_any_request_has_is_not_parsed() {
        for value in ["\"\"", "\"f\":1"] {
            // Read to its end it would be no JSON.
            let body = Bytes::from(vec![value; MAX_COMMAS + 2].join(","));
            let error = Calls::parse(&body).unwrap_err().json("1");
            assert!(error.contains("commas, the most is 65536"), "{error}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_call_is_said_under_its_id() {
        let long = "x".repeat(MAX_ID_BYTES);
        let cases = [
            (GOOD.to_owned(), "7", None),
            (GOOD.replace("2.0", "1.0"), "7", Some(Reason::Envelope)),
            (GOOD.replace("7", "[7]"), "null", Some(Reason::Envelope)),
            // serde reads neither in a response.
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
        fn any_bytes_are_calls_or_have_a_reason(body: Vec<u8>) {
            let _ = Calls::parse(&Bytes::from(body));
        }

        #[test]
        fn the_parameters_of_a_damaged_body_read_or_have_a_field(body in damaged_seeds("bodies")) {
            let calls = Calls::parse(&Bytes::from(body)).map_or(Vec::new(), |calls| calls.calls);
            for call in calls {
                let State::Sent(_, params) = call.state else { continue };
                proptest::prop_assert!(serde_json::from_slice::<IgnoredAny>(&params).is_ok());
                let mut ignored = Ignored::new(false);
                // Whatever the method is, all of them are read.
                let errors = [
                    params::one::<RawBundle>(&params, "", &mut ignored).err(),
                    params::one::<RawCancelBundle>(&params, "replacementUuid", &mut ignored).err(),
                    params::one::<params::RawPrivate>(&params, "tx", &mut ignored).err(),
                    params::one::<params::RawCancelPrivate>(&params, "txHash", &mut ignored).err(),
                    params::raw(&params).err(),
                    params::private_raw(&params).err(),
                    params::none(&params).err(),
                ];
                for error in errors.into_iter().flatten() {
                    proptest::prop_assert!(!error.field_name().is_empty());
                }
            }
        }
    }

    #[test]
    fn the_kept_bodies_are_calls_or_refused() {
        for seed in seeds("bodies") {
            let calls = Calls::parse(&Bytes::from(seed.bytes.clone()));
            let is_sent = |call: &Call| matches!(call.state, State::Sent(..));
            let are_good = calls.as_ref().is_ok_and(|calls| calls.calls.iter().all(is_sent));
            assert_eq!(are_good, seed.is_good(), "{}: {calls:?}", seed.name);
        }
    }
}
