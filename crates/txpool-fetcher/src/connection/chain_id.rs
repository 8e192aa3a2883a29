//! The chain that all sources are on.

use std::sync::Mutex;

use crate::{config::Endpoint, error::ConnectError, sync::lock};

/// The chain of the configuration, or that of the first source that was reached.
#[derive(Debug)]
pub(crate) struct ChainId(Mutex<Option<u64>>);

impl ChainId {
    pub(crate) fn new(configured: Option<u64>) -> Self {
        Self(Mutex::new(configured))
    }

    pub(crate) fn get(&self) -> Option<u64> {
        *lock(&self.0)
    }

    /// Checks the chain of a source. The first one is taken if none was configured.
    pub(crate) fn check(&self, endpoint: &Endpoint, found: u64) -> Result<(), ConnectError> {
        let expected = *lock(&self.0).get_or_insert(found);
        if found == expected {
            return Ok(());
        }
        Err(ConnectError::OtherChain { endpoint: endpoint.to_string(), found, expected })
    }
}
