//! Our side of a run: the parts wired as `Ingest` wires them (a monitor that is off is left out),
//! with a stopwatch between the fetcher and the pool, and what is watched while they run.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use hdrhistogram::Histogram;
use mempool_ingest::{
    Fetcher, FetcherConfig, LoadMonitor, OrderPool, OrderRpcConfig, PoolConfig,
    load_control::{Gate, GateConfig, Limit, MonitorConfig},
    order_pool::{Upkeep, UpkeepConfig},
    order_rpc::{Host, OrderRpc, OrderRpcHandle, SignatureMode},
    txpool_fetcher::{Backfill, Counts, EndReason, FetcherEnd, Limits},
};
use mock_node::{DEV_CHAIN_ID, NodeConfig};
use testkit::{
    Timed,
    figures::histogram,
    node::{Announced, NodeProcess},
};

use crate::Plan;

/// For parts to start, to stop, and to bring in everything: a flood takes seconds, and on a machine
/// that is busy with something else a minute must not be a failure.
const PATIENCE: Duration = Duration::from_mins(5);

/// Grain of the bench's own watching; it is no part of any latency.
const POLL: Duration = Duration::from_millis(5);

/// Requests in flight under [`Policy::FewRequests`]: an eighth of the external callers' connections. What the
/// clients' one thread sends within the time that one request takes is more, on any machine.
pub(crate) const FEW_REQUESTS: usize = 8;

/// More than external callers have signed ([`Plan`]), so that their share of the pool never ends.
const MAX_EXTERNAL_TXS: usize = 100_000;

/// The same in bytes: above ten kilobytes for each.
const MAX_EXTERNAL_TX_BYTES: usize = 1 << 30;

/// How much of the policy is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// Deferrable fetches may hold all slots, nothing is deferred, nobody is refused: external callers
    /// wait in one queue with internal work, as `unlimited` makes them.
    Off,
    /// Deferrable fetches have their share of the slots and nothing more is done.
    SharesOnly,
    /// The defaults.
    On,
    /// The defaults but for the outer gate, which lets so few in that external callers meet it.
    FewRequests,
    /// The defaults but for the gate, which lets everyone in: external callers wait for its permits in one
    /// queue with internal work. It is what an operator gets who sets `unlimited`.
    NoGate,
    /// As [`Self::NoGate`], but internal work acquires no permit and never waits in that queue. No operator
    /// can have it: it is here so that nothing is made to look good by the queue alone.
    NoLine,
}

impl Policy {
    const fn has_monitor(self) -> bool {
        match self {
            Self::On | Self::FewRequests | Self::NoGate | Self::NoLine => true,
            Self::Off | Self::SharesOnly => false,
        }
    }

    const fn requests(self) -> Limit {
        match self {
            Self::Off | Self::NoGate | Self::NoLine => Limit::Unlimited,
            Self::SharesOnly | Self::On => Limit::Auto,
            Self::FewRequests => Limit::Number(FEW_REQUESTS),
        }
    }
}

/// What is started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) policy: Policy,
    pub(crate) backfill: Backfill,
    pub(crate) rpc: bool,
}

/// All parts, at work.
#[derive(Debug)]
pub(crate) struct Parts {
    policy: Policy,
    pub(crate) pool: OrderPool,
    pub(crate) fetcher: Fetcher,
    pub(crate) gate: Gate,
    monitor: LoadMonitor,
    rpc: Option<OrderRpcHandle>,
    upkeep: Upkeep,
    sink: Timed,
    watched: Watched,
}

/// All callers are at one address, and are to meet the gate alone.
fn unbounded_callers() -> OrderRpcConfig {
    let config = OrderRpcConfig::new(DEV_CHAIN_ID);
    let most = config.max_connections;
    config
        .with_signatures(SignatureMode::Off)
        .with_peer_quota(None)
        .with_max_connections_per_peer(most)
        .with_max_requests_per_peer(1 << 20)
}

/// The most that was seen while it ran.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Watched {
    pub(crate) oldest: Duration,
    pub(crate) pressed: u32,
    pub(crate) looks: u32,
}

impl Parts {
    pub(crate) async fn start(path: PathBuf, setup: Setup) -> Self {
        let Setup { policy, backfill, rpc } = setup;
        // A run on a busy machine must not outlive its transactions: equal work is asserted.
        // Nothing leaves it: all that was accepted is compared with what the pool holds.
        let pool = PoolConfig {
            tx_retention: Duration::from_mins(30),
            max_external_txs: MAX_EXTERNAL_TXS,
            max_external_tx_bytes: MAX_EXTERNAL_TX_BYTES,
            ..PoolConfig::default()
        };
        let pool = OrderPool::new(pool).expect("a valid configuration");
        let enabled = policy.has_monitor();
        let monitor = MonitorConfig { enabled, ..MonitorConfig::default() };
        let monitor = LoadMonitor::new(monitor).expect("the defaults are valid");
        let gate = Gate::new(GateConfig { requests: policy.requests(), ..GateConfig::default() });
        let gate = gate.expect("the defaults are valid");
        let pressed = monitor.clone();
        let upkeep = Upkeep::start(&pool, UpkeepConfig::default(), move || pressed.is_pressed());
        let config = FetcherConfig {
            audit_interval: None,
            backfill,
            monitor: enabled.then(|| monitor.clone()),
            gate: (policy != Policy::NoLine).then(|| gate.clone()),
            ..FetcherConfig::ipc(path)
        };
        let mut limits = Limits::default();
        if policy == Policy::Off {
            limits.deferrable_slots = Some(config.fetch_slots);
            limits.deferrable_connections = config.request_connections;
        }
        let sink = Timed::new(pool.clone());
        let fetcher =
            Fetcher::start_with(config, limits, sink.clone()).await.expect("the node is there");
        let rpc = rpc.then(|| {
            let host = Host::new(pool.clone(), gate.clone())
                .with_monitor(monitor.clone())
                .with_readiness(fetcher.readiness());
            OrderRpc::start(unbounded_callers(), host).expect("a free port")
        });
        let upkeep = upkeep.expect("a thread");
        let watched = Watched::default();
        Self { policy, pool, fetcher, gate, monitor, rpc, upkeep, sink, watched }
    }

    pub(crate) fn rpc(&self) -> &OrderRpcHandle {
        self.rpc.as_ref().expect("it was asked for")
    }

    /// Watches until `end` holds.
    ///
    /// # Panics
    /// If it does not within [`PATIENCE`].
    pub(crate) async fn until(&mut self, end: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !end(self) {
            let status = || (self.fetcher.counts(), self.fetcher.status());
            assert!(Instant::now() < deadline, "not reached: {:?}", status());
            self.look();
            tokio::time::sleep(POLL).await;
        }
    }

    fn look(&mut self) {
        let waits = self.rpc.as_ref().and_then(OrderRpcHandle::deferral_stats);
        let oldest = waits.map_or(Duration::ZERO, |waits| waits.oldest_age);
        let watched = &mut self.watched;
        watched.oldest = watched.oldest.max(oldest).max(self.fetcher.deferred().oldest_age);
        watched.pressed += u32::from(self.monitor.is_pressed());
        watched.looks += 1;
    }

    /// Latencies of what was announced in between.
    pub(crate) fn live(&self, from: Instant, to: Instant) -> Histogram<u64> {
        let mut latencies = histogram();
        for (at, latency) in self.sink.live.lock().expect("nobody panics with it").iter() {
            if (from..to).contains(at) {
                latencies.saturating_record(latency.as_nanos() as u64);
            }
        }
        latencies
    }

    /// From the first announcement read to the last one in the pool.
    pub(crate) fn span(&self) -> Duration {
        let live = self.sink.live.lock().expect("nobody panics with it");
        let first = live.iter().map(|(at, _)| *at).min();
        let last = live.iter().map(|(at, latency)| *at + *latency).max();
        first.zip(last).map_or(Duration::ZERO, |(first, last)| last - first)
    }

    /// Fetches and raw transactions that had to wait.
    pub(crate) fn deferred(&self) -> u64 {
        let waits = self.rpc.as_ref().and_then(OrderRpcHandle::deferral_stats);
        self.fetcher.deferred().deferred + waits.map_or(0, |waits| waits.deferred)
    }

    /// By the outer gate and by the inner one.
    pub(crate) fn refused(&self) -> [u64; 2] {
        let stats = self.gate.stats();
        [stats.requests_refused, stats.work_refused]
    }

    pub(crate) const fn watched(&self) -> Watched {
        self.watched
    }

    /// Exactly these are in the pool, and so many of external callers; every hash has had its outcome.
    pub(crate) async fn check(&mut self, expected: &[&[B256]], external: usize) {
        let total: usize = expected.iter().map(|hashes| hashes.len()).sum();
        self.until(|parts| parts.fetcher.counts().pooled >= total as u64).await;
        self.until(|parts| parts.fetcher.counts().unfinished == 0).await;
        let counts = self.fetcher.counts();
        for hash in expected.iter().copied().flatten() {
            assert!(self.pool.contains(hash), "{hash} is not in the pool: {counts:?}");
        }
        assert_eq!(self.pool.len(), total + external, "in the pool: {counts:?}");
        assert_eq!(counts.pooled, total as u64, "{counts:?}");
        assert_eq!((counts.failed, counts.refused, counts.gone), (0, 0, 0), "{counts:?}");
        assert_eq!(counts.balance(), 0, "a hash without an outcome: {counts:?}");
        // Each of them acquired a permit of the gate that external callers compete for.
        let internal = self.gate.stats().internal_admitted;
        match self.policy {
            Policy::NoLine => assert_eq!(internal, 0, "past the gate"),
            _ => {
                assert!(internal > 0 && internal >= total as u64, "{internal} permits for {total}")
            }
        }
    }

    pub(crate) async fn stop(self) -> Counts {
        let Self { pool: _pool, fetcher, upkeep, rpc, .. } = self;
        if let Some(rpc) = rpc {
            rpc.shutdown(PATIENCE).await.expect("nobody is cut off");
        }
        let FetcherEnd { reason, counts, .. } = fetcher.shutdown(PATIENCE).await;
        assert_eq!(reason, EndReason::Stopped);
        assert!(upkeep.shutdown(PATIENCE).ended, "the upkeep has ended");
        counts
    }
}

/// A node with so many pending, and their hashes. They are the same in all runs: what a run announced is mined at its
/// end, so that the node is signed full only once.
pub(crate) fn node(preload: usize) -> (NodeProcess, Vec<B256>) {
    let mut node = NodeProcess::spawn().expect("the node's process starts");
    let preloaded = node.start(|config| NodeConfig { preload, ..config }).expect("the node starts");
    assert_eq!(preloaded.len(), preload);
    (node, preloaded)
}

/// Says so if the announcements ended before what they stand beside: what is printed as live latency is
/// then of a part of it. The quick pass prints no figures to go by.
pub(crate) fn warn_if_short(announced: &Announced, plan: &Plan, policy: Policy) {
    if let (Some(short), false) = (announced.short, plan.is_test) {
        println!(
            "warning: under {policy:?} all {} announcements were made {:.1} s before the load ended",
            announced.count,
            short.as_secs_f64()
        );
    }
}
