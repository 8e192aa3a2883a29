//! Error responses.

use std::borrow::Cow;

use crate::error::TxRefused;

/// An answer that is an error: code, message and optional data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RpcError {
    pub(super) code: i32,
    pub(super) message: Cow<'static, str>,
    pub(super) data: Option<serde_json::Value>,
}

impl RpcError {
    pub(super) const PARSE: i32 = -32700;
    pub(super) const INVALID_REQUEST: i32 = -32600;
    pub(super) const METHOD_NOT_FOUND: i32 = -32601;
    pub(super) const INVALID_PARAMS: i32 = -32602;
    pub(super) const SERVER: i32 = -32000;
    pub(super) const LIMIT_EXCEEDED: i32 = -32005;

    pub(super) const fn new(code: i32, message: &'static str) -> Self {
        Self { code, message: Cow::Borrowed(message), data: None }
    }

    /// The shape of reth's answer to a parameter that does not parse.
    pub(super) fn invalid_params(data: impl Into<String>) -> Self {
        Self {
            code: Self::INVALID_PARAMS,
            message: "Invalid params".into(),
            data: Some(data.into().into()),
        }
    }
}

impl From<TxRefused> for RpcError {
    fn from(refused: TxRefused) -> Self {
        Self { code: Self::SERVER, message: refused.to_string().into(), data: None }
    }
}
