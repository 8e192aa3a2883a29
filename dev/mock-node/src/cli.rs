//! The flags of a node's own load, for the binary and for examples.

use std::{path::PathBuf, time::Duration};

/// Reads a time such as `30s`, `2ms` or `1m 30s`.
pub use humantime::parse_duration;

use crate::{FaultPlan, NodeConfig};

// A doc comment here would be the first line of every program's help that has these flags.
#[expect(missing_docs, reason = "as above")]
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Mock node")]
pub struct LoadArgs {
    /// Transactions per second
    #[arg(long, default_value_t = 500)]
    pub tps: u32,
    /// How many of a thousand transactions carry blobs
    #[arg(
        long,
        value_name = "N",
        default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(..=1000),
    )]
    pub blobs_per_mille: u32,
    /// Response time, e.g. 2ms
    #[arg(long, value_parser = parse_duration, default_value = "0s")]
    pub latency: Duration,
    /// Time between blocks; 0s never mines
    #[arg(long, value_parser = parse_duration, default_value = "12s")]
    pub block_time: Duration,
    /// Gas of a block, in millions; transactions above it stay pending
    #[arg(
        long,
        value_name = "N",
        default_value_t = 60,
        value_parser = clap::value_parser!(u64).range(1..),
    )]
    pub block_mgas: u64,
    /// Transactions pending at its start
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub preload: usize,
    /// Faults at times drawn from a seed, such as seed=7
    #[arg(long, value_name = "seed=N", value_parser = parse_faults)]
    pub faults: Option<u64>,
    /// The seed of its transactions
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl LoadArgs {
    /// Makes the configuration of a node at this path. Its load ends after `duration`, if one is
    /// given.
    pub fn config(&self, ipc: impl Into<PathBuf>, duration: Option<Duration>) -> NodeConfig {
        let count = |time: Duration| (time.as_secs_f64() * f64::from(self.tps)).round() as u64;
        let faults = |seed| FaultPlan::from_seed(seed, duration.unwrap_or(Duration::from_secs(60)));
        NodeConfig {
            tps: self.tps,
            count: duration.map(count),
            blobs_per_mille: self.blobs_per_mille,
            latency: self.latency,
            block_time: self.block_time,
            block_gas_limit: self.block_mgas.saturating_mul(1_000_000),
            preload: self.preload,
            faults: self.faults.map(faults),
            seed: self.seed,
            ..NodeConfig::new(ipc)
        }
    }
}

/// Reads the seed of a [`FaultPlan`], such as `seed=7`.
pub fn parse_faults(text: &str) -> Result<u64, String> {
    let seed = text.strip_prefix("seed=").and_then(|seed| seed.parse().ok());
    seed.ok_or_else(|| format!("`{text}` is not of the form seed=N, N a number"))
}
