//! The chain that all sources are on.

use std::sync::OnceLock;

use crate::{config::Endpoint, error::ConnectError};

/// The chain of the configuration, or that of the first source that was reached.
#[derive(Debug)]
pub(crate) struct ChainId(OnceLock<u64>);

impl ChainId {
    pub(crate) fn new(configured: Option<u64>) -> Self {
        Self(configured.map_or_else(OnceLock::new, OnceLock::from))
    }

    pub(crate) fn get(&self) -> Option<u64> {
        self.0.get().copied()
    }

    /// Checks the chain of a source. The first one is taken if none was configured.
    pub(crate) fn check(&self, endpoint: &Endpoint, found: u64) -> Result<(), ConnectError> {
        let expected = *self.0.get_or_init(|| found);
        if found == expected {
            return Ok(());
        }
        Err(ConnectError::OtherChain { endpoint: endpoint.to_string(), found, expected })
    }
}
