//! The flags of a node's own load, for the binary and for examples.

use std::{path::PathBuf, time::Duration};

use crate::{FaultPlan, NodeConfig};

/// The flags of the node's own load.
#[derive(Debug, clap::Args)]
pub struct LoadArgs {
    /// Mock node: transactions per second
    #[arg(long, default_value_t = 500)]
    pub tps: u32,
    /// Mock node: how many of a thousand transactions carry blobs
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub blobs_per_mille: u32,
    /// Mock node: response time, e.g. 2ms
    #[arg(long, value_parser = parse_duration, default_value = "0s")]
    pub latency: Duration,
    /// Mock node: time between blocks; 0s never mines
    #[arg(long, value_parser = parse_duration, default_value = "12s")]
    pub block_time: Duration,
    /// Mock node: gas of a block, in millions; transactions above it stay pending
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    pub block_mgas: u64,
    /// Mock node: transactions pending at its start
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub preload: usize,
    /// Mock node: faults at times drawn from a seed, such as seed=7
    #[arg(long, value_name = "seed=N", value_parser = parse_faults)]
    pub faults: Option<u64>,
    /// Mock node: the seed of its transactions
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl LoadArgs {
    /// A node at this path, whose load ends after this time if there is one.
    pub fn config(&self, ipc: impl Into<PathBuf>, lasts: Option<Duration>) -> NodeConfig {
        let count = |time: Duration| (time.as_secs_f64() * f64::from(self.tps)).round() as u64;
        let faults = |seed| FaultPlan::from_seed(seed, lasts.unwrap_or(Duration::from_secs(60)));
        NodeConfig {
            tps: self.tps,
            count: lasts.map(count),
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

/// Reads a time such as `30s`, `2ms`, `1.5m`; a number alone is in seconds.
///
/// # Errors
/// A sentence that says what is accepted.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 =
        number.parse().map_err(|_| format!("`{text}` does not begin with a number"))?;
    let seconds = match unit {
        "us" => number / 1e6,
        "ms" => number / 1e3,
        "s" | "" => number,
        "m" => number * 60.0,
        "h" => number * 3600.0,
        _ => {
            return Err(format!("`{unit}` is no unit of time; us, ms, s, m and h are"));
        }
    };
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

/// Reads the seed of a [`FaultPlan`], such as `seed=7`.
///
/// # Errors
/// A sentence that says what is accepted.
pub fn parse_faults(text: &str) -> Result<u64, String> {
    let seed = text.strip_prefix("seed=").and_then(|seed| seed.parse().ok());
    seed.ok_or_else(|| format!("`{text}` is not of the form seed=N, N a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("250us"), Ok(Duration::from_micros(250)));
        assert!(parse_duration("5 apples").is_err());
    }
}
