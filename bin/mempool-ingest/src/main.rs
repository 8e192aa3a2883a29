//! The command `mempool-ingest`.

use std::process::ExitCode;

use clap::Parser;
use mempool_ingest_cli::Args;

/// glibc keeps freed memory in up to 16 arenas on two cores, and returns little of it to the
/// system: half an hour of blobs doubled the resident memory of a process whose live memory had not
/// grown.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Ingests the mempool of one or several nodes, and shows it.
#[derive(Debug, Parser)]
#[command(name = "mempool-ingest", version)]
struct Command {
    #[command(flatten)]
    args: Args,
}

fn main() -> ExitCode {
    mempool_ingest_cli::run(Command::parse().args, |_| Ok(()))
}
