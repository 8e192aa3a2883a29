//! The command-line flags.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{ArgGroup, Parser};
use mempool_ingest::{
    FetcherConfig, IngestConfig, OrderRpcConfig, PoolConfig,
    txpool_fetcher::{Announcements, Backfill, Endpoint, StartPolicy},
};
use mempool_recorder::Speed;
use mock_node::{
    Latency,
    cli::{parse_duration, parse_faults, parse_latency},
};

use crate::recording::no_node;

/// Ingests a node's mempool and shows it; by default from a mock node.
#[derive(Debug, Parser)]
#[command(name = "ingest")]
#[command(group = ArgGroup::new("flows").args(["publish", "publish_private"]).multiple(true))]
pub(crate) struct Args {
    /// IPC socket of the node; may be given several times
    #[arg(long, value_name = "PATH")]
    ipc: Vec<PathBuf>,
    /// WebSocket URL of the node (ws://host:port); may be given several times
    #[arg(long, value_name = "URL", value_parser = parse_ws)]
    ws: Vec<Endpoint>,
    /// Stop after this time, e.g. 30s, 500ms or 2m [default: until Ctrl-C]
    #[arg(long, value_parser = parse_duration)]
    pub(crate) duration: Option<Duration>,
    /// Print a summary as one line of JSON at the end
    #[arg(long)]
    pub(crate) json: bool,
    /// Wait for a node that is not running yet instead of failing
    #[arg(long)]
    wait: bool,
    /// Fetches in flight at once, 1 to 4096
    #[arg(long, default_value_t = 64)]
    slots: usize,
    /// Request connections per node, each with a thread, 1 to 16 [default: cores, at most 4]
    #[arg(long)]
    request_connections: Option<usize>,
    /// Let the node announce whole transactions instead of hashes
    #[arg(long)]
    full: bool,
    /// Write memory, open files and latency to this CSV file every 10 s
    #[arg(long, value_name = "FILE")]
    pub(crate) samples: Option<PathBuf>,
    /// Serve metrics to Prometheus at this address, port 0 for a free one
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<SocketAddr>,
    /// Print plain lines in a terminal too
    #[arg(long)]
    pub(crate) plain: bool,
    /// Record the pooled transactions into this folder: Parquet files with the columns of
    /// mempool-dumpster
    #[arg(long, value_name = "FOLDER")]
    pub(crate) record: Option<PathBuf>,
    /// Replay a Parquet file, or a folder of them, instead of a node
    #[arg(long, value_name = "PATH", conflicts_with_all = ["ipc", "ws", "rpc"])]
    pub(crate) replay: Option<PathBuf>,
    /// With --replay: 1 for the recorded speed, 10 for ten times as fast, or max
    #[arg(long, requires = "replay", default_value_t = Speed::RECORDED)]
    pub(crate) speed: Speed,
    /// Write the hash of each order to this file, in the pool's order
    #[arg(long, value_name = "FILE")]
    pub(crate) hashes: Option<PathBuf>,
    /// How long the pool keeps a transaction, e.g. 60s
    #[arg(long, value_parser = parse_duration, default_value = "60s")]
    pub(crate) retention: Duration,
    /// Time between audits of the node's pool, 0s for none
    #[arg(long, value_parser = parse_duration, default_value = "60s")]
    audit: Duration,
    /// Do not fetch transactions that were pending before the start
    #[arg(long)]
    no_backfill: bool,
    /// Accept searchers' orders by JSON-RPC at this address, port 0 for a free one
    #[arg(long, value_name = "ADDR")]
    rpc: Option<SocketAddr>,
    /// With --rpc or --publish: the chain of the orders [default: the node's]
    #[arg(long, value_name = "N")]
    chain_id: Option<u64>,
    /// Publish the transactions of the pool to a fleet: NATS servers of one cluster
    #[arg(long, value_name = "URL,...", value_delimiter = ',', requires = "machine")]
    pub(crate) publish: Vec<String>,
    /// Publish bundles, private transactions and cancellations too: the same servers, another user
    #[arg(long, value_name = "URL,...", value_delimiter = ',', requires = "machine")]
    pub(crate) publish_private: Vec<String>,
    /// With --publish: the name of this machine in the fleet
    #[arg(long, value_name = "NAME", requires = "flows")]
    pub(crate) machine: Option<String>,
    /// With --publish: make or change the streams, with so many replicas, 1, 3 or 5
    #[arg(long, value_name = "N", requires = "flows")]
    pub(crate) replicas: Option<usize>,
    /// With --publish: the certificates that may sign the servers', beside those of the system
    #[arg(long, value_name = "FILE", requires = "flows")]
    pub(crate) nats_ca: Option<PathBuf>,
    /// Mock node: transactions per second
    #[arg(long, default_value_t = 500)]
    pub(crate) tps: u32,
    /// Mock node: how many of a thousand transactions carry blobs
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) blobs_per_mille: u32,
    /// Mock node: response time, 2ms or median and 99th percentile (1ms,20ms)
    #[arg(long, value_parser = parse_latency, default_value = "0s")]
    pub(crate) latency: Latency,
    /// Mock node: time between blocks
    #[arg(long, value_parser = parse_duration, default_value = "12s")]
    pub(crate) block_time: Duration,
    /// Mock node: gas of a block, in millions; transactions above it stay pending
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) block_mgas: u64,
    /// Mock node: transactions pending at its start
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) preload: usize,
    /// Mock node: faults at times drawn from a seed, such as seed=7
    #[arg(long, value_name = "seed=N", value_parser = parse_faults)]
    pub(crate) faults: Option<u64>,
    /// Mock node: the seed of its transactions
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

impl Args {
    pub(crate) fn endpoints(&self) -> Vec<Endpoint> {
        if self.replay.is_some() {
            return vec![no_node()];
        }
        self.ipc.iter().cloned().map(Endpoint::Ipc).chain(self.ws.iter().cloned()).collect()
    }

    /// Whether a regular audit runs before the final comparison: a fault may have struck a moment
    /// ago.
    pub(crate) fn audit_first(&self) -> bool {
        self.faults.is_some()
    }

    pub(crate) fn ingest(&self, endpoints: Vec<Endpoint>) -> IngestConfig {
        IngestConfig::new(self.fetcher(endpoints), self.pool())
    }

    /// The configuration of the RPC server, if `--rpc` is set. `node` is the chain of the connected
    /// node, if there is one.
    pub(crate) fn rpc(&self, node: Option<u64>) -> Result<Option<OrderRpcConfig>, String> {
        let Some(listen) = self.rpc else { return Ok(None) };
        let chain_id = self.chain(node, "--rpc")?;
        let mut config = OrderRpcConfig::new(chain_id);
        config.listen = listen;
        Ok(Some(config))
    }

    /// The chain of `--chain-id`, or of the connected node. `flag` is what needs it.
    pub(crate) fn chain(&self, node: Option<u64>, flag: &str) -> Result<u64, String> {
        let missing =
            || format!("{flag} needs --chain-id while no node has been reached to say its own");
        self.chain_id.or(node).ok_or_else(missing)
    }

    fn fetcher(&self, endpoints: Vec<Endpoint>) -> FetcherConfig {
        let mut config = FetcherConfig::new(endpoints);
        config.fetch_slots = self.slots;
        config.audit_interval = (!self.audit.is_zero()).then_some(self.audit);
        if self.full {
            config.announcements = Announcements::Full;
        }
        if let Some(connections) = self.request_connections {
            config.request_connections = connections;
        }
        if self.wait {
            config.start = StartPolicy::WaitForNode;
        }
        if self.no_backfill {
            config.backfill = Backfill::Off;
        }
        config
    }

    fn pool(&self) -> PoolConfig {
        PoolConfig { tx_retention: self.retention, ..PoolConfig::default() }
    }
}

fn parse_ws(text: &str) -> Result<Endpoint, String> {
    match text.parse() {
        Ok(endpoint @ Endpoint::Ws(_)) => Ok(endpoint),
        Ok(_) => Err("expected a URL that starts with ws://".into()),
        Err(error) => Err(error.to_string()),
    }
}
