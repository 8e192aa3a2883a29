//! Runs a node the way the tests do until stdin is closed, or the load.
//!
//! ```text
//! cargo run --release -p devnet -- node geth /tmp/dir
//! cargo run --release -p devnet -- load --ipc /tmp/dir/geth.ipc
//! ```

use std::{io, path::PathBuf, process::ExitCode, time::Duration};

use clap::Parser;
use devnet::{RealNode, RealNodeKind, load};
use mock_node::cli::parse_duration;

#[derive(Debug, Parser)]
enum Command {
    /// Runs anvil or geth
    Node(Args),
    /// Drives a node with signed transactions
    Load(load::Args),
}

#[derive(Debug, clap::Args)]
struct Args {
    /// anvil or geth
    #[arg(value_parser = ["anvil", "geth"])]
    node: String,
    /// Where its chain, socket and log are
    dir: PathBuf,
    /// Between blocks, e.g. 12s
    #[arg(long, default_value = "12s", value_parser = parse_duration)]
    block_time: Duration,
}

fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::Load(args) => load::run(&args),
        Command::Node(args) => run(&args).map_err(Into::into),
    };
    result.map_or_else(
        |error| {
            eprintln!("devnet: {error}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}

fn run(args: &Args) -> io::Result<()> {
    let kind = if args.node == "anvil" { RealNodeKind::Anvil } else { RealNodeKind::Geth };
    let node = RealNode::start(kind, &args.dir, args.block_time)?;
    println!("ready {}", node.ipc_path().display());
    // Whether it ended or failed, nobody is there any more.
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
    Ok(())
}
