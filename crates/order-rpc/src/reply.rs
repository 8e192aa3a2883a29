//! Error responses: one shape for all of them.

use std::{borrow::Cow, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use load_control::{Refusal, RefusalReason};
use serde_json::{Value, json};

use crate::{http::body::Held, jsonrpc::envelope::Id};

pub(crate) const PARSE: i32 = -32700;
pub(crate) const INVALID_REQUEST: i32 = -32600;
pub(crate) const METHOD_NOT_FOUND: i32 = -32601;
pub(crate) const INVALID_PARAMS: i32 = -32602;
pub(crate) const INTERNAL: i32 = -32603;
/// Well formed, but not accepted.
pub(crate) const REJECTED: i32 = -32000;
/// Retry later: the gate, a quota, a limit.
pub(crate) const LIMIT: i32 = -32005;

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal, $kind:ident;)*) => {
        /// Why a request was not accepted: the `reason` in an error's `data`, and in the metrics.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Reason { $($(#[doc = $doc])+ $name,)* }

        impl Reason {
            /// All reasons.
            pub const ALL: [Self; [$($text),*].len()] = [$(Self::$name),*];

            /// The text in a response and in the metrics.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            pub(crate) const fn kind(self) -> Kind {
                match self { $(Self::$name => Kind::$kind,)* }
            }
        }
    };
}

/// Whether the request is invalid, or should be sent again later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Failed,
    Refused,
}

reasons! {
    /// The limit of requests in flight is reached.
    TooManyRequests = "too_many_requests", Refused;
    /// No work permit became free in time.
    NoPermit = "no_permit", Refused;
    /// The queue of callers that wait for a work permit is full.
    PermitQueueFull = "permit_queue_full", Refused;
    /// The limit of requests in flight that claim no signature is reached.
    UnsignedRequests = "unsigned_requests", Refused;
    /// The limit of requests in flight of the caller's address is reached.
    PeerRequests = "peer_requests", Refused;
    /// The load is high and no more requests may be deferred: see
    /// [`OrderRpcConfig::deferral`](crate::OrderRpcConfig::deferral).
    DeferredFull = "deferred_full", Refused;
    /// The RPC server shuts down.
    ShuttingDown = "shutting_down", Refused;
    /// The signer's own quota is spent.
    Quota = "quota", Refused;
    /// The quota of the caller's address is spent.
    PeerQuota = "peer_quota", Refused;
    /// The limit of open connections is reached.
    Connections = "connections", Refused;
    /// The limit of connections of the caller's address is reached.
    PeerConnections = "peer_connections", Refused;
    /// The limit of slow bodies is reached.
    SlowBodies = "slow_bodies", Refused;
    /// The limit of slow bodies of the caller's address is reached.
    PeerSlowBodies = "peer_slow_bodies", Refused;
    /// The limit of buffered bytes, of bodies and responses, is reached.
    BufferedBytes = "buffered_bytes", Refused;
    /// The limit of buffered bytes of the caller's address is reached.
    PeerBufferedBytes = "peer_buffered_bytes", Refused;
    /// The host's [`Admission`](crate::Admission) made no decision, in time or at all.
    AdmissionUnavailable = "admission_unavailable", Refused;
    /// The pool has no head yet, from which the last block of a private transaction is computed.
    HeadUnknown = "head_unknown", Refused;
    /// The pool is full.
    PoolFull = "pool_full", Refused;
    /// The body did not come in time.
    BodyTimeout = "body_timeout", Failed;
    /// The body ended early.
    BodyBroken = "body_broken", Failed;
    /// The body is too large.
    BodyTooLarge = "body_too_large", Failed;
    /// The body is not JSON.
    NotJson = "not_json", Failed;
    /// Not a JSON-RPC 2.0 request with an id.
    Envelope = "envelope", Failed;
    /// The method does not exist.
    Method = "method", Failed;
    /// The batch is too long or empty.
    BatchLength = "batch_length", Failed;
    /// The method is not POST, the content is not JSON, or the path does not exist.
    Http = "http", Failed;
    /// The signature is missing, malformed or wrong.
    Signature = "signature", Failed;
    /// A parameter is malformed.
    Params = "params", Failed;
    /// A transaction does not decode.
    Undecodable = "undecodable", Failed;
    /// A transaction's own signature is invalid.
    TransactionSignature = "transaction_signature", Failed;
    /// A transaction is for another chain, or for any chain.
    ChainId = "chain_id", Failed;
    /// A transaction has less gas than its intrinsic cost.
    IntrinsicGas = "intrinsic_gas", Failed;
    /// A transaction has more bytes than allowed.
    TransactionTooLarge = "transaction_too_large", Failed;
    /// A transaction has more gas than allowed (EIP-7825).
    GasLimit = "gas_limit", Failed;
    /// A transaction's tip is above its fee cap (EIP-1559).
    TipAboveFee = "tip_above_fee", Failed;
    /// A transaction has more blobs than allowed (EIP-7594).
    TooManyBlobs = "too_many_blobs", Failed;
    /// The sidecar does not match the transaction.
    Sidecar = "sidecar", Failed;
    /// The host's [`Admission`](crate::Admission) refused it.
    Admission = "admission", Failed;
    /// The order was accepted before and is no longer pooled.
    Known = "known", Failed;
    /// A block contains it.
    Mined = "mined", Failed;
    /// A block raised the sender's nonce above the transaction's.
    StaleNonce = "stale_nonce", Failed;
    /// A later message of its replacement key came before.
    Superseded = "superseded", Failed;
    /// The signer has no private transaction of this hash.
    UnknownPrivate = "unknown_private", Failed;
    /// The transaction has become public and cannot be cancelled.
    BecamePublic = "became_public", Failed;
    /// The pool is full, and everything in it pays more.
    PaysTooLittle = "pays_too_little", Failed;
    /// An error of the server.
    Internal = "internal", Failed;
}

impl From<RefusalReason> for Reason {
    fn from(reason: RefusalReason) -> Self {
        match reason {
            RefusalReason::TooManyRequests => Self::TooManyRequests,
            RefusalReason::NoPermit => Self::NoPermit,
            RefusalReason::QueueFull => Self::PermitQueueFull,
            RefusalReason::Deferred => Self::DeferredFull,
            RefusalReason::ShuttingDown => Self::ShuttingDown,
            // A reason that the gate adds later counts as overload.
            _ => Self::TooManyRequests,
        }
    }
}

/// An error response: status, JSON-RPC error and headers.
#[derive(Clone, Debug)]
pub(crate) struct ErrorResponse {
    pub(crate) reason: Reason,
    pub(crate) status: StatusCode,
    code: i32,
    message: String,
    data: Value,
    retry_after: Option<Duration>,
}

impl ErrorResponse {
    /// The request itself is wrong.
    pub(crate) fn request(status: StatusCode, code: i32, reason: Reason, message: String) -> Self {
        let data = json!({ "reason": reason.as_str() });
        Self { reason, status, code, message, data, retry_after: None }
    }

    /// A parameter is wrong: -32602 with its name.
    pub(crate) fn field(reason: Reason, field: &str, message: String) -> Self {
        let data = json!({ "reason": reason.as_str(), "field": field });
        Self {
            reason,
            status: StatusCode::OK,
            code: INVALID_PARAMS,
            message,
            data,
            retry_after: None,
        }
    }

    /// Well formed, but not accepted: -32000.
    pub(crate) fn rejected(reason: Reason, message: String) -> Self {
        Self::request(StatusCode::OK, REJECTED, reason, message)
    }

    /// Refused, with a time after which to retry: -32005.
    pub(crate) fn retry_later(reason: Reason, retry_after: Duration, message: String) -> Self {
        let status = match reason {
            // Limits of the caller's own.
            Reason::Quota
            | Reason::PeerQuota
            | Reason::PeerConnections
            | Reason::PeerRequests
            | Reason::PeerBufferedBytes
            | Reason::PeerSlowBodies => StatusCode::TOO_MANY_REQUESTS,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        let retry_after_ms = millis(retry_after);
        let data = json!({ "reason": reason.as_str(), "retryAfterMs": retry_after_ms });
        let retry_after = Some(retry_after);
        Self { reason, status, code: LIMIT, message, data, retry_after }
    }

    pub(crate) fn refusal(refusal: &Refusal) -> Self {
        let message = match refusal.reason {
            RefusalReason::ShuttingDown => "shutting down",
            _ => "overloaded, try again later",
        };
        Self::retry_later(refusal.reason.into(), refusal.retry_after, message.to_owned())
    }

    #[cfg(test)]
    pub(crate) fn field_name(&self) -> String {
        self.data["field"].as_str().expect("an error of a field").to_owned()
    }

    pub(crate) fn internal() -> Self {
        let (status, message) = (StatusCode::INTERNAL_SERVER_ERROR, "internal error".to_owned());
        Self::request(status, INTERNAL, Reason::Internal, message)
    }

    /// As a JSON-RPC response with the id null: the request was not read or has no id.
    pub(crate) fn json(&self) -> String {
        self.json_with_id(&Id::NULL)
    }

    pub(crate) fn json_with_id(&self, id: &Id) -> String {
        let Self { code, message, data, .. } = self;
        let error = json!({ "code": code, "message": message, "data": data });
        let id = id.as_json();
        format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#)
    }

    pub(crate) fn response(self) -> Response<Full<Bytes>> {
        Answer { text: self.json(), error: Some(self) }.response(None)
    }

    /// Sets status and headers on a response that has this error in its body.
    fn mark<B>(&self, response: &mut Response<B>) {
        *response.status_mut() = self.status;
        if let Some(retry_after) = self.retry_after {
            // Rounded up: never earlier than the milliseconds in the body.
            let secs = millis(retry_after).div_ceil(1_000).max(1);
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(secs));
        }
    }
}

/// The response to a request: its text, and the error that sets the HTTP status.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) error: Option<ErrorResponse>,
}

impl Answer {
    /// The share `held` for the response is released when its last byte was written to the socket.
    pub(crate) fn response(self, held: Option<Held>) -> Response<Full<Bytes>> {
        let mut response = match held {
            Some(mut held) => {
                held.response(self.text.len());
                json_response(Bytes::from_owner(HeldText { text: self.text, _held: held }))
            }
            None => json_response(self.text),
        };
        if let Some(error) = &self.error {
            error.mark(&mut response);
        }
        response
    }
}

/// The text of a response, with its share of the buffered bytes.
struct HeldText {
    text: String,
    _held: Held,
}

impl AsRef<[u8]> for HeldText {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

pub(crate) fn json_response(text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// Most bytes of a caller's text that a response repeats, so that an error response is short.
const MAX_REPEATED_BYTES: usize = 200;

/// A text that the caller chose, truncated to [`MAX_REPEATED_BYTES`].
pub(crate) fn cut(text: &str) -> Cow<'_, str> {
    if text.len() <= MAX_REPEATED_BYTES {
        return Cow::Borrowed(text);
    }
    let end = (0..=MAX_REPEATED_BYTES).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    Cow::Owned(format!("{}...", &text[..end]))
}

/// Rounded up to milliseconds.
fn millis(time: Duration) -> u64 {
    time.as_micros().div_ceil(1_000) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_never_earlier_than_the_milliseconds_say() {
        for (micros, secs) in [(1, "1"), (1_000_000, "1"), (1_000_001, "2"), (2_500_000, "3")] {
            let error = ErrorResponse::retry_later(
                Reason::Quota,
                Duration::from_micros(micros),
                String::new(),
            );
            assert_eq!(error.response().headers()[header::RETRY_AFTER], secs);
        }
    }
}
