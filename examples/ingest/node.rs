//! The mock node that this example starts when it is told of no other.

use mock_node::{ChildError, ChildNode};

use crate::args::Args;

pub(crate) fn start(args: &Args) -> Result<ChildNode, ChildError> {
    let path = std::env::temp_dir().join(format!("mempool-ingest-{}.ipc", std::process::id()));
    eprintln!("starting a mock node: {} transactions/s at {}", args.tps, path.display());
    let mut options = vec!["--start-on-subscription".to_owned()];
    let mut option = |name: &str, value: String| options.extend([name.to_owned(), value]);
    option("--tps", args.tps.to_string());
    option("--blobs-per-mille", args.blobs_per_mille.to_string());
    option("--latency", args.latency.clone());
    option("--block-time", args.block_time.clone());
    option("--preload", args.preload.to_string());
    option("--seed", args.seed.to_string());
    if let Some(faults) = &args.faults {
        option("--faults", faults.clone());
    }
    if let Some(duration) = args.duration {
        option("--duration", format!("{}ms", duration.as_millis()));
    }
    ChildNode::start(path, options)
}
