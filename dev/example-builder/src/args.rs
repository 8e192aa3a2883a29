//! The command-line flags.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use alloy_primitives::{Address, address};
use clap::Parser;
use mock_node::cli::parse_duration;

/// The default fee recipient, an address without an owner.
const FEE_RECIPIENT: Address = address!("0x00000000000000000000000000000000000fee00");

/// Fills blocks from a node's mempool and prints their contents; submits none. By default from a
/// mock node.
#[derive(Clone, Debug, Parser)]
#[command(name = "block_builder")]
pub(crate) struct Args {
    /// IPC socket of a node (reth, geth or anvil)
    #[arg(long, value_name = "PATH")]
    pub(crate) ipc: Option<PathBuf>,
    /// Take transactions and heads from a fleet instead: NATS servers of one cluster. State is the
    /// node's
    #[arg(
        long, value_name = "URL,...", value_delimiter = ',',
        requires_all = ["ipc", "machine"]
    )]
    pub(crate) from: Vec<String>,
    /// With --from: take bundles, private transactions and cancellations too: the same servers,
    /// another user
    #[arg(long, value_name = "URL,...", value_delimiter = ',', requires = "from")]
    pub(crate) from_private: Vec<String>,
    /// With --from: the name of this builder in the fleet
    #[arg(long, value_name = "NAME", requires = "from")]
    pub(crate) machine: Option<String>,
    /// With --from: the certificates that may sign the servers', beside those of the system
    #[arg(long, value_name = "FILE", requires = "from")]
    pub(crate) nats_ca: Option<PathBuf>,
    /// Stop after this time, e.g. 30s, 500ms or 2m [default: until Ctrl-C]
    #[arg(long, value_parser = parse_duration)]
    pub(crate) duration: Option<Duration>,
    /// Print a summary as one line of JSON at the end
    #[arg(long)]
    pub(crate) json: bool,
    /// Serve metrics to Prometheus at this address, port 0 for a free one
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<SocketAddr>,
    /// Addresses that may not be touched: text or JSON; read again when the file changes [default:
    /// the listed addresses of the mock node's load; required for a real node]
    #[arg(long, value_name = "FILE")]
    pub(crate) blocklist: Option<PathBuf>,
    /// The address that gets the fees
    #[arg(long, default_value_t = FEE_RECIPIENT)]
    pub(crate) fee_recipient: Address,
    /// When the block is filled, in percent of the time between two heads
    #[arg(long, default_value_t = 75, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) fill_at: u32,
    /// Time between two heads, until two heads have been seen
    #[arg(long, value_parser = parse_duration)]
    slot: Option<Duration>,
    /// Fill each block with and without the opcode inspector and the prefetched state too, and print the gain of
    /// each step
    #[arg(long)]
    pub(crate) compare: bool,

    /// Mock node: transactions per second
    #[arg(long, default_value_t = 500)]
    pub(crate) tps: u32,
    /// Mock node: time between blocks
    #[arg(long, value_parser = parse_duration, default_value = "2s")]
    pub(crate) block_time: Duration,
}

impl Args {
    pub(crate) fn slot(&self) -> Duration {
        let of_mock = || self.ipc.is_none().then_some(self.block_time);
        self.slot.or_else(of_mock).unwrap_or(Duration::from_secs(12))
    }
}
