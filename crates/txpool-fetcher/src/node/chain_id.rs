//! Decides whether a source is on the chain that all sources must be on.

use std::sync::OnceLock;

use tokio::sync::watch;

use crate::{config::Endpoint, error::ConnectError};

/// The chain id of the configuration, or that of the first listed source that can be reached. Once
/// set, it never changes.
pub(crate) struct ChainId {
    expected: OnceLock<u64>,
    /// For each source, whether an attempt to connect has ended.
    tried: watch::Sender<Box<[bool]>>,
}

impl ChainId {
    pub(crate) fn new(configured: Option<u64>, sources: usize) -> Self {
        let expected = configured.map_or_else(OnceLock::new, OnceLock::from);
        Self { expected, tried: watch::Sender::new(vec![false; sources].into()) }
    }

    /// Returns the chain id, once it is known.
    pub(crate) fn get(&self) -> Option<u64> {
        self.expected.get().copied()
    }

    /// Checks the chain id of a source. If none is configured, a later source waits until each
    /// source before it was reached or has failed once, so that the chain does not depend on which
    /// node responds first.
    ///
    /// # Errors
    /// [`ConnectError::OtherChain`].
    pub(crate) async fn check(
        &self,
        source: usize,
        endpoint: &Endpoint,
        found: u64,
    ) -> Result<(), ConnectError> {
        let mut tried = self.tried.subscribe();
        // The sender lives as long as `self`.
        let _ = tried
            .wait_for(|tried| self.get().is_some() || tried[..source].iter().all(|tried| *tried))
            .await;
        let expected = *self.expected.get_or_init(|| found);
        self.set_tried(source);
        if found == expected {
            return Ok(());
        }
        Err(ConnectError::OtherChain { endpoint: endpoint.to_string(), found, expected })
    }

    /// Notes that an attempt to connect to a source has ended.
    pub(crate) fn set_tried(&self, source: usize) {
        self.tried.send_if_modified(|tried| !std::mem::replace(&mut tried[source], true));
    }
}
