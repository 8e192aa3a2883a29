//! The command-line flags, which override the file of `--config`.

#[cfg(any(feature = "rpc", feature = "telemetry"))]
use std::net::SocketAddr;
use std::{path::PathBuf, time::Duration};

#[cfg(feature = "rpc")]
use mempool_ingest::OrderRpcConfig;
use mempool_ingest::txpool_fetcher::{Announcements, Backfill, Endpoint, StartPolicy};

use crate::{options::Options, say::Format};

/// Ingests the mempool of one or several nodes, and shows it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Read all options from this file; `mempool-ingest config` prints one
    #[cfg(feature = "config")]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// IPC socket of a node; may be given several times
    #[arg(long, value_name = "PATH")]
    ipc: Vec<PathBuf>,
    /// WebSocket URL of a node (ws://host:port); may be given several times
    #[arg(long, value_name = "URL", value_parser = parse_ws)]
    ws: Vec<Endpoint>,
    /// The chain that each node must be on, and that orders are for [default: that of the first node]
    #[arg(long, value_name = "N")]
    chain_id: Option<u64>,
    /// Wait for a node that is not running yet instead of failing
    #[arg(long)]
    wait: bool,
    /// Whether a regular audit runs before the final comparison: something may have been lost a
    /// moment ago.
    #[arg(skip)]
    pub audit_first: bool,
    /// Fetches in flight at once, 1 to 4096 [default: 64]
    #[arg(long, value_name = "N", help_heading = INGESTION)]
    slots: Option<usize>,
    /// Request connections per node, each with a thread, 1 to 16 [default: cores, at most 4]
    #[arg(long, value_name = "N", help_heading = INGESTION)]
    request_connections: Option<usize>,
    /// What the node announces: `hashes`, whole transactions (`full`), or these where it can (`auto`) [default: auto]
    #[arg(long, value_name = "WHAT", value_parser = parse_announcements, help_heading = INGESTION)]
    announcements: Option<Announcements>,
    /// How long the pool keeps a transaction [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = INGESTION)]
    retention: Option<Duration>,
    /// Time between audits of the node's pool, 0s for none [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = INGESTION)]
    audit: Option<Duration>,
    /// Do not fetch transactions that were pending before the start
    #[arg(long, help_heading = INGESTION)]
    no_backfill: bool,
    /// Stop after this time, e.g. 30s, 500ms or 2m [default: until Ctrl-C]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = OUTPUT)]
    pub duration: Option<Duration>,
    /// Print a summary as one line of JSON at the end
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
    /// Print plain lines in a terminal too
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) plain: bool,
    /// Time between two plain lines [default: 10s, in a terminal 1s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = OUTPUT)]
    status_interval: Option<Duration>,
    /// The form of the log and of the plain lines on stderr [default: text]
    #[arg(long, value_name = "FORM", value_enum, help_heading = OUTPUT)]
    log_format: Option<Format>,
    /// Write the hash of each order to this file, in the pool's order
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub(crate) hashes: Option<PathBuf>,
    /// Serve metrics to Prometheus at this address, port 0 for a free one
    #[cfg(feature = "telemetry")]
    #[arg(long, value_name = "ADDR", help_heading = OUTPUT)]
    metrics: Option<SocketAddr>,
    /// Accept searchers' orders by JSON-RPC at this address, port 0 for a free one
    #[cfg(feature = "rpc")]
    #[arg(long, value_name = "ADDR", help_heading = "Searchers' orders")]
    #[cfg_attr(feature = "record", arg(conflicts_with = "replay"))]
    rpc: Option<SocketAddr>,
    /// A name by which callers reach it, beside IP addresses and localhost; may be given several times
    #[cfg(feature = "rpc")]
    #[arg(long, value_name = "NAME", help_heading = "Searchers' orders")]
    rpc_host: Vec<String>,
    #[cfg(feature = "record")]
    #[command(flatten)]
    pub(crate) files: crate::recording::Args,
    #[cfg(feature = "fleet")]
    #[command(flatten)]
    fleet: crate::publishing::Args,
}

const INGESTION: &str = "Ingestion";
const OUTPUT: &str = "Output";

impl Args {
    /// The options of the file, if there is one, and of the flags.
    pub(crate) fn options(&self) -> Result<Options, String> {
        #[cfg(feature = "config")]
        let read = self.config.as_deref().map(Options::read).transpose()?;
        #[cfg(not(feature = "config"))]
        let read = None::<Options>;
        let mut options = read.unwrap_or_default();
        let fetcher = &mut options.fetcher;
        let ipc = self.ipc.iter().cloned().map(Endpoint::Ipc);
        let sources: Vec<_> = ipc.chain(self.ws.iter().cloned()).collect();
        set(&mut fetcher.sources, Some(sources).filter(|sources| !sources.is_empty()));
        fetcher.chain_id = self.chain_id.or(fetcher.chain_id);
        set(&mut fetcher.start, self.wait.then_some(StartPolicy::WaitForNode));
        set(&mut fetcher.fetch_slots, self.slots);
        set(&mut fetcher.request_connections, self.request_connections);
        set(&mut fetcher.announcements, self.announcements);
        let audit =
            self.audit.map(|interval| Some(interval).filter(|interval| !interval.is_zero()));
        set(&mut fetcher.audit_interval, audit);
        set(&mut fetcher.backfill, self.no_backfill.then_some(Backfill::Off));
        set(&mut options.pool.tx_retention, self.retention);
        options.status_interval = self.status_interval.or(options.status_interval);
        set(&mut options.log_format, self.log_format);
        #[cfg(feature = "telemetry")]
        set(&mut options.metrics, self.metrics.map(Some));
        #[cfg(feature = "rpc")]
        {
            if let Some(listen) = self.rpc {
                options.rpc.get_or_insert_with(|| OrderRpcConfig::new(0)).listen = listen;
            }
            match &mut options.rpc {
                Some(rpc) => rpc.host_names.extend(self.rpc_host.iter().cloned()),
                None if self.rpc_host.is_empty() => {}
                None => return Err("--rpc-host needs --rpc".into()),
            }
        }
        #[cfg(feature = "record")]
        self.files.set(&mut options)?;
        #[cfg(feature = "fleet")]
        self.fleet.set(&mut options);
        Ok(options)
    }
}

fn set<T>(option: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *option = value;
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
