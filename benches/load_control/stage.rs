//! Our side of a run: the parts wired as `Ingest` wires them (a monitor that is off is left out),
//! with a stopwatch between the fetcher and the pool.

use std::{path::PathBuf, time::Duration};

use alloy_primitives::B256;
use mempool_ingest::{
    Fetcher, FetcherConfig, LoadMonitor, OrderPool, PoolConfig,
    load_control::{Gate, GateConfig, Limit, MonitorConfig},
    order_pool::{Upkeep, UpkeepConfig},
    txpool_fetcher::{Backfill, EndReason, Limits},
};
use testkit::{
    Timed,
    ingest::{PATIENCE, settled},
};

#[derive(Debug)]
pub(crate) struct Parts {
    pool: OrderPool,
    pub(crate) fetcher: Fetcher,
    gate: Gate,
    upkeep: Upkeep,
    pub(crate) sink: Timed,
}

impl Parts {
    /// With the policy off, deferrable fetches may hold all slots, and nothing is deferred.
    pub(crate) async fn start(path: PathBuf, policy: bool, backfill: Backfill) -> Self {
        // A run on a busy machine must not outlive its transactions: equal work is asserted.
        let tx_retention = Duration::from_mins(30);
        let pool = PoolConfig { tx_retention, ..PoolConfig::default() };
        let pool = OrderPool::new(pool).expect("a valid configuration");
        let monitor = LoadMonitor::new(MonitorConfig::default()).expect("the defaults are valid");
        let requests = if policy { Limit::Auto } else { Limit::Unlimited };
        let gate = Gate::new(GateConfig { requests, ..GateConfig::default() });
        let gate = gate.expect("the defaults are valid");
        let pressed = monitor.clone();
        let upkeep = Upkeep::start(&pool, UpkeepConfig::default(), move || pressed.is_pressed());
        let config = FetcherConfig {
            audit_interval: None,
            backfill,
            monitor: policy.then_some(monitor),
            gate: Some(gate.clone()),
            ..FetcherConfig::ipc(path)
        };
        let mut limits = Limits::default();
        if !policy {
            limits.deferrable_slots = Some(config.fetch_slots);
            limits.deferrable_connections = config.request_connections;
        }
        let sink = Timed::new(pool.clone());
        let fetcher =
            Fetcher::start_with(config, limits, sink.clone()).await.expect("the node is there");
        Self { pool, fetcher, gate, upkeep: upkeep.expect("a thread"), sink }
    }

    /// Exactly these are in the pool, and every hash has had its outcome.
    pub(crate) async fn check(&self, expected: &[B256]) {
        let total = expected.len();
        settled(&self.fetcher, "all pooled", |counts| counts.pooled >= total as u64).await;
        let counts = self.fetcher.counts();
        for hash in expected {
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
