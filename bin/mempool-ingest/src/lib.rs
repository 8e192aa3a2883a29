//! The command `mempool-ingest`: ingests the mempool of one or several nodes, shows it, records it,
//! publishes it to a fleet, and accepts searchers' orders. `docs/operations.md` says how to run it.
//!
//! With `--json` the last line on stdout is one JSON object with the fields of `summary::Summary`.
//!
//! Start with [`run`]. It is a library so that the example `ingest` can add a mock node.

// What the operator sets.
mod args;
#[cfg(feature = "config")]
mod check;
mod options;
// What runs beside the ingestion.
mod orders;
#[cfg(feature = "fleet")]
mod publishing;
#[cfg(feature = "record")]
mod recording;
mod watcher;
// What the operator sees.
mod draw;
mod live;
mod log;
mod output;
mod print;
mod snapshot;
mod status;
mod summary;
mod view;
// The process.
mod signals;
mod usage;

use std::{
    io::Write as _,
    process::ExitCode,
    time::{Duration, Instant},
};

use alloy_primitives::B256;
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
    orders::{Orders, OrdersFormat},
    print::{print_error, print_line, print_panics, print_warning},
    signals::{EndTimer, Signals},
    status::PublishedFlow,
    summary::Summary,
    view::View,
    watcher::Watcher,
};

/// Why the command could not run.
pub type Failure = Box<dyn std::error::Error>;

/// The time between two refreshes of the view.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// The time that a stop may take, whatever the node, a server or the disk do: less than the 10 s
/// after which `docker stop` kills.
#[cfg(any(feature = "record", feature = "fleet"))]
const STOP_LIMIT: Duration = Duration::from_millis(9_500);

/// The time after which the process exits although it has not stopped, for example because nobody
/// reads its output.
const EXIT_LIMIT: Duration = Duration::from_millis(9_900);

/// The time that the end of the process waits for the reader of stderr.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);

/// The time that a stop waits for the reader of the orders on stdout.
const ORDERS_LIMIT: Duration = Duration::from_secs(1);

/// The part of a stop in which the final audit waits for a live source, and for the node to list
/// its pool.
const AUDIT_LIMIT: Duration = Duration::from_secs(4);

/// The part of a stop in which the ingestion stops. The rest is for recording and publishing.
const INGESTION_LIMIT: Duration = Duration::from_secs(2);

/// The extra time that the RPC server may take.
const RPC_EXTRA_LIMIT: Duration = Duration::from_millis(1_200);

metric_set! {
    /// The name, the unit and the meaning of every metric of the command itself.
    pub const METRICS;

    struct CommandMetrics {
        counter log_dropped = "mempool_log_dropped_total", Count,
            "lines of the log that were dropped because nobody read stderr";
    }
}

/// Runs the command until a signal, a key, the end of `--duration` or of a replay ends it.
///
/// `start_node` may add a node to the sources. It is called after the signal handlers are
/// installed, so that no signal leaves the node behind; its value is dropped when the command has
/// ended.
pub fn run<N>(
    args: &Args,
    start_node: impl FnOnce(&mut Vec<Endpoint>) -> Result<N, Failure>,
) -> ExitCode {
    output::start();
    print_panics();
    let code = try_run(args, start_node).unwrap_or_else(|error| {
        print_error(&*error);
        ExitCode::from(2)
    });
    output::flush(FLUSH_LIMIT);
    code
}

fn try_run<N>(
    args: &Args,
    start_node: impl FnOnce(&mut Vec<Endpoint>) -> Result<N, Failure>,
) -> Result<ExitCode, Failure> {
    // The timer comes first, so that a stop need not start a thread.
    let timer = EndTimer::start()?;
    let mut options = args.options()?;
    options.log_format.set();
    let log = Log::install(options.log_format, View::is_live(args.has_plain_lines()))?;
    let runtime = tokio::runtime::Runtime::new()?;
    let signals = runtime.block_on(async { Signals::listen() })?;
    let _node = start_node(&mut options.fetcher.sources)?;
    let code = runtime.block_on(run_until_end(args, &options, log, signals, timer));
    // Dropping the runtime would wait for tasks that have not ended in time.
    runtime.shutdown_background();
    code
}

/// Runs the command `check`. The exit code is 0 if every part of the configuration can be used.
#[cfg(feature = "config")]
pub fn check(args: &Args) -> ExitCode {
    let runtime = tokio::runtime::Runtime::new().map_err(Failure::from);
    let code = match runtime.and_then(|runtime| runtime.block_on(check::run(args))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&*error);
            ExitCode::FAILURE
        }
    };
    output::flush(FLUSH_LIMIT);
    code
}

/// Returns a function that returns the endpoints of the nodes that have announced a transaction.
fn announcers(ingest: &Ingest) -> impl Fn(&B256) -> Vec<String> + Send + 'static {
    let handle = ingest.fetcher().handle().clone();
    let status = handle.status();
    let names: Vec<_> = status.iter().map(|source| source.endpoint.to_string()).collect();
    move |hash| handle.announcers(hash).into_iter().map(|source| names[source].clone()).collect()
}

/// Returns the time until the deadline.
#[cfg(any(feature = "record", feature = "fleet"))]
fn time_left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// The ingestion, and the parts that use its pool.
struct Running {
    ingest: Ingest,
    /// The pool's cap on transactions.
    max_txs: usize,
    parts: Parts,
}

/// The parts that use the pool of the ingestion.
struct Parts {
    watcher: Watcher,
    /// `None` without `--orders`.
    orders: Option<Orders>,
    #[cfg(feature = "record")]
    files: recording::Files,
    #[cfg(feature = "fleet")]
    publishing: publishing::Publishing,
}

impl Parts {
    async fn start(args: &Args, options: &Options, ingest: &mut Ingest) -> Result<Self, Failure> {
        #[cfg(any(feature = "rpc", feature = "fleet"))]
        let node_chain_id =
            ingest.fetcher().status().into_iter().find_map(|source| Some(source.node?.chain_id));
        #[cfg(feature = "fleet")]
        let publishing =
            publishing::Publishing::start(options, ingest.pool(), node_chain_id).await?;
        // The watcher starts before a replay, so that it sees the first transaction.
        let watcher = Watcher::start(ingest.pool(), args.hashes.as_deref())?;
        let orders = match args.orders {
            Some(OrdersFormat::Ndjson) => {
                Some(Orders::start(ingest.pool(), Box::new(announcers(ingest)))?)
            }
            None => None,
        };
        #[cfg(feature = "record")]
        let files = recording::Files::start(&args.files, options, ingest)?;
        // The RPC server starts last: an order that got a success response must not be lost because
        // a later part fails to start.
        #[cfg(feature = "rpc")]
        if let Some(config) = &options.rpc {
            let chain_id = options.chain_of_orders(config.chain_id, node_chain_id, "[rpc]")?;
            let mut config = config.clone();
            config.chain_id = chain_id;
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

/// The result of a run.
struct RunEnd {
    summary: Summary,
    reason: EndReason,
    /// What was lost, each with the next step for the operator. It is empty after a successful run.
    failures: Vec<String>,
}

impl Running {
    async fn start(args: &Args, options: &Options) -> Result<Self, Failure> {
        #[cfg(feature = "config")]
        options.validate()?;
        if options.fetcher.sources.is_empty() {
            return Err(
                "no node is named: give --ipc PATH or --ws URL, or `sources` in the file of --config"
                    .into(),
            );
        }
        let mut ingest = Ingest::start(options.ingest()).await?;
        match Parts::start(args, options, &mut ingest).await {
            Ok(parts) => Ok(Self { ingest, max_txs: options.pool.max_txs, parts }),
            Err(error) => {
                ingest.shutdown(INGESTION_LIMIT).await;
                Err(error)
            }
        }
    }

    /// Returns whether a replay has ended.
    fn has_replay_ended(&self) -> bool {
        #[cfg(feature = "record")]
        return self.parts.files.has_replay_ended();
        #[cfg(not(feature = "record"))]
        false
    }

    /// Returns the time until the next row of a replay is due.
    fn time_to_next_row(&self) -> Option<Duration> {
        #[cfg(feature = "record")]
        return self.parts.files.time_to_next_row();
        #[cfg(not(feature = "record"))]
        None
    }

    /// Returns whether the orders cannot be written to stdout any more.
    fn has_lost_reader(&mut self) -> bool {
        self.parts.orders.as_mut().is_some_and(Orders::has_ended)
    }

    /// Returns the number of events for which the reader of the orders was too slow, `None` without
    /// `--orders`.
    fn missed_events(&self) -> Option<u64> {
        self.parts.orders.as_ref().map(Orders::missed_events)
    }

    /// Returns the number of transactions that a replay has brought into the pool.
    fn replayed(&self) -> u64 {
        #[cfg(feature = "record")]
        return self.parts.files.replayed();
        #[cfg(not(feature = "record"))]
        0
    }

    /// Returns the status of each published flow.
    fn published_flows(&self) -> Vec<PublishedFlow> {
        #[cfg(feature = "fleet")]
        return self.parts.publishing.status();
        #[cfg(not(feature = "fleet"))]
        Vec::new()
    }

    /// Stops everything in less than 10 s.
    async fn shutdown(self, args: &Args) -> RunEnd {
        #[cfg(any(feature = "record", feature = "fleet"))]
        let deadline = Instant::now() + STOP_LIMIT;
        let report = final_audit(args, &self.ingest).await;
        let missed = self.missed_events();
        let Self { ingest, parts, .. } = self;
        let mut summary = Summary::new(&ingest, &parts.watcher.stats(), report.as_ref());
        let mut failures = Vec::new();
        // Recorder and publishers read the rest of the pool's log after the ingestion has stopped.
        let pool = ingest.pool().clone();
        let counts = ingest.fetcher().counts();
        let shutdown = ingest.shutdown(INGESTION_LIMIT);
        let shutdown = tokio::time::timeout(INGESTION_LIMIT + RPC_EXTRA_LIMIT, shutdown);
        let end = shutdown.await.ok();
        if !end.as_ref().is_some_and(|end| end.ended) {
            print_warning!("not every part of the ingestion has stopped after {INGESTION_LIMIT:?}");
        }
        #[cfg(feature = "record")]
        let files = {
            let pool = pool.clone();
            tokio::task::spawn_blocking(move || parts.files.shutdown(deadline, &pool))
        };
        #[cfg(feature = "fleet")]
        {
            summary.published = parts.publishing.shutdown(time_left(deadline)).await;
        }
        #[cfg(feature = "record")]
        {
            let ended = files.await.expect("the shutdown of the files does not panic");
            summary.recorded = ended.recorded;
            summary.replayed = ended.replayed;
            failures.extend(ended.failures);
        }
        #[cfg(feature = "rpc")]
        if let Some(rpc) = end.as_ref().and_then(|end| end.rpc).filter(|rpc| !rpc.ended) {
            print_warning!("{} requests got no response in time", rpc.unanswered);
        }
        failures.extend(parts.orders.and_then(|orders| orders.shutdown(ORDERS_LIMIT)));
        parts.watcher.stop();
        drop(pool);
        summary.orders_missed = missed;
        summary.counts = end.as_ref().map_or(counts, |end| end.counts);
        summary.balance = summary.counts.balance();
        let reason = end.map_or(EndReason::Stopped, |end| end.reason);
        summary.end = format!("{reason:?}");
        RunEnd { summary, reason, failures }
    }
}

async fn run_until_end(
    args: &Args,
    options: &Options,
    log: Log,
    mut signals: Signals,
    timer: EndTimer,
) -> Result<ExitCode, Failure> {
    // The recorder is installed before the ingestion starts, because handles of metrics are made
    // once.
    #[cfg(feature = "telemetry")]
    let telemetry = options.metrics.map(mempool_ingest::telemetry::Telemetry::start).transpose()?;
    #[cfg(feature = "telemetry")]
    if let Some(telemetry) = &telemetry {
        print_line!("metrics at http://{}/metrics", telemetry.local_addr());
    }
    // Subtract the CPU time before the start: a process that cargo starts also has cargo's.
    let cpu_before = usage::cpu_time();
    // The order of the branches is irrelevant: nothing runs yet that would have to be stopped.
    let mut running = tokio::select! {
        running = Running::start(args, options) => running?,
        _ = signals.next() => return Ok(ExitCode::SUCCESS),
    };
    let start = Instant::now();
    let is_live = View::is_live(args.has_plain_lines());
    let mut view = View::start(is_live, &running, log, options.status_interval);
    let is_signalled = until_stop(args, &mut running, &mut view, &mut signals).await;
    timer.arm(EXIT_LIMIT);
    // Restore the terminal, because the rest of the output is lines.
    drop(view);
    print_line!("stopping");
    let second_signal = tokio::spawn(signals.exit_at_second(is_signalled));
    let elapsed = start.elapsed();
    let cpu = usage::cpu_time() - cpu_before;
    let RunEnd { mut summary, reason, failures } = running.shutdown(args).await;
    let pooled = Some(summary.pooled()).filter(|pooled| *pooled > 0);
    summary.cpu_us_per_tx = pooled.map(|pooled| cpu.as_secs_f64() * 1e6 / pooled as f64);
    summary.max_rss_bytes = usage::max_resident_bytes();
    summary.elapsed_s = elapsed.as_secs_f64();
    summary.log_dropped = output::dropped();
    summary.print();
    let ended_by_itself = match reason {
        EndReason::Stopped => None,
        reason => Some(format!("the ingestion has ended by itself: {}", end_cause(&reason))),
    };
    let failures: Vec<_> = ended_by_itself.into_iter().chain(failures).collect();
    for failure in &failures {
        print_error(&*Failure::from(failure.as_str()));
    }
    if args.json {
        // This fails if the reader has closed stdout. If nobody reads it, the timer ends the
        // process.
        let _ = writeln!(std::io::stdout(), "{}", serde_json::to_string(&summary)?);
    }
    second_signal.abort();
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns why the ingestion has ended without being stopped, and the next step.
fn end_cause(reason: &EndReason) -> String {
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

/// Refreshes the view until the command must stop. Returns whether a signal requested the stop.
async fn until_stop(
    args: &Args,
    running: &mut Running,
    view: &mut View,
    signals: &mut Signals,
) -> bool {
    let metrics = CommandMetrics::new();
    let mut refresh = tokio::time::interval(REFRESH_INTERVAL);
    let deadline = tokio::time::sleep(args.duration.unwrap_or(Duration::MAX));
    tokio::pin!(deadline);
    loop {
        // The order of the branches is irrelevant: none of them holds an item.
        tokio::select! {
            () = &mut deadline => return false,
            _ = signals.next() => return true,
            // A key, or an error because the terminal is gone.
            _ = view.end_requested() => return false,
            _ = running.ingest.fetcher().ended() => return false,
            _ = refresh.tick() => {
                metrics.log_dropped.absolute(output::dropped());
                let is_over = running.has_replay_ended() || running.has_lost_reader();
                // The refresh fails when the reader of stderr has closed its end.
                if is_over || view.refresh(running).is_err() {
                    return false;
                }
            }
        }
    }
}

/// Compares the first node's pool with ours, and returns the report.
async fn final_audit(args: &Args, ingest: &Ingest) -> Option<AuditReport> {
    let fetcher = ingest.fetcher();
    let audit = async {
        while !fetcher.is_live() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        if args.audit_first {
            // A fault may have struck a moment ago, so run a regular audit first, as the timer
            // would. If it fails, the comparison below fails too.
            let _ = fetcher.audit(0, AuditMode::Recover).await;
        }
        fetcher.audit(0, AuditMode::CompareOnly).await
    };
    match tokio::time::timeout(AUDIT_LIMIT, audit).await {
        Ok(Ok(report)) => return Some(report),
        Ok(Err(error)) => print_warning!("no final audit: {error}"),
        Err(_) => print_warning!("no final audit: it takes longer than {AUDIT_LIMIT:?}"),
    }
    None
}
