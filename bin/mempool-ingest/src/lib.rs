//! Ingests a node's mempool and shows it.
//!
//! Without an endpoint it starts a mock node in a process of its own and ingests from that. With
//! `--ipc PATH` or `--ws URL` it ingests from a real one. With `--json` the last line on stdout is
//! one JSON object: the fields are those of [`Summary`].

mod args;
mod draw;
#[cfg(test)]
mod fleet;
mod live;
mod log;
mod node;
mod picture;
mod publishing;
mod recording;
mod samples;
mod view;
mod watcher;

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Parser as _;
use mempool_ingest::{
    Ingest, IngestEnd, PoolConfig,
    telemetry::Telemetry,
    txpool_fetcher::{AuditMode, AuditReport, EndReason, Endpoint},
};
use mock_node::cli::StopSignals;
use serde::Serialize;
use testkit::{
    node::NodeProcess,
    usage::{max_resident_bytes, process_cpu},
};

use crate::{
    args::Args,
    log::Log,
    publishing::{PublishedSummary, Publishing},
    recording::{Files, RecordedSummary, ReplayedSummary},
    samples::Samples,
    view::View,
    watcher::{Seen, Watcher},
};

/// glibc keeps freed memory in up to 16 arenas on two cores, and returns little of it to the
/// system: half an hour of blobs doubled the resident memory of a process whose live memory had not
/// grown.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Time between two lines of the display.
const REFRESH: Duration = Duration::from_secs(1);

/// How long a stop may take.
const STOP_DEADLINE: Duration = Duration::from_secs(10);

/// How long the end waits for a source to become live before the final audit.
const SETTLE_DEADLINE: Duration = Duration::from_secs(30);

/// The output of `--json`. Times are in the unit of their name.
#[derive(Debug, Serialize)]
pub(crate) struct Summary {
    #[serde(flatten)]
    counts: mempool_ingest::txpool_fetcher::Counts,
    /// Hashes that entered, less those that left and those unfinished: 0 when every hash is
    /// accounted for. An unfinished hash has no outcome.
    balance: i64,
    reconnects: u64,
    audits: u64,
    /// Pending in the node and never in the pool, by the final audit. -1 if there was none.
    missing: i64,
    /// Pending in the node, and evicted or expired by the pool.
    removed: u64,
    /// Pending transactions the node counts and cannot list (blobs on geth).
    unlistable: u64,
    pool_txs: u64,
    pool_bytes: u64,
    expired: u64,
    evicted: u64,
    /// Fetches and audits that waited because the load was high.
    deferred: u64,
    /// `null` without `--rpc`.
    rpc: Option<RpcCounts>,
    /// One for each flow that is published.
    published: Vec<PublishedSummary>,
    /// `null` without `--record`.
    recorded: Option<RecordedSummary>,
    /// `null` without `--replay`.
    replayed: Option<ReplayedSummary>,
    latency_us: Latency,
    /// From the start of the ingestion until the end was requested, subscriber included.
    cpu_us_per_tx: f64,
    max_rss_bytes: u64,
    elapsed_s: f64,
    end: String,
}

/// The counts of the RPC server.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct RpcCounts {
    /// Requests admitted; each element of a batch counts.
    requests: u64,
    /// Requests refused because too many were in flight.
    requests_refused: u64,
    /// Orders refused because all work permits were held.
    work_refused: u64,
    /// Raw transactions that waited because the load was high.
    deferred: u64,
    /// Orders from the RPC server that a subscriber saw.
    orders: u64,
    /// Cancellations that a subscriber saw.
    cancelled: u64,
}

impl RpcCounts {
    pub(crate) fn of(ingest: &Ingest, seen: Seen) -> Option<Self> {
        let rpc = ingest.rpc()?;
        let gate = ingest.gate().stats();
        Some(Self {
            requests: gate.requests_admitted,
            requests_refused: gate.requests_refused,
            work_refused: gate.work_refused,
            deferred: rpc.deferral_stats().map_or(0, |stats| stats.deferred),
            orders: seen.orders,
            cancelled: seen.cancelled,
        })
    }
}

/// From the read of the announcement to the order visible to a subscriber.
#[derive(Debug, Serialize)]
struct Latency {
    p50: f64,
    p95: f64,
    p99: f64,
    max: f64,
}

fn main() -> ExitCode {
    // Set if this process was started as the mock node.
    if let Some(code) = NodeProcess::run_if_child() {
        return code;
    }
    command(&Args::parse())
}

fn command(args: &Args) -> ExitCode {
    let log = Log::install(View::is_to_be_live(args.plain));
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: cannot start a runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(args, log)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

async fn run(args: &Args, log: Log) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let child = match args.endpoints().is_empty() {
        true => Some(node::start(args)?),
        false => None,
    };
    let endpoints = match &child {
        Some(child) => vec![Endpoint::Ipc(child.path())],
        None => args.endpoints(),
    };
    // Before the ingestion starts, because handles of metrics are made once.
    let telemetry = args.metrics.map(Telemetry::start).transpose()?;
    if let Some(telemetry) = &telemetry {
        eprintln!("metrics at http://{}/metrics", telemetry.local_addr());
    }
    // Without the CPU time before: a process that cargo starts has cargo's CPU time too.
    let cpu_before = process_cpu();
    let mut ingest = Ingest::start(args.ingest(endpoints)).await?;
    // Before anything is recorded: a signal before this ends the process at once.
    let mut signals = StopSignals::listen()?;
    let node = ingest.fetcher().status().into_iter().find_map(|source| source.node);
    let chain = node.map(|node| node.chain_id);
    if let Some(config) = args.rpc(chain)? {
        ingest.start_rpc(config)?;
    }
    let ingest = ingest;
    let publishing = Publishing::start(args, ingest.pool(), chain).await?;
    let start = Instant::now();
    let watcher = Watcher::start(ingest.pool().clone());
    let files = Files::start(args, ingest.pool())?;
    let mut samples = match &args.samples {
        Some(path) => Some(Samples::create(path, watcher.latency())?),
        None => None,
    };
    let live = View::is_to_be_live(args.plain);
    let mut view = View::start(live, &ingest, &watcher, log, PoolConfig::default().max_txs as u64);
    let mut refresh = tokio::time::interval(REFRESH);
    refresh.tick().await;
    let deadline = async {
        match args.duration {
            Some(duration) => tokio::time::sleep(duration).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(deadline);
    loop {
        // The order is irrelevant: no branch holds an item.
        tokio::select! {
            () = &mut deadline => break,
            () = signals.recv() => break,
            wanted = view.end_wanted() => {
                wanted?;
                break;
            }
            _ = ingest.fetcher().ended() => break,
            _ = refresh.tick() => {
                if files.is_over() {
                    break;
                }
                view.refresh(&ingest, &watcher, &publishing)?;
                if let Some(samples) = &mut samples {
                    samples.take(&ingest, watcher.latency())?;
                }
            }
        }
    }
    // Restores the terminal: the rest of the output is lines.
    drop(view);
    eprintln!("stopping");
    let (elapsed, cpu) = (start.elapsed(), process_cpu() - cpu_before);
    let report = final_audit(args, &ingest).await;
    let summary = summarize(&ingest, &watcher, report, elapsed, cpu);
    let pool = ingest.pool().clone();
    let IngestEnd { reason: end, counts, rpc, .. } = ingest.shutdown(STOP_DEADLINE).await;
    let (recorded, replayed) = files.end();
    let published = publishing.end().await;
    if let Some(rpc) = rpc.filter(|rpc| !rpc.ended) {
        eprintln!("warning: {} requests got no response in time", rpc.unanswered);
    }
    watcher.stop();
    drop(pool);
    let summary = Summary {
        counts,
        balance: counts.balance(),
        end: format!("{end:?}"),
        published,
        recorded,
        replayed,
        ..summary
    };
    summary.say();
    if args.json {
        println!("{}", serde_json::to_string(&summary)?);
    }
    drop(child);
    Ok(match end {
        EndReason::Stopped => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// The transactions that are pending in the node and not in the pool, once no fetch is in flight.
async fn final_audit(args: &Args, ingest: &Ingest) -> Option<AuditReport> {
    let fetcher = ingest.fetcher();
    let deadline = Instant::now() + SETTLE_DEADLINE;
    while !fetcher.is_live() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    if args.audit_first() {
        // A fault may have struck just now: run one regular audit, as the timer would.
        let _ = fetcher.audit(0, AuditMode::Recover).await;
    }
    match fetcher.audit(0, AuditMode::CompareOnly).await {
        Ok(report) => Some(report),
        Err(error) => {
            eprintln!("warning: no final audit: {error}");
            None
        }
    }
}

fn summarize(
    ingest: &Ingest,
    watcher: &Watcher,
    report: Option<AuditReport>,
    elapsed: Duration,
    cpu: Duration,
) -> Summary {
    let latency = watcher.latency();
    let stats = ingest.pool().stats();
    let status = ingest.fetcher().status();
    let counts = ingest.fetcher().counts();
    Summary {
        balance: counts.balance(),
        reconnects: status.iter().map(|source| source.reconnects).sum(),
        audits: status.iter().map(|source| source.audits).sum(),
        missing: report.as_ref().map_or(-1, |report| report.missing as i64),
        removed: report.as_ref().map_or(0, |report| report.removed),
        unlistable: report.as_ref().map_or(0, |report| report.unlistable),
        pool_txs: stats.txs,
        pool_bytes: stats.bytes,
        expired: stats.expired,
        evicted: stats.evicted,
        deferred: ingest.fetcher().deferred().deferred,
        rpc: RpcCounts::of(ingest, watcher.seen()),
        published: Vec::new(),
        recorded: None,
        replayed: None,
        latency_us: Latency {
            p50: micros(latency.value_at_quantile(0.5)),
            p95: micros(latency.value_at_quantile(0.95)),
            p99: micros(latency.value_at_quantile(0.99)),
            max: micros(latency.max()),
        },
        cpu_us_per_tx: cpu.as_secs_f64() * 1e6 / counts.pooled.max(1) as f64,
        max_rss_bytes: max_resident_bytes(),
        elapsed_s: elapsed.as_secs_f64(),
        end: String::new(),
        counts,
    }
}

fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use std::{process::ExitCode, time::Duration};

    use clap::Parser as _;
    use testkit::{
        command::{Signal, command_line, end_by_signal},
        ingest::Node,
    };

    use super::{Args, command};

    #[test]
    #[ignore = "run by the test below, in a process that a signal ends"]
    fn a_command_that_does_not_end() {
        assert_eq!(command(&Args::parse_from(command_line())), ExitCode::SUCCESS);
    }

    /// It ended at SIGINT only, and systemd's SIGTERM killed it with up to 30 s of a recording.
    #[test]
    fn sigterm_and_sigint_end_the_command_with_its_summary_and_exit_code_0() {
        let node =
            Node::start(30, |node| mock_node::NodeConfig { block_time: Duration::ZERO, ..node });
        node.submit_all();
        for signal in [Signal::SIGTERM, Signal::SIGINT] {
            let recording = tempfile::tempdir().expect("a folder");
            let (ipc, folder) = (node.node.ipc_path(), recording.path());
            let args = ["--ipc", ipc.to_str().expect("text"), "--plain", "--json"].map(Into::into);
            let record = ["--record".into(), folder.to_str().expect("text").to_owned()];
            let ended = end_by_signal(
                "tests::a_command_that_does_not_end",
                args.into_iter().chain(record),
                |line| line.starts_with("live ") && line.contains(" pooled=30 "),
                signal,
            )
            .expect("this binary runs");
            assert_eq!(ended.status.code(), Some(0), "{signal}: {ended:?}");
            let last = ended.stderr.lines().last().expect("a summary");
            assert!(last.contains("; 30 pooled; 0 missing; "), "{signal}: {ended:?}");
            let summary = ended.json().expect("the summary");
            assert_eq!(summary["end"], "Stopped", "{signal}");
            assert_eq!(summary["balance"], 0, "{signal}");
            assert_eq!(summary["recorded"]["rows"], 30, "{signal}: {summary}");
        }
    }
}
