//! The parameters of a request, and the error responses.

use std::borrow::Cow;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use crate::error::TxRefused;

#[derive(Debug, Deserialize)]
pub(super) struct Request<'a> {
    #[serde(borrow)]
    pub(super) id: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) method: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) params: Option<&'a RawValue>,
}

/// A request's parameters by position.
pub(super) struct Params<'a>(Vec<&'a RawValue>);

impl<'a> Params<'a> {
    pub(super) fn read(params: Option<&'a RawValue>) -> Result<Self, RpcError> {
        let params = params.map_or("null", RawValue::get);
        let params = serde_json::from_str::<Option<_>>(params).map_err(RpcError::invalid_params)?;
        Ok(Self(params.unwrap_or_default()))
    }

    pub(super) fn get<T: DeserializeOwned>(&self, index: usize) -> Result<T, RpcError> {
        let param = self.0.get(index).ok_or_else(|| RpcError::invalid_params("No more params"))?;
        serde_json::from_str(param.get()).map_err(RpcError::invalid_params)
    }

    /// Reads a parameter; `None` if it is absent or null.
    pub(super) fn optional<T: DeserializeOwned>(
        &self,
        index: usize,
    ) -> Result<Option<T>, RpcError> {
        self.0.get(index).map_or(Ok(None), |_| self.get(index))
    }
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct RpcError {
    code: i32,
    message: Cow<'static, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<String>,
}

impl RpcError {
    pub(super) const SERVER: i32 = -32000;
    pub(super) const LIMIT_EXCEEDED: i32 = -32005;
    pub(super) const PARSE: Self = Self::new(-32700, "Parse error");
    pub(super) const INVALID_REQUEST: Self = Self::new(-32600, "Invalid request");
    pub(super) const METHOD_NOT_FOUND: Self = Self::new(-32601, "Method not found");

    pub(super) const fn new(code: i32, message: &'static str) -> Self {
        Self { code, message: Cow::Borrowed(message), data: None }
    }

    /// An error with the code of a server's own errors, -32000.
    pub(super) const fn server(message: &'static str) -> Self {
        Self::new(Self::SERVER, message)
    }

    pub(super) fn message(&self) -> &str {
        &self.message
    }

    /// The form of reth's answer to a parameter that cannot be parsed.
    pub(super) fn invalid_params(data: impl ToString) -> Self {
        Self { data: Some(data.to_string()), ..Self::new(-32602, "Invalid params") }
    }
}

impl From<TxRefused> for RpcError {
    fn from(refused: TxRefused) -> Self {
        Self { code: Self::SERVER, message: refused.to_string().into(), data: None }
    }
}
