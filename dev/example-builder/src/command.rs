//! The command: starts its parts, runs until the end, and stops them.

use std::{
    ffi::OsString,
    io,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, SystemTime},
};

use alloy_provider::{IpcConnect, Provider as _, ProviderBuilder};
use blocklist::{BlocklistConfig, SharedBlocklist};
use clap::Parser as _;
use mempool_ingest::telemetry::Telemetry;
use mock_node::{LoadStart, NodeConfig, cli::StopSignals, workload::listed};
use testkit::node::NodeProcess;
use tokio::runtime::Handle;

use crate::{args::Args, builder::Builder, feed::Feed, fill::Way, report::Summary};

/// How long a stop may take.
const STOP_DEADLINE: Duration = Duration::from_secs(10);

/// Time between two checks of the blocklist's file.
const RELOAD: Duration = Duration::from_secs(5);

/// Of a thousand transactions of the mock node, those with blobs and those that reach a listed
/// address.
const BLOBS_PER_MILLE: u32 = 2;
const LISTED_PER_MILLE: u32 = 5;

type Failure = Box<dyn std::error::Error>;

/// Runs the command with the flags of the process.
pub fn main() -> ExitCode {
    // Set if this process was started as the mock node.
    NodeProcess::run_if_child().unwrap_or_else(|| run_with(std::env::args_os()))
}

/// Runs the command with these flags. The first stands for the program; on bad ones the process ends.
pub fn run_with(args: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> ExitCode {
    let args = Args::parse_from(args);
    let filter = tracing_subscriber::EnvFilter::try_from_default_env();
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_env_filter(
            filter.unwrap_or_else(|_| "warn,order_stream=info,alloy_transport_ipc=off".into()),
        )
        .init();
    let runtime = tokio::runtime::Runtime::new().map_err(Failure::from);
    match runtime.and_then(|runtime| runtime.block_on(run(&args))) {
        Ok(summary) => {
            summary.print();
            if args.json {
                println!("{}", serde_json::to_string(&summary).expect("numbers and text"));
            }
            // A block that must not have been built is a failure.
            if summary.defective_blocks == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
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
    let (path, child) = match &args.ipc {
        Some(path) => (path.clone(), None),
        None => {
            let child = mock_node(args)?;
            (child.path(), Some(child))
        }
    };
    let node = ProviderBuilder::new().connect_ipc(IpcConnect::new(path.clone())).await?.erased();
    let chain_id = node.get_chain_id().await?;
    let feed = Feed::start(args, path, chain_id).await?;
    // A signal before this ends the process at once.
    let mut signals = StopSignals::listen()?;
    let stop = Arc::new(AtomicBool::new(false));
    let builder = Builder {
        node,
        runtime: Handle::current(),
        chain_id,
        pool: feed.pool().clone(),
        list: Arc::clone(&list),
        fee_recipient: args.fee_recipient,
        fill_at_percent: args.fill_at,
        slot: args.slot(),
        ways: if args.compare { Way::STEPS.into() } else { vec![Way::OURS] },
        stop: Arc::clone(&stop),
    };
    let thread = thread::Builder::new().name("builder".into()).spawn(move || builder.run())?;
    let deadline = async {
        match args.duration {
            Some(duration) => tokio::time::sleep(duration).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(deadline);
    let mut reload = tokio::time::interval(RELOAD);
    loop {
        // The order is irrelevant: no branch holds an item.
        tokio::select! {
            () = &mut deadline => break,
            () = signals.recv() => break,
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
    let summary = tokio::task::spawn_blocking(|| thread.join()).await?;
    let received = feed.shutdown(STOP_DEADLINE).await;
    drop(child);
    let mut summary = summary.map_err(|_| "the building thread has panicked")?;
    summary.received = received;
    Ok(summary)
}

/// The mock node that is started when no endpoint is given.
fn mock_node(args: &Args) -> io::Result<NodeProcess> {
    let mut node = NodeProcess::spawn()?;
    eprintln!("starting a mock node: {} transactions/s at {}", args.tps, node.path().display());
    let count = |time: Duration| (time.as_secs_f64() * f64::from(args.tps)).round() as u64;
    node.start(|config| NodeConfig {
        load_start: LoadStart::FirstSubscription,
        state: true,
        tps: args.tps,
        count: args.duration.map(count),
        blobs_per_mille: BLOBS_PER_MILLE,
        listed_per_mille: LISTED_PER_MILLE,
        block_time: args.block_time,
        ..config
    })?;
    Ok(node)
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
        None => listed().iter().map(|address| format!("{address}\n")).collect(),
        Some(_) => String::new(),
    };
    Ok(SharedBlocklist::new(text.as_bytes(), now, config, now)?)
}
