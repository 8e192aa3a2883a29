//! A request's parameters.

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::error::RpcError;

/// A request's parameters by position.
pub(super) struct Params<'a>(Vec<&'a RawValue>);

impl<'a> Params<'a> {
    pub(super) fn read(params: Option<&'a RawValue>) -> Result<Self, RpcError> {
        let Some(params) = params.filter(|params| params.get() != "null") else {
            return Ok(Self(Vec::new()));
        };
        serde_json::from_str(params.get())
            .map(Self)
            .map_err(|error| RpcError::invalid_params(error.to_string()))
    }

    pub(super) fn get<T: DeserializeOwned>(&self, index: usize) -> Result<T, RpcError> {
        let param = self.0.get(index).ok_or_else(|| RpcError::invalid_params("No more params"))?;
        serde_json::from_str(param.get())
            .map_err(|error| RpcError::invalid_params(error.to_string()))
    }

    pub(super) fn get_or<T: DeserializeOwned>(
        &self,
        index: usize,
        default: T,
    ) -> Result<T, RpcError> {
        match self.0.get(index) {
            None => Ok(default),
            Some(param) if param.get() == "null" => Ok(default),
            Some(_) => self.get(index),
        }
    }
}
