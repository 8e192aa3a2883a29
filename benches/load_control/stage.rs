//! Our side of a run: the parts wired as `Ingest` wires them (a monitor that is off is left out),
//! with a stopwatch between the fetcher and the pool, and what is watched while they run.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use mempool_ingest::{
    Fetcher, FetcherConfig, LoadMonitor, OrderPool, PoolConfig,
    load_control::{Gate, GateConfig, Limit, MonitorConfig},
    order_pool::{Upkeep, UpkeepConfig},
    txpool_fetcher::{Backfill, EndReason, Limits},
};
use mock_node::NodeConfig;
use testkit::{Timed, node::NodeProcess};

/// For parts to start, to stop, and to bring in everything: a flood takes seconds, and on a machine
/// that is busy with something else a minute must not be a failure.
const PATIENCE: Duration = Duration::from_mins(5);

/// Grain of the bench's own watching; it is no part of any latency.
const POLL: Duration = Duration::from_millis(5);

/// How much of the policy is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// Deferrable fetches may hold all slots, and nothing is deferred.
    Off,
    /// Deferrable fetches have their share of the slots and nothing more is done.
    SharesOnly,
    /// The defaults.
    On,
}

/// All parts, at work.
#[derive(Debug)]
pub(crate) struct Parts {
    pool: OrderPool,
    pub(crate) fetcher: Fetcher,
    gate: Gate,
    monitor: LoadMonitor,
    upkeep: Upkeep,
    pub(crate) sink: Timed,
    pub(crate) watched: Watched,
}

/// The most that was seen while it ran.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Watched {
    pub(crate) oldest: Duration,
    pressed: u32,
    looks: u32,
}

impl Watched {
    /// Of the looks at the monitor, those that found pressure.
    pub(crate) fn pressed_share(&self) -> f64 {
        f64::from(self.pressed) / f64::from(self.looks.max(1))
    }
}

impl Parts {
    pub(crate) async fn start(path: PathBuf, policy: Policy, backfill: Backfill) -> Self {
        // A run on a busy machine must not outlive its transactions: equal work is asserted.
        let tx_retention = Duration::from_mins(30);
        let pool = PoolConfig { tx_retention, ..PoolConfig::default() };
        let pool = OrderPool::new(pool).expect("a valid configuration");
        let enabled = policy == Policy::On;
        let monitor = MonitorConfig { enabled, ..MonitorConfig::default() };
        let monitor = LoadMonitor::new(monitor).expect("the defaults are valid");
        let requests = if policy == Policy::Off { Limit::Unlimited } else { Limit::Auto };
        let gate = Gate::new(GateConfig { requests, ..GateConfig::default() });
        let gate = gate.expect("the defaults are valid");
        let pressed = monitor.clone();
        let upkeep = Upkeep::start(&pool, UpkeepConfig::default(), move || pressed.is_pressed());
        let config = FetcherConfig {
            audit_interval: None,
            backfill,
            monitor: enabled.then(|| monitor.clone()),
            gate: Some(gate.clone()),
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
        let upkeep = upkeep.expect("a thread");
        Self { pool, fetcher, gate, monitor, upkeep, sink, watched: Watched::default() }
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
            let oldest = self.fetcher.deferred().oldest_age;
            let watched = &mut self.watched;
            watched.oldest = watched.oldest.max(oldest);
            watched.pressed += u32::from(self.monitor.is_pressed());
            watched.looks += 1;
            tokio::time::sleep(POLL).await;
        }
    }

    /// From the first announcement read to the last one in the pool.
    pub(crate) fn span(&self) -> Duration {
        let live = self.sink.live.lock().expect("nobody panics with it");
        let first = live.iter().map(|(at, _)| *at).min();
        let last = live.iter().map(|(at, latency)| *at + *latency).max();
        first.zip(last).map_or(Duration::ZERO, |(first, last)| last - first)
    }

    /// Exactly these are in the pool, and every hash has had its outcome.
    pub(crate) async fn check(&mut self, expected: &[&[B256]]) {
        let total: usize = expected.iter().map(|hashes| hashes.len()).sum();
        self.until(|parts| parts.fetcher.counts().pooled >= total as u64).await;
        self.until(|parts| parts.fetcher.counts().unfinished == 0).await;
        let counts = self.fetcher.counts();
        for hash in expected.iter().copied().flatten() {
            assert!(self.pool.contains(hash), "{hash} is not in the pool: {counts:?}");
        }
        assert_eq!((self.pool.len(), counts.pooled), (total, total as u64), "{counts:?}");
        assert_eq!((counts.failed, counts.refused, counts.gone), (0, 0, 0), "{counts:?}");
        assert_eq!(counts.balance(), 0, "a hash without an outcome: {counts:?}");
        // Each of them acquired a permit of the gate that external callers compete for.
        let internal = self.gate.stats().internal_admitted;
        assert!(internal > 0 && internal >= total as u64, "{internal} permits for {total}");
    }

    pub(crate) async fn stop(self) {
        let Self { pool: _pool, fetcher, upkeep, .. } = self;
        assert_eq!(fetcher.shutdown(PATIENCE).await.reason, EndReason::Stopped);
        assert!(upkeep.shutdown(PATIENCE).ended, "the upkeep has ended");
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
