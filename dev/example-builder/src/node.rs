//! The mock node that the command starts when no endpoint is given.

use std::io;

use mock_node::{LoadStart, NodeConfig};
use testkit::node::NodeProcess;

use crate::args::Args;

pub(crate) fn start(args: &Args) -> io::Result<NodeProcess> {
    let mut node = NodeProcess::spawn()?;
    let tps = args.mock_tps();
    eprintln!("starting a mock node: {tps} transactions/s at {}", node.path().display());
    let count = |tps: u32, seconds: f64| (seconds * f64::from(tps)).round() as u64;
    node.start(|config| NodeConfig {
        load_start: LoadStart::FirstSubscription,
        state: true,
        tps,
        count: args.duration.map(|time| count(tps, time.as_secs_f64())),
        blobs_per_mille: args.blobs_per_mille,
        listed_per_mille: args.listed_per_mille,
        block_time: args.block_time,
        preload: args.preload,
        seed: args.seed,
        ..config
    })?;
    Ok(node)
}
