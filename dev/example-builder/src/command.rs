//! The command: its flags, and the parts that it starts and stops.

use std::{
    ffi::OsString,
    io,
    net::SocketAddr,
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, SystemTime},
};

use alloy::providers::{IpcConnect, Provider as _, ProviderBuilder};
use blocklist::{BlocklistConfig, SharedBlocklist};
use clap::Parser;
use mempool_ingest::{
    FetcherConfig, Ingest, IngestConfig, OrderPool, PoolConfig,
    order_pool::{Upkeep, UpkeepConfig},
    telemetry::Telemetry,
};
use mock_node::{LoadStart, NodeConfig, cli::parse_duration, workload::listed};
use order_stream::{Flow, ServerConfig, Source, SourceConfig};
use serde_json::{Value, json};
use testkit::node::NodeProcess;
use tokio::{
    runtime::Handle,
    signal::unix::{SignalKind, signal},
};

use crate::{
    builder::Builder,
    fill::{BOTH_WAYS, Way},
    report::Summary,
};

/// How long a stop may take.
const STOP_DEADLINE: Duration = Duration::from_secs(10);

/// Time between blocks of the mock node.
const MOCK_SLOT: Duration = Duration::from_secs(2);

/// Time between blocks of mainnet.
const SLOT: Duration = Duration::from_secs(12);

/// Fills blocks from a node's mempool and prints their contents; submits none. By default it starts
/// a mock node.
#[derive(Clone, Debug, Parser)]
#[command(name = "block_builder")]
struct Args {
    /// IPC socket of a node (reth, geth or anvil); a real node needs a blocklist
    #[arg(long, value_name = "PATH", requires = "blocklist")]
    ipc: Option<PathBuf>,
    /// Take transactions and heads from a fleet instead: NATS servers of one cluster; the state is
    /// read from the node
    #[arg(
        id = "from",
        long = "from",
        value_name = "URL,...",
        value_delimiter = ',',
        requires_all = ["ipc", "machine"]
    )]
    servers: Vec<String>,
    /// With --from: also take bundles, private transactions and cancellations: the same servers,
    /// with another user
    #[arg(long, value_name = "URL,...", value_delimiter = ',', requires = "from")]
    from_private: Vec<String>,
    /// With --from: the name of this builder in the fleet
    #[arg(long, value_name = "NAME", requires = "from")]
    machine: Option<String>,
    /// With --from: extra CA certificates (PEM), added to the system roots
    #[arg(long, value_name = "FILE", requires = "from")]
    nats_ca: Option<PathBuf>,
    /// Stop after this time, e.g. 30s, 500ms or 2m [default: until Ctrl-C]
    #[arg(long, value_parser = parse_duration)]
    duration: Option<Duration>,
    /// Print the summary at the end, one line of JSON, on stdout
    #[arg(long)]
    json: bool,
    /// Serve metrics to Prometheus at this address, port 0 for a free one
    #[arg(long, value_name = "ADDR")]
    metrics: Option<SocketAddr>,
    /// Addresses that may not be touched: text or JSON; reloaded before each block [default: on the
    /// mock node, addresses that its load reaches on purpose]
    #[arg(long, value_name = "FILE")]
    blocklist: Option<PathBuf>,
    /// Time between two heads [default: 12s, for the mock node 2s]
    #[arg(long, value_parser = parse_duration)]
    slot: Option<Duration>,
    /// Also fill each block with the opcode inspector, and print the cost of both
    #[arg(long)]
    compare: bool,
    /// Mock node: transactions per second
    #[arg(long, default_value_t = 500)]
    tps: u32,
}

type Failure = Box<dyn std::error::Error>;

/// Runs the command with the flags of the process.
pub fn main() -> ExitCode {
    // There is an exit code if this process was started as the mock node.
    NodeProcess::run_if_child().unwrap_or_else(|| run_with(std::env::args_os()))
}

/// Runs the command with these flags, of which the first stands for the program. Invalid flags end
/// the process.
pub fn run_with(args: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> ExitCode {
    let args = Args::parse_from(args);
    let filter = tracing_subscriber::EnvFilter::try_from_default_env();
    let filter = filter.unwrap_or_else(|_| "warn,order_stream=info".into());
    let log = tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false);
    log.with_env_filter(filter).init();
    let runtime = tokio::runtime::Runtime::new().map_err(Failure::from);
    match runtime.and_then(|runtime| runtime.block_on(run(&args))) {
        Ok(summary) => {
            let text = serde_json::to_string(&summary).expect("numbers and text");
            if args.json {
                println!("{text}")
            } else {
                eprintln!("{text}")
            }
            if summary.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            let causes = std::iter::successors(error.source(), |cause| cause.source());
            let causes: String = causes.map(|cause| format!("\n  because: {cause}")).collect();
            eprintln!("error: {error}{causes}");
            ExitCode::from(2)
        }
    }
}

async fn run(args: &Args) -> Result<Summary, Failure> {
    // From now on a signal ends the command gracefully.
    let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
    let [terminate, interrupt, hangup] = kinds.map(signal);
    let (mut terminate, mut interrupt, mut hangup) = (terminate?, interrupt?, hangup?);
    // The recorder is installed before all parts are started, because handles of metrics are made
    // once.
    let telemetry = args.metrics.map(Telemetry::start).transpose()?;
    if let Some(telemetry) = &telemetry {
        eprintln!("metrics at http://{}/metrics", telemetry.local_addr());
    }
    let list = blocklist(args)?;
    let child = args.ipc.is_none().then(|| mock_node(args)).transpose()?;
    let path = child.as_ref().map(NodeProcess::path).or(args.ipc.clone()).ok_or("no node")?;
    let node = ProviderBuilder::new().connect_ipc(IpcConnect::new(path.clone())).await?.erased();
    let chain_id = node.get_chain_id().await?;
    let feed = Feed::start(args, path, chain_id).await?;
    let stop = Arc::new(AtomicBool::new(false));
    let builder = Builder {
        node,
        runtime: Handle::current(),
        chain_id,
        pool: feed.pool().clone(),
        list,
        list_file: args.blocklist.clone(),
        slot: args.slot.unwrap_or(if args.ipc.is_some() { SLOT } else { MOCK_SLOT }),
        ways: if args.compare { &BOTH_WAYS } else { &[Way::PostState] },
        stop: Arc::clone(&stop),
    };
    let thread = thread::Builder::new().name("builder".into()).spawn(move || builder.run())?;
    // The order is irrelevant: each branch ends the command.
    tokio::select! {
        () = tokio::time::sleep(args.duration.unwrap_or(Duration::MAX)) => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        _ = hangup.recv() => {}
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
        blobs_per_mille: 2,
        listed_per_mille: 5,
        block_time: MOCK_SLOT,
        ..config
    })?;
    Ok(node)
}

/// Opens the list in the file, or makes a list of the listed addresses of the mock node's load.
fn blocklist(args: &Args) -> Result<SharedBlocklist, Failure> {
    let now = SystemTime::now();
    if let Some(path) = &args.blocklist {
        return Ok(SharedBlocklist::open(path, BlocklistConfig::default(), now)?);
    }
    let mut config = BlocklistConfig::default();
    // This list is part of the program, so it does not become stale.
    config.max_age = None;
    let text: String = listed().iter().map(|address| format!("{address}\n")).collect();
    Ok(SharedBlocklist::new(text.as_bytes(), now, config, now)?)
}

/// The source of the pool: the node, or a fleet.
enum Feed {
    Node(Box<Ingest>),
    Fleet { pool: OrderPool, upkeep: Upkeep, sources: Vec<(&'static str, Source)> },
}

impl Feed {
    async fn start(args: &Args, node: PathBuf, chain_id: u64) -> Result<Self, Failure> {
        if args.servers.is_empty() {
            let config = IngestConfig::new(FetcherConfig::ipc(node), PoolConfig::default());
            return Ok(Self::Node(Box::new(Ingest::start(config).await?)));
        }
        let pool = OrderPool::new(PoolConfig::default())?;
        let upkeep = Upkeep::start(&pool, UpkeepConfig::default(), || false)?;
        let flows = [
            ("public", Flow::Public, &args.servers),
            ("private", Flow::Private, &args.from_private),
        ];
        let mut sources = Vec::new();
        for (name, flow, urls) in flows {
            let (false, Some(machine)) = (urls.is_empty(), &args.machine) else { continue };
            let mut server = ServerConfig::cluster(urls);
            server.root_certificates = args.nats_ca.clone();
            let mut config = SourceConfig::new(server, chain_id, machine);
            config.flow = flow;
            // The pool has no node of its own, so it learns from the fleet which orders were mined.
            config.heads = true;
            sources.push((name, Source::start(&pool, config)?));
        }
        Ok(Self::Fleet { pool, upkeep, sources })
    }

    const fn pool(&self) -> &OrderPool {
        match self {
            Self::Node(ingest) => ingest.pool(),
            Self::Fleet { pool, .. } => pool,
        }
    }

    /// Stops the source. Returns the counts of each flow of a fleet; `received` is the sum of the
    /// five outcomes after it.
    async fn shutdown(self, limit: Duration) -> Vec<Value> {
        let mut summaries = Vec::new();
        match self {
            Self::Node(ingest) => {
                ingest.shutdown(limit).await;
            }
            Self::Fleet { upkeep, sources, .. } => {
                for (flow, source) in sources {
                    // The state is read before the shutdown changes it.
                    let state = source.state().to_string();
                    let stats = source.shutdown(limit).await.stats;
                    let summary = json!({
                        "flow": flow,
                        "state": state,
                        "received": stats.received,
                        "pooled": stats.pooled,
                        "known": stats.known,
                        "superseded": stats.superseded,
                        "refused": stats.refused,
                        "malformed": stats.malformed,
                        "missed": stats.missed,
                        "connects": stats.connects,
                    });
                    eprintln!("from the fleet: {summary}");
                    summaries.push(summary);
                }
                if !upkeep.shutdown(limit).ended {
                    eprintln!("warning: the pool's upkeep has not stopped");
                }
            }
        }
        summaries
    }
}
