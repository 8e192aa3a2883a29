//! The command that sends a load of signed transactions to a development node.
//!
//! ```text
//! cargo run --release -p testkit --features devnet --bin devnet -- load --ipc /tmp/dir/geth.ipc
//! ```

use std::process::ExitCode;

use clap::Parser;
use testkit::devnet::load;

#[derive(Debug, Parser)]
enum Command {
    /// Sends signed transactions to a node
    Load(load::Args),
}

fn main() -> ExitCode {
    let Command::Load(args) = Command::parse();
    match load::run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("devnet: {error}");
            ExitCode::FAILURE
        }
    }
}
