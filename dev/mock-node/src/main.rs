//! A mock execution node as a process, for tests of clients in other languages or repositories.

use std::{path::PathBuf, process::ExitCode, thread};

use clap::Parser;
use mock_node::{MockNode, cli::LoadArgs};

/// A mock execution node's IPC interface with a pool, a chain and its own load
#[derive(Debug, Parser)]
#[command(name = "mock-node", version)]
struct Args {
    /// Where the socket is created
    #[arg(long, value_name = "PATH")]
    ipc: PathBuf,
    #[command(flatten)]
    load: LoadArgs,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let _node = match MockNode::start(args.load.config(&args.ipc, None)) {
        Ok(node) => node,
        Err(error) => {
            eprintln!("mock-node: {error}");
            return ExitCode::FAILURE;
        }
    };
    println!("ready {}", args.ipc.display());
    // A signal ends the process. The next node at this path removes the socket file.
    loop {
        thread::park();
    }
}
