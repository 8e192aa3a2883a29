//! The command-line flags.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

#[cfg(feature = "rpc")]
use mempool_ingest::OrderRpcConfig;
use mempool_ingest::{
    FetcherConfig, IngestConfig, PoolConfig,
    txpool_fetcher::{Announcements, Backfill, Endpoint, StartPolicy},
};

use crate::say::Format;

/// Ingests the mempool of one or several nodes, and shows it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// IPC socket of the node; may be given several times
    #[arg(long, value_name = "PATH")]
    pub ipc: Vec<PathBuf>,
    /// WebSocket URL of the node (ws://host:port); may be given several times
    #[arg(long, value_name = "URL", value_parser = parse_ws)]
    pub ws: Vec<Endpoint>,
    /// Stop after this time, e.g. 30s, 500ms or 2m [default: until Ctrl-C]
    #[arg(long, value_parser = parse_duration)]
    pub duration: Option<Duration>,
    /// Whether a regular audit runs before the final comparison: something may have been lost a
    /// moment ago.
    #[arg(skip)]
    pub audit_first: bool,
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
    /// What the node announces: `hashes`, whole transactions (`full`), or these where it can (`auto`)
    #[arg(long, value_name = "WHAT", value_parser = parse_announcements, default_value = "auto")]
    announcements: Announcements,
    /// Write memory, open files and latency to this CSV file every 10 s
    #[arg(long, value_name = "FILE")]
    pub(crate) samples: Option<PathBuf>,
    /// Print plain lines in a terminal too
    #[arg(long)]
    pub(crate) plain: bool,
    /// Time between two plain lines [default: 10s, in a terminal 1s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) status_interval: Option<Duration>,
    /// The form of the log and of the plain lines on stderr
    #[arg(long, value_name = "FORM", value_enum, default_value_t)]
    pub(crate) log_format: Format,
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
    /// Serve metrics to Prometheus at this address, port 0 for a free one
    #[cfg(feature = "telemetry")]
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<SocketAddr>,
    /// Accept searchers' orders by JSON-RPC at this address, port 0 for a free one
    #[cfg(feature = "rpc")]
    #[arg(long, value_name = "ADDR")]
    #[cfg_attr(feature = "record", arg(conflicts_with = "replay"))]
    rpc: Option<SocketAddr>,
    /// With --rpc: a name by which callers reach it, beside IP addresses and localhost; may be given
    /// several times
    #[cfg(feature = "rpc")]
    #[arg(long, value_name = "NAME", requires = "rpc")]
    rpc_host: Vec<String>,
    /// With --rpc or --publish: the chain of the orders [default: the node's]
    #[arg(long, value_name = "N")]
    chain_id: Option<u64>,
    #[cfg(feature = "record")]
    #[command(flatten)]
    pub(crate) files: crate::recording::Args,
    #[cfg(feature = "fleet")]
    #[command(flatten)]
    pub(crate) fleet: crate::publishing::Args,
}

impl Args {
    /// Where transactions come from; empty if no flag says so.
    pub fn endpoints(&self) -> Vec<Endpoint> {
        #[cfg(feature = "record")]
        if self.files.replay.is_some() {
            return vec![crate::recording::no_node()];
        }
        self.ipc.iter().cloned().map(Endpoint::Ipc).chain(self.ws.iter().cloned()).collect()
    }

    /// The configuration of the RPC server, if `--rpc` is set. `node` is the chain of the connected
    /// node, if there is one.
    #[cfg(feature = "rpc")]
    pub(crate) fn rpc(&self, node: Option<u64>) -> Result<Option<OrderRpcConfig>, String> {
        let Some(listen) = self.rpc else { return Ok(None) };
        let mut config = OrderRpcConfig::new(self.chain(node, "--rpc")?);
        (config.listen, config.host_names) = (listen, self.rpc_host.clone());
        Ok(Some(config))
    }

    /// The chain of `--chain-id`, or of the connected node. `flag` is what needs it.
    pub(crate) fn chain(&self, node: Option<u64>, flag: &str) -> Result<u64, String> {
        let missing =
            || format!("{flag} needs --chain-id while no node has been reached to say its own");
        self.chain_id.or(node).ok_or_else(missing)
    }

    pub(crate) fn ingest(&self) -> IngestConfig {
        let mut fetcher = FetcherConfig::new(self.endpoints());
        fetcher.fetch_slots = self.slots;
        fetcher.audit_interval = (!self.audit.is_zero()).then_some(self.audit);
        fetcher.announcements = self.announcements;
        if let Some(connections) = self.request_connections {
            fetcher.request_connections = connections;
        }
        if self.wait {
            fetcher.start = StartPolicy::WaitForNode;
        }
        if self.no_backfill {
            fetcher.backfill = Backfill::Off;
        }
        let pool = PoolConfig { tx_retention: self.retention, ..PoolConfig::default() };
        IngestConfig::new(fetcher, pool)
    }
}

fn parse_announcements(text: &str) -> Result<Announcements, String> {
    match text {
        "hashes" => Ok(Announcements::Hashes),
        "full" => Ok(Announcements::Full),
        "auto" => Ok(Announcements::Auto),
        _ => Err("expected `hashes`, `full` or `auto`".into()),
    }
}

fn parse_ws(text: &str) -> Result<Endpoint, String> {
    match text.parse() {
        Ok(endpoint @ Endpoint::Ws(_)) => Ok(endpoint),
        Ok(_) => Err("expected a URL that starts with ws://".into()),
        Err(error) => Err(error.to_string()),
    }
}

/// Reads a time such as `30s`, `2ms`, `1.5m`; a number alone is in seconds.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" | "" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("`{unit}` is no unit of time; us, ms, s, m and h are")),
    };
    let number: f64 =
        number.parse().map_err(|_| format!("`{text}` does not begin with a number"))?;
    Duration::try_from_secs_f64(number * seconds).map_err(|error| error.to_string())
}
