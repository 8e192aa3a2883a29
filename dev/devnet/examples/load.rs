//! Drives a development node with signed transactions at an exact pace, and reports what the node
//! accepted. How it works is in `dev/devnet/src/load.rs`.
//!
//! ```text
//! cargo run --release --example load -- --ipc /tmp/geth.ipc --tps 2000 --duration 60s --json
//! ```

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    devnet::load::run(&devnet::load::Args::parse())
}
