//! The command line of the binary, which runs the node as a separate process.

use std::{
    ffi::OsString,
    io::{Read as _, Write as _},
    path::PathBuf,
    thread,
    time::Duration,
};

use clap::Parser;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{DEFAULT_ACCOUNTS, FaultPlan, Latency, LoadStart, MockNode, NodeConfig};

/// The line on stdout that reports that the socket listens begins with this; the path follows.
pub const READY: &str = "ready ";

/// A mock execution node's IPC interface with a pool, a chain and its own load.
#[derive(Debug, Parser)]
#[command(name = "mock-node", version)]
struct Args {
    /// Where the socket is created
    #[arg(long, value_name = "PATH")]
    ipc: PathBuf,
    /// Stop announcing after this time, e.g. 30s
    #[arg(long, value_parser = parse_duration)]
    duration: Option<Duration>,
    /// Begin to announce when the first subscription to new transactions exists
    #[arg(long)]
    start_on_subscription: bool,
    #[command(flatten)]
    load: LoadArgs,
    /// Accounts that send
    #[arg(long, default_value_t = DEFAULT_ACCOUNTS)]
    accounts: usize,
    /// Exit when stdin is closed, so that a parent that dies leaves no orphan
    #[arg(long)]
    exit_with_stdin: bool,
}

impl Args {
    fn config(&self) -> NodeConfig {
        NodeConfig {
            load_start: match self.start_on_subscription {
                true => LoadStart::FirstSubscription,
                false => LoadStart::AtOnce,
            },
            accounts: self.accounts,
            ..self.load.config(&self.ipc, self.duration)
        }
    }
}

/// The flags of the node's own load.
#[derive(Debug, clap::Args)]
pub struct LoadArgs {
    /// Mock node: transactions per second
    #[arg(long, default_value_t = 500)]
    pub tps: u32,
    /// Mock node: how many of a thousand transactions carry blobs
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub blobs_per_mille: u32,
    /// Mock node: response time, 2ms or median and 99th percentile (1ms,20ms)
    #[arg(long, value_parser = parse_latency, default_value = "0s")]
    pub latency: Latency,
    /// Mock node: time between blocks; 0s never mines
    #[arg(long, value_parser = parse_duration, default_value = "12s")]
    pub block_time: Duration,
    /// Mock node: gas of a block, in millions; transactions above it stay pending
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    pub block_mgas: u64,
    /// Mock node: transactions pending at its start
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub preload: usize,
    /// Mock node: faults at times drawn from a seed, such as seed=7
    #[arg(long, value_name = "seed=N", value_parser = parse_faults)]
    pub faults: Option<u64>,
    /// Mock node: the seed of its transactions
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl LoadArgs {
    /// A node at this path, whose load ends after this time if there is one.
    pub fn config(&self, ipc: impl Into<PathBuf>, lasts: Option<Duration>) -> NodeConfig {
        let count = |time: Duration| (time.as_secs_f64() * f64::from(self.tps)).round() as u64;
        let faults = |seed| FaultPlan::from_seed(seed, lasts.unwrap_or(Duration::from_secs(60)));
        NodeConfig {
            tps: self.tps,
            count: lasts.map(count),
            blobs_per_mille: self.blobs_per_mille,
            latency: self.latency,
            block_time: self.block_time,
            block_gas_limit: self.block_mgas.saturating_mul(1_000_000),
            preload: self.preload,
            faults: self.faults.map(faults),
            seed: self.seed,
            ..NodeConfig::new(ipc)
        }
    }
}

/// Runs a node until SIGTERM, SIGINT or, if requested, the end of stdin. `args` begins with the
/// program's name.
///
/// Prints [`READY`] and the path in one line on stdout when the socket listens. Returns the exit
/// code: 0, 1 if the node could not start, 2 for invalid arguments.
pub fn run(args: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> i32 {
    let args = match Args::try_parse_from(args) {
        Ok(args) => args,
        Err(error) => {
            // clap prints to stdout or stderr; an error of a closed one is irrelevant.
            let _ = error.print();
            return error.exit_code();
        }
    };
    let node = match MockNode::start(args.config()) {
        Ok(node) => node,
        Err(error) => {
            eprintln!("mock-node: {error}");
            return 1;
        }
    };
    if let Err(error) = announce_ready(&node).and_then(|()| wait_for_end(args.exit_with_stdin)) {
        eprintln!("mock-node: {error}");
        return 1;
    }
    node.shutdown();
    0
}

fn announce_ready(node: &MockNode) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{READY}{}", node.ipc_path().display())?;
    out.flush()
}

fn wait_for_end(exit_with_stdin: bool) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut signals = StopSignals::listen()?;
        let (closed, stdin) = tokio::sync::oneshot::channel::<()>();
        if exit_with_stdin {
            // A thread that the process does not join, because reading stdin cannot be cancelled.
            thread::spawn(move || {
                let mut ignored = [0; 256];
                while matches!(std::io::stdin().read(&mut ignored), Ok(1..)) {}
                drop(closed);
            });
        } else {
            std::mem::forget(closed);
        }
        // The order is irrelevant: both end the node.
        tokio::select! {
            () = signals.recv() => {}
            _ = stdin => {}
        }
        Ok(())
    })
}

/// The signals that end a program cleanly: SIGTERM, which systemd and `docker stop` send, and SIGINT, which Ctrl-C
/// sends.
#[derive(Debug)]
pub struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    /// From now on neither signal kills the process. To be called on a tokio runtime with I/O.
    ///
    /// # Errors
    /// The handlers cannot be installed.
    pub fn listen() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for one of them.
    ///
    /// # Cancel safety
    /// Cancel safe: a signal that arrives while nothing waits ends the next wait.
    pub async fn recv(&mut self) {
        // The order is irrelevant: they mean the same.
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Reads a time such as `30s`, `2ms`, `1.5m`; a number alone is in seconds.
///
/// # Errors
/// A sentence that says what is accepted.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 =
        number.parse().map_err(|_| format!("`{text}` does not begin with a number"))?;
    let seconds = match unit {
        "us" => number / 1e6,
        "ms" => number / 1e3,
        "s" | "" => number,
        "m" => number * 60.0,
        "h" => number * 3600.0,
        _ => {
            return Err(format!("`{unit}` is no unit of time; us, ms, s, m and h are"));
        }
    };
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

/// Reads a time (`2ms`) or a median and a 99th percentile (`1ms,20ms`).
///
/// # Errors
/// A sentence that says what is accepted.
pub fn parse_latency(text: &str) -> Result<Latency, String> {
    Ok(match text.split_once(',') {
        Some((median, p99)) => {
            Latency::LogNormal { median: parse_duration(median)?, p99: parse_duration(p99)? }
        }
        None => match parse_duration(text)? {
            Duration::ZERO => Latency::None,
            time => Latency::Fixed(time),
        },
    })
}

/// Reads the seed of a [`FaultPlan`], such as `seed=7`.
///
/// # Errors
/// A sentence that says what is accepted.
pub fn parse_faults(text: &str) -> Result<u64, String> {
    let seed = text.strip_prefix("seed=").and_then(|seed| seed.parse().ok());
    seed.ok_or_else(|| format!("`{text}` is not of the form seed=N, N a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units_and_latencies_one_or_two_times() {
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("250us"), Ok(Duration::from_micros(250)));
        assert!(parse_duration("5 apples").is_err());
        assert_eq!(parse_latency("2ms"), Ok(Latency::Fixed(Duration::from_millis(2))));
        assert_eq!(parse_latency("0"), Ok(Latency::None));
        let both =
            Latency::LogNormal { median: Duration::from_millis(1), p99: Duration::from_millis(20) };
        assert_eq!(parse_latency("1ms,20ms"), Ok(both));
    }
}
