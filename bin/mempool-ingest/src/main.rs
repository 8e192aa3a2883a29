//! The binary `mempool-ingest`: parses the command line and calls the library.

#[cfg(feature = "config")]
use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser;
use mempool_ingest_cli::Args;

/// glibc keeps freed memory in up to 16 arenas on two cores and returns little of it to the system.
/// In half an hour of blobs the resident memory doubled, although the live memory had not grown.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Ingests the mempool of Ethereum nodes: shows, records and shares every pending transaction
#[derive(Debug, Parser)]
#[command(name = "mempool-ingest", version, after_help = EXAMPLES)]
#[command(args_conflicts_with_subcommands = true)]
struct Command {
    #[cfg(feature = "config")]
    #[command(subcommand)]
    subcommand: Option<Subcommand>,
    #[command(flatten)]
    args: Args,
}

#[cfg(feature = "config")]
#[derive(Debug, clap::Subcommand)]
enum Subcommand {
    /// Print a configuration file with each option, its default and its bounds
    Config,
    /// Check the options and reach each node once; the exit code is 0 if all can be used
    Check {
        #[command(flatten)]
        args: Box<Args>,
    },
}

const EXAMPLES: &str = "\
Examples:
  mempool-ingest --ipc /data/reth.ipc
  mempool-ingest --ipc /data/geth.ipc --duration 60s --json
  mempool-ingest --ipc /data/reth.ipc --orders ndjson | head
  mempool-ingest config > mempool-ingest.toml
  mempool-ingest check --config mempool-ingest.toml";

/// Returns whether this is a list of URLs, one of which has a password.
fn has_password(argument: &str) -> bool {
    argument.split(',').filter_map(|url| url.split_once("://")).any(|(_, rest)| rest.contains('@'))
}

fn main() -> ExitCode {
    if std::env::args().any(|arg| has_password(&arg)) {
        eprintln!(
            "error: every user of this machine can read a password on a command line: set \
             MEMPOOL_INGEST_PUBLISH, or name a file by --config"
        );
        return ExitCode::from(2);
    }
    let command = Command::parse();
    #[cfg(feature = "config")]
    match &command.subcommand {
        Some(Subcommand::Config) => {
            // This fails if the reader has closed stdout, and so does not want the rest.
            let _ = std::io::stdout().write_all(mempool_ingest_cli::DEFAULT_CONFIG.as_bytes());
            return ExitCode::SUCCESS;
        }
        Some(Subcommand::Check { args }) => return mempool_ingest_cli::check(args),
        None => {}
    }
    mempool_ingest_cli::run(&command.args, |_| Ok(()))
}
