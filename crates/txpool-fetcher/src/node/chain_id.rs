//! The chain that every source must be on.

use std::sync::OnceLock;

use tokio::sync::watch;

use crate::{config::Endpoint, error::ConnectError};

/// The chain of the configuration, or that of the first listed source. It never changes.
pub(crate) struct ChainId {
    pinned: OnceLock<u64>,
    /// Of each source, whether an attempt to connect has ended.
    tried: watch::Sender<Box<[bool]>>,
}

impl ChainId {
    pub(crate) fn new(configured: Option<u64>, sources: usize) -> Self {
        let pinned = configured.map_or_else(OnceLock::new, OnceLock::from);
        Self { pinned, tried: watch::Sender::new(vec![false; sources].into()) }
    }

    pub(crate) fn get(&self) -> Option<u64> {
        self.pinned.get().copied()
    }

    /// Checks the chain of a source. If none was configured, a later source waits until those before it
    /// were reached, or have failed once: the chain does not depend on which node responds first.
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
        let expected = *self.pinned.get_or_init(|| found);
        self.tried(source);
        if found == expected {
            return Ok(());
        }
        Err(ConnectError::OtherChain { endpoint: endpoint.to_string(), found, expected })
    }

    pub(crate) fn tried(&self, source: usize) {
        self.tried.send_if_modified(|tried| !std::mem::replace(&mut tried[source], true));
    }
}
