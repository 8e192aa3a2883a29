//! The command: starts its parts, runs until the end, and stops them.

use std::{
    ffi::OsString,
    process::ExitCode,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant, SystemTime},
};

use blocklist::{BlocklistConfig, SharedBlocklist};
use clap::Parser as _;
use mempool_ingest::telemetry::Telemetry;
use mempool_recorder::{Recording, RecordingConfig, Replay};
use mock_node::cli::StopSignals;
use testkit::node::NodeProcess;

use crate::{
    args::Args,
    builder::{Builder, BuilderConfig},
    feed::Feed,
    fill::Way,
    node,
    report::{Summary, Tally},
    rpc::Rpc,
};

/// How long a stop may take.
const STOP_DEADLINE: Duration = Duration::from_secs(10);

/// Time between two checks of the blocklist's file.
const RELOAD: Duration = Duration::from_secs(5);

type Failure = Box<dyn std::error::Error>;

/// Runs the command with the flags of the process.
pub fn main() -> ExitCode {
    // Set if this process was started as the mock node.
    if let Some(code) = NodeProcess::run_if_child() {
        return code;
    }
    run_with(std::env::args_os())
}

/// Runs the command with these flags. The first stands for the program; on bad ones the process ends.
pub fn run_with(args: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> ExitCode {
    command(&Args::parse_from(args))
}

pub(crate) fn command(args: &Args) -> ExitCode {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env()
                .unwrap_or_else(|_| "warn,order_stream=info,alloy_transport_ipc=off".into()),
        )
        .init();
    match tokio::runtime::Runtime::new()
        .map_err(Failure::from)
        .and_then(|rt| rt.block_on(run(args)))
    {
        Ok(summary) => {
            summary.print();
            if args.json {
                println!("{}", serde_json::to_string(&summary).expect("numbers and text"));
            }
            // A block that must not have been built is a failure.
            let wrong = summary.blocks_refused_by_strict_check + summary.differing_blocks;
            if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

async fn run(args: &Args) -> Result<Summary, Failure> {
    // First, because handles of metrics are made once.
    let telemetry = args.metrics.map(Telemetry::start).transpose()?;
    if let Some(telemetry) = &telemetry {
        eprintln!("metrics at http://{}/metrics", telemetry.local_addr());
    }
    let list = Arc::new(blocklist(args)?);
    let open = |path| Recording::open(path, RecordingConfig::default());
    let recording = args.replay.as_ref().map(open).transpose()?;
    let child = match &args.ipc {
        None => Some(node::start(args)?),
        Some(_) => None,
    };
    let path = match (&child, &args.ipc) {
        (Some(child), _) => child.path(),
        (None, Some(path)) => path.clone(),
        (None, None) => unreachable!("one of them is there"),
    };
    let rpc = Arc::new(Rpc::connect(&path, args.read_timeout)?);
    let feed = Feed::start(args, path, &rpc).await?;
    // A signal before this ends the process at once.
    let mut signals = StopSignals::listen()?;
    let start_replay = |recording| Replay::start(recording, args.speed, feed.pool().clone());
    let replay = recording.map(start_replay).transpose()?;
    let ways: Vec<(&str, Way)> = match args.compare {
        true => Way::STEPS.into(),
        false => vec![("asked for", args.way())],
    };
    let start = Instant::now();
    let tally = Arc::new(Mutex::new(Tally::new(&ways, false)));
    let stop = Arc::new(AtomicBool::new(false));
    let builder = Builder {
        config: BuilderConfig {
            fee_recipient: args.fee_recipient,
            gas_limit: args.gas_limit,
            fill_at_percent: args.fill_at,
            slot: args.slot(),
            ways: ways.iter().map(|(_, way)| *way).collect(),
        },
        rpc,
        pool: feed.pool().clone(),
        list: Arc::clone(&list),
        stop: Arc::clone(&stop),
    };
    let (ended, mut end) = tokio::sync::oneshot::channel();
    let shared = Arc::clone(&tally);
    let thread = std::thread::Builder::new().name("builder".into()).spawn(move || {
        let result = builder
            .run(|report| shared.lock().unwrap_or_else(PoisonError::into_inner).take(report));
        // After a stop, nothing waits for the result.
        let _ = ended.send(result);
    })?;
    let deadline = async {
        match args.duration {
            Some(duration) => tokio::time::sleep(duration).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(deadline);
    let mut reload = tokio::time::interval(RELOAD);
    let mut failed = None;
    loop {
        // The order is irrelevant: no branch holds an item.
        tokio::select! {
            () = &mut deadline => break,
            () = signals.recv() => break,
            result = &mut end => {
                failed = Some(match result {
                    Ok(Err(error)) => error.to_string(),
                    Ok(Ok(())) | Err(_) => "the building thread has ended".to_owned(),
                });
                break;
            }
            _ = reload.tick() => {
                if let Some(path) = &args.blocklist
                    && let Err(error) = list.reload_file(path, SystemTime::now())
                {
                    eprintln!("warning: {error}; the list in force stays until its maximum age");
                }
            }
        }
    }
    stop.store(true, Relaxed);
    if thread.join().is_err() {
        failed = Some("the building thread has panicked".into());
    }
    if let Some(replay) = replay {
        let end = replay.shutdown(STOP_DEADLINE);
        eprintln!("replayed {:?}", end.counts);
        if !end.ended {
            eprintln!("warning: the replay has not stopped");
        }
    }
    let received = feed.stop(STOP_DEADLINE).await;
    drop(child);
    if let Some(failed) = failed {
        return Err(failed.into());
    }
    let tally = Arc::into_inner(tally).ok_or("the building thread still counts")?;
    let tally = tally.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut summary = tally.finish(start.elapsed().as_secs_f64());
    summary.received = received;
    Ok(summary)
}

/// The list from the file, or the listed addresses of the mock node's load.
fn blocklist(args: &Args) -> Result<SharedBlocklist, Failure> {
    let now = SystemTime::now();
    if let Some(path) = &args.blocklist {
        return Ok(SharedBlocklist::open(path, BlocklistConfig::default(), now)?);
    }
    // Part of this program, so it does not age. To build on a real node without a list, pass an
    // empty one.
    let config = BlocklistConfig { max_age: None, min_addresses: 0, ..BlocklistConfig::default() };
    let text: String = match args.ipc {
        None => {
            mock_node::workload::listed().iter().map(|address| format!("{address}\n")).collect()
        }
        Some(_) => String::new(),
    };
    Ok(SharedBlocklist::new(text.as_bytes(), now, config, now)?)
}
