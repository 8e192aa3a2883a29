//! Runs anvil or geth the way the tests do, until stdin is closed.
//!
//! ```text
//! cargo run --release -p mock-node --example real_node -- geth /tmp/dir
//! ```

use std::{io, path::PathBuf, process::ExitCode, time::Duration};

use clap::Parser;
use mock_node::real::{RealNode, RealNodeConfig, RealNodeError};

#[derive(Debug, Parser)]
struct Args {
    /// anvil or geth
    #[arg(value_parser = ["anvil", "geth"])]
    node: String,
    /// Where its chain, socket and log are
    dir: PathBuf,
    /// Between blocks, e.g. 12s
    #[arg(long, default_value = "12s", value_parser = mock_node::cli::parse_duration)]
    block_time: Duration,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("real_node: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), RealNodeError> {
    let config = RealNodeConfig::default().with_block_time(args.block_time);
    let node = match args.node.as_str() {
        "anvil" => RealNode::anvil(&args.dir, &config)?,
        _ => RealNode::geth(&args.dir, &config)?,
    };
    println!("ready {}", node.ipc_path().display());
    // Whether it ended or failed, nobody is there any more.
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
    Ok(())
}
