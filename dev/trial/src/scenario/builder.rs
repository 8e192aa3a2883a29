//! The side under attack, in a process of its own: an `Ingest` with the default configuration.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
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
    order_pool::{Cancellation, Event, Holder, Order, Origin, RemoveReason, ReplacementKey},
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
    /// Which of these bundles (by bundle hash) and private transactions were not there when the head before
    /// their block came, or while that block was the next; of those whose block has not come, which are not
    /// there.
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
    let of_process = Arc::clone(&most);
    thread::spawn(move || {
        loop {
            of_process.fetch_max(resident_bytes(), Relaxed);
            thread::sleep(LOOK);
        }
    });
    let watched = Arc::new(Mutex::new(Watched::new()));
    let mut markers = 0_u64;
    let mut running: Option<Ingest> = None;
    let mut refused = BTreeMap::new();
    let none = || io::Error::other("no builder, or no RPC server");
    serve(|request| match request {
        Request::Start { node, pooled, setup, known } => {
            let starts = start(node, pooled, setup, known);
            let ingest = runtime.block_on(starts).map_err(io::Error::other)?;
            watch(ingest.pool(), Arc::clone(&watched));
            let address = ingest.rpc().ok_or_else(none)?.local_addr();
            running = Some(ingest);
            reply(address)
        }
        Request::Look => {
            let resident = resident_bytes();
            let mut watched = watched.lock().expect("nobody panics with it");
            let times = Times::from(&watched.ages);
            watched.ages.reset();
            add_refused(&counted, &mut refused);
            reply(Report {
                resident,
                most_resident: most.swap(resident, Relaxed).max(resident),
                live: times,
                refused: refused.clone(),
            })
        }
        Request::Gone(mut hashes) => {
            let pool = running.as_ref().ok_or_else(none)?.pool();
            // What was there before this cancellation has been seen once it is seen.
            markers += 1;
            let marker = Address::left_padding_from(&markers.to_be_bytes());
            let key = ReplacementKey { uuid: Default::default(), signer: marker };
            pool.cancel_bundle(Cancellation { key, nonce: None, holder: Holder::Host });
            let deadline = Instant::now() + PATIENCE;
            loop {
                let watched = watched.lock().expect("nobody panics with it");
                if watched.marker == marker {
                    hashes.retain(|hash| !watched.had.contains(hash) && !watched.has(hash));
                    break reply(hashes);
                }
                if Instant::now() >= deadline {
                    break Err(io::Error::other("the subscriber is not up to date"));
                }
                drop(watched);
                thread::sleep(POLL);
            }
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

/// What a subscriber has seen, as a builder would.
struct Watched {
    /// How old each transaction of the node was.
    ages: Histogram<u64>,
    /// What is there: by order, the hash and the block of a bundle or a private transaction.
    live: HashMap<B256, (B256, u64)>,
    /// What was there when the head before its block came, or until that block itself came.
    had: HashSet<B256>,
    /// The last cancellation's.
    marker: Address,
}

impl Watched {
    fn new() -> Self {
        let (live, had) = (HashMap::new(), HashSet::new());
        Self { ages: histogram(), live, had, marker: Address::ZERO }
    }

    fn has(&self, hash: &B256) -> bool {
        self.live.values().any(|(live, _)| live == hash)
    }

    fn see(&mut self, event: Event) {
        match event {
            Event::Added(order) => match &*order {
                Order::Tx(tx) if tx.origin() == Origin::Mempool => {
                    if let Ok(age) = SystemTime::now().duration_since(tx.first_seen()) {
                        self.ages.saturating_record(age.as_nanos() as u64);
                    }
                }
                Order::Tx(tx) => {
                    if let Some(terms) = tx.private_terms() {
                        self.live.insert(*tx.hash(), (*tx.hash(), terms.max_block));
                    }
                }
                Order::Bundle(bundle) => {
                    let block = bundle.block().unwrap_or_default();
                    self.live.insert(*order.id().hash(), (*bundle.hash(), block));
                }
                _ => {}
            },
            Event::Removed { order, reason } => {
                let was_live = self.live.remove(order.id().hash());
                if let Some((hash, _)) = was_live.filter(|_| reason == RemoveReason::BlockPassed) {
                    self.had.insert(hash);
                }
            }
            Event::Head(head) => {
                let next = self.live.values().filter(|(_, block)| *block == head.number + 1);
                self.had.extend(next.map(|(hash, _)| *hash));
            }
            Event::Cancelled(cancellation) => self.marker = cancellation.key.signer,
            _ => {}
        }
    }
}

fn watch(pool: &OrderPool, watched: Arc<Mutex<Watched>>) {
    let mut subscription = pool.subscribe_all();
    thread::spawn(move || {
        while let Some(event) = subscription.next_blocking() {
            let event = event.expect("a subscriber that keeps up misses nothing");
            watched.lock().expect("nobody panics with it").see(event);
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
