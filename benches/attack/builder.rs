//! The side under attack, in a process of its own: an `Ingest` with the default configuration.

use std::{
    collections::{BTreeMap, HashSet},
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use alloy_primitives::{Address, B256};
use hdrhistogram::Histogram;
use mempool_ingest::{
    FetcherConfig, Ingest, IngestConfig, NodeAdmissionConfig, OrderPool, OrderRpcConfig,
    PoolConfig,
    load_control::{GateConfig, Limit},
    order_pool::{Event, Order, Origin},
};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use mock_node::DEV_CHAIN_ID;
use serde::{Deserialize, Serialize};
use testkit::{
    figures::{Times, histogram},
    process::{Process, reply, serve},
    usage::{allow_open_files, resident_bytes},
};

pub(crate) const ROLE: &str = "__builder";

/// For what was announced to be in the pool, and for the parts to start and stop.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at the memory.
const LOOK: Duration = Duration::from_millis(5);
/// Open files that it needs: as many connections as it accepts, and its own.
const FILES: u64 = 8_192;
/// Between two looks at what is being waited for.
const POLL: Duration = Duration::from_millis(10);

#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// Ingest from this node, until so many are in the pool; answered with the RPC server's address.
    Start {
        node: PathBuf,
        pooled: usize,
        setup: Setup,
        known: Vec<Address>,
    },
    Look,
    /// Which of these bundles (by bundle hash) and transactions are not in the pool.
    Gone(Vec<B256>),
    /// How many of these do not come into the pool; waits for them.
    Missing(Vec<B256>),
}

/// What of its configuration is not the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Setup {
    Default,
    /// It asks the node about the senders of orders.
    AsksNode,
    /// Its gate lets everyone in, and they wait for permits in one queue with internal work: what an
    /// operator gets who sets `unlimited`.
    NoGate,
}

/// What it uses, and whom it refused.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) resident: usize,
    /// The most since the look before.
    pub(crate) most_resident: usize,
    /// Of what was announced since the look before.
    pub(crate) live: Times,
    /// By reason, refused and failed.
    pub(crate) refused: BTreeMap<String, u64>,
}

/// The process, as the bench holds it.
#[derive(Debug)]
pub(crate) struct Builder {
    process: Process,
    pub(crate) address: SocketAddr,
}

impl Builder {
    /// `known` are the signers that the host knows.
    pub(crate) fn spawn(
        node: PathBuf,
        pooled: usize,
        setup: Setup,
        known: Vec<Address>,
    ) -> io::Result<Self> {
        let mut process = Process::spawn(ROLE)?;
        let address = process.request(&Request::Start { node, pooled, setup, known })?;
        Ok(Self { process, address })
    }

    pub(crate) fn look(&mut self) -> io::Result<Report> {
        self.process.request(&Request::Look)
    }

    pub(crate) fn gone(&mut self, hashes: Vec<B256>) -> io::Result<Vec<B256>> {
        self.process.request(&Request::Gone(hashes))
    }

    pub(crate) fn missing(&mut self, hashes: Vec<B256>) -> io::Result<usize> {
        self.process.request(&Request::Missing(hashes))
    }
}

/// Runs as the builder's process.
pub(crate) fn respond() -> io::Result<()> {
    allow_open_files(FILES)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let recorder = DebuggingRecorder::new();
    let counted = recorder.snapshotter();
    recorder.install().map_err(io::Error::other)?;
    let most = Arc::new(AtomicUsize::new(0));
    let watched = Arc::clone(&most);
    thread::spawn(move || {
        loop {
            watched.fetch_max(resident_bytes(), Relaxed);
            thread::sleep(LOOK);
        }
    });
    let live = Arc::new(Mutex::new(histogram()));
    let mut running: Option<Ingest> = None;
    let mut refused = BTreeMap::new();
    let none = || io::Error::other("no builder, or no RPC server");
    serve(|request| match request {
        Request::Start { node, pooled, setup, known } => {
            let starts = start(node, pooled, setup, known);
            let ingest = runtime.block_on(starts).map_err(io::Error::other)?;
            watch(ingest.pool().clone(), Arc::clone(&live));
            let address = ingest.rpc().ok_or_else(none)?.local_addr();
            running = Some(ingest);
            reply(address)
        }
        Request::Look => {
            let resident = resident_bytes();
            let mut live = live.lock().expect("nobody panics with it");
            let times = Times::from(&*live);
            live.reset();
            add_refused(&counted, &mut refused);
            reply(Report {
                resident,
                most_resident: most.swap(resident, Relaxed).max(resident),
                live: times,
                refused: refused.clone(),
            })
        }
        Request::Gone(mut hashes) => {
            let pooled = pooled(running.as_ref().ok_or_else(none)?.pool());
            hashes.retain(|hash| !pooled.contains(hash));
            reply(hashes)
        }
        Request::Missing(hashes) => {
            let pool = running.as_ref().ok_or_else(none)?.pool();
            let deadline = Instant::now() + PATIENCE;
            loop {
                let missing = hashes.iter().filter(|hash| !pool.contains(hash)).count();
                if missing == 0 || Instant::now() >= deadline {
                    break reply(missing);
                }
                thread::sleep(POLL);
            }
        }
    })
}

async fn start(
    node: PathBuf,
    pooled: usize,
    setup: Setup,
    known: Vec<Address>,
) -> Result<Ingest, Box<dyn std::error::Error + Send + Sync>> {
    let mut config = IngestConfig::new(FetcherConfig::ipc(node), PoolConfig::default());
    match setup {
        Setup::Default => {}
        Setup::AsksNode => config.node_admission = Some(NodeAdmissionConfig::default()),
        Setup::NoGate => {
            config.gate = GateConfig { requests: Limit::Unlimited, ..GateConfig::default() };
        }
    }
    let mut ingest = Ingest::start(config).await?;
    let known: HashSet<Address> = known.into_iter().collect();
    ingest.start_rpc_with(OrderRpcConfig::new(DEV_CHAIN_ID), |host| {
        host.with_known_signers(move |signer| known.contains(&signer))
    })?;
    let deadline = Instant::now() + PATIENCE;
    while ingest.pool().len() < pooled {
        if Instant::now() >= deadline {
            return Err(format!("{} of {pooled} in the pool", ingest.pool().len()).into());
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(ingest)
}

/// The hashes of all transactions, and the bundle hashes of all bundles.
fn pooled(pool: &OrderPool) -> HashSet<B256> {
    let mut orders = pool.subscribe_all();
    let events = std::iter::from_fn(|| orders.try_next());
    let added = events.filter_map(|event| match event {
        Ok(Event::Added(order)) => Some(order),
        _ => None,
    });
    added
        .map(|order| match &*order {
            Order::Bundle(bundle) => *bundle.hash(),
            order => *order.id().hash(),
        })
        .collect()
}

/// A subscriber that notes how old each transaction of the node is when it sees it.
fn watch(pool: OrderPool, live: Arc<Mutex<Histogram<u64>>>) {
    let mut subscription = pool.subscribe_all();
    thread::spawn(move || {
        while let Some(event) = subscription.next_blocking() {
            let Ok(Event::Added(order)) = event else { continue };
            let Order::Tx(tx) = order.as_ref() else { continue };
            if tx.origin() == Origin::Mempool
                && let Ok(age) = SystemTime::now().duration_since(tx.first_seen())
            {
                let mut live = live.lock().expect("nobody panics with it");
                live.saturating_record(age.as_nanos() as u64);
            }
        }
    });
}

/// A snapshot takes the counts with it.
fn add_refused(counted: &Snapshotter, to: &mut BTreeMap<String, u64>) {
    for (key, _, _, value) in counted.snapshot().into_vec() {
        let key = key.key();
        let DebugValue::Counter(count) = value else { continue };
        if !matches!(key.name(), "order_rpc_refused_total" | "order_rpc_failed_total") {
            continue;
        }
        for label in key.labels().filter(|label| label.key() == "reason") {
            *to.entry(label.value().to_owned()).or_default() += count;
        }
    }
}
