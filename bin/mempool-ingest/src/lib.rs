//! The command `mempool-ingest`: ingests the mempool of one or several nodes, shows it, records it, shares it with a
//! fleet, and takes searchers' orders, as its flags say. How it is run is in `docs/operations.md`.
//!
//! With `--json` the last line on stdout is one JSON object: the fields are those of `Summary` in `summary.rs`.
//!
//! It is a library too, so that the example `ingest` can put a mock node in front of it.

mod args;
#[cfg(feature = "config")]
mod check;
mod draw;
mod live;
mod log;
mod options;
mod picture;
#[cfg(feature = "fleet")]
mod publishing;
#[cfg(feature = "record")]
mod recording;
mod say;
mod signals;
mod status;
mod summary;
mod usage;
mod view;
mod watcher;

use std::{
    io::Write as _,
    process::ExitCode,
    time::{Duration, Instant},
};

#[cfg(feature = "rpc")]
use mempool_ingest::OrderRpcConfig;
use mempool_ingest::{
    Ingest,
    txpool_fetcher::{AuditMode, AuditReport, EndReason, Endpoint},
};

pub use crate::args::Args;
#[cfg(feature = "config")]
pub use crate::options::DEFAULT_CONFIG;
use crate::{
    log::Log,
    options::Options,
    say::{say, say_error, say_warning},
    signals::Signals,
    status::Published,
    summary::Summary,
    view::View,
    watcher::Watcher,
};

/// Why the command could not run.
pub type Failure = Box<dyn std::error::Error>;

/// Time between two lines of the display.
const REFRESH: Duration = Duration::from_secs(1);

/// How long a stop takes at most, whatever the node, a server or the disk do: less than the 10 s after which `docker stop`
/// kills.
#[cfg(any(feature = "record", feature = "fleet"))]
const STOP: Duration = Duration::from_millis(9_500);

/// When the process ends although it has not stopped: nobody reads what it writes.
const END: Duration = Duration::from_millis(9_900);

/// The part of it in which the final audit waits for a live source, and for the node to list its pool.
const AUDIT: Duration = Duration::from_secs(4);

/// The part of it in which the ingestion stops; its RPC server may take a second more. The rest is for what is recorded
/// and published.
const INGESTION: Duration = Duration::from_secs(2);

/// Runs the command until its end: at a signal, a key, the end of the time or of the replay. `node` may add a node to the
/// sources that lives until the command has ended, after signals are listened to: no signal leaves it behind.
pub fn run<N>(
    args: &Args,
    node: impl FnOnce(&mut Vec<Endpoint>) -> Result<N, Failure>,
) -> ExitCode {
    let ended = (|| {
        let mut options = args.options()?;
        options.log_format.set();
        let log = Log::install(options.log_format, View::is_to_be_live(args.plain))?;
        let runtime = tokio::runtime::Runtime::new()?;
        let signals = runtime.block_on(async { Signals::listen() })?;
        let _node = node(&mut options.fetcher.sources)?;
        let ended = runtime.block_on(run_until_end(args, &options, log, signals));
        // It would wait for what has not ended in time.
        runtime.shutdown_background();
        ended
    })();
    ended.unwrap_or_else(|error: Failure| {
        say_error(&*error);
        ExitCode::from(2)
    })
}

/// Checks the options and reaches each source once, as the command `check`. The exit code is 0 if all can be used.
#[cfg(feature = "config")]
pub fn check(args: &Args) -> ExitCode {
    let runtime = tokio::runtime::Runtime::new().map_err(Failure::from);
    match runtime.and_then(|runtime| runtime.block_on(check::run(args))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say_error(&*error);
            ExitCode::FAILURE
        }
    }
}

/// The time until then.
#[cfg(any(feature = "record", feature = "fleet"))]
fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

/// The ingestion, and what runs beside it.
struct Running {
    ingest: Ingest,
    /// The cap of its pool.
    max_txs: usize,
    watcher: Watcher,
    #[cfg(feature = "record")]
    files: recording::Files,
    #[cfg(feature = "fleet")]
    publishing: publishing::Publishing,
}

impl Running {
    async fn start(args: &Args, options: &Options) -> Result<Self, Failure> {
        if options.fetcher.sources.is_empty() {
            return Err("no node is named: --ipc PATH or --ws URL".into());
        }
        #[cfg_attr(not(feature = "rpc"), expect(unused_mut, reason = "only the server needs it"))]
        let mut ingest = Ingest::start(options.ingest()).await?;
        #[cfg(any(feature = "rpc", feature = "fleet"))]
        let chain = ingest.fetcher().status().into_iter().find_map(|it| Some(it.node?.chain_id));
        #[cfg(feature = "fleet")]
        let publishing = publishing::Publishing::start(options, ingest.pool(), chain).await?;
        // Before the first transaction of a replay arrives.
        let watcher = Watcher::start(ingest.pool(), args.hashes.as_deref())?;
        #[cfg(feature = "record")]
        let files = recording::Files::start(&args.files, options, &ingest)?;
        // Last: an order that is answered with success must not end with a start that fails.
        #[cfg(feature = "rpc")]
        if let Some(config) = &options.rpc {
            let chain_id = options.chain(config.chain_id, chain, "--rpc")?;
            let config = OrderRpcConfig { chain_id, ..config.clone() };
            #[cfg(feature = "fleet")]
            ingest.start_rpc_with(config, |host| host.with_publishing(publishing.readiness()))?;
            #[cfg(not(feature = "fleet"))]
            ingest.start_rpc(config)?;
        }
        Ok(Self {
            ingest,
            max_txs: options.pool.max_txs,
            watcher,
            #[cfg(feature = "record")]
            files,
            #[cfg(feature = "fleet")]
            publishing,
        })
    }

    /// Whether a replay has ended.
    fn is_over(&self) -> bool {
        #[cfg(feature = "record")]
        return self.files.is_over();
        #[cfg(not(feature = "record"))]
        false
    }

    /// What a replay has brought into the pool.
    fn replayed(&self) -> u64 {
        #[cfg(feature = "record")]
        return self.files.replayed();
        #[cfg(not(feature = "record"))]
        0
    }

    /// What a line of the display says of each flow that is published.
    fn published(&self) -> Vec<Published> {
        #[cfg(feature = "fleet")]
        return self.publishing.status();
        #[cfg(not(feature = "fleet"))]
        Vec::new()
    }

    /// Stops everything, in less than 10 s.
    async fn end(self, args: &Args) -> (Summary, EndReason) {
        #[cfg(any(feature = "record", feature = "fleet"))]
        let by = Instant::now() + STOP;
        let report = final_audit(args, &self.ingest).await;
        let mut summary = Summary::of(&self.ingest, &self.watcher.seen(), report.as_ref());
        // What is published and recorded is read from it after the ingestion has ended.
        let kept = self.ingest.pool().clone();
        let end = self.ingest.shutdown(INGESTION).await;
        if !end.ended {
            say_warning!("not every part of the ingestion has stopped after {INGESTION:?}");
        }
        #[cfg(feature = "record")]
        let pool = kept.clone();
        #[cfg(feature = "record")]
        let files = tokio::task::spawn_blocking(move || self.files.end(by, &pool));
        #[cfg(feature = "fleet")]
        {
            summary.published = self.publishing.end(left(by)).await;
        }
        #[cfg(feature = "record")]
        {
            (summary.recorded, summary.replayed) = files.await.expect("it does not panic");
        }
        #[cfg(feature = "rpc")]
        if let Some(rpc) = end.rpc.filter(|rpc| !rpc.ended) {
            say_warning!("{} requests got no response in time", rpc.unanswered);
        }
        self.watcher.stop();
        drop(kept);
        (summary.counts, summary.balance) = (end.counts, end.counts.balance());
        summary.end = format!("{:?}", end.reason);
        (summary, end.reason)
    }
}

async fn run_until_end(
    args: &Args,
    options: &Options,
    log: Log,
    mut signals: Signals,
) -> Result<ExitCode, Failure> {
    // Before the ingestion starts, because handles of metrics are made once.
    #[cfg(feature = "telemetry")]
    let telemetry = options.metrics.map(mempool_ingest::telemetry::Telemetry::start).transpose()?;
    #[cfg(feature = "telemetry")]
    if let Some(telemetry) = &telemetry {
        say!("metrics at http://{}/metrics", telemetry.local_addr());
    }
    // Without the CPU time before: a process that cargo starts has cargo's CPU time too.
    let cpu_before = usage::cpu();
    // The order is irrelevant: nothing runs that would have to be stopped.
    let running = tokio::select! {
        running = Running::start(args, options) => running?,
        _ = signals.next() => return Ok(ExitCode::SUCCESS),
    };
    let start = Instant::now();
    let live = View::is_to_be_live(args.plain);
    let mut view = View::start(live, &running, log, options.status_interval);
    let is_signalled = until_stop(args, &running, &mut view, &mut signals).await;
    // Restores the terminal: the rest of the output is lines.
    drop(view);
    say!("stopping");
    let second = tokio::spawn(signals.end_at_second(is_signalled, END));
    let (elapsed, cpu) = (start.elapsed(), usage::cpu() - cpu_before);
    let (mut summary, end) = running.end(args).await;
    let pooled = Some(summary.pooled()).filter(|pooled| *pooled > 0);
    summary.cpu_us_per_tx = pooled.map(|pooled| cpu.as_secs_f64() * 1e6 / pooled as f64);
    summary.max_rss_bytes = usage::max_resident_bytes();
    summary.elapsed_s = elapsed.as_secs_f64();
    summary.say();
    if args.json {
        // Who closed stdout wants to read nothing.
        let _ = writeln!(std::io::stdout(), "{}", serde_json::to_string(&summary)?);
    }
    second.abort();
    Ok(match end {
        EndReason::Stopped => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// Runs the display until something ends the command: whatever it is, what runs is then stopped in order. Returns whether
/// it was a signal.
async fn until_stop(args: &Args, running: &Running, view: &mut View, stop: &mut Signals) -> bool {
    let mut refresh = tokio::time::interval(REFRESH);
    let deadline = tokio::time::sleep(args.duration.unwrap_or(Duration::MAX));
    tokio::pin!(deadline);
    loop {
        // The order is irrelevant: no branch holds an item.
        tokio::select! {
            () = &mut deadline => return false,
            _ = stop.next() => return true,
            // A terminal that fails is gone.
            _ = view.end_wanted() => return false,
            _ = running.ingest.fetcher().ended() => return false,
            // The first at once.
            _ = refresh.tick() => {
                // Nobody reads the lines: a pipeline ends with its last part.
                if running.is_over() || view.refresh(running).is_err() {
                    return false;
                }
            }
        }
    }
}

/// The transactions that are pending in the node and not in the pool, once no fetch is in flight.
async fn final_audit(args: &Args, ingest: &Ingest) -> Option<AuditReport> {
    let fetcher = ingest.fetcher();
    let audit = async {
        while !fetcher.is_live() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        if args.audit_first {
            // A fault may have struck just now: run one regular audit, as the timer would.
            let _ = fetcher.audit(0, AuditMode::Recover).await;
        }
        fetcher.audit(0, AuditMode::CompareOnly).await
    };
    match tokio::time::timeout(AUDIT, audit).await {
        Ok(Ok(report)) => return Some(report),
        Ok(Err(error)) => say_warning!("no final audit: {error}"),
        Err(_) => say_warning!("no final audit: it takes longer than {AUDIT:?}"),
    }
    None
}
