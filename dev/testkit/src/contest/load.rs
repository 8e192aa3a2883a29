//! What the node of a run announces, and how.

use std::time::Duration;

use mock_node::{FullObjects, NodeConfig};

/// All transactions of all runs come from this seed, so each run's are the first of the same list.
const SEED: u64 = 7;

/// What the node of one run is, and how it announces.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// How long the node takes to answer a request for a transaction.
    pub latency: Duration,
    pub count: usize,
    /// A second; `None` announces all at once.
    pub tps: Option<u32>,
    /// Of a thousand transactions, how many carry blobs; a fifth of those six.
    pub blobs_per_mille: u32,
    /// What of its objects the node announces.
    pub full_objects: FullObjects,
}

impl Load {
    /// The node's answer time, for people.
    pub fn answer(&self) -> String {
        format!("{} ms", self.latency.as_secs_f64() * 1e3)
    }

    /// The node that announces this load when told to, never by itself.
    pub(crate) fn configure(&self, config: NodeConfig) -> NodeConfig {
        let pool_limit = config.pool_limit.max(2 * self.count);
        NodeConfig {
            seed: SEED,
            blobs_per_mille: self.blobs_per_mille,
            latency: self.latency,
            full_objects: self.full_objects,
            pool_limit,
            // Objects are rendered when they are signed, whether this contender subscribes to them or not: what a
            // node does for them is no part of any figure. Nor is signing.
            render_ahead: true,
            signed_ahead: self.count,
            ..config
        }
    }
}
