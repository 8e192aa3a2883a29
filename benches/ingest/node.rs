//! What the node of a run announces, and how.

use std::time::Duration;

use mock_node::{Latency, NodeConfig};
use testkit::node::Pace;

/// All transactions of all runs come from this seed, so each run's are the first of the same list.
const SEED: u64 = 7;

/// Of a thousand transactions, how many carry blobs; a fifth of those six. The example's default.
const BLOBS_PER_MILLE: u32 = 5;

/// What the node of one run is, and how it announces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) latency: Duration,
    pub(crate) count: usize,
    /// `None` announces all at once.
    pub(crate) tps: Option<u32>,
}

impl Load {
    /// The node's answer time, for people.
    pub(crate) fn answer(&self) -> String {
        format!("{} ms", self.latency.as_secs_f64() * 1e3)
    }

    /// The node that announces this load when told to, never by itself.
    pub(crate) fn configure(&self, config: NodeConfig) -> NodeConfig {
        let latency = match self.latency {
            Duration::ZERO => Latency::None,
            time => Latency::Fixed(time),
        };
        config
            .with_seed(SEED)
            .with_blobs_per_mille(BLOBS_PER_MILLE)
            .with_latency(latency)
            // A paced load is signed before the start; its first announcement never comes, since
            // ours, which are stamped, take its transactions.
            .with_tps(1)
            .with_count(Some(self.count as u64))
            .with_start_delay(Duration::from_hours(24))
    }

    pub(crate) const fn pace(&self) -> Pace {
        match self.tps {
            Some(tps) => Pace::steady(tps),
            None => Pace::at_once(),
        }
    }
}
