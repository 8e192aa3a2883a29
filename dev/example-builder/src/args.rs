//! The command-line flags.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use alloy_primitives::{Address, address};
use clap::Parser;
use mempool_recorder::Speed;
use mock_node::cli::parse_duration;

use crate::fill::Way;

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
    /// Pool the transactions of a recording too: a Parquet file, or a folder of them. Heads and
    /// state are the node's; the mock node then sends no transactions, and has the accounts of the
    /// load that `ingest --record` records from its mock node
    #[arg(long, value_name = "PATH")]
    pub(crate) replay: Option<PathBuf>,
    /// With --replay: 1 for the recorded speed, 10 for ten times as fast, or max
    #[arg(long, requires = "replay", default_value_t = Speed::RECORDED)]
    pub(crate) speed: Speed,
    /// Take transactions and heads from a fleet instead: NATS servers of one cluster. State is the
    /// node's
    #[arg(
        long, value_name = "URL,...", value_delimiter = ',',
        requires_all = ["ipc", "machine"], conflicts_with = "replay"
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
    /// Gas of a built block; never more than the node's limit
    #[arg(long, default_value_t = 60_000_000)]
    pub(crate) gas_limit: u64,
    /// When the block is filled, in percent of the time between two heads
    #[arg(long, default_value_t = 75, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) fill_at: u32,
    /// Time between two heads, until two heads have been seen
    #[arg(long, value_parser = parse_duration)]
    slot: Option<Duration>,
    /// Longest wait for a response about the state
    #[arg(long, value_parser = parse_duration, default_value = "2s")]
    pub(crate) read_timeout: Duration,

    /// The classic way: --inspector --fresh-evm --no-read-cache
    #[arg(long)]
    classic: bool,
    /// Find listed addresses by an inspector under every opcode
    #[arg(long)]
    inspector: bool,
    /// A new EVM for each transaction
    #[arg(long)]
    fresh_evm: bool,
    /// Prefetch no state
    #[arg(long)]
    no_prefetch: bool,
    /// Request state again that an earlier transaction of the block has read
    #[arg(long)]
    no_read_cache: bool,
    /// Fill each block in every way from classic to ours, and print the gain of each step
    #[arg(long, conflicts_with_all = ["classic", "inspector", "fresh_evm", "no_prefetch", "no_read_cache"])]
    pub(crate) compare: bool,

    /// Mock node: transactions per second
    #[arg(long, default_value_t = 500)]
    pub(crate) tps: u32,
    /// Mock node: time between blocks
    #[arg(long, value_parser = parse_duration, default_value = "2s")]
    pub(crate) block_time: Duration,
    /// Mock node: how many of a thousand transactions carry blobs
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) blobs_per_mille: u32,
    /// Mock node: how many of a thousand transactions reach an address of the blocklist
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) listed_per_mille: u32,
    /// Mock node: transactions pending at its start
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) preload: usize,
    /// Mock node: the seed of its transactions
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

impl Args {
    pub(crate) fn way(&self) -> Way {
        let classic = self.classic;
        Way {
            inspector: self.inspector || classic,
            fresh_evm: self.fresh_evm || classic,
            no_prefetch: self.no_prefetch || self.no_read_cache || classic,
            no_read_cache: self.no_read_cache || classic,
        }
    }

    /// Transactions per second of the mock node; 0 if a replay supplies them.
    pub(crate) fn mock_tps(&self) -> u32 {
        if self.replay.is_some() { 0 } else { self.tps }
    }

    pub(crate) fn slot(&self) -> Duration {
        let of_mock = || self.ipc.is_none().then_some(self.block_time);
        self.slot.or_else(of_mock).unwrap_or(Duration::from_secs(12))
    }
}
