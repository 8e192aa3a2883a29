//! The command `mempool-ingest`: ingests the mempool of one or several nodes, shows it, records it, shares it with a
//! fleet, and takes searchers' orders, as its flags say. How it is run is in `docs/operations.md`.
//!
//! With `--json` the last line on stdout is one JSON object: the fields are those of `Summary` in `summary.rs`.
//!
//! It is a library too, so that the example `ingest` can put a mock node in front of it.

mod args;
mod draw;
mod live;
mod log;
mod picture;
#[cfg(feature = "fleet")]
mod publishing;
#[cfg(feature = "record")]
mod recording;
mod samples;
mod summary;
mod usage;
mod view;
mod watcher;

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use mempool_ingest::{
    Ingest,
    txpool_fetcher::{AuditMode, AuditReport, EndReason},
};
use tokio::signal::unix::{SignalKind, signal};

pub use crate::args::Args;
use crate::{log::Log, samples::Samples, summary::Summary, view::View, watcher::Watcher};

type Failure = Box<dyn std::error::Error>;

/// Time between two lines of the display.
const REFRESH: Duration = Duration::from_secs(1);

/// How long a stop may take.
const STOP_DEADLINE: Duration = Duration::from_secs(10);

/// How long the end waits for the final audit: for a live source, and for the node to list its pool.
const AUDIT_DEADLINE: Duration = Duration::from_secs(8);

/// Runs the command until its end: at a signal, a key, the end of the time or of the replay.
pub fn run(args: &Args) -> ExitCode {
    let log = Log::install(View::is_to_be_live(args.plain));
    let runtime = tokio::runtime::Runtime::new().map_err(Failure::from);
    match runtime.and_then(|runtime| runtime.block_on(run_until_end(args, log))) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

/// The ingestion, and what runs beside it.
struct Running {
    ingest: Ingest,
    watcher: Watcher,
    #[cfg(feature = "record")]
    files: recording::Files,
    #[cfg(feature = "fleet")]
    publishing: publishing::Publishing,
}

impl Running {
    async fn start(args: &Args) -> Result<Self, Failure> {
        if args.endpoints().is_empty() {
            return Err("no node is named: --ipc PATH or --ws URL".into());
        }
        #[cfg_attr(not(feature = "rpc"), expect(unused_mut, reason = "only the server needs it"))]
        let mut ingest = Ingest::start(args.ingest()).await?;
        #[cfg(any(feature = "rpc", feature = "fleet"))]
        let chain = ingest.fetcher().status().into_iter().find_map(|source| source.node);
        #[cfg(any(feature = "rpc", feature = "fleet"))]
        let chain = chain.map(|node| node.chain_id);
        #[cfg(feature = "rpc")]
        if let Some(config) = args.rpc(chain)? {
            ingest.start_rpc(config)?;
        }
        let pool = ingest.pool();
        Ok(Self {
            #[cfg(feature = "fleet")]
            publishing: publishing::Publishing::start(
                &args.fleet,
                pool,
                args.retention,
                args.chain(chain, "--publish"),
            )
            .await?,
            // Before the first transaction of a replay arrives.
            watcher: Watcher::start(pool, args.hashes.as_deref())?,
            #[cfg(feature = "record")]
            files: recording::Files::start(&args.files, &ingest)?,
            ingest,
        })
    }

    /// Whether a replay has ended.
    fn is_over(&self) -> bool {
        #[cfg(feature = "record")]
        return self.files.is_over();
        #[cfg(not(feature = "record"))]
        false
    }

    /// What a line of the display says of each flow that is published.
    fn published(&self) -> String {
        #[cfg(feature = "fleet")]
        return self.publishing.line();
        #[cfg(not(feature = "fleet"))]
        String::new()
    }

    /// Stops everything.
    async fn end(self, args: &Args) -> (Summary, EndReason) {
        let report = final_audit(args, &self.ingest).await;
        let mut summary = Summary::of(&self.ingest, &self.watcher, report.as_ref());
        // What is published and recorded is read from it after the ingestion has ended.
        let _pool = self.ingest.pool().clone();
        let end = self.ingest.shutdown(STOP_DEADLINE).await;
        #[cfg(feature = "record")]
        {
            (summary.recorded, summary.replayed) = self.files.end();
        }
        #[cfg(feature = "fleet")]
        {
            summary.published = self.publishing.end().await;
        }
        #[cfg(feature = "rpc")]
        if let Some(rpc) = end.rpc.filter(|rpc| !rpc.ended) {
            eprintln!("warning: {} requests got no response in time", rpc.unanswered);
        }
        self.watcher.stop();
        (summary.counts, summary.balance) = (end.counts, end.counts.balance());
        summary.end = format!("{:?}", end.reason);
        (summary, end.reason)
    }
}

async fn run_until_end(args: &Args, log: Log) -> Result<ExitCode, Failure> {
    // Before the ingestion starts, because handles of metrics are made once.
    #[cfg(feature = "telemetry")]
    let telemetry = args.metrics.map(mempool_ingest::telemetry::Telemetry::start).transpose()?;
    #[cfg(feature = "telemetry")]
    if let Some(telemetry) = &telemetry {
        eprintln!("metrics at http://{}/metrics", telemetry.local_addr());
    }
    // Without the CPU time before: a process that cargo starts has cargo's CPU time too.
    let cpu_before = usage::cpu();
    // Before anything is recorded: from now on no signal ends the process at once. SIGTERM is what systemd and
    // `docker stop` send, SIGINT what Ctrl-C sends.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // The order is irrelevant: nothing runs that would have to be stopped.
    let running = tokio::select! {
        running = Running::start(args) => running?,
        _ = terminate.recv() => return Ok(ExitCode::SUCCESS),
        _ = interrupt.recv() => return Ok(ExitCode::SUCCESS),
    };
    let start = Instant::now();
    let mut samples = match &args.samples {
        Some(path) => Some(Samples::create(path, running.watcher.latency())?),
        None => None,
    };
    let mut view = View::start(View::is_to_be_live(args.plain), &running, log);
    let mut refresh = tokio::time::interval(REFRESH);
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
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            wanted = view.end_wanted() => {
                wanted?;
                break;
            }
            _ = running.ingest.fetcher().ended() => break,
            // The first at once.
            _ = refresh.tick() => {
                if running.is_over() {
                    break;
                }
                view.refresh(&running)?;
                if let Some(samples) = &mut samples {
                    samples.take(&running.ingest, running.watcher.latency())?;
                }
            }
        }
    }
    // Restores the terminal: the rest of the output is lines.
    drop(view);
    eprintln!("stopping");
    let (elapsed, cpu) = (start.elapsed(), usage::cpu() - cpu_before);
    let (mut summary, end) = running.end(args).await;
    summary.cpu_us_per_tx = cpu.as_secs_f64() * 1e6 / summary.counts.pooled.max(1) as f64;
    summary.max_rss_bytes = usage::max_resident_bytes();
    summary.elapsed_s = elapsed.as_secs_f64();
    summary.say();
    if args.json {
        println!("{}", serde_json::to_string(&summary)?);
    }
    Ok(match end {
        EndReason::Stopped => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
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
    match tokio::time::timeout(AUDIT_DEADLINE, audit).await {
        Ok(Ok(report)) => return Some(report),
        Ok(Err(error)) => eprintln!("warning: no final audit: {error}"),
        Err(_) => eprintln!("warning: no final audit: it takes longer than {AUDIT_DEADLINE:?}"),
    }
    None
}
