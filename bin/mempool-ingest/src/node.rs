//! The mock node that this example starts when no endpoint is given.

use std::{io, time::Duration};

use mock_node::{FaultPlan, LoadStart, NodeConfig};
use testkit::node::NodeProcess;

use crate::args::Args;

pub(crate) fn start(args: &Args) -> io::Result<NodeProcess> {
    let mut node = NodeProcess::spawn()?;
    eprintln!("starting a mock node: {} transactions/s at {}", args.tps, node.path().display());
    let lasts = args.duration.unwrap_or(Duration::from_secs(60));
    node.start(|config| NodeConfig {
        load_start: LoadStart::FirstSubscription,
        tps: args.tps,
        count: args.duration.map(|time| count(args.tps, time)),
        blobs_per_mille: args.blobs_per_mille,
        latency: args.latency,
        block_time: args.block_time,
        block_gas_limit: args.block_mgas.saturating_mul(1_000_000),
        preload: args.preload,
        seed: args.seed,
        faults: args.faults.map(|seed| FaultPlan::from_seed(seed, lasts)),
        ..config
    })?;
    Ok(node)
}

/// The number of transactions in this time.
fn count(tps: u32, time: Duration) -> u64 {
    (time.as_secs_f64() * f64::from(tps)).round() as u64
}
