//! Responses to requests. All error responses have one shape.

use std::{borrow::Cow, time::Duration};

use http::StatusCode;
use load_control::{Refusal, RefusalReason, WorkError, labels};
use serde_json::{Value, json};

// The codes that JSON-RPC 2.0 defines.
pub(crate) const PARSE: i32 = -32700;
pub(crate) const INVALID_REQUEST: i32 = -32600;
pub(crate) const METHOD_NOT_FOUND: i32 = -32601;
pub(crate) const INVALID_PARAMS: i32 = -32602;
pub(crate) const INTERNAL: i32 = -32603;
/// The request is well formed, but not accepted.
pub(crate) const REJECTED: i32 = -32000;
/// Retry later: refused by the gate, a quota or a limit.
pub(crate) const LIMIT: i32 = -32005;

labels! {
    /// Why a request was not accepted: the `reason` in an error's `data`, and in the metrics. Up to
    /// [`Self::PoolFull`] the request should be sent again later; from [`Self::BodyTimeout`] on it
    /// is invalid.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum Reason {
        /// The limit of requests in flight is reached, or that of callers without a known signer.
        TooManyRequests = "too_many_requests",
        /// No work permit became free in time.
        NoPermit = "no_permit",
        /// The queue of callers that wait for a work permit is full.
        PermitQueueFull = "permit_queue_full",
        /// The limit of requests in flight that claim no signature is reached.
        UnsignedRequests = "unsigned_requests",
        /// The limit of requests in flight of the caller's address is reached.
        CallerRequests = "caller_requests",
        /// The queue of deferred requests is full, and other callers had no more places in it.
        DeferredFull = "deferred_full",
        /// The RPC server shuts down.
        ShuttingDown = "shutting_down",
        /// The signer's own quota is spent.
        Quota = "quota",
        /// The quota of the caller's address is spent.
        CallerQuota = "caller_quota",
        /// The limit of open connections is reached. In the metrics also a connection that was
        /// closed for a newer one.
        Connections = "connections",
        /// The limit of connections of the caller's address is reached.
        CallerConnections = "caller_connections",
        /// The limit of slow bodies is reached.
        SlowBodies = "slow_bodies",
        /// The limit of slow bodies of the caller's address is reached.
        CallerSlowBodies = "caller_slow_bodies",
        /// The limit of buffered bytes, of bodies and responses, is reached.
        BufferedBytes = "buffered_bytes",
        /// The limit of buffered bytes of the caller's address is reached.
        CallerBufferedBytes = "caller_buffered_bytes",
        /// The host's [`Admission`](crate::Admission) made no decision, in time or at all.
        AdmissionUnavailable = "admission_unavailable",
        /// The pool has no head yet, from which the last block of a private transaction is
        /// computed.
        HeadUnknown = "head_unknown",
        /// The host cannot publish now, so no builder would get the order or the cancellation.
        NotPublished = "not_published",
        /// The pool is full.
        PoolFull = "pool_full",
        /// The body did not arrive in time.
        BodyTimeout = "body_timeout",
        /// The body ended early.
        BodyBroken = "body_broken",
        /// The body is too large.
        BodyTooLarge = "body_too_large",
        /// The body is not JSON.
        NotJson = "not_json",
        /// Not a JSON-RPC 2.0 request with an id.
        Envelope = "envelope",
        /// The method does not exist.
        Method = "method",
        /// The batch is too long or empty.
        BatchLength = "batch_length",
        /// The HTTP method is not POST, the content is not plain JSON, the path does not exist, the
        /// host is not one of ours, or a trusted proxy names no caller.
        Http = "http",
        /// The signature is missing, malformed or wrong.
        Signature = "signature",
        /// A parameter is malformed.
        Params = "params",
        /// A transaction does not decode.
        Undecodable = "undecodable",
        /// A transaction's own signature is invalid.
        TransactionSignature = "transaction_signature",
        /// A transaction is for another chain, or has no chain id.
        ChainId = "chain_id",
        /// A transaction has less gas than its intrinsic cost.
        IntrinsicGas = "intrinsic_gas",
        /// A transaction has more bytes than allowed.
        TransactionTooLarge = "transaction_too_large",
        /// A transaction has more gas than allowed (EIP-7825).
        GasLimit = "gas_limit",
        /// A transaction's tip is above its fee cap (EIP-1559).
        TipAboveFee = "tip_above_fee",
        /// A transaction has more blobs than allowed (EIP-7594).
        TooManyBlobs = "too_many_blobs",
        /// A transaction that sets code has no authorization (EIP-7702).
        NoAuthorization = "no_authorization",
        /// The init code of a transaction is longer than allowed (EIP-3860).
        InitCodeTooLarge = "init_code_too_large",
        /// A transaction has the highest nonce, which no account can use (EIP-2681).
        NonceTooHigh = "nonce_too_high",
        /// A transaction may cost more than 2^256 - 1 wei.
        CostTooHigh = "cost_too_high",
        /// The sidecar does not match the transaction.
        Sidecar = "sidecar",
        /// The host's [`Admission`](crate::Admission) refused the order.
        Admission = "admission",
        /// The order was accepted before and is no longer in the pool.
        Known = "known",
        /// A recent block contains the transaction.
        Mined = "mined",
        /// A block raised the sender's nonce above the transaction's.
        StaleNonce = "stale_nonce",
        /// A message of its replacement key with a higher nonce arrived before.
        Superseded = "superseded",
        /// The signer has sent no private transaction with this hash here.
        UnknownPrivate = "unknown_private",
        /// The transaction has become public and cannot be cancelled.
        BecamePublic = "became_public",
        /// The pool is full, and everything in it pays more.
        PaysTooLittle = "pays_too_little",
        /// An error of the server.
        Internal = "internal",
    }
}

impl Reason {
    /// The number of reasons for which the request should be sent again later: the first ones.
    pub(crate) const RETRYABLE: usize = Self::BodyTimeout as usize;

    /// Returns the message for a caller that should send the request again later.
    pub(crate) const fn refusal(self) -> &'static str {
        match self {
            Self::UnsignedRequests => "too many requests without a signature are in flight",
            Self::CallerRequests => "too many requests from this address are in flight",
            Self::ShuttingDown => "shutting down",
            Self::Quota => "the signer's quota is spent",
            Self::CallerQuota => "the quota of this address is spent",
            Self::Connections => "too many connections are open",
            Self::CallerConnections => "too many connections from this address are open",
            Self::SlowBodies => "too many requests arrive slowly",
            Self::CallerSlowBodies => "too many requests from this address arrive slowly",
            Self::BufferedBytes => "too many bytes are being read or sent",
            Self::CallerBufferedBytes => "too many bytes from this address are being read or sent",
            Self::AdmissionUnavailable => "the host made no decision on the order",
            Self::NotPublished => "orders do not reach the builders now",
            Self::HeadUnknown => "the head is not known yet, so the last block cannot be computed",
            _ => "overloaded, try again later",
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
    /// Creates the response to an invalid request.
    pub(crate) fn request(status: StatusCode, code: i32, reason: Reason, message: String) -> Self {
        let data = json!({ "reason": reason.as_str() });
        Self { reason, status, code, message, data, retry_after: None }
    }

    /// Creates the response to a request that is invalid apart from its parameters: -32600.
    pub(crate) fn http(status: StatusCode, reason: Reason, message: impl Into<String>) -> Self {
        Self::request(status, INVALID_REQUEST, reason, message.into())
    }

    /// Creates the response to an invalid parameter: -32602, with the name of the field.
    pub(crate) fn field(reason: Reason, field: &str, message: String) -> Self {
        let mut error = Self::request(StatusCode::OK, INVALID_PARAMS, reason, message);
        error.data["field"] = field.into();
        error
    }

    /// Creates the response to a request that is well formed, but not accepted: -32000.
    pub(crate) fn rejected(reason: Reason, message: String) -> Self {
        Self::request(StatusCode::OK, REJECTED, reason, message)
    }

    /// Creates a refusal with a time after which to retry: -32005.
    pub(crate) fn retry_later(reason: Reason, retry_after: Duration, message: &str) -> Self {
        let status = match reason {
            // The limits of the caller itself.
            Reason::Quota
            | Reason::CallerQuota
            | Reason::CallerConnections
            | Reason::CallerRequests
            | Reason::CallerBufferedBytes
            | Reason::CallerSlowBodies => StatusCode::TOO_MANY_REQUESTS,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        let mut error = Self::request(status, LIMIT, reason, message.to_owned());
        error.data["retryAfterMs"] = millis(retry_after).into();
        error.retry_after = Some(retry_after);
        error
    }

    #[cfg(test)]
    pub(crate) fn field_name(&self) -> String {
        self.data["field"].as_str().expect("an error of a field").to_owned()
    }

    /// Creates the response to a request that failed by a defect of the server: -32603.
    pub(crate) fn internal() -> Self {
        let message = "internal error".to_owned();
        Self::request(StatusCode::INTERNAL_SERVER_ERROR, INTERNAL, Reason::Internal, message)
    }

    /// Returns the JSON-RPC response to the call with this id, which is null if the request was not
    /// parsed.
    pub(crate) fn json(&self, id: &str) -> String {
        let Self { code, message, data, .. } = self;
        let error = json!({ "code": code, "message": message, "data": data });
        format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#)
    }

    /// Returns the seconds of `Retry-After`, rounded up so that it never ends before the
    /// milliseconds in the body.
    pub(crate) fn retry_after_secs(&self) -> Option<u64> {
        self.retry_after.map(|time| millis(time).div_ceil(1_000).max(1))
    }
}

impl From<Refusal> for ErrorResponse {
    fn from(refusal: Refusal) -> Self {
        let reason = match refusal.reason {
            RefusalReason::NoPermit => Reason::NoPermit,
            RefusalReason::QueueFull => Reason::PermitQueueFull,
            RefusalReason::Deferred => Reason::DeferredFull,
            RefusalReason::ShuttingDown => Reason::ShuttingDown,
            // A reason that the gate adds later counts as too many requests too.
            _ => Reason::TooManyRequests,
        };
        Self::retry_later(reason, refusal.retry_after, reason.refusal())
    }
}

impl From<WorkError> for ErrorResponse {
    fn from(error: WorkError) -> Self {
        match error {
            WorkError::Refused(refusal) => refusal.into(),
            error => {
                tracing::error!(%error, "answering a request with an internal error");
                Self::internal()
            }
        }
    }
}

/// The response to a request that was run: its text, and the error that sets the HTTP status.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) text: String,
    pub(crate) error: Option<ErrorResponse>,
}

/// Maximum bytes of a caller's text that a response repeats, so that error responses stay short.
const MAX_REPEATED_BYTES: usize = 200;

/// Truncates a text that the caller chose to [`MAX_REPEATED_BYTES`].
pub(crate) fn truncate(text: &str) -> Cow<'_, str> {
    if text.len() <= MAX_REPEATED_BYTES {
        return Cow::Borrowed(text);
    }
    let end = text.floor_char_boundary(MAX_REPEATED_BYTES);
    Cow::Owned(format!("{}...", &text[..end]))
}

/// Returns a time in milliseconds, rounded up.
fn millis(time: Duration) -> u64 {
    time.as_micros().div_ceil(1_000) as u64
}
