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
mod orders;
mod output;
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

use alloy_primitives::B256;
#[cfg(feature = "rpc")]
use mempool_ingest::OrderRpcConfig;
use mempool_ingest::{
    Ingest,
    load_control::metric_set,
    txpool_fetcher::{AuditMode, AuditReport, EndReason, Endpoint},
};

pub use crate::args::Args;
#[cfg(feature = "config")]
pub use crate::options::DEFAULT_CONFIG;
use crate::{
    log::Log,
    options::Options,
    orders::Orders,
    say::{say, say_error, say_panics, say_warning},
    signals::{EndTimer, Signals},
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

/// How long the end of the process waits for whoever reads stderr.
const FLUSH: Duration = Duration::from_secs(1);

/// How long the end waits for whoever reads the orders on stdout.
const ORDERS: Duration = Duration::from_secs(1);

/// The part of it in which the final audit waits for a live source, and for the node to list its pool.
const AUDIT: Duration = Duration::from_secs(4);

/// The part of it in which the ingestion stops. The rest is for what is recorded and published.
const INGESTION: Duration = Duration::from_secs(2);

/// How much longer its RPC server may take.
const RPC: Duration = Duration::from_millis(1_200);

metric_set! {
    /// The name, the unit and the meaning of every metric of the command itself.
    pub const METRICS;

    struct CommandMetrics {
        counter log_dropped = "mempool_log_dropped_total", Count,
            "lines of the log that were dropped because nobody read stderr";
    }
}

/// Runs the command until its end: at a signal, a key, the end of the time or of the replay. `node` may add a node to the
/// sources that lives until the command has ended, after signals are listened to: no signal leaves it behind.
pub fn run<N>(
    args: &Args,
    node: impl FnOnce(&mut Vec<Endpoint>) -> Result<N, Failure>,
) -> ExitCode {
    output::start();
    say_panics();
    let ended = (|| {
        // First: from here on nothing that a stop needs has to be started.
        let timer = EndTimer::start()?;
        let mut options = args.options()?;
        options.log_format.set();
        let log = Log::install(options.log_format, View::is_to_be_live(args.plain_lines()))?;
        let runtime = tokio::runtime::Runtime::new()?;
        let signals = runtime.block_on(async { Signals::listen() })?;
        let _node = node(&mut options.fetcher.sources)?;
        let ended = runtime.block_on(run_until_end(args, &options, log, signals, timer));
        // It would wait for what has not ended in time.
        runtime.shutdown_background();
        ended
    })();
    let code = ended.unwrap_or_else(|error: Failure| {
        say_error(&*error);
        ExitCode::from(2)
    });
    output::flush(FLUSH);
    code
}

/// Checks the options and reaches each source once, as the command `check`. The exit code is 0 if all can be used.
#[cfg(feature = "config")]
pub fn check(args: &Args) -> ExitCode {
    let runtime = tokio::runtime::Runtime::new().map_err(Failure::from);
    let code = match runtime.and_then(|runtime| runtime.block_on(check::run(args))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say_error(&*error);
            ExitCode::FAILURE
        }
    };
    output::flush(FLUSH);
    code
}

/// A function that names the nodes that have announced a transaction.
fn announcers(ingest: &Ingest) -> impl Fn(&B256) -> Vec<String> + Send + 'static {
    let (announcers, status) = (ingest.fetcher().announcers(), ingest.fetcher().status());
    let names: Vec<_> = status.iter().map(|source| source.endpoint.to_string()).collect();
    move |hash| announcers(hash).into_iter().map(|source| names[source].clone()).collect()
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
    parts: Parts,
}

/// What runs beside the ingestion, on its pool.
struct Parts {
    watcher: Watcher,
    /// With `--orders`.
    orders: Option<Orders>,
    #[cfg(feature = "record")]
    files: recording::Files,
    #[cfg(feature = "fleet")]
    publishing: publishing::Publishing,
}

impl Parts {
    async fn start(args: &Args, options: &Options, ingest: &mut Ingest) -> Result<Self, Failure> {
        #[cfg(any(feature = "rpc", feature = "fleet"))]
        let chain = ingest.fetcher().status().into_iter().find_map(|it| Some(it.node?.chain_id));
        #[cfg(feature = "fleet")]
        let publishing = publishing::Publishing::start(options, ingest.pool(), chain).await?;
        // Before the first transaction of a replay arrives.
        let watcher = Watcher::start(ingest.pool(), args.hashes.as_deref())?;
        let names = || Box::new(announcers(ingest));
        let orders = args.orders.map(|_| Orders::start(ingest.pool(), names())).transpose()?;
        #[cfg(feature = "record")]
        let files = recording::Files::start(&args.files, options, ingest)?;
        // Last: an order that is answered with success must not end with a start that fails.
        #[cfg(feature = "rpc")]
        if let Some(config) = &options.rpc {
            let chain_id = options.chain(config.chain_id, chain, "[rpc]")?;
            let config = OrderRpcConfig { chain_id, ..config.clone() };
            #[cfg(feature = "fleet")]
            ingest.start_rpc_with(config, |host| host.with_publishing(publishing.readiness()))?;
            #[cfg(not(feature = "fleet"))]
            ingest.start_rpc(config)?;
        }
        Ok(Self {
            watcher,
            orders,
            #[cfg(feature = "record")]
            files,
            #[cfg(feature = "fleet")]
            publishing,
        })
    }
}

/// What the end of the command has to tell.
struct End {
    summary: Summary,
    reason: EndReason,
    /// What was lost, each with what to do; none if the command did what it was asked to do.
    failures: Vec<String>,
}

impl Running {
    async fn start(args: &Args, options: &Options) -> Result<Self, Failure> {
        #[cfg(feature = "config")]
        options.validate()?;
        if options.fetcher.sources.is_empty() {
            return Err("no node is named: give --ipc PATH or --ws URL, or `sources` in the file of --config".into());
        }
        let mut ingest = Ingest::start(options.ingest()).await?;
        match Parts::start(args, options, &mut ingest).await {
            Ok(parts) => Ok(Self { ingest, max_txs: options.pool.max_txs, parts }),
            Err(error) => {
                ingest.shutdown(INGESTION).await;
                Err(error)
            }
        }
    }

    /// Whether a replay has ended.
    fn is_over(&self) -> bool {
        #[cfg(feature = "record")]
        return self.parts.files.is_over();
        #[cfg(not(feature = "record"))]
        false
    }

    /// How long it takes until the next row of a replay is due.
    fn next_row(&self) -> Option<Duration> {
        #[cfg(feature = "record")]
        return self.parts.files.next_row();
        #[cfg(not(feature = "record"))]
        None
    }

    /// Whether whoever reads the orders on stdout has gone.
    fn has_lost_reader(&mut self) -> bool {
        self.parts.orders.as_mut().is_some_and(Orders::has_ended)
    }

    /// Events that the reader of the orders was too slow for; `None` without `--orders`.
    fn missed(&self) -> Option<u64> {
        self.parts.orders.as_ref().map(Orders::missed)
    }

    /// What a replay has brought into the pool.
    fn replayed(&self) -> u64 {
        #[cfg(feature = "record")]
        return self.parts.files.replayed();
        #[cfg(not(feature = "record"))]
        0
    }

    /// What a line of the display says of each flow that is published.
    fn published(&self) -> Vec<Published> {
        #[cfg(feature = "fleet")]
        return self.parts.publishing.status();
        #[cfg(not(feature = "fleet"))]
        Vec::new()
    }

    /// Stops everything, in less than 10 s.
    async fn end(self, args: &Args) -> End {
        #[cfg(any(feature = "record", feature = "fleet"))]
        let deadline = Instant::now() + STOP;
        let report = final_audit(args, &self.ingest).await;
        let missed = self.missed();
        let Self { ingest, parts, .. } = self;
        let mut summary = Summary::of(&ingest, &parts.watcher.seen(), report.as_ref());
        let mut failures = Vec::new();
        // What is published and recorded is read from it after the ingestion has ended.
        let pool = ingest.pool().clone();
        let counts = ingest.fetcher().counts();
        let shutdown = tokio::time::timeout(INGESTION + RPC, ingest.shutdown(INGESTION));
        let end = shutdown.await.ok();
        if !end.as_ref().is_some_and(|end| end.ended) {
            say_warning!("not every part of the ingestion has stopped after {INGESTION:?}");
        }
        #[cfg(feature = "record")]
        let files = {
            let pool = pool.clone();
            tokio::task::spawn_blocking(move || parts.files.end(deadline, &pool))
        };
        #[cfg(feature = "fleet")]
        {
            summary.published = parts.publishing.end(left(deadline)).await;
        }
        #[cfg(feature = "record")]
        {
            let ended = files.await.expect("it does not panic");
            (summary.recorded, summary.replayed) = (ended.recorded, ended.replayed);
            failures.extend(ended.failures);
        }
        #[cfg(feature = "rpc")]
        if let Some(rpc) = end.as_ref().and_then(|end| end.rpc).filter(|rpc| !rpc.ended) {
            say_warning!("{} requests got no response in time", rpc.unanswered);
        }
        failures.extend(parts.orders.and_then(|orders| orders.end(ORDERS)));
        parts.watcher.stop();
        drop(pool);
        summary.orders_missed = missed;
        summary.counts = end.as_ref().map_or(counts, |end| end.counts);
        summary.balance = summary.counts.balance();
        let reason = end.map_or(EndReason::Stopped, |end| end.reason);
        summary.end = format!("{reason:?}");
        End { summary, reason, failures }
    }
}

async fn run_until_end(
    args: &Args,
    options: &Options,
    log: Log,
    mut signals: Signals,
    timer: EndTimer,
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
    let mut running = tokio::select! {
        running = Running::start(args, options) => running?,
        _ = signals.next() => return Ok(ExitCode::SUCCESS),
    };
    let start = Instant::now();
    let live = View::is_to_be_live(args.plain_lines());
    let mut view = View::start(live, &running, log, options.status_interval);
    let is_signalled = until_stop(args, &mut running, &mut view, &mut signals).await;
    timer.arm(END);
    // Restores the terminal: the rest of the output is lines.
    drop(view);
    say!("stopping");
    let second = tokio::spawn(signals.end_at_second(is_signalled));
    let (elapsed, cpu) = (start.elapsed(), usage::cpu() - cpu_before);
    let End { mut summary, reason, failures } = running.end(args).await;
    let pooled = Some(summary.pooled()).filter(|pooled| *pooled > 0);
    summary.cpu_us_per_tx = pooled.map(|pooled| cpu.as_secs_f64() * 1e6 / pooled as f64);
    summary.max_rss_bytes = usage::max_resident_bytes();
    summary.elapsed_s = elapsed.as_secs_f64();
    summary.log_dropped = output::dropped();
    summary.say();
    let end = match reason {
        EndReason::Stopped => None,
        reason => Some(format!("the ingestion has ended by itself: {}", cause(&reason))),
    };
    let failures: Vec<_> = end.into_iter().chain(failures).collect();
    for failure in &failures {
        say_error(&*Failure::from(failure.as_str()));
    }
    if args.json {
        // Whoever closed stdout wants to read nothing. If nobody reads it, the timer ends the process.
        let _ = writeln!(std::io::stdout(), "{}", serde_json::to_string(&summary)?);
    }
    second.abort();
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Why the ingestion has ended without being stopped, and what to do.
fn cause(reason: &EndReason) -> String {
    match reason {
        EndReason::SourcesEnded => {
            "no node could be reached in `reconnect_limit` attempts: raise it or leave it out"
                .into()
        }
        EndReason::Panicked => {
            "one of its threads has panicked, which is a defect: report the error above".into()
        }
        other => format!("{other:?}"),
    }
}

/// Runs the display until something ends the command: whatever it is, what runs is then stopped in order. Returns whether
/// it was a signal.
async fn until_stop(
    args: &Args,
    running: &mut Running,
    view: &mut View,
    stop: &mut Signals,
) -> bool {
    let metrics = CommandMetrics::new();
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
                metrics.log_dropped.absolute(output::dropped());
                // Nobody reads the lines or the orders: a pipeline ends with its last part.
                let is_over = running.is_over() || running.has_lost_reader();
                if is_over || view.refresh(running).is_err() {
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
