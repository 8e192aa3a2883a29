//! The command-line flags, which override the file of `--config`.

#[cfg(any(feature = "rpc", feature = "telemetry"))]
use std::net::SocketAddr;
use std::{ops::RangeInclusive, path::PathBuf, time::Duration};

use clap::builder::RangedU64ValueParser;
#[cfg(feature = "rpc")]
use mempool_ingest::OrderRpcConfig;
use mempool_ingest::txpool_fetcher::{Announcements, Backfill, Endpoint, StartPolicy};

use crate::{options::Options, orders::OrdersFormat, print::Format};

// A doc comment here would be the first line of every program's help that has these flags.
#[expect(missing_docs, reason = "as above")]
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Read all options from this file; `mempool-ingest config` prints one. Flags override it
    #[cfg(feature = "config")]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// IPC socket of a node; may be given several times
    #[arg(long, value_name = "PATH")]
    ipc: Vec<PathBuf>,
    /// WebSocket URL of a node (ws://host:port); may be given several times
    #[arg(long, value_name = "URL", value_parser = parse_ws)]
    ws: Vec<Endpoint>,
    /// The chain that each node must be on, and that orders are for [default: that of the first
    /// node]
    #[arg(long, value_name = "N")]
    chain_id: Option<u64>,
    /// Wait for a node that is not running yet instead of failing [in the file: start =
    /// "wait_for_node"]
    #[arg(long)]
    wait: bool,
    /// Whether a regular audit runs before the final comparison, for a node with faults: it may
    /// have lost something a moment ago.
    #[arg(skip)]
    pub audit_first: bool,
    /// Fetches in flight at once, 1 to 4096 [default: 64]
    #[arg(long, alias = "slots", value_name = "N", value_parser = within(1..=4096))]
    #[arg(help_heading = INGESTION)]
    fetch_slots: Option<usize>,
    /// Request connections of each node, 1 to 16; the default is in `mempool-ingest config`
    #[arg(long, value_name = "N", value_parser = within(1..=16), help_heading = INGESTION)]
    request_connections: Option<usize>,
    /// What the node announces: `hashes`, whole transactions (`full`), or these where it can
    /// (`auto`) [default: auto]
    #[arg(long, value_name = "KIND", value_parser = parse_announcements, help_heading = INGESTION)]
    announcements: Option<Announcements>,
    /// How long the pool keeps a transaction [default: 60s]
    #[arg(long, alias = "retention", value_name = "TIME", value_parser = parse_duration)]
    #[arg(help_heading = INGESTION)]
    tx_retention: Option<Duration>,
    /// Time between audits of the node's pool, 0s for none [default: 60s]
    #[arg(long, alias = "audit", value_name = "TIME", value_parser = parse_duration)]
    #[arg(help_heading = INGESTION)]
    audit_interval: Option<Duration>,
    /// What is fetched at the start and after a gap: `pending`, `pending_and_queued` or `off`
    /// [default: pending]
    #[arg(long, value_name = "KIND", value_parser = parse_backfill, help_heading = INGESTION)]
    backfill: Option<Backfill>,
    /// Stop after this time, e.g. 30s, 500ms or 2m [default: until Ctrl-C]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = OUTPUT)]
    pub duration: Option<Duration>,
    /// Print a summary as one line of JSON at the end
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
    /// Write each order that enters or leaves the pool to stdout, as one JSON object a line
    #[arg(long, value_name = "FORM", value_enum, conflicts_with = "json", help_heading = OUTPUT)]
    pub(crate) orders: Option<OrdersFormat>,
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
    /// A further name by which callers reach it, like an IP address or localhost; may be given
    /// several times
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
    /// Whether lines are printed in a terminal too: with `--plain`, or because stdout has the
    /// orders.
    pub(crate) const fn has_plain_lines(&self) -> bool {
        self.plain || self.orders.is_some()
    }

    /// Returns the options of the file, if there is one, overridden by the flags.
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
        set(&mut fetcher.fetch_slots, self.fetch_slots);
        set(&mut fetcher.request_connections, self.request_connections);
        set(&mut fetcher.announcements, self.announcements);
        let interval = self.audit_interval;
        let interval =
            interval.map(|interval| Some(interval).filter(|interval| !interval.is_zero()));
        set(&mut fetcher.audit_interval, interval);
        set(&mut fetcher.backfill, self.backfill);
        set(&mut options.pool.tx_retention, self.tx_retention);
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

fn parse_backfill(text: &str) -> Result<Backfill, String> {
    match text {
        "pending" => Ok(Backfill::Pending),
        "pending_and_queued" => Ok(Backfill::PendingAndQueued),
        "off" => Ok(Backfill::Off),
        _ => Err("expected `pending`, `pending_and_queued` or `off`".into()),
    }
}

fn within(bounds: RangeInclusive<u64>) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(bounds)
}

/// Replaces the names of options in an error by the flags that were typed, so that an operator who
/// gave `--fetch-slots` does not read `fetch_slots`.
pub(crate) fn as_typed(mut text: String) -> String {
    for arg in std::env::args() {
        let Some(flag) = arg.strip_prefix("--") else { continue };
        let flag = flag.split('=').next().unwrap_or(flag);
        let key = flag.replace('-', "_");
        text = text.replace(&format!("`{key}`"), &format!("--{flag}"));
        text = text.replace(&format!("`{key} in ms`"), &format!("--{flag} in ms"));
    }
    text
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
