//! The mock node that this example starts when no endpoint is given.

use std::{io, time::Duration};

use mock_node::{FaultPlan, LoadStart};
use testkit::node::NodeProcess;

use crate::args::Args;

pub(crate) fn start(args: &Args) -> io::Result<NodeProcess> {
    let mut node = NodeProcess::spawn()?;
    eprintln!("starting a mock node: {} transactions/s at {}", args.tps, node.path().display());
    let lasts = args.duration.unwrap_or(Duration::from_secs(60));
    node.start(|config| {
        config
            .with_load_start(LoadStart::FirstSubscription)
            .with_tps(args.tps)
            .with_count(args.duration.map(|time| count(args.tps, time)))
            .with_blobs_per_mille(args.blobs_per_mille)
            .with_latency(args.latency)
            .with_block_time(args.block_time)
            .with_block_gas_limit(args.block_mgas.saturating_mul(1_000_000))
            .with_preload(args.preload)
            .with_seed(args.seed)
            .with_faults(args.faults.map(|seed| FaultPlan::from_seed(seed, lasts)))
    })?;
    Ok(node)
}

/// The number of transactions in this time.
fn count(tps: u32, time: Duration) -> u64 {
    (time.as_secs_f64() * f64::from(tps)).round() as u64
}
